"""metal/shared/geometry.h, compiled as C++, against brute force over the definition of an Axis."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpsfunc.windows.axis import Axis
from mpsfunc.windows.placement import place
from mpsfunc.windows.policy import PaddingPolicy

METAL = Path(__file__).parents[2] / "metal"
TWO_INTS = ("source", "target", "reads", "edge_source", "edge_tap", "taps_on_count")
ONE_INT = (
    "selected", "first", "tap_begin", "tap_end", "reader_begin", "reader_end", "divisor", "taps",
    "edge_tap_begin", "edge_tap_end", "edge_reader_begin", "edge_reader_end", "hangs_over", "onto_image",
)  # fmt: skip
FAR = 2**30


def taps(axis: Axis, o: int) -> list[int]:
    """The positions that output o reads, inside the image or not."""
    if axis.edge == 3:
        return [
            i for i in range(axis.n_in) if (i + 1) * axis.n_out > o * axis.n_in and i * axis.n_out < (o + 1) * axis.n_in
        ]
    return [o * axis.stride - axis.pad + k * axis.dilation for k in range(axis.size)]


class Geometry:
    """The functions of geometry.h, called as ``geometry.source(axis, o, k)``."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = getattr(self._library, f"geometry_{name}")
        packed = ctypes.c_int * (2 * len(Axis._fields))  # as the second axis of two, so that params_as is covered

        def call(axis: Axis, *ints: int) -> int:
            return int(function(packed(*[0] * len(axis), *axis), *ints))

        return call


@pytest.fixture(scope="session")
def geometry(tmp_path_factory: pytest.TempPathFactory) -> Geometry:
    folder = tmp_path_factory.mktemp("geometry")
    calls = [(name, "int a, int b", "a, b") for name in TWO_INTS] + [(name, "int a", "a") for name in ONE_INT]
    field = {"taps_on_count": ("taps_on", ".count")}
    code = "".join(
        f'extern "C" int geometry_{name}(const int* params, {declared}) '
        f"{{ const Axis axis = params_as<PoolParams>(params).cols; "
        f"return {field.get(name, (name, ''))[0]}(axis, {passed}){field.get(name, ('', ''))[1]}; }}\n"
        for name, declared, passed in calls
    )
    (folder / "geometry.cpp").write_text(f'#include "pooling/params.h"\n{code}')
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-std=c++17", "-shared", "-fPIC", "-fwrapv", f"-I{METAL}", "geometry.cpp", "-o", "geometry.so"]
    subprocess.run(command, cwd=folder, check=True)
    return Geometry(folder / "geometry.so")


def random_axis(choose: random.Random) -> Axis:
    n_out = choose.randint(0, 7)
    begin = choose.randint(0, n_out) if choose.random() < 0.5 else 0
    end = choose.randint(begin, n_out) if choose.random() < 0.5 else n_out
    edge = choose.randint(0, 1)
    return Axis(
        n_in=choose.randint(0, 9),
        n_out=n_out,
        size=choose.randint(1, 5),
        stride=choose.randint(1, 5),
        dilation=choose.randint(1, 4),
        pad=choose.randint(-12, 12),
        edge=edge,
        zero_pad=edge * choose.randint(0, 4),
        begin=begin,
        end=end,
        zero_pad_after=edge * choose.randint(0, 4),
    )


def even_axis(choose: random.Random) -> Axis:
    """Windows that part the image evenly."""
    axis, _ = place("avg_pool", (choose.randint(1, 15), 1), "adaptive", out_size=choose.randint(1, 15))
    begin = choose.randint(0, axis.n_out) if choose.random() < 0.5 else 0
    return axis._replace(begin=begin, end=choose.randint(begin, axis.n_out))


