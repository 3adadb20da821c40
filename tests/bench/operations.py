"""What there is to compute, a table a family: how much each operation must move, and what it is given."""

from __future__ import annotations

from typing import NamedTuple


class Operation(NamedTuple):
    """How often arrays of x's size, and of the output's, must be read or written, and what is given besides x, dy."""

    of_x: int
    of_y: int
    given: tuple[str, ...] = ()
    state: int = 0  # bytes besides for each element of the output: winners, norms and masks
    scale: int = 1  # of an image's height and width, in the output
    title: str = ""  # in a table, if not the operation's own name
    by_value: bool = True  # whether another library comes to the same result


_AFFINE, _WEIGHTS = ("gamma", "beta"), ("w",)

POOLING = {
    "avg_pool": Operation(1, 1),
    "avg_pool_grad": Operation(1, 1),
    "max_pool": Operation(1, 1),
    "max_pool_grad": Operation(1, 1, state=1),
    "l2_pool": Operation(1, 1),
    "l2_pool_grad": Operation(2, 1, state=4),
}
# By statistics, and by windows.
NORMALIZATION = {
    "bn_stats": Operation(1, 0, _AFFINE),
    "bn_normalize": Operation(1, 1, _AFFINE),
    "bn_stats_grad": Operation(1, 1, _AFFINE),
    "bn_grad": Operation(2, 1, _AFFINE),
    "bn_forward": Operation(2, 1, _AFFINE, title="bn_stats + bn_normalize"),
    "bn_backward": Operation(3, 2, _AFFINE, title="bn_stats_grad + bn_grad"),
    "bn_relu_normalize": Operation(1, 1, _AFFINE, title="bn_normalize relu"),
    "bn_relu_grad": Operation(2, 1, _AFFINE, title="bn_grad relu"),
    "bn_relu_forward": Operation(2, 1, _AFFINE, title="bn_stats + bn_normalize relu"),
    "bn_relu_backward": Operation(3, 2, _AFFINE, title="bn_stats_grad + bn_grad relu"),
    "instance_norm": Operation(2, 1, _AFFINE),
    "instance_norm_grad": Operation(3, 2, _AFFINE),
    "group_norm": Operation(2, 1, _AFFINE),
    "group_norm_grad": Operation(3, 2, _AFFINE),
    "cross_channel_norm": Operation(1, 1),
    "cross_channel_norm_grad": Operation(2, 1),
    "spatial_norm": Operation(1, 1),
    "spatial_norm_grad": Operation(2, 1),
    "local_contrast_norm": Operation(1, 1),
    "local_contrast_norm_grad": Operation(2, 1),
}
CONVOLUTION = {
    "conv": Operation(1, 1, _WEIGHTS),
    "conv_grad_input": Operation(1, 1, _WEIGHTS),
    "conv_grad_weights": Operation(1, 1, _WEIGHTS),
    "conv_grad_weights_vjp": Operation(1, 1, _WEIGHTS, title="conv_grad_weights by mx.vjp"),
    "fully_connected": Operation(1, 1, _WEIGHTS),
    "fully_connected_grad_input": Operation(1, 1, _WEIGHTS),
    "fully_connected_grad_weights": Operation(1, 1, _WEIGHTS),
}
POINTWISE = {
    "relu": Operation(1, 1),
    "relu_grad": Operation(1, 2),
    "gelu": Operation(1, 1),
    "gelu_grad": Operation(1, 2),
    "softmax": Operation(1, 1),
    "softmax_grad": Operation(1, 2),
    "log_softmax": Operation(1, 1),
    "log_softmax_grad": Operation(1, 2),
    "dropout": Operation(1, 1, by_value=False),
    "dropout_grad": Operation(1, 1, by_value=False),
    "dropout_masked": Operation(1, 1, ("mask",), 1, title="dropout mask"),
    "dropout_masked_grad": Operation(1, 1, ("mask",), 1, title="dropout_grad mask"),
    "upsample_bilinear": Operation(1, 1, scale=2),
    "upsample_bilinear_grad": Operation(1, 1, scale=2),
    "upsample_asymmetric": Operation(1, 1, scale=2, title="upsample_bilinear asymmetric"),
    "upsample_asymmetric_grad": Operation(1, 1, scale=2, title="upsample_bilinear_grad asymmetric"),
    "upsample_nearest": Operation(1, 1, scale=2),
    "upsample_nearest_grad": Operation(1, 1, scale=2),
    "cross_entropy": Operation(1, 1, ("labels",), title="loss softmax_cross_entropy"),
    "cross_entropy_dense": Operation(2, 1, ("targets",), title="loss softmax_cross_entropy dense"),
    "add": Operation(2, 1, ("other",)),
    "multiply": Operation(2, 1, ("other",)),
    "multiply_grad": Operation(2, 1, ("other",), title="arithmetic_grad multiply"),
    "multiply_channels": Operation(1, 1, ("factors",), title="multiply by channel"),
    "multiply_channels_grad": Operation(1, 1, ("factors",), title="arithmetic_grad multiply by channel"),
}

FAMILIES = {"pooling": POOLING, "normalization": NORMALIZATION, "convolution": CONVOLUTION, "pointwise": POINTWISE}
OPERATIONS = {op: operation for family in FAMILIES.values() for op, operation in family.items()}


def named(names: list[str]) -> list[str]:
    """The operations that names of operations and families stand for.

    Raises:
        ValueError: A name is neither.
    """
    found: list[str] = []
    for name in names:
        if name not in OPERATIONS and name not in FAMILIES:
            raise ValueError(f"no operation or family {name}; families are {', '.join(FAMILIES)}")
        found += FAMILIES.get(name, (name,))
    return found
