"""The C++ primitives of activations by themselves: every kind, order, dtype and instruction set."""

from __future__ import annotations

import math
import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from generic.ops.neuron import EVERY, Told, activation, spread
from support import DTYPES, accumulator, close, exact, numbers, same_bits
from support.oracle import activation as oracle

import mpsfunc as mf
from mpsfunc.channels.activation_spec import NAMES, Activation
from mpsfunc.core.params import for_cpu

_primitives = pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its C++ module")

ORDERS = {
    "neuron": oracle.neuron,
    "neuron_grad": oracle.slope,
    "neuron_grad_grad": oracle.curvature,
}
# A lane, a broken vector, more than is widened at a time and a rest of it, and more than one chunk.
SIZES = (1, 13, 1030, 17000)
each = pytest.mark.parametrize(("name", "told"), EVERY, ids=[f"{name}{told}" for name, told in EVERY])


def run(op: str, arrays: list[mx.array], act: Activation) -> mx.array:
    x = arrays[0]
    return getattr(_primitives, op)(arrays, for_cpu(act), [list(x.shape)], [x.dtype], mx.cpu)[0]


def of(name: str, told: Told, x: np.ndarray, op: str = "neuron", dtype: mx.Dtype = mx.float32) -> np.ndarray:
    """f, f' or f'' of some numbers."""
    ones = [mx.ones(x.shape, dtype)] * list(ORDERS).index(op)
    return exact(run(op, [*ones, mx.array(x, dtype)], activation(name, told)))


def known(told: Told) -> dict[str, float]:
    return dict(zip("abc", told, strict=False))


@each
@pytest.mark.parametrize("op", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_formula(isa: str, dtype: mx.Dtype, op: str, name: str, told: Told) -> None:
    for size in SIZES:
        x, count = spread((size,), dtype), list(ORDERS).index(op)
        x = mx.minimum(x, 4) if dtype == mx.float16 else x  # whose powers it still holds
        gradients = [numbers((size,), dtype, 1 + i) for i in range(count)]
        y = run(op, [*gradients, x], activation(name, told))
        factor = np.prod([exact(g) for g in gradients], axis=0) if gradients else 1.0
        right = factor * ORDERS[op](exact(x), name, **known(told))
        # An exponent is rounded, and a value that is a sum has the size of its terms.
        close(y, right, abs(factor) * 4 + abs(right) * (1 + abs(exact(x))), slack=4)


@pytest.mark.parametrize("a", [0.0, 0.25])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slope_of_a_result(isa: str, dtype: mx.Dtype, a: float) -> None:
    for size in SIZES:
        y = run("neuron", [spread((size,), dtype)], activation("relu", (a,)))
        dy = numbers((size,), dtype, 1)
        dz = run("neuron_grad_from_output", [dy, y], activation("relu", (a,)))
        slope = np.where(exact(y) < 0 if a else exact(y) <= 0, a, 1)
        close(dz, exact(dy) * slope, abs(exact(dy)), slack=4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 7, 64), (40, 1030), (1300, 13)], ids=str)
