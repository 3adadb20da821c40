"""The command line: ``python -m tests.models [--write | --only NAME]``, from the root of the checkout.

``build/models/bin/python`` has the networks of mlx-image, once `make models` has run. Lines are printed; with
``--write`` all of them go into ``docs/models.md``, of which the sentence below the table then holds for each. What
`make models`, or this before it was stopped, has measured of the code as it is now is not measured again.
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
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--write", action="store_true", help=f"put all lines into {PAGE.name}")
    which.add_argument("--only", action="append", choices=networks, metavar="NAME", help="of these networks")
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    print(" | ".join(HEAD))
    lines = {}
    for name in args.only or networks:
        lines[name] = row(networks[name])
        print(" | ".join(lines[name]), flush=True)
    if args.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
