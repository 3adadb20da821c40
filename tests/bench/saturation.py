"""Gradients of softmax and its logarithm in 16 bits near saturation: ours beside MLX's and PyTorch's.

``python -m tests.bench.saturation`` prints the table of docs/families/losses/softmax.md. Lines have ten
classes, of which one leads by so much that its probability is 1 less a gap; arguments and cotangents are what the dtype
has, and gradients of float64 are right. An error is that of an entry by the largest entry of its line's gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import mlx.core as mx
import mlx.nn
import numpy as np

import mpsfunc as mf

Array = np.ndarray
Errors = dict[str, tuple[float, float]]  # worst and root mean square

CLASSES, LINES = 10, 2000
GAPS = (0.1, 1e-2, 1e-3, 2.0**-9, 2.0**-11, 2.0**-12, 1e-5, 1e-8)
DTYPES = (mx.float16, mx.bfloat16)


def lines(gap: float, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    """Arguments whose softmax is 1 less about the gap at one place of each line, and cotangents.

    In half of the lines these are 1 at that place and 0 elsewhere, as those of a cross-entropy are.
    """
    random = np.random.default_rng(0)
    x, dy = random.normal(size=(LINES, CLASSES)), random.normal(size=(LINES, CLASSES))
    at = np.arange(LINES), random.integers(0, CLASSES, LINES)
    dy[::2] = 0
    dy[::2][np.arange(LINES // 2), at[1][::2]] = 1
    x[at] = -np.inf
    x[at] = np.log(np.exp(x).sum(-1)) + np.log((1 - gap) / gap)
    return mx.array(x).astype(dtype), mx.array(dy).astype(dtype)


def right(name: str, x: mx.array, dy: mx.array) -> Array:
    """The gradient in float64, without the difference of near numbers that its formula has."""
    wide, pulled = (np.array(a.astype(mx.float32)).astype(np.float64) for a in (x, dy))
    shares = np.exp(wide - wide.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    if name == "softmax":  # y[j] * sum of y[i] * (dy[j] - dy[i])
        return shares * np.einsum("ni,nji->nj", shares, pulled[:, :, None] - pulled[:, None, :])
    return pulled - shares * pulled.sum(-1, keepdims=True)


def errors(made: mx.array | Array, exact: Array) -> tuple[float, float]:
    """The worst and the root mean square of the errors."""
    numbers = np.array(made.astype(mx.float32)) if isinstance(made, mx.array) else made
    off = np.abs(numbers.astype(np.float64) - exact) / np.abs(exact).max(-1, keepdims=True)
    return float(off.max()), float(np.sqrt((off**2).mean()))


def pulled(function: Callable[[mx.array], mx.array], x: mx.array, dy: mx.array) -> mx.array:
    """The gradient by autodiff."""
    return mx.vjp(function, [x], [dy])[1][0]


def of_mlx(name: str, x: mx.array, dy: mx.array) -> Errors:
    """Ours by autodiff and by hand, and MLX's."""
    exact, ours, by_hand = right(name, x, dy), getattr(mf, name), getattr(mf, f"{name}_grad")
    theirs = functools.partial(getattr(mlx.nn, name), axis=-1)
    return {
        "ours": errors(pulled(ours, x, dy), exact),
        "by hand": errors(by_hand(dy, ours(x)), exact),
        "MLX": errors(pulled(theirs, x, dy), exact),
    }


def of_torch(name: str, x: mx.array, dy: mx.array) -> Errors:
    """PyTorch's, on the CPU."""
    import torch

    dtype = torch.float16 if x.dtype == mx.float16 else torch.bfloat16
    leaf, down = (torch.tensor(np.array(a.astype(mx.float32))).to(dtype) for a in (x, dy))
    leaf.requires_grad_()
    getattr(torch, name)(leaf, -1).backward(down)
    assert leaf.grad is not None
    return {"PyTorch": errors(leaf.grad.float().numpy(), right(name, x, dy))}


def main() -> None:
    with mx.stream(mx.cpu):
        for dtype in DTYPES:
            print(f"| {str(dtype).rpartition('.')[2]} | 1 - p | ours | by hand | MLX | PyTorch |")
            print("| --- | --- | --- | --- | --- | --- |")
            for name in ("softmax", "log_softmax"):
                for gap in GAPS:
                    given = lines(gap, dtype)
                    found = {**of_mlx(name, *given), **of_torch(name, *given)}
                    told = (f"{worst:.1e}, {usual:.1e}" for worst, usual in found.values())
                    print(f"| `{name}` | {gap:.2g} | {' | '.join(told)} |")
            print()


if __name__ == "__main__":
    main()
