"""What CUPTI recorded of a GPU's work: kernels, copies and fills."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple


class Kernel(NamedTuple):
    """A kernel's whole name, how often a call launches it, and the microseconds of those launches together."""

    name: str
    launches: float
    microseconds: float


def records(profiler: Any) -> list[Any]:
    """Those of one of PyTorch's profilers."""
    return [event for event in profiler.events() if event.device_type.name == "CUDA"]


def kernels(found: Iterable[Any], calls: int) -> tuple[Kernel, ...]:
    """What a call launched, in the order of names."""
    entries: dict[str, list[float]] = defaultdict(list)
    for record in found:
        entries[record.name].append(record.device_time)
    return tuple(Kernel(name, len(times) / calls, sum(times) / calls) for name, times in sorted(entries.items()))


def short(name: str, most: int = 90) -> str:
    """A kernel's name without what is the same in all of them."""
    name = re.sub(r"^(void|std::enable_if<[^>]*>::type) ", "", name)
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|at::native::|mlx::core::(cu::)?", "", name)
    name = re.sub(r"custom_kernel_(\w+?)(_[0-9a-f]{16,})?$", r"\1", name)
    name = re.sub(r"\([^()]*\)$", "", name)
    return name if len(name) <= most else name[: most - 3] + "..."
