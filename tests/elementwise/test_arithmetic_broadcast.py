"""Arithmetic and comparison broadcast as NumPy does: shapes, values, gradients of every kind, and numbers."""

from __future__ import annotations

import itertools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, numbers, same_bits

import mpsfunc as mf
from mpsfunc.channels import broadcast

OPERATIONS: dict[str, Any] = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}
IMAGES = (2, 3, 4, 5)
PAIRS = [
    *[(IMAGES, other) for other in ((5,), (), (1,), (4, 5), (4, 1), (3, 1, 5), (3, 4, 5), (1, 5), (2, 1, 1, 5))],
    ((2, 1, 4, 1), (3, 1, 5)),
    ((7,), ()),
    ((3, 1), (4,)),
    ((2, 3, 4), (3, 1)),
    ((2, 3, 1, 4, 5), (4, 5)),
    ((2, 3, 2, 2, 4, 5), (5,)),
    ((2, 3, 2, 2, 4, 5), (2, 2, 4, 5)),
    ((0, 3, 4, 5), (5,)),
    ((2, 3, 4, 5), (0, 1, 1, 1, 5)),
]


def operands(x: tuple[int, ...], y: tuple[int, ...], dtype: mx.Dtype = mx.float64) -> tuple[mx.array, mx.array]:
    second = numbers(y, dtype, 1)
    return numbers(x, dtype), mx.where(mx.abs(second) < 0.5, second + 1, second).astype(dtype)


@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("shapes", PAIRS, ids=str)
def test_shapes_and_values_are_those_of_numpy(device: mx.Device, dtype: mx.Dtype, shapes: Any, turned: bool) -> None:
    x, y = operands(*(reversed(shapes) if turned else shapes), dtype)
    for name, of_numpy in OPERATIONS.items():
        right = 2 * of_numpy(exact(x), exact(y)) + 1
        made = mf.arithmetic(x, y, name, primary_scale=2.0, bias=1.0, secondary_scale=1.0 if name != "add" else 2.0)
        if name == "subtract":
            made, right = mf.subtract(x, y, bias=1.0), exact(x) - exact(y) + 1
        assert made.shape == right.shape
        size = np.abs(2 * of_numpy(np.abs(exact(x)), np.abs(exact(y)))) + 1
        close(made, right, size, slack=4)
    assert mf.compare(x, y, "less").tolist() == (exact(x) < exact(y)).astype(float).tolist()


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("shapes", [pair for pair in PAIRS if 0 not in pair[0] + pair[1]], ids=str)
def test_gradients_of_every_kind(on_cpu: mx.Device, shapes: Any, name: str) -> None:
    for x, y in (operands(*shapes), operands(*reversed(shapes))):
        how: dict[str, Any] = {"primary_scale": 1.5, "secondary_scale": -0.75, "bias": 0.25}

        def run(x: mx.array, y: mx.array, how: Any = how) -> mx.array:
            return mf.arithmetic(x, y, name, **how)

        dy = numbers(run(x, y).shape, mx.float64, 2)
        _, pulled = mx.vjp(run, [x, y], [dy])
        for i, operand in enumerate(("primary", "secondary")):
            explicit = mf.arithmetic_grad(dy, x, y, name, operand=operand, **how)
            assert explicit.shape == (x, y)[i].shape
            np.testing.assert_allclose(exact(explicit), exact(pulled[i]), rtol=1e-13, atol=1e-13)
            # By a difference along one direction, which for these is exact to its second order.
            along, step = numbers((x, y)[i].shape, mx.float64, 3 + i), 1e-5
            ends = [run(*((a + s * step * along) if j == i else a for j, a in enumerate((x, y)))) for s in (1, -1)]
            slope = ((ends[0] - ends[1]) * dy).sum().item() / (2 * step)
            assert (explicit * along).sum().item() == pytest.approx(slope, rel=1e-6, abs=1e-6)
            _, (pushed,) = mx.jvp(lambda a, i=i, x=x, y=y: run(*((a, y) if i == 0 else (x, a))), [(x, y)[i]], [along])
            assert (pushed * dy).sum().item() == pytest.approx((explicit * along).sum().item(), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", ["multiply", "divide"])
def test_second_derivatives(on_cpu: mx.Device, name: str) -> None:
    x, y = operands(IMAGES, (5,))

    def squares(y: mx.array) -> mx.array:
        return (mf.arithmetic(x, y, name) ** 2).sum()

    twice = mx.grad(lambda y: mx.grad(squares)(y).sum())(y)
    of_x = exact(x * x).sum((0, 1, 2))
    np.testing.assert_allclose(exact(twice), 2 * of_x if name == "multiply" else 6 * of_x / exact(y) ** 4, rtol=1e-12)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_mapped(on_cpu: mx.Device, axes: tuple[int | None, int | None]) -> None:
    x, y = operands((3, *IMAGES), (3, 5))
    given = [a if axis == 0 else a[0] for a, axis in zip((x, y), axes, strict=True)]
    made = mx.vmap(mf.multiply, in_axes=axes)(*given)
    gradients = mx.grad(lambda x, y: mf.multiply(x, y).square().sum(), argnums=(0, 1))
    grads = mx.vmap(gradients, in_axes=axes)(*given)
    for i in range(3):
        one = [a[i] if axis == 0 else a for a, axis in zip(given, axes, strict=True)]
        assert same_bits(made[i], mf.multiply(*one))
        for a, b in zip(grads, gradients(*one), strict=True):
            np.testing.assert_allclose(exact(a[i]), exact(b), rtol=1e-13)


def test_strides_of_images_go_with_other_ranks(on_cpu: mx.Device) -> None:
    x, y = operands(IMAGES, (5,))
    made = mf.add(x, y, primary_stride=(0, 1, 1))
    np.testing.assert_array_equal(exact(made), exact(x[:, :1]) + exact(y))
    dx = mf.arithmetic_grad(mx.ones(made.shape, mx.float64), x, y, "add", primary_stride=(0, 1, 1))
    assert dx.shape == x.shape and dx[:, 1:].tolist() == mx.zeros((2, 2, 4, 5)).tolist()
    with pytest.raises(ValueError, match="^add: only images have strides; got secondary_stride="):
        mf.add(x, y, secondary_stride=(1, 1, 0))


LARGE: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *(((50_000, 50_000), other) for other in ((), (50_000,), (1, 50_000), (50_000, 1), (1, 1, 1))),
    *(((3, 50_000, 50_000), other) for other in ((), (50_000,), (50_000, 1), (50_000, 50_000))),
    *(((3, 50_000, 50_000), other) for other in ((3, 1, 1), (3, 1, 50_000), (1, 50_000, 1))),
    ((3, 1, 50_000), (50_000, 1)),
    ((2, 2, 3, 50_000, 50_000), ()),
    ((2, 2, 3, 50_000, 50_000), (50_000,)),
]


