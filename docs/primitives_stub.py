"""The types of the C++ module, ``mpsfunc/_primitives.pyi``, by nanobind's generator, from the module that is built.

python docs/primitives_stub.py --write
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from nanobind.stubgen import StubGen  # type: ignore[import-untyped]  # it has none itself

STUB = Path(__file__).parents[1] / "mpsfunc" / "_primitives.pyi"
_START = "# Written by docs/primitives_stub.py.\n"


def stub() -> str:
    """The text of the file."""
    importlib.import_module("mpsfunc")  # so that MLX's types are known
    module = importlib.import_module("mpsfunc._primitives")
    generator = StubGen(module, quiet=True)
    generator.put(module)
    return f"{_START}{generator.get()}"


def main() -> None:
    """Prints or writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the file")
    if parser.parse_args().write:
        STUB.write_text(stub(), encoding="utf-8")
    else:
        print(stub(), end="")


if __name__ == "__main__":
    main()
