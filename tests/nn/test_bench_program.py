"""`python -m mpsfunc.bench`: a process for each model, a limit that stops one, and a sentence for what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpsfunc import bench
from mpsfunc.nn import comparison

MODELS = """
import os, time, mlx.core as mx, mlx.nn as nn
def build():
    print("said by the model")
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm(4), nn.ReLU())
class Slow(nn.Module):
    def __init__(self, of):
        super().__init__()
        self.of, self.body = of, nn.Conv2d(3, 4, 1)
    def __call__(self, x):
        if type(self.body) is nn.Conv2d and (self.of == "forward" or self.training):
            time.sleep(60)
        return self.body(x)
def slow(): return Slow("forward")
def slow_step(): return Slow("step")
class SlowForMany(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 4, 1)
        self.wrong = False
    def __call__(self, x):
        if type(self.body) is nn.Conv2d and len(x) > 1:
            time.sleep(60)
        return self.body(x) + (self.wrong and type(self.body) is not nn.Conv2d)
def slow_for_many(): return SlowForMany()
def slow_and_wrong():
    model = SlowForMany()
    model.wrong = True
    return model
def frozen():
    model = build()
    model.freeze()
    return model
class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = build()
    def __call__(self, x):
        if self.training:
            raise ZeroDivisionError("while it trains")
        return self.body(x)
made = build()
def of(n): return build()
def number(): return 3
def other(): return nn.Linear(3, 3 + os.getpid())
def unseeded():
    model = build()
    model.layers[0].weight = model.layers[0].weight * os.getpid()
    return model
def raising(): raise KeyError("a\\nb")
class Dying(nn.Module):
    def __call__(self, x):
        os._exit(7)
def dying(): return Dying()
class holder:
    inside = staticmethod(build)
