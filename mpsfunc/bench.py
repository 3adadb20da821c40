"""Times a model of mlx.nn as it is, converted, and converted for inference.

Each has a process of its own. MLX's layers are stopped where a pass takes too long.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import mlx.core as mx
import mlx.nn as stock

from mpsfunc.core.printing import a_kind, brief, describe
from mpsfunc.nn import timing
from mpsfunc.nn.comparison import CONVERTED, INFERENCE, STOCK, NotMeasured, Runner, bounds_of, measured
from mpsfunc.nn.report import Conversion

_PROGRAM = "python -m mpsfunc.bench"
_DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
_FOREVER = 1e6  # seconds; select takes no more than some
_GROWTH = "what the process grows by at most, the model included"


class Refused(Exception):
    """What cannot be measured, in a sentence."""


def main(arguments: Sequence[str]) -> int:
    """Measures and prints; 1 where outputs differ or are not compared, 2 where there is nothing to measure."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__)
    parser.add_argument("build", help="module:function, which makes a fresh model in each call")
    parser.add_argument("--shape", required=True, help="of what the model is called on, such as 8,224,224,3")
    parser.add_argument("--dtype", choices=_DTYPES, default="float32", help="of the model and its input")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="default: MLX's")
    parser.add_argument("--rounds", type=int, default=10, help="how often each is timed; default 10")
    parser.add_argument("--train", action=argparse.BooleanOptionalAction, default=True, help="training steps too")
    parser.add_argument(
        "--limit",
        type=float,
        default=timing.LIMIT,
        help="seconds above 0 that a pass of MLX's may take; default 60",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    try:
        return _compared(parser.parse_args(arguments))
    except Refused as why:
        print(f"{_PROGRAM}: {why}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _compared(args: argparse.Namespace) -> int:
    shape = _shape(args.shape)
    if not re.fullmatch(r"[\w.]+:[\w.]+", args.build):
        raise Refused(f"not a function of a module; got {describe(args.build)}, expected module:function")
    if args.rounds < 1 or not timing.allows(args.limit):
        wrong = f"--rounds {args.rounds} --limit {args.limit}"
        raise Refused(f"a number is out of range; got {describe(wrong)}, expected at least 1 round and more than 0 s")
    device = mx.Device({"cpu": mx.cpu, "gpu": mx.gpu}[args.device]) if args.device else mx.default_device()
    if not mx.is_available(device):
        raise Refused(f"MLX has no such device here; got {describe(args.device)}, expected the other one")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        task = {"build": args.build, "shape": shape, "dtype": args.dtype, "device": device.type.name, "folder": folder}

        def start(name: str) -> Runner:
            return stack.enter_context(_Process({**task, "name": name}, args.limit if name == STOCK else None))

        memory = _GROWTH if _counts_growth(device) else timing.ARRAYS
        told = timing.setting(shape, _DTYPES[args.dtype], device, args.rounds, memory)
        starts = {name: partial(start, name) for name in (STOCK, CONVERTED, INFERENCE)}
        bounds = bounds_of([_DTYPES[args.dtype]], device)
        found = measured(told, starts, train=args.train, rounds=args.rounds, limit=args.limit, bounds=bounds)
    with contextlib.suppress(BrokenPipeError):  # which _flushed sees to
        print(json.dumps(found.as_dict()) if args.json else found)
    return 0 if found.agree else 1


def _flushed() -> None:
    """Writes what was printed, unless whoever reads it, such as head, has had enough."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shape(text: str) -> list[int]:
    """The lengths of a shape."""
    parts = text.strip("()[] ").split(",")
    if not all(re.fullmatch(r"\s*[1-9][0-9]{0,8}\s*", part) for part in parts):
        raise Refused(f"not a shape; got {describe(text)}, expected lengths such as 8,224,224,3")
    return [int(part) for part in parts]


# A model in a process of its own ----------------------------------------------------------------------------


class _Process:
    """The child that measures a model, and answers a line to each line."""

    def __init__(self, task: dict[str, Any], limit: float | None) -> None:
        self._task, self._limit = task, limit
        self._begin()

    def _begin(self) -> None:
        command = [sys.executable, "-m", "mpsfunc.bench", "--child", json.dumps(self._task)]
        # In a session of its own, so that an interrupt reaches it through this process only.
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        try:
            begun = self._answer(None)
        except BaseException:
            self.__exit__()
            raise
        self.report = Conversion(**begun["report"], **begun["about"])

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()

    def first(self, what: str) -> int:
        try:
            answer = self._ask({"first": what}, self._limit)
            if "failed" in answer:
                raise NotMeasured(answer["failed"])
            return int(answer["bytes"])
        except TimeoutError:
            self.__exit__()
            if what == "step":
                self._begin()  # whose forward pass is timed all the same
            raise NotMeasured(f"no {timing.NAMES[what]}, which takes over {self._limit:g} s") from None

    def outputs(self) -> dict[str, mx.array]:
        return self._loaded("outputs")

    def outputs_of_one(self) -> dict[str, mx.array] | None:
        try:
            if self._child.poll() is not None:  # stopped, since a pass took too long
                self._begin()
            some = self._ask({"first": "one"}, self._limit)["some"]
        except (TimeoutError, Refused):
            self.__exit__()
            return None
        return self._loaded("one") if some else None

    def _loaded(self, what: str) -> dict[str, mx.array]:
        with mx.stream(mx.cpu):
            found = mx.load(self._path(what))
        assert isinstance(found, dict)
        return found

    def seconds(self, what: str) -> float:
        return float(self._ask({"seconds": what}, None)["seconds"])

    def _path(self, what: str) -> str:
        return _file(self._task, what)

    def _ask(self, question: dict[str, str], limit: float | None) -> dict[str, Any]:
        assert self._child.stdin
        with contextlib.suppress(BrokenPipeError):  # an end, which the answer tells
            self._child.stdin.write(json.dumps(question).encode() + b"\n")
        return self._answer(limit)

    def _answer(self, limit: float | None) -> dict[str, Any]:
        """The next line. Raises TimeoutError where it does not come in time."""
        assert self._child.stdout
        end, line = None if limit is None or limit > _FOREVER else time.monotonic() + limit, b""
        while not line.endswith(b"\n"):
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._child.stdout], [], [], left)[0]:
                raise TimeoutError
            more = self._child.stdout.read(65536)
            if not more:
                name, status = self._task["name"], self._child.wait()
                raise Refused(f"the process for {name} ended; got status {describe(status)}, expected an answer")
            line += more
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer


def _file(task: dict[str, Any], what: str) -> str:
    return str(Path(task["folder"]) / f"{task['name']} {what}.safetensors")


# What the process does --------------------------------------------------------------------------------------


def _child(task: dict[str, Any]) -> None:
    """Builds a model, and then does what each line of the input asks."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the model's code prints
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        try:
            for answer in _answered(task):
                answers.write(json.dumps(answer) + "\n")
        except Refused as why:
            answers.write(json.dumps({"error": str(why)}) + "\n")


def _answered(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    device = mx.Device({"cpu": mx.cpu, "gpu": mx.gpu}[task["device"]])
    mx.set_default_device(device)
    build = _function(task["build"])
    x = mx.random.normal(task["shape"], key=mx.random.key(0)).astype(_DTYPES[task["dtype"]])
    mx.eval(x)
    memory = _Growth() if _counts_growth(device) else _Arrays(x.nbytes)
    model = _built(task, build)
    try:
        report = timing.converted(model, x, task["name"])
    except Exception as error:
        _refuse(f"{task['name']} cannot be made of the model", error)
    about = {name: getattr(report, name) for name in ("kept_twice", "example", "before")}
    about["classes"] = dict(report.classes)
    yield {"report": report._asdict(), "about": about}
    passes = timing.Passes(model, x)
    for line in sys.stdin:
        question = json.loads(line)
        if "seconds" in question:
            try:
                yield {"seconds": passes.seconds(question["seconds"])}
            except timing.Unfit as why:
                raise Refused(str(why)) from None
            continue
        what = question["first"]
        if what == "one":
            found = passes.of_one()
            if found:
                mx.save_safetensors(_file(task, what), found)
            yield {"some": bool(found)}
            continue
        try:
            memory.begin()
            passes.once(what)
            held = memory.end()
        except timing.Unfit as why:
            raise Refused(str(why)) from None
        except Exception as error:
            if what == "step":
                yield {"failed": str(error if isinstance(error, NotMeasured) else timing.no_step(error))}
                continue
            _refuse(f"the model's {timing.NAMES[what]} fails for the shape {tuple(task['shape'])}", error)
        if what == "forward":
            mx.save_safetensors(_file(task, "outputs"), passes.outputs)
        passes.drop()
        yield {"bytes": held}


def _built(task: dict[str, Any], build: Callable[[], Any]) -> stock.Module:
    """The model, with the parameters of the first one."""
    mx.random.seed(0)
    try:
        model = build()
    except Exception as error:
        _refuse(f"{task['build']} fails", error)
    if not isinstance(model, stock.Module):
        raise Refused(f"{brief(task['build'])} makes no module; got {a_kind(model)}, expected an mlx.nn.Module")
    model.set_dtype(_DTYPES[task["dtype"]])  # of what is floating
    kept, weights = _file({**task, "name": STOCK}, "weights"), timing.arrays_of(model)
    if task["name"] == STOCK and not Path(kept).exists():
        mx.save_safetensors(kept, weights)
    else:
        loaded = mx.load(kept)
        assert isinstance(loaded, dict)
        try:
            timing.like(task["build"], model, loaded)
        except ValueError as error:
            raise Refused(str(error)) from None
    return model


def _function(told: str) -> Callable[[], Any]:
    """The function that ``module:function`` names."""
    name, _, path = told.partition(":")
    sys.path[:0] = [] if "" in sys.path or os.getcwd() in sys.path else [os.getcwd()]
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise Refused(f"there is no such module; got {describe(name)}, expected one that Python finds") from None
        _refuse(f"importing {name} fails", error)
    except Exception as error:
        _refuse(f"importing {name} fails", error)
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, stock.Module):
        raise Refused(f"{brief(told)} is a module; got {a_kind(found)}, expected a function that makes one")
    if not callable(found):
        raise Refused(f"{brief(name)} has no such function; got {describe(path)}, expected one that makes a model")
    made: Callable[[], Any] = found
    return made


def _refuse(what: str, error: Exception) -> NoReturn:
    """Says in one line why it goes no further."""
    said = brief(" ".join(str(error).removeprefix("compare: ").split()))
    raise Refused(f"{brief(what)}: {type(error).__name__}: {said}") from error


# Memory -----------------------------------------------------------------------------------------------------


def _counts_growth(device: mx.Device) -> bool:
    """Whether the memory of a process tells what a model takes: on a CPU, where Linux counts it."""
    return device == mx.Device(mx.cpu) and os.access("/proc/self/clear_refs", os.W_OK)


class _Growth:
    """What the process has grown by at most."""

    def __init__(self) -> None:
        self.begin()
        self._before = self._peak()

    def begin(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now

    def end(self) -> int:
        return max(0, self._peak() - self._before)

    def _peak(self) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


class _Arrays:
    """What MLX's arrays have held at most, without the input."""

    def __init__(self, held: int) -> None:
        self._before = held

    def begin(self) -> None:
        mx.reset_peak_memory()

    def end(self) -> int:
        return max(0, mx.get_peak_memory() - self._before)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(json.loads(sys.argv[2]))
    else:
        try:
            code = main(sys.argv[1:])
        finally:
            _flushed()
        sys.exit(code)
