"""What ``import mpsfunc`` does to a process: little, and nothing that anybody would notice."""

from __future__ import annotations

import ast
import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mpsfunc as mf

# What takes long to import, and nobody needs before the first call of something.
LATER = {
    *("asyncio", "decimal", "difflib", "email", "fractions", "hashlib", "html", "importlib.metadata", "inspect"),
    *("ipaddress", "json", "mlx.nn", "numpy", "pathlib", "pickle", "selectors", "socket", "tempfile", "threading"),
    *("unittest", "urllib", "zlib"),
}
MOST = 60  # modules; there are 41 with Python 3.11
BEGIN = "import sys, mlx.core as mx\nbefore = {*sys.modules}\nimport mpsfunc as mf\n"


def told(program: str) -> Any:
    """What a program prints as a literal, in a process of its own that imports what this one does."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)


def test_what_takes_long_is_imported_later() -> None:
    """Whatever the machine, where a time would depend on it; docs/benchmarks/import.md has those."""
    brought = told(f"{BEGIN}print({{*sys.modules}} - before)")
    assert "mpsfunc.core.launch" in brought and LATER & brought == set() and len(brought) <= MOST
    ours = {name.split(".")[1] for name in brought if name.startswith("mpsfunc.")}
    assert ours - {"_primitives"} == {"core"}


def test_names_bring_little_but_the_package() -> None:
    """All of them at once, but for files, which are JSON inside, and what stands on ``mlx.nn``."""
    names = [name for name in mf.__all__ if name not in ("export", "exported", "graph", "load", "nn", "save")]
    brought = told(f"{BEGIN}all_of_them = [getattr(mf, name) for name in {names}]\nprint({{*sys.modules}} - before)")
    assert "mpsfunc.normalization.across_processes" in brought and LATER & brought <= {"threading", "zlib"}


def test_numpy_comes_with_the_first_call_that_needs_it() -> None:
    program = (
        "before = 'numpy' in sys.modules\n"
        "mx.eval(mf.upsample_bilinear(mx.ones((1, 2, 2, 1)), 2, stream=mx.cpu))\n"
        "import numpy\nnumber = mf.relu(mx.ones(1), numpy.float32(0.5), stream=mx.cpu).shape\n"
        "print([before, number])"
    )
    assert told(BEGIN + program) == [False, (1,)]


def test_the_environment_is_as_before() -> None:
    before, after = told("import os\nbefore = {**os.environ}\nimport mpsfunc\nprint([before, {**os.environ}])")
    assert after == before


# Names that come when they are asked for -----------------------------------------------------------------


def listed() -> dict[str, str]:
    """The modules of the public names, as type checkers are told."""
    tree = ast.parse(Path(str(mf.__file__)).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.name == alias.asname for node in imports for alias in node.names)
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_type_checkers_are_told_of_the_names_that_there_are() -> None:
    names = listed()
    assert {*mf.__all__} == {*names, "__version__"}
    for name, module in names.items():
        value = importlib.import_module(f"mpsfunc.{name}" if module == "mpsfunc" else module)
        assert getattr(mf, name) is (value if module == "mpsfunc" else getattr(value, name)), name


def test_a_name_brings_its_module_and_is_kept() -> None:
    names = "('spatial_mean' in vars(mf), 'mpsfunc.pooling.spatial_mean' in sys.modules)"
    program = (
        f"begin = {names}\nmean = mf.spatial_mean\nend = {names}\n"
        "others = {'mpsfunc.losses', 'mpsfunc.convolution', 'mpsfunc.pooling.maximum'} & {*sys.modules}\n"
        "print([begin, end, mean is mf.spatial_mean, [*others]])"
    )
    assert told(BEGIN + program) == [(False, False), (True, True), True, []]


FOLDERS = sorted(path.parent.name for path in Path(str(mf.__file__)).parent.glob("*/__init__.py"))


def test_folders_are_attributes_at_once() -> None:
    folders = [name for name in FOLDERS if name != "selftest"]
    assert {"channels", "core", "graph", "nn", "pooling"} < {*folders}
    assert told(f"{BEGIN}print([getattr(mf, name).__name__ for name in {folders}])") == [
        f"mpsfunc.{name}" for name in folders
    ]


@pytest.mark.parametrize(
    "program",
    [
        "from mpsfunc import conv, graph\nfound = conv.__name__",
        "import mpsfunc.convolution\nfound = mpsfunc.conv.__name__",
        "import mpsfunc.convolution.convolution as module, mpsfunc\nfound = (module.conv is mpsfunc.conv) * 'conv'",
        "from mpsfunc import *\nfound = conv.__name__",
        "import mpsfunc\nfound = next(name for name in dir(mpsfunc) if name.startswith('conv'))",
    ],
)
def test_every_way_to_a_name(program: str) -> None:
    assert told(f"{program}\nprint(repr(found))") == "conv"


def test_what_was_pickled_brings_its_module() -> None:
    state = mf.avg_pool_state((1, 6, 6, 2), 3, stride=2)
    program = f"import pickle\nstate, conv = pickle.loads({pickle.dumps((state, mf.conv))!r})\n"
    assert told(f"{BEGIN}{program}print([str(state), conv is mf.conv])") == [str(state), True]


def test_a_name_may_be_asked_for_first_in_a_transformation() -> None:
    program = (
        "function = lambda x: mf.avg_pool(x, 2, stream=mx.cpu).sum()\n"
        "print(mx.compile(mx.grad(function))(mx.ones((1, 2, 2, 1))).tolist())"
    )
    assert told(BEGIN + program) == [[[[0.25], [0.25]], [[0.25], [0.25]]]]


def test_threads_may_ask_for_names_at_once() -> None:
    """Each in an order of its own: all get the same."""
    program = (
        "import threading\nnames, count = mf.__all__, 8\nstart, found = threading.Barrier(count), {}\n"
        "def ask(i):\n"
        "    order = [*names[i * 15:], *names[:i * 15]]\n    start.wait()\n"
        "    found[i] = {name: id(getattr(mf, name)) for name in order}\n"
        "threads = [threading.Thread(target=ask, args=(i,)) for i in range(count)]\n"
        "[each.start() for each in threads]\n[each.join() for each in threads]\n"
        "print([len(found), all(each == found[0] for each in found.values())])"
    )
    assert told(BEGIN + program) == [8, True]
