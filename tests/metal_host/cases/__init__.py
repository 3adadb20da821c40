"""Small calls of public functions that together reach every kernel body in every way that its text can go.

To add a body, add calls that launch it: odd and vector channel counts, each dtype, an input of fewer than eight
elements (which Metal keeps in another address space), and a ``crowded`` one, where few threads have much to do.
"""

from __future__ import annotations

from metal_host.cases.activation import activations
from metal_host.cases.batch_normalization import batch_normalization
from metal_host.cases.convolution import convolution
from metal_host.cases.elementwise import elementwise
from metal_host.cases.image import images
from metal_host.cases.losses import losses
from metal_host.cases.normalization import normalization
from metal_host.cases.normalization_of_groups import group_statistics
from metal_host.cases.pooling import pooling

CASES = {
    case.name: case
    for case in (
        *pooling(),
        *batch_normalization(),
        *group_statistics(),
        *normalization(),
        *convolution(),
        *activations(),
        *elementwise(),
        *images(),
        *losses(),
    )
}
