"""Calls of every public function on fixed numbers, and what came of them where every definition was tested.

They are in `calls.json`, made of the records that the test suite has of the functions; a few sums of each result are
kept there, of the float64 kernels of the C++ module, which the test suite compares with definitions in NumPy. So a
machine without the test suite, and a GPU that no developer has seen, can be compared with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.numpy_later import np
from mpsfunc.selftest.expressions import Array, Call, arrays, evaluated, results, unpacked

KEPT = Path(__file__).with_name("calls.json")
TOLERANCE = 2e-5  # of the sum of magnitudes; one wrong entry of a thousand is a thousandth


_KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "numbers": lambda a: 2 * a,
    "positive": lambda a: a + 1.5,
    "shares": lambda a: a * 0.4375 + 0.5,
    "bools": lambda a: a > -0.25,
    "bytes": lambda a: np.floor((a + 1) * 128),
}


class Checked(NamedTuple):
    """A call, and what should come of it.

    Fields:
        name: The function's, and what is special about the call.
        family: Of the function.
        call: The call.
        derivatives: Whether its tangent and the derivative of its gradient are computed besides.
        sums: Of each array that comes back; none yet where they are about to be kept.
    """

    name: str
    family: str
    call: Call
    derivatives: bool
    sums: tuple[tuple[float, ...], ...] = ()

    def computed(self, dtype: mx.Dtype) -> list[mx.array]:
        """The arrays that come back, on the default device."""
        made = 0

        def draw(a: Array) -> mx.array:
            nonlocal made
            made += 1
            return _drawn(a, dtype, zlib.crc32(f"{self.name} {made}".encode()) % 9973)

        out = list(results(evaluated(self.call, draw, dtype)))
        return out + self._derivatives(dtype) if self.derivatives else out

    def _derivatives(self, dtype: mx.Dtype) -> list[mx.array]:
        """The tangent, and the derivative of the gradient, which have kernels of their own."""
        specs = list(arrays(self.call))
        inputs, ways = (
            [_drawn(a, dtype, zlib.crc32(f"{self.name} {what} {i}".encode()) % 9973) for i, a in enumerate(specs)]
            for what in ("at", "along")
        )

        def function(*given: mx.array) -> list[mx.array]:
            left = iter(given)

            def draw(a: Array) -> mx.array:
                return next(left) if a.argument else _drawn(a, dtype, 7)

            made = results(evaluated(self.call, draw, dtype))
            return [y for y in made if mx.issubdtype(y.dtype, mx.floating)]

        def gradient(of: Callable[..., mx.array], at: list[mx.array]) -> list[mx.array]:
            return mx.vjp(lambda *given: [of(*given)], at, [mx.array(1.0, at[0].dtype)])[1]

        def slope(*given: mx.array) -> mx.array:
            pulled = gradient(lambda *some: _total(function(*some)), list(given))
            return _total([g * way for g, way in zip(pulled, ways, strict=True)])

        _, tangents = mx.jvp(function, inputs, ways)
        return [*tangents, *gradient(slope, inputs)]


def _total(values: list[mx.array]) -> mx.array:
    """A scalar whose derivatives exist and differ; what is normalized would have a sum that does not move."""
    total = mx.array(0.0, values[0].dtype)
    for i, y in enumerate(values):
        weights = mx.array(numbers(y.size, 11 + i).reshape(y.shape)).astype(y.dtype, stream=mx.cpu)
        total = total + (weights * y * (y * 0.25 + 1)).sum()
    return total


def _drawn(a: Array, dtype: mx.Dtype, seed: int) -> mx.array:
    """Numbers that every machine makes alike, and float32 holds exactly."""
    values = numbers(int(np.prod(a.shape)), seed).reshape(a.shape)
    made = _KINDS[a.of](values)
    return mx.array(made).astype(a.dtype(dtype), stream=mx.cpu)


def numbers(count: int, seed: int) -> np.ndarray:
    """Between -1 and 1, multiples of 2 to the power -15."""
    bits = (np.arange(count, dtype=np.uint64) + np.uint64(1000003 * seed)) * np.uint64(2654435761) >> np.uint64(8)
    return np.asarray((bits % np.uint64(65521)).astype(np.float64) / 32768 - 1)


def kept() -> list[Checked]:
    """The calls of the file."""
    return [
        Checked(
            each["name"], each["family"], unpacked(each["call"]), each["derivatives"], tuple(map(tuple, each["sums"]))
        )
        for each in json.loads(KEPT.read_text())
    ]


class Family(NamedTuple):
    """What became of a family's calls."""

    name: str
    calls: int
    wrong: tuple[str, ...]  # by name, with what was found
    error: str = ""  # what ended it


def test(device: mx.Device) -> Iterator[Family]:
    """Runs every family on a device.

    Args:
        device: Where.

    Yields:
        What became of each.
    """
    calls = kept()
    runs: list[tuple[str, str, Any]] = [(family, family, _ours) for family in dict.fromkeys(c.family for c in calls)]
    if device == mx.Device(mx.gpu):
        _compile_ahead(device, calls)
        runs.append(("convolution, by the vendor's library", "convolution", contextlib.nullcontext))
    for title, family, kernels in runs:
        own, wrong = [call for call in calls if call.family == family], []
        try:
            with kernels(), _uncompiled(), mx.stream(device):
                for call in own:
                    found = [sums(a) for a in call.computed(mx.float32)]
                    offs = [_off(f, k) for f, k in zip(found, call.sums, strict=True)]
                    if far := [off for off in offs if not off <= TOLERANCE]:  # NaN is far, too
                        wrong.append(f"{call.name}: off by {far[0]:.1e}")
        except Exception as error:  # a stranger's machine may fail in any way, and shall say how
            yield Family(title, 0, (), f"{type(error).__name__}: {error}")
        else:
            yield Family(title, len(own), tuple(wrong))


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """Without kernels that MLX would make of its own operations, a second or so each: none of them is ours."""
    mx.disable_compile()
    try:
        yield
    finally:
        mx.enable_compile()


def _compile_ahead(device: mx.Device, calls: list[Checked]) -> None:
    """Kernels for NVIDIA, which would take minutes one by one; what fails here is reported by its family."""
    with contextlib.suppress(Exception), _ours(), _uncompiled(), mx.stream(device):
        if launch.backend(launch.resolve(None)) == "cuda":
            launch.compiled_ahead(lambda: [call.computed(mx.float32) for call in calls])


def sums(a: mx.array) -> list[float]:
    """The sum of magnitudes, and three sums with weights."""
    flat = np.array(a.astype(mx.float32) if a.dtype in (mx.bool_, mx.bfloat16) else a).astype(np.float64).ravel()
    return [float(abs(flat).sum()), *(float(flat @ numbers(flat.size, -seed % 997)) for seed in (1, 2, 3))]


def _off(found: list[float], right: tuple[float, ...]) -> float:
    return max(abs(f - k) for f, k in zip(found, right, strict=True)) / max(right[0], 1e-3)


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    """Our own kernels, where the vendor's would be taken."""
    before = os.environ.get("MPSFUNC_DETERMINISTIC")
    os.environ["MPSFUNC_DETERMINISTIC"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["MPSFUNC_DETERMINISTIC"]
        else:
            os.environ["MPSFUNC_DETERMINISTIC"] = before