"""


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny_models.py").write_text(MODELS)
    (tmp_path / "broken_models.py").write_text("import nothing_of_the_kind\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2]), *sys.path]))


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = bench.main([*arguments, "--device", "cpu"])
    out, err = capfd.readouterr()
    return code, out, err


@pytest.mark.programs
@pytest.mark.needs_cpu_module
def test_all_are_measured(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "tiny_models:holder.inside", "--shape", "2,8,8,3", "--rounds", "2")
    assert code == 0 and "said by the model" in err and "said" not in out
    lines = out.splitlines()
    assert lines[0] == "2x8x8x3 float32 on the cpu, 2 rounds" and len(lines) < 20
    assert lines[1].startswith("medians; x: times faster than mlx.nn; MB: ")
    assert [line.split()[0] for line in lines[3:6]] == ["mlx.nn", "converted", "for"]
    assert "  fused      1 BatchNorm with ReLU" in lines


@pytest.mark.programs
@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("what", ["forward", "step"])
def test_stock_is_stopped_where_it_takes_too_long(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    model = {"forward": "slow", "step": "slow_step"}[what]
    limited = "--shape", "1,4,4,3", "--rounds", "1", "--limit", "2", "--json"
    code, out, _ = run(capfd, f"tiny_models:{model}", *limited)
    told = json.loads(out)
    stock, converted, _ = told["variants"]
    full = {"forward": "no forward pass", "step": "no training step"}[what]
    assert stock["note"] == f"{full}, which takes over 2 s" and stock["step"] is None
    agree = what == "step" or None
    assert told["agree"] is agree and code == (0 if agree else 1)
    assert (converted["note"] == "not compared with mlx.nn") == (agree is None)
    assert (stock["forward"] is None) == (what == "forward")
    assert converted["forward"]["seconds"] > 0 and converted["step"]["bytes"] >= 0
    assert converted["step"]["ratio"] is None and told["report"]["replaced"] == {"body": "Conv2d"}


@pytest.mark.programs
@pytest.mark.needs_cpu_module
@pytest.mark.parametrize(("model", "agree"), [("slow_for_many", True), ("slow_and_wrong", False)])
def test_one_image_is_compared_where_stock_is_stopped(
    model: str, agree: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    limited = "--shape", "2,4,4,3", "--rounds", "1", "--limit", "3", "--no-train", "--json"
    code, out, _ = run(capfd, f"tiny_models:{model}", *limited)
    told = json.loads(out)
    stock, *others = told["variants"]
    assert stock["note"] == "no forward pass, which takes over 3 s" and told["agree"] is agree and code == (not agree)
    for each in others:
        said = "compared with mlx.nn for the first image alone" if agree else "not timed, since its output differs by "
        assert each["note"].startswith(said) and each["agrees"] is agree and bool(each["forward"]) == agree


@pytest.mark.programs
@pytest.mark.needs_cpu_module
@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("frozen", "no training step, since the model has no parameter that is not frozen"),
        (
            "Failing",
            "no training step, which fails with ZeroDivisionError: while it trains (train=False, or --no-train",
        ),
    ],
)
def test_the_forward_pass_is_timed_where_training_fails(
    model: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capfd, f"tiny_models:{model}", "--shape", "2,8,8,3", "--rounds", "1", "--json")
    told = json.loads(out)
    assert code == 0 and told["agree"] and told["variants"][2]["kept_twice"] > 0
    for each in told["variants"]:
        assert each["forward"]["seconds"] > 0 and each["step"] is None
        assert each["note"].startswith(why) == (each["name"] != "for inference")


@pytest.mark.programs
@pytest.mark.needs_cpu_module
def test_other_dtypes_without_training(capfd: pytest.CaptureFixture[str]) -> None:
    how = "--dtype", "bfloat16", "--no-train", "--rounds", "1", "--json"
    code, out, _ = run(capfd, "tiny_models:build", "--shape", "(2, 8, 8, 3)", *how)
    told = json.loads(out)
    assert code == 0 and told["agree"] and "bfloat16" in told["setting"]
    assert all(each["step"] is None for each in told["variants"])


@pytest.mark.programs
@pytest.mark.needs_cpu_module
def test_all_processes_have_the_parameters_of_the_first(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "tiny_models:unseeded", "--shape", "2,8,8,3", "--rounds", "1", "--no-train", "--json")
    assert code == 0 and json.loads(out)["variants"][1]["difference"] < 1e-4


@pytest.mark.programs
@pytest.mark.needs_cpu_module
def test_outputs_that_differ_are_an_error(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "difference", lambda got, want: 0.5)
    code, out, _ = run(capfd, "tiny_models:build", "--shape", "2,8,8,3", "--rounds", "1")
    assert code == 1 and "converted: not timed, since its output differs by 0.5 of the largest; float32 may by " in out


REFUSED = [
    (
        "no_such_module:build",
        "2,8,8,3",
        "there is no such module; got 'no_such_module', expected one that Python finds",
    ),
    ("tiny_models:nothing", "2,8,8,3", "tiny_models has no such function; got 'nothing', expected one that makes"),
    ("tiny_models:holder.nothing", "2,8,8,3", "tiny_models has no such function; got 'holder.nothing', expected"),
    ("tiny_models:number", "2,8,8,3", "tiny_models:number makes no module; got an int, expected an mlx.nn.Module"),
    ("tiny_models:made", "2,8,8,3", "tiny_models:made is a module; got a Sequential, expected a function that makes"),
    ("tiny_models:of", "2,8,8,3", "tiny_models:of fails: TypeError: of() missing 1 required positional argument: 'n'"),
    ("tiny_models:other", "2,3", "tiny_models:other: build makes another model each time; got other parameters"),
    ("tiny_models:raising", "2,8,8,3", r"tiny_models:raising fails: KeyError: 'a\nb'"),
    (
        "broken_models:build",
        "2,8,8,3",
        "importing broken_models fails: ModuleNotFoundError: No module named 'nothing",
    ),
    ("tiny_models:build", "2,8,8,5", "the model's forward pass fails for the shape (2, 8, 8, 5): ValueError: [conv] "),
    ("tiny_models:dying", "2,8,8,5", "the process for mlx.nn ended; got status 7, expected an answer"),
]


@pytest.mark.programs
@pytest.mark.parametrize(("build", "shape", "message"), REFUSED)
def test_a_model_that_cannot_be_measured(
    build: str, shape: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, build, "--shape", shape)
    *_, last = err.strip().splitlines()
    assert code == 2 and not out and last.startswith(f"python -m mpsfunc.bench: {message}")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("m:build", "--shape", "2,x"), "not a shape; got '2,x', expected lengths such as 8,224,224,3"),
        (("m:build", "--shape", "2,0,8,3"), "not a shape; got '2,0,8,3', expected lengths"),
        (("m:build", "--shape", ""), "not a shape; got '', expected lengths"),
        (("m", "--shape", "2"), "not a function of a module; got 'm', expected module:function"),
        (("a/m.py:build", "--shape", "2"), "not a function of a module; got 'a/m.py:build', expected"),
        (
            ("m:build", "--shape", "2", "--rounds", "0"),
            "a number is out of range; got '--rounds 0 --limit 60.0', ",
        ),
        (
            ("m:build", "--shape", "2", "--limit", "0"),
            "a number is out of range; got '--rounds 10 --limit 0.0', ",
        ),
        (
            ("m:build", "--shape", "2", "--limit", "nan"),
            "a number is out of range; got '--rounds 10 --limit nan', ",
        ),
    ],
)
def test_arguments_that_are_wrong(arguments: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, *arguments)
    assert code == 2 and not out and err.startswith(f"python -m mpsfunc.bench: {message}") and err.count("\n") == 1


def test_a_device_that_is_not_there(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.mx, "is_available", lambda device: False)
    code, _, err = run(capfd, "m:build", "--shape", "2")
    assert code == 2 and "MLX has no such device here; got 'cpu', expected the other one" in err


@pytest.mark.programs
@pytest.mark.needs_cpu_module
@pytest.mark.parametrize(
    "arguments", ["--help", "tiny_models:build --shape 1,8,8,3 --rounds 1 --no-train --device cpu"]
)
def test_a_reader_that_has_had_enough_is_no_error(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as ``head``, in whose place nobody reads."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-m", "mpsfunc.bench", *arguments.split()]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    finally:
        os.close(write)
    assert done.returncode == 0 and "BrokenPipe" not in done.stderr and "Traceback" not in done.stderr
