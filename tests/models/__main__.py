"""The command line: ``python -m tests.models [--write] [--only NAME]``, from the root of the checkout.

``build/models/bin/python`` has the networks of mlx-image, once `make models` has run. Without ``--write`` lines are
printed; with it each goes into ``docs/models.md`` as soon as it is measured.
"""

from __future__ import annotations

import argparse
import sys

import mlx.core as mx

from .registry import OF_MLX_IMAGE, WHOLE
from .report import HEAD, PAGE, row, written


def main() -> int:
    """Measures networks and writes their lines."""
    networks = {network.name: network for network in (*WHOLE, *OF_MLX_IMAGE)}
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the lines into {PAGE.name}")
    parser.add_argument("--only", action="append", choices=networks, metavar="NAME", help="of these networks")
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    print(" | ".join(HEAD))
    for name in args.only or networks:
        line = row(networks[name])
        print(" | ".join(line), flush=True)
        if args.write:
            page = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(written(page, {name: line}, list(networks)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