def test_slopes_of_channels(isa: str, shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    x, dy = spread(shape, dtype), numbers(shape, dtype, 1)
    slopes = numbers(shape[-1:], accumulator(dtype), 2)
    bent = np.where(exact(x) < 0, exact(slopes), 1)
    close(run("neuron", [x, slopes], Activation(NAMES.index("prelu"))), bent * exact(x))
    close(run("neuron_grad", [dy, x, slopes], Activation(NAMES.index("prelu"))), bent * exact(dy))


# How exact ------------------------------------------------------------------------------------------------


def places(got: np.ndarray, right: np.ndarray) -> float:
    """The largest error in units of the last place of a normal float32."""
    unit = np.spacing(np.maximum(abs(right), np.finfo(np.float32).tiny).astype(np.float32)).astype(np.float64)
    return float((abs(got - right) / unit).max())


def _float32(low: float, high: float) -> np.ndarray:
    """Evenly spread numbers, and as many of every size below."""
    rng = np.random.default_rng(0)
    small = np.exp(rng.uniform(-80, 0, 20000)) * rng.choice([low, high], 20000)
    return np.concatenate([rng.uniform(low, high, 60000), small]).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize(
    ("name", "told", "low", "high", "limit"),
    [
        ("sigmoid", (), -87, 87, 3),
        ("tanh", (1.0, 1.0), -30, 30, 2),
        ("softplus", (1.0, 1.0), -87, 87, 3),
        ("softplus", (2.0, -4.0), -20, 20, 3),
        ("softsign", (), -1e30, 1e30, 2),
        ("elu", (1.0,), -87, 87, 2),
        ("power", (1.0, 0.0, 3.5), 0, 1e10, 2),
        ("power", (1.0, 0.0, -0.3), 1e-30, 1e30, 2),
        ("power", (1.0, 0.0, 2.0), -1e15, 1e15, 1),
        ("exponential", (1.0, 0.0, -1.0), -87, 88, 1),
        ("logarithm", (1.0, 0.0, -1.0), 1e-38, 1e38, 1),
        ("gelu", (), -13, 13, 7),
        ("silu", (1.0,), -80, 87, 5),
        ("silu", (1.702,), -50, 87, 100),  # the fast gelu
        ("mish", (), -80, 87, 6),
        ("gelu_tanh", (), -3, 13, 16),  # an exponent of -7 is rounded, and below others that are larger
        ("gelu_tanh", (), -13, 13, 220),
        ("celu", (0.5,), -87, 87, 3),
        ("selu", (), -87, 87, 3),
        ("hard_swish", (), -2.9, 87, 4),
    ],
    ids=str,
)
def test_values_to_the_last_places(isa: str, name: str, told: Told, low: float, high: float, limit: float) -> None:
    x = _float32(low, high)
    x = x[(x > 0) | (low < 0)]
    assert places(of(name, told, x), oracle.neuron(x, name, **known(told))) <= limit


@pytest.mark.parametrize(
    ("name", "told", "limit"),
    [
        ("sigmoid", (), 5),
        ("tanh", (1.0, 1.0), 5),
        ("elu", (1.0,), 2),
        ("softsign", (), 4),
        ("celu", (0.5,), 2),
        ("selu", (), 3),
        ("hard_swish", (), 2),
    ],
)
def test_slopes_to_the_last_places(isa: str, name: str, told: Told, limit: float) -> None:
    """Far from 0 too, where 1 less a value that is almost 1 would be left with few digits."""
    x = _float32(-40, 40)
    right = {
        "sigmoid": lambda x: np.exp(-abs(x)) / (1 + np.exp(-abs(x))) ** 2,
        "tanh": lambda x: 1 / np.cosh(x) ** 2,
    }.get(name, lambda x: oracle.slope(x, name, **known(told)))
    assert places(of(name, told, x, "neuron_grad"), right(x)) <= limit


def test_gelus_to_the_last_places_near_zero(isa: str) -> None:
    """Where they are polynomials of pieces; the slope of a gelu is a difference, and its error that of the terms."""
    x = np.arange(-4, 4, 2**-14).astype(np.float32).astype(np.float64)
    limit = 4 if isa.startswith(("avx512", "amx")) else 6
    assert places(of("gelu", (), x), oracle.neuron(x, "gelu")) <= limit
    below = np.vectorize(math.erfc)(abs(x) / math.sqrt(2)) / 2
    size = np.spacing((below + abs(x) * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)).astype(np.float32))
    wrong = abs(of("gelu", (), x, "neuron_grad") - oracle.slope(x, "gelu"))
    assert (wrong / np.maximum(size, np.where(x > 0, 2**-24, 0))).max() <= limit


@each
def test_no_number_depends_on_those_beside_it(isa: str, name: str, told: Told) -> None:
    """Vectors of small numbers may be computed in another way, but not these where others are large."""
    rng = np.random.default_rng(0)
    small = np.concatenate([np.linspace(-9, 9, 4001), rng.uniform(-4, 4, 4001)]).astype(np.float32)
    order = rng.permutation(len(small))
    for op in ORDERS:
        in_turn, mixed = of(name, told, np.sort(small), op), of(name, told, np.sort(small)[order], op)
        np.testing.assert_array_equal(in_turn[order], mixed)


