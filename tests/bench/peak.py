"""The most memory that this process has had, as Linux counts it."""

from __future__ import annotations

from pathlib import Path


def peak() -> int:
    """Bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def peak_from_now() -> int:
    """Bytes in memory now, from which the peak starts again."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()
