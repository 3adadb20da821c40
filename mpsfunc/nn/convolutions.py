"""Drop-ins for the convolutions of mlx.nn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as stock

import mpsfunc as mf
from mpsfunc.convolution import along_a_line, convolution
from mpsfunc.core import checks
from mpsfunc.core.arguments import refuse
from mpsfunc.nn import folding, laying_out
from mpsfunc.nn.drop_in import Fusing, other

if TYPE_CHECKING:
    from mpsfunc.typing import PaddingMode


class _Convolution(Fusing):
    """With a margin that MLX's do not have."""

    is_linear = True
    takes_layouts = True
    adds_in_inference = True
    padding_mode: PaddingMode = "zeros"  # of a layer that was MLX's

    def __init__(self, *arguments: Any, padding_mode: PaddingMode) -> None:
        super().__init__(*arguments)
        if padding_mode != "zeros":
            self.padding_mode = padding_mode

    def beyond(self) -> str:
        """Another margin."""
        return other(padding_mode=(self.padding_mode, "zeros"))

    @classmethod
    def refuses(cls, layer: Any) -> str:
        """MLX's crops."""
        return "negative padding" if _negative(layer.padding) else ""


class _Transposed(Fusing):
    """With groups, which MLX's do not have."""

    is_linear = True
    groups: int = 1  # of a layer that was MLX's

    def __init__(self, op: str, in_channels: int, out_channels: int, *arguments: Any, groups: int) -> None:
        plain = checks.whole(op, "groups", groups)
        if in_channels % plain or out_channels % plain:
            rule = f"a divisor of {in_channels} and {out_channels}"
            refuse(op, "groups do not divide the channels", "groups", groups, rule)
        super().__init__(in_channels // plain, out_channels, *arguments)  # type: ignore[call-arg]  # MLX's is the next class
        if plain != 1:
            self.groups = plain

    def beyond(self) -> str:
        """Groups."""
        return other(groups=(self.groups, 1))

    def _extra_repr(self) -> str:
        """MLX's takes the channels of a group for those of the images."""
        channels, told = super()._extra_repr().split(", ", 1)
        return f"{int(channels) * self.groups}, {told}"

    @classmethod
    def refuses(cls, layer: Any) -> str:
        """More output padding than that adds pixels that no window reaches; MLX's crops where padding is negative."""
        if _negative(layer.padding) or _negative(layer.output_padding):
            return "negative padding"
        steps = zip(*map(_pair, (layer.output_padding, layer.stride, layer.dilation)), strict=True)
        return "an output padding of at least the stride" if any(more >= max(rest) for more, *rest in steps) else ""


class Conv2d(_Convolution, stock.Conv2d):
    """`mlx.nn.Conv2d` by `mpsfunc.conv`. The result has the dtype of the images.

    Args:
        padding_mode: By name only, in addition to the arguments of `mlx.nn.Conv2d`: values outside the image, "zeros",
            "reflect", "replicate" or "circular", as for `mpsfunc.conv` and PyTorch's layer. Default "zeros".

    Raises:
        ValueError: In a call: padding_mode is unknown, or the padding is too large for it.

    Example:
        >>> layer = Conv2d(3, 8, 3, stride=2, padding=1, padding_mode="reflect")
        >>> layer(mx.ones((2, 8, 8, 3))).shape
        (2, 4, 4, 8)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        padding_mode: PaddingMode = "zeros",
    ) -> None:
        arguments = kernel_size, stride, padding, dilation, groups, bias
        super().__init__(in_channels, out_channels, *arguments, padding_mode=padding_mode)

    def run(self, x: mx.array, neuron: mf.Neuron | None = None, add: mx.array | None = None) -> mx.array:
        """What a call computes with mpsfunc's functions: the convolution, plus ``add``, then the activation."""
        if add is not None:
            return folding.added(self, x, neuron, add)
        given = _given(self, "padding_mode")
        laid = laying_out.laid(self, x)
        if laid is None:
            return mf.conv(x, **given, neuron=neuron)
        return convolution.forward("conv", x, neuron=neuron, stream=None, keeping=False, laid=laid, **given)[0]


class ConvTranspose2d(_Transposed, stock.ConvTranspose2d):
    """`mlx.nn.ConvTranspose2d` by `mpsfunc.conv_transpose`. The result has the dtype of the images.

    Its output padding has the rule of that function: fewer pixels than stride or dilation.

    Args:
        groups: By name only, in addition to the arguments of `mlx.nn.ConvTranspose2d`: groups of channels that do not
            mix; the weights are (o, kh, kw, i / groups). Default 1.

    Raises:
        TypeError: groups is not an int.
        ValueError: groups is less than 1, or does not divide the channels of both sides.

    Example:
        >>> ConvTranspose2d(4, 8, 2, stride=2, groups=4)(mx.ones((2, 4, 4, 4))).shape
        (2, 8, 8, 8)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        output_padding: int | tuple[int, int] = 0,
        bias: bool = True,
        *,
        groups: int = 1,
    ) -> None:
        arguments = kernel_size, stride, padding, dilation, output_padding, bias
        super().__init__("ConvTranspose2d", in_channels, out_channels, *arguments, groups=groups)

    def run(self, x: mx.array, neuron: mf.Neuron | None = None) -> mx.array:
        return mf.conv_transpose(x, **_given(self, "output_padding"), neuron=neuron)


class Conv1d(_Convolution, stock.Conv1d):
    """`mlx.nn.Conv1d` by `mpsfunc.conv1d`. The result has the dtype of the sequences.

    Args:
        padding_mode: By name only, in addition to the arguments of `mlx.nn.Conv1d`: values outside the sequence,
            "zeros", "reflect", "replicate" or "circular", as for `mpsfunc.conv1d` and PyTorch's layer. Default "zeros".

    Raises:
        ValueError: In a call: padding_mode is unknown, or the padding is too large for it.

    Example:
        >>> Conv1d(3, 8, 3, stride=2, padding=1)(mx.ones((2, 8, 3))).shape
        (2, 4, 8)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        padding_mode: PaddingMode = "zeros",
    ) -> None:
        arguments = kernel_size, stride, padding, dilation, groups, bias
        super().__init__(in_channels, out_channels, *arguments, padding_mode=padding_mode)

    def run(self, x: mx.array, neuron: mf.Neuron | None = None, add: mx.array | None = None) -> mx.array:
        """What a call computes with mpsfunc's functions: the convolution, plus ``add``, then the activation."""
        if add is not None:
            return folding.added(self, x, neuron, add)
        given = _given(self, "padding_mode")
        laid = laying_out.laid(self, x)
        if laid is None:
            return mf.conv1d(x, **given, neuron=neuron)
        return along_a_line.forward(x, neuron=neuron, stream=None, laid=laid, **given)