def test_half_precision_rounds_once(isa: str) -> None:
    x = mx.arange(-65504, 65504, 7.0).astype(mx.float16) / 2048
    for name, told in EVERY:
        y = run("neuron", [x], activation(name, told))
        assert same_bits(y, run("neuron", [x.astype(mx.float32)], activation(name, told)).astype(mx.float16)), name


# Ends -----------------------------------------------------------------------------------------------------

INF, NAN = math.inf, math.nan
SPECIAL: dict[tuple[str, Told], dict[float, tuple[float, float, float]]] = {
    ("relu", (0.0,)): {-INF: (0, 0, 0), 0: (0, 1, 0), INF: (INF, 1, 0), NAN: (NAN, 1, 0)},
    ("relu", (0.5,)): {-INF: (-INF, 0.5, 0), 0: (0, 1, 0), INF: (INF, 1, 0), NAN: (NAN, 1, 0)},
    ("relu", (-2.0,)): {-INF: (INF, -2, 0), -1: (2, -2, 0), 0: (0, 1, 0)},
    ("sigmoid", ()): {-INF: (0, 0, 0), 0: (0.5, 0.25, 0), INF: (1, 0, 0), NAN: (NAN, NAN, NAN), 1e30: (1, 0, 0)},
    ("hard_sigmoid", (0.5, 0.5)): {
        -INF: (0, 0, 0),
        -1: (0, 0.5, 0),
        1: (1, 0.5, 0),
        1.25: (1, 0, 0),
        NAN: (NAN, 0.5, 0),
    },
    ("tanh", (2.0, 0.5)): {-INF: (-2, 0, 0), 0: (0, 1, 0), INF: (2, 0, 0), NAN: (NAN, NAN, NAN), 1e30: (2, 0, 0)},
    ("absolute", ()): {-INF: (INF, -1, 0), 0: (0, 0, 0), INF: (INF, 1, 0), NAN: (NAN, NAN, 0)},
    ("softplus", (1.0, 1.0)): {-INF: (0, 0, 0), INF: (INF, 1, 0), 1e30: (1e30, 1, 0), NAN: (NAN, NAN, NAN)},
    ("softplus", (1.0, -1.0)): {-INF: (INF, -1, 0), INF: (0, 0, 0), -1e30: (1e30, -1, 0)},
    ("softsign", ()): {-INF: (-1, 0, 0), 0: (0, 1, 0), INF: (1, 0, 0), 1e38: (1, 0, 0), NAN: (NAN, NAN, NAN)},
    ("elu", (2.0,)): {-INF: (-2, 0, 0), 0: (0, 1, 0), INF: (INF, 1, 0), NAN: (NAN, 1, 0), 1e30: (1e30, 1, 0)},
    ("elu", (0.0,)): {-INF: (0, 0, 0), -1: (0, 0, 0)},
    ("relun", (0.0, 6.0)): {
        -INF: (0, 0, 0),
        0: (0, 1, 0),
        5: (5, 1, 0),
        6: (6, 0, 0),
        INF: (6, 0, 0),
        NAN: (NAN, 1, 0),
    },
    ("relun", (-1.0, 2.0)): {-INF: (2, 0, 0), -3: (2, 0, 0), -1: (1, -1, 0)},
    ("power", (1.0, 0.0, 0.0)): {0: (1, 0, 0), -3: (1, 0, 0), INF: (1, 0, 0)},
    ("power", (1.0, 0.0, 1.0)): {0: (0, 1, 0), -3: (-3, 1, 0)},
    ("power", (1.0, 0.0, 2.0)): {0: (0, 0, 2), -3: (9, -6, 2), INF: (INF, INF, 2), NAN: (NAN, NAN, 2)},
    ("power", (1.0, 0.0, 3.0)): {-2: (-8, 12, -12), -INF: (-INF, INF, -INF)},
    ("power", (1.0, 0.0, 0.5)): {0: (0, INF, -INF), 4: (2, 0.25, -0.03125), -1: (NAN, NAN, NAN)},
    ("power", (1.0, 0.0, -1.0)): {0: (INF, -INF, INF), -2: (-0.5, -0.25, -0.25), INF: (0, 0, 0)},
    ("power", (0.0, 3.0, 2.0)): {7: (9, 0, 0)},
    ("exponential", (1.0, 0.0, -1.0)): {-INF: (0, 0, 0), 0: (1, 1, 1), INF: (INF, INF, INF), NAN: (NAN, NAN, NAN)},
    ("exponential", (1.0, 0.0, 1.0)): {5: (1, 0, 0)},
    ("logarithm", (1.0, 0.0, -1.0)): {0: (-INF, INF, -INF), 1: (0, 1, -1), INF: (INF, 0, 0), NAN: (NAN, NAN, NAN)},
    ("gelu", ()): {-INF: (0, 0, 0), 0: (0, 0.5, 2 / math.sqrt(2 * math.pi)), INF: (INF, 1, 0), NAN: (NAN, NAN, NAN)},
    ("silu", (1.0,)): {-INF: (0, 0, 0), 0: (0, 0.5, 0.5), INF: (INF, 1, 0), NAN: (NAN, NAN, NAN), 1e30: (1e30, 1, 0)},
    ("silu", (-2.0,)): {-INF: (-INF, 1, 0), 0: (0, 0.5, -1), INF: (0, 0, 0), -1e30: (-1e30, 1, 0)},
    ("hard_swish", ()): {
        -INF: (0, 0, 0),
        -3: (0, -0.5, 1 / 3),
        0: (0, 0.5, 1 / 3),
        3: (3, 1, 0),
        INF: (INF, 1, 0),
        NAN: (NAN, NAN, 1 / 3),
    },
    ("mish", ()): {-INF: (0, 0, 0), 0: (0, 0.6, 0.64), INF: (INF, 1, 0), NAN: (NAN, NAN, NAN), 1e30: (1e30, 1, 0)},
    ("gelu_tanh", ()): {
        -INF: (0, 0, 0),
        0: (0, 0.5, math.sqrt(2 / math.pi)),
        INF: (INF, 1, 0),
        NAN: (NAN, NAN, NAN),
        1e30: (1e30, 1, 0),
    },
    ("celu", (2.0,)): {-INF: (-2, 0, 0), 0: (0, 1, 0), INF: (INF, 1, 0), NAN: (NAN, 1, 0), 1e30: (1e30, 1, 0)},
    ("selu", ()): {-INF: (-1.7580993, 0, 0), 0: (0, 1.050701, 0), INF: (INF, 1.050701, 0), NAN: (NAN, 1.050701, 0)},
    ("hard_tanh", (-1.0, 2.0)): {
        -INF: (-1, 0, 0),
        -1: (-1, 1, 0),
        2: (2, 0, 0),
        INF: (2, 0, 0),
        NAN: (NAN, 1, 0),
    },
    ("hard_shrink", (0.5,)): {-INF: (-INF, 1, 0), -0.5: (0, 0, 0), 0.5: (0, 0, 0), INF: (INF, 1, 0), NAN: (NAN, 1, 0)},
    ("soft_shrink", (0.5,)): {-INF: (-INF, 1, 0), -0.5: (0, 0, 0), 0.5: (0, 1, 0), INF: (INF, 1, 0), NAN: (NAN, 0, 0)},
    ("relu2", ()): {-INF: (0, 0, 0), 0: (0, 0, 2), 3: (9, 6, 2), INF: (INF, INF, 2), NAN: (NAN, NAN, 2)},
    ("step", (0.5,)): {-INF: (0, 0, 0), 0.5: (1, 0, 0), INF: (1, 0, 0), NAN: (NAN, 0, 0)},
}


