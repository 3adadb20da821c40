"""PyTorch's adjoints of samples in its deterministic mode, which most of them refuse on a GPU.

The mode would fill new memory as well, to make reads of it repeatable; that is off here, since it takes time.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch

from ...problems import Problem
from .. import Call, Refused
from . import convolution, samples

NAME = "PyTorch deterministic"

Bind = Callable[[Problem, SimpleNamespace], Call]


def _deterministic(bind: Bind) -> Bind:
    @functools.wraps(bind)
    def bound(p: Problem, a: SimpleNamespace) -> Call:
        with _mode():
            call = bind(p, a)

        def run() -> list[torch.Tensor]:
            with _mode():
                made: list[torch.Tensor] = call()
                return made

        return run

    return bound


@contextlib.contextmanager
def _mode() -> Iterator[None]:
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    except RuntimeError as why:
        if "does not have a deterministic implementation" not in str(why):
            raise
        raise Refused(str(why)) from why
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled


def _roi_align_grad(p: Problem, a: SimpleNamespace) -> Call:
    """By autograd, since torchvision takes another implementation in this mode, which it compiles."""
    import torch._functorch.config as config

    torchvision, dy = samples._torchvision(), samples._below_each_other(p, a)
    if torchvision is None:
        return samples.roi_align_grad(p, a)
    apart = samples._apart(p, dy)
    keeps = config.patch(donated_buffer=False)  # so that one forward pass serves all calls; read in both passes
    with torch.enable_grad(), keeps:
        x = a.x.detach().requires_grad_()
        made = torchvision.ops.roi_align(x, a.rois, p.bins, 1.0, 2, True)

    def call() -> list[torch.Tensor]:
        with keeps, torch.autograd.set_multithreading_enabled(False):  # what is patched is so in this thread alone
            return list(torch.autograd.grad(made, x, apart, retain_graph=True))

    return call


functions = SimpleNamespace(
    grid_sample_grad=_deterministic(samples.grid_sample_grad),
    grid_sample_grads=_deterministic(samples.grid_sample_grads),
    crop_and_resize_grad=_deterministic(samples.crop_and_resize_grad),
    roi_align_grad=_deterministic(_roi_align_grad),
    **{op: _deterministic(getattr(convolution, op)) for op in ("deform_conv_grads",) if hasattr(convolution, op)},
)
