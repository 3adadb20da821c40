"""Rows of the CPU's table that were measured before, so that a run may be stopped and begun again.

Beside the table lies a file with a line a row, which has the seconds of each round. It is of one commit, machine and
number of rounds, and is begun anew where any of these is another.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from .problems import Problem
from .results import Row

NAME = "cpu.rounds.jsonl"


class Kept(NamedTuple):
    """Such a file, and what its rows have to be of."""

    file: Path
    of: dict[str, str]

    def rows(self) -> dict[Problem, Row]:
        """What it has of that, without targets."""
        if not self.file.exists():
            return {}
        head, *lines = self.file.read_text(encoding="utf-8").splitlines() or ["{}"]
        if json.loads(head) != self.of:
            return {}
        rows = [_row(json.loads(line)) for line in lines]
        return {row.problem: row for row in rows}

    def add(self, row: Row) -> None:
        """Puts a row behind the others."""
        others = self.rows().values()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(self.of), *(json.dumps(_fields(each)) for each in (*others, row))]
        part = self.file.with_suffix(".part")
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")
        part.replace(self.file)  # nobody reads half of it


def _fields(row: Row) -> dict[str, Any]:
    measured = {name: getattr(row, name) for name in ("times", "calls", "kept", "wrong")}
    return {"problem": row.problem._asdict(), **measured}


def _row(fields: dict[str, Any]) -> Row:
    problem = Problem(**fields.pop("problem"))
    return Row(problem._replace(shape=tuple(problem.shape)), **fields, targets=())
