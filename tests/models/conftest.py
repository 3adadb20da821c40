"""PyTorch is an optional install: what needs it is imported by the tests, not by pytest's collection."""

collect_ignore = ["twins"]