@pytest.mark.parametrize(("name", "told"), SPECIAL, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values(isa: str, dtype: mx.Dtype, name: str, told: Told) -> None:
    rows = {x: row for x, row in SPECIAL[name, told].items() if dtype != mx.float16 or not 1e5 < abs(x) < INF}
    for order, op in enumerate(ORDERS):
        made = of(name, told, np.array(list(rows)), op, dtype)
        np.testing.assert_allclose(made, [row[order] for row in rows.values()], rtol=8e-3, atol=1e-70, err_msg=op)


def test_the_page_names_what_has_a_slope_at_nan(on_cpu: mx.Device) -> None:
    page = (Path(__file__).parents[2] / "docs/families/activation.md").read_text(encoding="utf-8")
    told = page.partition("whose slope depends on comparisons alone:")[2].partition("Second derivatives")[0]
    slopes = {name: mf.neuron_grad(mx.array(1.0), mx.array(NAN), name).item() for name in NAMES if name != "prelu"}
    slopes["prelu"] = mf.prelu_grad(mx.ones(1), mx.array([NAN]), mx.array([0.25]))[0].item()
    known = {name for name, value in slopes.items() if not math.isnan(value)}
    assert set(re.findall(r"`(\w+)`", told)) == known | {"power"}  # whose exponent decides


def test_a_gradient_of_infinity_is_cut_too(isa: str) -> None:
    """0 slopes are no factors, of which infinity would make NaN."""
    dy, x = mx.full((3,), INF), mx.array([-2.0, 2.0, 20.0])
    for name, told, right in (("relu", (0.0,), [0, INF, INF]), ("relun", (0.0, 6.0), [0, INF, 0])):
        assert exact(run("neuron_grad", [dy, x], activation(name, told))).tolist() == right
    y = mx.array([0.0, 2.0, 20.0])
    assert exact(run("neuron_grad_from_output", [dy, y], activation("relu", (0.0,)))).tolist() == [0, INF, INF]


def test_gelu_keeps_its_digits_far_below_zero(isa: str) -> None:
    """x / 2 * (1 + erf(x / sqrt(2))) would be 0 from -6 on, and from -9 in double."""
    for dtype, where, digits in ((mx.float32, [-6.0, -9.0, -12.0], 1e-6), (mx.float64, [-9.0, -20.0, -37.0], 1e-12)):
        right = [x * 0.5 * math.erfc(-x / math.sqrt(2)) for x in where]
        np.testing.assert_allclose(of("gelu", (), np.array(where), dtype=dtype), right, rtol=digits)


# Derivatives ----------------------------------------------------------------------------------------------


@each
def test_each_derivative_is_the_difference_quotient_of_the_one_before(isa: str, name: str, told: Told) -> None:
    x = np.linspace(-3.3, 3.3, 61)
    corners = np.array(
        [0.0, 1.5, 2.0, -2.0, -0.5, 0.5, -1.5, 1.25, -3.0, 3.0]
    )  # kinks of the activations above, and where a power has a pole
    x = x[abs(x[:, None] - corners).min(1) > 0.05]
    step = 1e-5

    def f(op: str, x: np.ndarray) -> np.ndarray:
        return of(name, told, x, op, mx.float64)

    for op, derived in (("neuron", "neuron_grad"), ("neuron_grad", "neuron_grad_grad")):
        quotient = (f(op, x + step) - f(op, x - step)) / (2 * step)
        size = 1 + abs(f(op, x)) / step * 1e-15
        np.testing.assert_allclose(f(derived, x), quotient, rtol=1e-6, atol=1e-8 * size.max())


def test_empty_arrays(isa: str) -> None:
    none = mx.zeros((0, 3))
    for op, count in (("neuron", 1), ("neuron_grad", 2), ("neuron_grad_grad", 3)):
        assert run(op, [none] * count, activation("gelu", ())).shape == (0, 3)
    for shape in ((0, 3), (3, 0)):
        slopes = mx.zeros(shape[-1:])
        assert run("neuron", [mx.zeros(shape), slopes], Activation(NAMES.index("prelu"))).shape == shape
