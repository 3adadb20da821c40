"""What a change costs: two built checkouts in turns, by the import, by building a call, and by training steps.

python -m tests.bench.versions ../before .         each with its C++ module beside its Python files

Building a call is all that happens before an evaluation. A process for each checkout waits for its turns; imports have
one of their own each. A ratio is of the second checkout to the first, by the medians of all rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CALLS = ("avg_pool", "conv", "batch_norm")
NETWORKS = {"small": ("Plain", ()), "ResNet-20": ("ResNet", ((3, 3, 3), (16, 32, 64), False, 10, True))}
BATCH = 16
# Calls and steps of a turn. The processor changes its speed within a second, so turns of calls are short and come ten
# times as often.
_BUILT, _OFTEN, _STEPS = 200, 10, 5
_METHOD = """Two built checkouts take turns, for {rounds} rounds. Each round has an import of mpsfunc, in a new
process and with bytecode already written; the construction of a call, which is all that happens before its
evaluation, in ten short turns; and a training step of two networks of `tests/models/resnets.py`, batch 16, compiled.
Written by `python -m tests.bench.versions BEFORE AFTER --out docs/benchmarks`, whose calls gave the same bits in
both."""
_RESULTS = "results"
_IMPORT = "import time; begun = time.perf_counter(); import mpsfunc; print(time.perf_counter() - begun)"


def works(models: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Seconds of one turn of each, in the checkout of this process, and a digest of results; given the networks."""
    import mlx.core as mx
    import mlx.nn as nn
    import mlx.optimizers as optim
    import numpy as np

    import mpsfunc as mf
    from mpsfunc.nn import convert

    x, weight, vector = mx.ones((2, 16, 16, 16)), mx.ones((16, 3, 3, 16)), mx.ones((16,))
    mx.eval(x, weight, vector)
    calls: dict[str, Callable[[], object]] = {
        "avg_pool": lambda: mf.avg_pool(x, 3, stride=2, padding=1),
        "conv": lambda: mf.conv(x, weight, vector, padding=1),
        "batch_norm": lambda: mf.batch_norm(x, vector, vector),
    }

    def building(call: Callable[[], object]) -> Callable[[], float]:
        def turn() -> float:
            begun = time.perf_counter()
            for _ in range(_BUILT):
                call()
            return (time.perf_counter() - begun) / _BUILT

        return turn

    def training(name: str) -> Callable[[], float]:
        mx.random.seed(0)
        of, arguments = NETWORKS[name]
        model = models[of](*arguments)
        convert(model)
        images, classes = mx.random.normal((BATCH, 32, 32, 3)), mx.random.randint(0, 10, (BATCH,))
        optimizer = optim.SGD(0.01, momentum=0.9)
        optimizer.init(model.trainable_parameters())
        state = [model.state, optimizer.state]
        mx.eval(state, images, classes)

        def loss() -> mx.array:
            return nn.losses.cross_entropy(model(images), classes, reduction="mean")

        def step() -> mx.array:
            value, grads = nn.value_and_grad(model, loss)()
            optimizer.update(model, grads)
            return value

        compiled = mx.compile(step, inputs=state, outputs=state)

        def turn() -> float:
            begun = time.perf_counter()
            for _ in range(_STEPS):
                value = compiled()
                mx.async_eval(value, state)
            mx.eval(value, state)
            return (time.perf_counter() - begun) / _STEPS

        turn()
        return turn

    def results() -> str:
        """A digest of what the calls give."""
        return hashlib.sha256(b"".join(np.asarray(call()).tobytes() for call in calls.values())).hexdigest()

    turns: dict[str, Callable[[], object]] = {name: building(call) for name, call in calls.items()} | {
        name: training(name) for name in NETWORKS
    }
    return turns | {_RESULTS: results}


def child(models: str) -> None:
    """Answers each name on a line with the seconds of a turn; told the file of the networks."""
    known = works(runpy.run_path(models))
    print("ready", flush=True)
    for line in sys.stdin:
        print(known[line.strip()](), flush=True)


class Checkout:
    """A process that works in a checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # As users have it: imports read the bytecode that the first one, in the process below, has written.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._environment = {**inherited, "PYTHONPATH": str(folder)}
        # The program is this checkout's, what it measures is the other's.
        own = Path(__file__).resolve()
        networks = own.parents[1] / "models" / "resnets.py"
        program = f"source = open({str(own)!r}).read(); "
        program += "scope = {'__name__': 'tests.bench.versions', '__package__': 'tests.bench'}; "
        program += "exec(compile(source, 'versions.py', 'exec'), scope); "
        program += f"scope['child']({str(networks)!r})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None and self._process.stdin is not None
        self._told, self._asked = self._process.stdout, self._process.stdin
        if self._told.readline().strip() != "ready":
            raise RuntimeError(f"versions: the checkout does not run; got folder={str(folder)!r}, expected a built one")

    def seconds(self, name: str) -> float:
        """One turn of a work, or one import in a process of its own."""
        if name == "import":
            done = subprocess.run(
                [sys.executable, "-c", _IMPORT],
                cwd=self.folder,
                env=self._environment,
                capture_output=True,
                text=True,
                check=True,
            )
            return float(done.stdout)
        return float(self.answer(name))

    def answer(self, name: str) -> str:
        """What the process says to a name."""
        self._asked.write(name + "\n")
        self._asked.flush()
        return self._told.readline()


def measured(before: Checkout, after: Checkout, rounds: int) -> Iterator[tuple[object, ...]]:
    """A row a work: both medians, and the median of their ratios, turn by turn, with its 95 % interval."""
    from . import stats

    for name in ("import", *CALLS, *NETWORKS):
        seconds: dict[Checkout, list[float]] = {before: [], after: []}
        for i in range(rounds * (_OFTEN if name in CALLS else 1)):
            for side in (before, after) if i % 2 == 0 else (after, before):
                seconds[side].append(side.seconds(name))
        one, two = (statistics.median(seconds[side]) for side in (before, after))
        ratio = stats.paired(seconds[after], seconds[before])
        ratios = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        row = name, f"{one * 1e3:.4g}", f"{two * 1e3:.4g}", f"{two / one:.2f}", ratios
        print(*row, flush=True)
        yield row


def main() -> None:
    """Prints a row a work, and writes the page."""
    import mpsfunc as mf
    from mpsfunc.core import launch

    from . import report

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path, help="folder for versions.md")
    given = parser.parse_args()
    old, new = (report.commit(folder) for folder in (given.before, given.after))
    facts = report.cpu_facts(f"{new}, beside {old}", launch.instruction_sets()[0], mf.get_num_threads())
    before, after = (Checkout(folder.resolve()) for folder in (given.before, given.after))
    if before.answer(_RESULTS) != after.answer(_RESULTS):
        raise RuntimeError("versions: the checkouts give other results, so their times say nothing")
    rows = list(measured(before, after, given.rounds))
    if given.out:
        head = ["work", f"{old}, ms", f"{new}, ms", "ratio of the medians", "median of the turns' ratios (95 %)"]
        parts = [_METHOD.format(rounds=given.rounds), report.table(["machine", ""], facts.items())]
        report.save(given.out, "versions", ["# What a change costs", *parts, report.table(head, rows)])


if __name__ == "__main__":
    main()