class ConvTranspose1d(_Transposed, stock.ConvTranspose1d):
    """`mlx.nn.ConvTranspose1d` by `mpsfunc.conv_transpose1d`. The result has the dtype of the sequences.

    Its output padding has the rule of that function: fewer entries than stride or dilation.

    Args:
        groups: By name only, in addition to the arguments of `mlx.nn.ConvTranspose1d`: groups of channels that do not
            mix; the weights are (o, k, i / groups). Default 1.

    Raises:
        TypeError: groups is not an int.
        ValueError: groups is less than 1, or does not divide the channels of both sides.

    Example:
        >>> ConvTranspose1d(3, 8, 2, stride=2)(mx.ones((2, 4, 3))).shape
        (2, 8, 8)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        output_padding: int = 0,
        bias: bool = True,
        *,
        groups: int = 1,
    ) -> None:
        arguments = kernel_size, stride, padding, dilation, output_padding, bias
        super().__init__("ConvTranspose1d", in_channels, out_channels, *arguments, groups=groups)

    def run(self, x: mx.array, neuron: mf.Neuron | None = None) -> mx.array:
        return mf.conv_transpose1d(x, **_given(self, "output_padding"), neuron=neuron)


def _given(layer: Any, own: str) -> dict[str, Any]:
    """What a layer gives its function besides x, of which one argument is not every layer's."""
    placed = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups", own)}
    return {"w": layer.weight, "b": layer.get("bias"), **placed}


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _negative(padding: Any) -> bool:
    return any(isinstance(pixels, int) and pixels < 0 for pixels in _pair(padding))
