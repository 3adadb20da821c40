"""Local correlations and their gradients by either image: of a form in two images and a cotangent, one for each.

``sum_p sum_k dy[p, k] sum_c x[p, c] y[p + d_k, c]`` is linear in each of the three. `correlate` is its gradient with
respect to the cotangent, and `spread` those with respect to the two images, so that the derivatives of each are the
other two.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import grids, launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Tangents, operation, over_batches, tangent_of
from mpsfunc.image.params import LocalCorrelationParams

_RUN, _OFFSETS = 4, 3  # columns and offsets that threads share, as correlation.h has them


class Spec(NamedTuple):
    """Statics of local correlations.

    Fields:
        params: Windows, strides, and by which image a gradient is.
        stream: Where everything runs.
    """

    params: LocalCorrelationParams
    stream: mx.Stream

    @property
    def features(self) -> int:
        """Offsets, each of which is a feature."""
        return (2 * self.params.window_y + 1) * (2 * self.params.window_x + 1)

    def by(self, secondary: int) -> Spec:
        """That of a gradient with respect to the primary image, or the secondary one."""
        return self._replace(params=self.params._replace(secondary=secondary))

    def runs(self, width: int) -> int:
        """Runs of columns in a row of so many, as correlation.h cuts them."""
        abreast = min(self.params.stride_x, width)
        each = -(-width // abreast)
        return int(abreast * -(-each // _RUN))


@operation("local_correlation")
def correlate(x: mx.array, y: mx.array, spec: Spec) -> mx.array:
    """The correlations of x with the neighbours in y, of ``spec.by(0)``."""
    n, height, width, channels = x.shape
    p = spec.params
    result = (n, height, width, spec.features), x.dtype

    def kernels() -> tuple[KernelLaunch, ...]:
        vector_width = grids.vector_width(x.dtype, channels, x.size)
        sharing = min(8, grids.power_of_two(-(-channels // vector_width)))
        tiles = (2 * p.window_y + 1) * -(-(2 * p.window_x + 1) // _OFFSETS)
        (across, _, _), group = grids.sharing_threads(height * spec.runs(width) * tiles, sharing)
        down = min(n, max(1, -(-8 * grids.FILL * 256 // across)))
        names, template = ("primary", "secondary"), (("V", vector_width), ("R", sharing))
        return (KernelLaunch("local_correlation", names, ("y",), (result,), (across, down, 1), group, p, template),)

    return launch.launch("local_correlation", {"primary": x, "secondary": y}, p, (result,), kernels, spec.stream)[0]


@correlate.vjp
def _correlate_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (x, y), dy = arrays, cotangents[0]
    return spread(dy, y, spec), spread(dy, x, spec.by(1))


@correlate.jvp
def _correlate_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    (x, y), (tx, ty) = arrays, tangents
    return tangent_of(
        (tx, lambda t: correlate(t, y, spec)),
        (ty, lambda t: correlate(x, t, spec)),
    )


correlate.vmap(over_batches(correlate))


@operation("local_correlation_grad")
def spread(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """The gradient by one image, from the other one, x."""
    n, height, width, channels = x.shape
    result = x.shape, x.dtype

    def kernels() -> tuple[KernelLaunch, ...]:
        vector_width = grids.vector_width(x.dtype, channels, min(x.size, dy.size))
        grid, group = grids.threads(spec.runs(width) * (channels // vector_width), height, n)
        names, template = ("dy", "x"), (("V", vector_width),)
        return (KernelLaunch("local_correlation_grad", names, ("dx",), (result,), grid, group, spec.params, template),)

    return launch.launch("local_correlation_grad", {"dy": dy, "x": x}, spec.params, (result,), kernels, spec.stream)[0]


@spread.vjp
def _spread_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, x), t = arrays, cotangents[0]
    by_primary = spec.params.secondary == 0
    images = (t, x) if by_primary else (x, t)
    return correlate(*images, spec.by(0)), spread(dy, t, spec.by(int(by_primary)))


@spread.jvp
def _spread_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    (dy, x), (tdy, tx) = arrays, tangents
    return tangent_of(
        (tdy, lambda t: spread(t, x, spec)),
        (tx, lambda t: spread(dy, t, spec)),
    )


spread.vmap(over_batches(spread))