def check_edges(geometry: Geometry, axis: Axis) -> None:
    """What maxima and norms read: with edge 1 the nearest pixel for a tap outside, with 2 and 3 nothing."""
    outputs = range(axis.n_out)
    read = {o: {} for o in outputs}
    for o in outputs:
        for k, i in enumerate(taps(axis, o)):
            nearest = min(max(i, 0), axis.n_in - 1)
            at = nearest if axis.edge == 1 else i if i == nearest else -1
            assert geometry.edge_source(axis, o, k) == at, (axis, o, k)
            if at >= 0:
                assert geometry.onto_image(axis, i) == at
                read[o][k] = at
        window = range(geometry.edge_tap_begin(axis, o), geometry.edge_tap_end(axis, o))
        assert list(window) == list(read[o]), (axis, o)
        hangs = axis.edge == 0 and len(read[o]) < len(taps(axis, o))
        assert bool(geometry.hangs_over(axis, o)) == hangs, (axis, o)
        for k in range(len(taps(axis, o)), axis.size):
            assert geometry.edge_source(axis, o, k) == -1, (axis, o, k)
    for i in range(axis.n_in):
        readers = [o for o in outputs if axis.begin <= o < axis.end and i in read[o].values()]
        asked = range(geometry.edge_reader_begin(axis, i), geometry.edge_reader_end(axis, i))
        assert set(readers) <= set(asked) <= set(range(axis.begin, axis.end)), (axis, i)
        for o in outputs:
            on = [k for k, at in read[o].items() if at == i]
            assert geometry.edge_tap(axis, o, i) == (on[0] if on else -1), (axis, o, i)
            assert geometry.taps_on_count(axis, o, i) == len(on), (axis, o, i)


def check_outputs(geometry: Geometry, axis: Axis, outputs: range) -> None:
    for o in outputs:
        positions = taps(axis, o)
        inside = [k for k, i in enumerate(positions) if 0 <= i < axis.n_in]
        counted = [i for i in positions if -axis.zero_pad <= i <= axis.n_in - 1 + axis.zero_pad_after]
        assert geometry.first(axis, o) == positions[0]
        assert bool(geometry.selected(axis, o)) == (axis.begin <= o < axis.end)
        assert list(range(geometry.tap_begin(axis, o), geometry.tap_end(axis, o))) == inside, (axis, o)
        assert geometry.taps(axis, o) == len(positions)
        assert geometry.divisor(axis, o) == (len(counted) if axis.edge else axis.size), (axis, o)
        for k, i in enumerate(positions if axis.edge != 3 else []):
            assert geometry.source(axis, o, k) == (i if k in inside else -1), (axis, o, k)


def check_inputs(geometry: Geometry, axis: Axis, inputs: range, outputs: range) -> None:
    """``outputs`` holds every output that could read one of ``inputs``."""
    for i in inputs:
        spanning = [o for o in outputs if axis.begin <= o < axis.end and taps(axis, o)[0] <= i <= taps(axis, o)[-1]]
        readers = range(geometry.reader_begin(axis, i), geometry.reader_end(axis, i))
        assert list(readers) == spanning, (axis, i)
        for o in spanning:
            assert bool(geometry.reads(axis, o, i)) == (i in taps(axis, o)), (axis, o, i)
        for k in range(axis.size if axis.edge != 3 else 0):
            found = [o for o in outputs if axis.begin <= o < axis.end and taps(axis, o)[k] == i]
            assert geometry.target(axis, i, k) == (found[0] if found else -1), (axis, i, k)


def test_geometry_equals_brute_force(geometry: Geometry) -> None:
    choose = random.Random(2)
    for _ in range(2500):
        axis = random_axis(choose)
        check_outputs(geometry, axis, range(axis.n_out))
        check_inputs(geometry, axis, range(axis.n_in), range(axis.n_out))


def test_even_windows_equal_brute_force(geometry: Geometry) -> None:
    choose = random.Random(3)
    for _ in range(1000):
        axis = even_axis(choose)
        check_outputs(geometry, axis, range(axis.n_out))
        check_inputs(geometry, axis, range(axis.n_in), range(axis.n_out))
        check_edges(geometry, axis)


