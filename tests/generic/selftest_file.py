"""The self-test that ships in wheels, made of the records.

PYTHONPATH=.:tests python -m generic.selftest_file           # the file
PYTHONPATH=.:tests python -m generic.selftest_file --write   # the file into mpsfunc/selftest/calls.json
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import mlx.core as mx
from generic.opinfo import Sample
from generic.ops import FAMILIES, OPS

from mpsfunc.selftest.calls import KEPT, Checked, sums
from mpsfunc.selftest.expressions import Array, Call, DtypeOfRun, Fixed, results


def checked() -> list[Checked]:
    """Every sample of every record that gives an array; derivatives of the first of each, where there are any."""
    made = []
    for op in OPS.values():
        for i, (label, each) in enumerate(op.samples.items()):
            sample = each if isinstance(each, Sample) else Sample(each)
            if not results(sample.run(sample.inputs(mx.float32), mx.float32)):
                continue
            derivatives = i == 0 and op.differentiable and sample.in_matrix
            made.append(Checked(", ".join(filter(None, (op.name, label))), FAMILIES[op.name], sample.call, derivatives))
    return sorted(made, key=lambda call: call.family)


def packed(value: Any) -> Any:
    """A call, or a part of one, as JSON has it."""
    if isinstance(value, Array):
        made = value._asdict() | {"shape": list(value.shape)}
        return {name: each for name, each in made.items() if name == "shape" or each != Array._field_defaults[name]}
    if isinstance(value, Fixed):
        return {"fixed": value.values, "dtype": value.dtype}
    if isinstance(value, DtypeOfRun):
        return {"dtype": "of the run"}
    if isinstance(value, Call):
        told: dict[str, Any] = {"call": value.function, "args": [packed(each) for each in value.args]}
        if value.how:
            told["how"] = {name: packed(each) for name, each in value.how.items()}
        return told if value.take is None else {**told, "take": value.take}
    return [packed(each) for each in value] if isinstance(value, tuple | list) else value


def as_json(call: Checked) -> dict[str, Any]:
    """A line of the file without the sums."""
    return {"name": call.name, "family": call.family, "call": packed(call.call), "derivatives": call.derivatives}


def written() -> str:
    """The file, with what the float64 kernels of this machine's CPU compute; run the tests of the definitions first."""
    lines = []
    with mx.stream(mx.cpu):
        for call in checked():
            found = [sums(a) for a in call.computed(mx.float64)]
            lines.append(json.dumps({**as_json(call), "sums": found}))
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write mpsfunc/selftest/calls.json")
    if parser.parse_args().write:
        KEPT.write_text(written())
    else:
        print(written(), end="")
