"""States in files that load for ever."""
