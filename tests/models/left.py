"""What conversion leaves of mlx.nn, and why. Whatever is not told here has a drop-in, and no network may keep it."""

from __future__ import annotations

import mlx.nn as nn

_VOLUMES = "volumes; our functions take sequences and images"
_QUANTIZED = "quantized weights; mlx's product reads them as they are"
_SHARDED = "weights that lie in several processes"
_POSITIONS = "positions in a text"
_HOLDS = "holds layers, which are converted"

# Layers of mlx.nn without a drop-in.
WITHOUT = {
    "Module": "the base of all",
    "Identity": "computes nothing",
    "RMSNorm": "our norms have no RMS norm",
    "Embedding": "looks up rows of a table",
    "Bilinear": "a product of two inputs",
    "RNN": "recurrent",
    "GRU": "recurrent",
    "LSTM": "recurrent",
    "ALiBi": _POSITIONS,
    "RoPE": _POSITIONS,
    "SinusoidalPositionalEncoding": _POSITIONS,
    "MultiHeadAttention": _HOLDS,
    "Transformer": _HOLDS,
    "TransformerDecoder": _HOLDS,
    "TransformerDecoderLayer": _HOLDS,
    "TransformerEncoder": _HOLDS,
    "TransformerEncoderLayer": _HOLDS,
    "AvgPool3d": _VOLUMES,
    "MaxPool3d": _VOLUMES,
    "Conv3d": _VOLUMES,
    "ConvTranspose3d": _VOLUMES,
    "Dropout3d": _VOLUMES,
    "QQLinear": _QUANTIZED,
    "QuantizedEmbedding": _QUANTIZED,
    "QuantizedLinear": _QUANTIZED,
    "AllToShardedLinear": _SHARDED,
    "ShardedToAllLinear": _SHARDED,
    "FullyShardedModule": _SHARDED,
    "QuantizedAllToShardedLinear": _SHARDED,
    "QuantizedShardedToAllLinear": _SHARDED,
}
# Why layers that have a drop-in may stay MLX's in a network, as `convert` says it. No network needs a reason so far.
REASONS: frozenset[str] = frozenset()


def layers() -> dict[str, type[nn.Module]]:
    """The layers of mlx.nn, by name."""
    return {name: kind for name, kind in vars(nn).items() if isinstance(kind, type) and issubclass(kind, nn.Module)}