def test_edges_of_maxima_equal_brute_force(geometry: Geometry) -> None:
    choose = random.Random(4)
    for _ in range(2500):
        axis = random_axis(choose)
        if axis.n_in > 0:
            check_edges(geometry, axis._replace(edge=choose.randint(0, 2), zero_pad=0, zero_pad_after=0))


def test_even_windows_do_not_overflow(geometry: Geometry) -> None:
    axis, _ = place("op", (FAR - 1, 1), "adaptive", out_size=(FAR - 2, 1))
    assert geometry.first(axis, FAR - 3) == FAR - 3 and geometry.taps(axis, FAR - 3) == 2
    assert geometry.reader_begin(axis, FAR - 2) == FAR - 3 and geometry.reader_end(axis, FAR - 2) == FAR - 2


@pytest.mark.parametrize(
    "how",
    [
        {"offset": 1, "out_size": 1, "stride": FAR - 1},
        {"offset": FAR // 2 - 1, "out_size": 1, "kernel_size": 2, "dilation": FAR - 2},
        {"offset": FAR - 6, "out_size": 3, "stride": 1},
        {"offset": -FAR + 3, "out_size": 3, "stride": FAR - 3},
        {"n_in": (FAR - 1, FAR - 1), "offset": 2 - FAR, "out_size": 3, "stride": FAR - 3},
        {"n_in": (FAR - 9, FAR - 9), "stride": FAR // 2, "padding": 4, "edge_mode": "clamp", "zero_pad": 8},
        {"offset": 2 - FAR, "out_size": 1, "edge_mode": "clamp", "zero_pad": FAR - 6},
        {"offset": 2 - FAR, "out_size": 1, "edge_mode": "clamp", "zero_pad": ((0, FAR - 6), (FAR - 6, 0))},
        {"offset": FAR - 3, "out_size": 1, "edge_mode": "clamp", "zero_pad": ((0, FAR - 6), (FAR - 6, 0))},
    ],
)
def test_geometry_does_not_overflow_within_reach(geometry: Geometry, how: dict[str, Any]) -> None:
    defaults = {"n_in": (5, 5), "kernel_size": 3, "edge_modes": ("zero", "clamp"), "zero_pad": 0}
    axis, _ = place("op", **(defaults | how))
    outputs = range(axis.n_out)
    check_outputs(geometry, axis, outputs)
    check_inputs(geometry, axis, range(min(3, axis.n_in)), outputs)
    check_inputs(geometry, axis, range(max(0, axis.n_in - 3), axis.n_in), outputs)


@pytest.mark.parametrize(
    ("edge_mode", "zero_pad", "divisors"),
    [
        ("zero", 0, [3, 3, 3]),
        ("clamp", 0, [2, 3, 1]),
        ("clamp", 1, [3, 3, 2]),
        ("clamp", (0, (1, 0)), [3, 3, 1]),
        ("clamp", (0, (0, 1)), [2, 3, 2]),
        ("clamp", (9, (0, 9)), [2, 3, 3]),
    ],
)
def test_divisors_worked_example(geometry: Geometry, edge_mode: str, zero_pad: Any, divisors: list[int]) -> None:
    how: Any = {"edge_mode": edge_mode, "edge_modes": ("zero", "clamp"), "zero_pad": zero_pad}
    _, cols = place("avg_pool", (4, 4), 3, stride=2, padding=1, ceil_mode=True, **how)
    assert [geometry.divisor(cols, o) for o in range(cols.n_out)] == divisors


def test_caffe_divides_by_taps_within_image_and_padding(geometry: Geometry) -> None:
    policy = PaddingPolicy(remainder="bottom_right", exclude_edges=True)
    rows, _ = place("avg_pool", (8, 8), 3, padding=policy, zero_pad=0)
    assert [geometry.divisor(rows, o) for o in range(3)] == [3, 3, 2]