@pytest.mark.parametrize("shapes", LARGE, ids=str)
def test_large_arrays_lie_in_a_batch(shapes: Any) -> None:
    for x, y in (shapes, shapes[::-1]):
        made = broadcast.together("add", x, y)
        assert made.shape == np.broadcast_shapes(x, y)
        images = broadcast.result_shape((made.first, made.second), made.batch)
        assert broadcast.sized("add", "output shape", images) == images
        assert np.prod(images, dtype=np.int64) == np.prod(made.shape, dtype=np.int64)
        for own, part, per in ((x, made.first, made.pers[0]), (y, made.second, made.pers[1])):
            assert np.prod(part, dtype=np.int64) == np.prod(own, dtype=np.int64)
            assert made.batch % (part[0] * per) == 0


SMALL = [(tuple(min(n, 13) for n in x), tuple(min(n, 13) for n in y)) for x, y in LARGE]


@pytest.mark.parametrize("shapes", SMALL, ids=str)
def test_values_and_gradients_in_a_batch(device: mx.Device, monkeypatch: pytest.MonkeyPatch, shapes: Any) -> None:
    """As where an image may have no more than 160 elements."""
    monkeypatch.setattr(broadcast, "_MOST", 160)
    caches = broadcast.layout, broadcast.together
    for cache in caches:
        cache.cache_clear()
    try:
        for x, y in (operands(*shapes, mx.float32), operands(*reversed(shapes), mx.float32)):
            made = mf.multiply(x, y)
            assert made.tolist() == (exact(x).astype(np.float32) * exact(y).astype(np.float32)).tolist()
            dy = numbers(made.shape, mx.float32, 2)
            _, (dx,) = mx.vjp(lambda x, y=y: x * y, [x], [dy])
            np.testing.assert_allclose(exact(mf.arithmetic_grad(dy, x, y, "multiply")), exact(dx), rtol=1e-5, atol=1e-5)
            mapped = mx.vmap(mf.multiply)(mx.stack([x, 2 * x]), mx.stack([y, y]))
            assert mx.array_equal(mapped, mx.stack([made, 2 * made]))
            mapped = mx.vmap(mf.multiply, in_axes=(None, 0))(x, mx.stack([y, 2 * y]))
            assert mx.array_equal(mapped, mx.stack([made, 2 * made]))
    finally:
        for cache in caches:
            cache.cache_clear()


# Numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [3, 0.5, np.float16(0.5), np.float32(2.5), np.float64(-1.5), np.int32(3), np.uint8(2)]
)
def test_numbers_take_the_dtype_of_the_images(device: mx.Device, dtype: mx.Dtype, number: Any) -> None:
    x = numbers(IMAGES, dtype)
    as_array = mx.array(float(number)).astype(dtype)
    for name, turned in itertools.product(OPERATIONS, (False, True)):
        both, same = ((number, x), (as_array, x)) if turned else ((x, number), (x, as_array))
        made = mf.arithmetic(*both, name)
        assert made.dtype == dtype and same_bits(made, mf.arithmetic(*same, name))
        for operand in ("primary", "secondary"):
            dy = numbers(IMAGES, dtype, 2)
            ours, theirs = (mf.arithmetic_grad(dy, *pair, name, operand=operand) for pair in (both, same))
            assert same_bits(ours, theirs) and ours.dtype == dtype
    assert same_bits(mf.compare(x, number, "less"), mf.compare(x, as_array, "less"))


def test_numbers_beside_integers() -> None:
    with mx.stream(mx.cpu):
        large = mx.array(np.array([2**63 - 1, 2**63, 2**64 - 1], np.uint64))
        assert mf.compare(large, 2**63).tolist() == mf.compare(large, np.uint64(2**63)).tolist() == [0, 1, 0]
        assert mf.compare(2**64 - 1, large, "greater").tolist() == [1, 1, 0]
        assert mf.compare(mx.array([-(2**63), 0], mx.int64), -(2**63)).tolist() == [1, 0]
        labels = mx.array([1, 2, 255], mx.uint8)
        assert mf.compare(labels, 2, "less_equal").tolist() == [1, 1, 0]
        for wrong, error in ((256, ValueError), (-1, ValueError), (2.5, TypeError)):
            with pytest.raises(error, match="^compare: y is "):
                mf.compare(labels, wrong)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_numbers_without_an_end(on_cpu: mx.Device, value: float) -> None:
    x = numbers((3,))
    assert str(mf.add(x, value).tolist()) == str([value] * 3)


@pytest.mark.parametrize(
    ("dtype", "held", "beyond"),
    [
        (mx.float16, 65504, 1e5),
        (mx.bfloat16, 3.3895313892515355e38, 3.4e38),
        (mx.float32, 3.4028234663852886e38, 1e40),
        (mx.float64, 1e40, 2**1024),
        (mx.float64, 2**1023, np.longdouble("1e400")),
    ],
    ids=["float16", "bfloat16", "float32", "float64", "a longdouble"],
)
def test_numbers_that_a_dtype_holds(on_cpu: mx.Device, dtype: mx.Dtype, held: Any, beyond: Any) -> None:
    x = mx.array([1.0, 0.5], dtype)
    for sign in (1, -1):
        assert mf.multiply(x, sign * held).tolist() == [sign * float(held), sign * float(held) / 2]
        assert mf.compare(sign * held, x, "less").tolist() == [float(sign < 0)] * 2
        if isinstance(beyond, np.longdouble) and np.isinf(beyond):
            continue  # this machine's are no longer than floats
        for run in (mf.multiply, mf.compare):
            with pytest.raises(
                ValueError, match=": y is out of range; got y=.*, expected what [bfloat]+[0-9]+ holds, "
            ):
                run(x, sign * beyond)


def test_what_does_not_fit_is_refused() -> None:
    x = numbers(IMAGES)
    for other in ((4,), (2, 5), (3, 3, 5)):
        with pytest.raises(ValueError, match="^add: operands do not fit; got y.shape="):
            mf.add(x, mx.ones(other))
    with pytest.raises(ValueError, match="^multiply: too many axes; got y.shape="):
        mf.multiply(mx.ones((2, 1, 2, 1, 2)), mx.ones((1, 2, 1, 2, 1)))
    for both in ((1.0, 2.0), (x, None), (x, "1"), (x, True), (x, [1.0]), (x, np.ones(5)), (x, 1j)):
        with pytest.raises(TypeError, match="^add: [xy] is not "):
            mf.add(*both)
    with pytest.raises(ValueError, match="^add: y is out of range; got y="):
        mf.add(x, 1e300)


@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "divide"])
def test_derivatives_of_nothing_with_something_that_is_shared(operation: Any, device: mx.Device) -> None:
    function, none, y = getattr(mf, operation), mx.zeros((0, 4)), mx.ones(4)
    slope = mx.grad(lambda y: function(none, y).sum())
    assert not mx.any(mx.grad(lambda y: slope(y).sum())(y)).item()
    many = mx.vmap(mx.grad(lambda y, x: function(x, y).sum()))(mx.ones((2, 4)), mx.zeros((2, 0, 4)))
    assert many.shape == (2, 4) and not mx.any(many).item()
