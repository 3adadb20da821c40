"""Rivals are optional installs: they are imported by the programs that need them, not by pytest's collection."""

collect_ignore = ["rivals", "cpu.py", "gpu.py"]
