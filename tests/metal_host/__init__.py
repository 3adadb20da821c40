"""Runs and checks the kernel texts of ``metal/`` on a machine without Metal; start with ``host.py``."""
