"""What mypy and pyright know of operations and of public functions: types without Any, and names that there are."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import graph_stub
import pytest
from support.operations import modules, operations

import mpsfunc as mf
from mpsfunc import graph, nn, typing

ROOT = Path(__file__).parents[2]

# What is asked ----------------------------------------------------------------------------------------------


def public(module: Any, of: Callable[[Any], bool]) -> dict[str, Any]:
    """Functions or classes by the names that users have for them."""
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    found = {f"{module.__name__}.{name}": getattr(module, name) for name in names}
    return {name: value for name, value in found.items() if of(value)}


FUNCTIONS = {name: value for each in (mf, graph, nn) for name, value in public(each, inspect.isfunction).items()}
NO_LAYERS = {f"mpsfunc.nn.{kind.__name__}": kind for kind in (nn.Conversion, nn.Comparison, nn.StepWatch)}
CLASSES = public(mf, inspect.isclass) | NO_LAYERS
METHODS = [
    f"{name}.{method}"
    for name, value in CLASSES.items()
    for method in vars(value)
    if inspect.isfunction(vars(value)[method]) and not method.startswith("_")
]
# Constructors of drop-ins are MLX's, and as exact as those.
LAYERS = [f"{name}.__call__" for name in public(nn, inspect.isclass) if name not in CLASSES]
EXACT = [*operations(), *FUNCTIONS, *CLASSES, *METHODS, *LAYERS]
INEXACT = ["vague", "vague(1)", "vaguer"]

# Calls with a hole, a name that fits there and one that does not.
NAMES = [
    ("mpsfunc.avg_pool(x, 2, edge_mode={})", "clamp", "zeros"),
    ("mpsfunc.avg_pool_fwd(x, 2, edge_mode={})", "zero", "exclude"),
    ("mpsfunc.avg_pool_state((1, 4, 4, 1), 2, edge_mode={})", "zero", "exclude"),
    ("mpsfunc.avg_pool(x, {})", "global", "whole"),
    ("mpsfunc.avg_pool(x, 2, padding={})", "same", "SAME"),
    ("mpsfunc.l2_pool(x, 2, edge_mode={})", "clamp", "exclude"),
    ("mpsfunc.l2_pool_fwd(x, 2, edge_mode={})", "clamp", "exclude"),
    ("mpsfunc.max_pool(x, 2, edge_mode={})", "exclude", "replicate"),
    ("mpsfunc.max_pool_fwd(x, 2, edge_mode={})", "exclude", "replicate"),
    ("mpsfunc.max_pool_grad_from_source(x, x, 2, edge_mode={})", "exclude", "replicate"),
    ("mpsfunc.max_pool_grad_from_source(x, x, 2, padding={})", "full", "half"),
    ("mpsfunc.conv(x, w, edge_mode={})", "clamp", "exclude"),
    ("mpsfunc.conv(x, w, neuron={})", "relu", "leaky_relu"),
    ("mpsfunc.conv(x, w, padding={})", "same_lower", "SAME_LOWER"),
    ("mpsfunc.conv(x, w, padding_mode={})", "reflect", "mirror"),
    ("mpsfunc.conv_transpose(x, w, padding={})", "same", "valid"),
    ("mpsfunc.conv1d(x, w, padding_mode={})", "circular", "wrap"),
    ("mpsfunc.conv_transpose1d(x, w, padding={})", "same_lower", "full"),
    ("mpsfunc.avg_pool1d(x, {})", "global", "whole"),
    ("mpsfunc.max_pool1d(x, 2, edge_mode={})", "exclude", "replicate"),
    ("mpsfunc.PaddingPolicy(size={})", "full", "same_lower"),
    ("mpsfunc.conv_fwd(x, w, edge_mode={})", "clamp", "mirror"),
    ("mpsfunc.conv_fwd(x, w, neuron={})", "none", "identity"),
    ("mpsfunc.conv_state((1, 4, 4, 1), (1, 2, 2, 1), edge_mode={})", "clamp", "mirror"),
    ("mpsfunc.conv_grad(x, x, w, mpsfunc.conv_state(x.shape, w.shape), option={})", "data", "weights"),
    ("mpsfunc.conv_transpose(x, w, neuron={})", "gelu", "GELU"),
    ("mpsfunc.conv_transpose_grad(x, x, w, mpsfunc.conv_transpose_fwd(x, w)[1], option={})", "all", "both"),
    ("mpsfunc.fully_connected(x, w, neuron={})", "tanh", "maxout"),
    ("mpsfunc.fully_connected_grad(x, x, w, mpsfunc.fully_connected_fwd(x, w)[1], option={})", "all", "both"),
    ("mpsfunc.batch_norm(x, neuron={})", "elu", "maxout"),
    ("mpsfunc.bn_normalize(x, mpsfunc.bn_stats(x), neuron={})", "elu", "maxout"),
    ("mpsfunc.Neuron({}, 0.1)", "relu", "leaky_relu"),
    ("mpsfunc.neuron(x, {})", "softplus", "maxout"),
    ("mpsfunc.neuron_grad(x, x, {})", "softplus", "maxout"),
    ("mpsfunc.arithmetic(x, x, {})", "divide", "div"),
    ("mpsfunc.arithmetic_grad(x, x, x, {})", "divide", "div"),
    ("mpsfunc.arithmetic_grad(x, x, x, 'add', operand={})", "secondary", "second"),
    ("mpsfunc.compare(x, x, {})", "less_equal", "le"),
    ("mpsfunc.loss(x, x, {}, 'sum')", "hinge", "mse"),
    ("mpsfunc.loss(x, x, 'hinge', {})", "mean", "average"),
    ("mpsfunc.loss_fwd(x, x, {}, 'sum')", "hinge", "mse"),
    ("mpsfunc.loss_value(x, x, 'hinge', {})", "mean", "average"),
    ("mpsfunc.loss_grad(x, x, {})", "log", "nll"),
    ("mpsfunc.pad(x, 1, 1, {})", "wrap", "border"),
    ("mpsfunc.pad_state((1, 4, 4, 1), 1, 1, {})", "circular", "border"),
    ("mpsfunc.resize_nearest(x, 7, coordinate={})", "half_pixel", "align_corners"),
    ("mpsfunc.resize_bilinear(x, 7, edge_mode={})", "clamp", "exclude"),
    ("mpsfunc.resize_bicubic(x, scale=0.3, coordinate={})", "half_pixel_symmetric", "align_corners"),
    ("mpsfunc.upsample_bilinear(x, 2, coordinate={})", "half_pixel", "align_corners"),
    ("mpsfunc.upsample_bilinear(x, 2, edge_mode={})", "clamp", "border"),
    ("mpsfunc.PaddingPolicy(align={})", "top_left", "top"),
    ("mpsfunc.PaddingPolicy(remainder={})", "top_right", "top"),
    ("mpsfunc.PaddingPolicy(size={})", "valid", "none"),
    ("mpsfunc.graph.conv(node, 8, 3, name='conv1', edge_mode={})", "clamp", "exclude"),
    ("mpsfunc.graph.conv(node, 8, 3, name='conv1', neuron={})", "relu", "maxout"),
    ("mpsfunc.graph.conv(node, 8, 3, name='conv1', padding={})", "valid", "VALID"),
    ("mpsfunc.graph.batch_norm(node, name='norm1', statistics={})", "never", "off"),
    ("mpsfunc.graph.avg_pool(node, 2, edge_mode={})", "zero", "exclude"),
    ("mpsfunc.graph.max_pool(node, 2, edge_mode={})", "exclude", "none"),
    ("mpsfunc.graph.compare(node, node, {})", "less", "lt"),
    ("mpsfunc.graph.pad(node, 1, 1, {})", "wrap", "border"),
    ("mpsfunc.graph.loss(node, node, {}, 'sum')", "hinge", "mse"),
    ("mpsfunc.graph.loss(node, node, 'hinge', {})", "none", "None"),
    ("mpsfunc.nn.Upsample(2, {})", "linear", "bilinear"),
]
RIGHT = [
    *[call.format(repr(right)) for call, right, _ in NAMES],
    *["mpsfunc.checkpoint(mpsfunc.relu)(x, 0.1).shape", "mpsfunc.nn.checkpoint(mpsfunc.nn.Linear(2, 2))(x).shape"],
    *["mpsfunc.load('file', int) + 1", "mpsfunc.load('file', dict[str, mx.array])['w'].shape"],
    "mpsfunc.save('file', {'step': 1, 'state': mpsfunc.bn_stats(x)})",
    "mpsfunc.graph.compile({'y': [mpsfunc.graph.relu(node)]})({}, {'x': x})",
]
WRONG = [
    *[call.format(repr(wrong)) for call, _, wrong in NAMES],
    *[call.format("name") for call, *_ in NAMES],
    *["mpsfunc.checkpoint(mpsfunc.relu)('x')", "mpsfunc.nn.checkpoint(mpsfunc.nn.Linear(2, 2))(x, 1)"],
    *["mpsfunc.load('file') + 1", "mpsfunc.load('file', list[str]).shape"],
    *["mpsfunc.graph.relu(x)", "mpsfunc.graph.conv(node, 8, 3)", "mpsfunc.graph.compile(x)"],
    *["mpsfunc.max_pool_grad_from_source(x, x, 2, strides=2)", "mpsfunc.avg_pol(x, 2)", "mpsfunc.pooling.avg_pool"],
]
_START = """import mlx.core as mx
from typing import Any
{imports}
name, x, w, node = str(), mx.ones((1, 4, 4, 1)), mx.ones((1, 2, 2, 1)), mpsfunc.graph.ImageNode("x")
def vague(options: Any) -> list[Any]: return [options]
vaguer: dict = dict()
"""


# What is answered -------------------------------------------------------------------------------------------


class Told(NamedTuple):
    """What a type checker says: the types of expressions, and the lines with errors."""

    types: dict[int, str]
    errors: dict[int, str]


def by_mypy(file: Path) -> Told:
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode < 2, done.stdout + done.stderr
    said = re.findall(rf"^.*{file.name}:(\d+): (\w+): (.*)$", done.stdout, re.MULTILINE)
    types = {int(line): text[len('Revealed type is "') : -1] for line, _, text in said if text.startswith("Revealed ")}
    return Told(types, {int(line): text for line, kind, text in said if kind == "error"})


def by_pyright(file: Path) -> Told:
    settings = {"include": [file.name], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (file.parent / "pyrightconfig.json").write_text(json.dumps(settings | {"pythonVersion": "3.10"}))
    how = ["--project", str(file.parent), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run([sys.executable, "-m", "basedpyright", *how], capture_output=True, text=True)
    assert done.returncode < 2, done.stdout + done.stderr
    said = [(each["range"]["start"]["line"] + 1, each) for each in json.loads(done.stdout)["generalDiagnostics"]]
    types = {line: each["message"] for line, each in said if each["message"].startswith("Type of ")}
    errors = {line: each["message"] for line, each in said if each["severity"] == "error"}
    return Told({line: text.partition('" is "')[2][:-1] for line, text in types.items()}, errors)


class Answers(NamedTuple):
    """The same by expressions and calls."""

    types: dict[str, str]
    errors: dict[str, str]


# `make test` needs neither of them; `make lint` installs both, and runs this.
CHECKERS = [pytest.param(name, marks=pytest.mark.needs_dev(name)) for name in ("mypy", "basedpyright")]


@pytest.fixture(scope="module", params=CHECKERS)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    asked = [*EXACT, *INEXACT]
    imports = "\n".join(f"import {module}" for module in ("mpsfunc", *modules()))
    lines = _START.format(imports=imports).splitlines()
    places = {}
    for line, text in [*((f"reveal_type({each})", each) for each in asked), *((each, each) for each in RIGHT + WRONG)]:
        lines.append(line)
        places[len(lines)] = text
    file = tmp_path_factory.mktemp("types") / "calls.py"
    file.write_text("\n".join([*lines, ""]))
    told = (by_mypy if request.param == "mypy" else by_pyright)(file)
    types, errors = ({places.get(line, lines[line - 1]): text for line, text in each.items()} for each in told)
    return Answers(types, errors)


def test_a_type_checker_knows_them_all(answers: Answers) -> None:
    assert set(answers.types) == {*EXACT, *INEXACT} and len(FUNCTIONS) > 150 and len(LAYERS) > 25
    assert answers.types["mpsfunc.avg_pool"].split("->")[-1].strip() in ("array", "mlx.core.array")
    operation = answers.types["mpsfunc.pooling.average_rules.pool"]
    assert re.match(r"(mpsfunc\.core\.operation\.)?Operation\[[\[(]x: (mlx\.core\.)?array, spec: ", operation)


def inexact(type: str) -> bool:
    return bool(re.search(r"\b(Any|Unknown)\b", type))


@pytest.mark.parametrize("expression", EXACT)
def test_a_type_is_exact(answers: Answers, expression: str) -> None:
    assert not inexact(answers.types[expression])


@pytest.mark.parametrize("expression", INEXACT)
def test_what_is_not_exact_is_seen(answers: Answers, expression: str) -> None:
    assert inexact(answers.types[expression])


@pytest.mark.parametrize("call", RIGHT)
def test_a_right_call_has_no_error(answers: Answers, call: str) -> None:
    assert call not in answers.errors


@pytest.mark.parametrize("call", WRONG)
def test_a_wrong_call_is_an_error(answers: Answers, call: str) -> None:
    assert call in answers.errors


# What needs no type checker ---------------------------------------------------------------------------------

# Arguments that are any string.
STRINGS = {
    **{f"mpsfunc.{name}": {"path"} for name in ("load", "save", "exported")},
    "mpsfunc.export": {"path", "mlx"},
    **{name: {"name", "params"} for name in FUNCTIONS if name.startswith("mpsfunc.graph.")},
    "mpsfunc.nn.convert": {"example", "fuse"},
    "mpsfunc.nn.from_torch": {"state_dict", "flattened", "unflattened", "transposed"},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_name_is_one_of_a_few(name: str) -> None:
    arguments = inspect.signature(FUNCTIONS[name]).parameters.values()
    strings = {each.name for each in arguments if re.search(r"\bstr\b", str(each.annotation))}
    assert strings <= STRINGS.get(name, set())


def test_every_name_has_a_type_for_annotations() -> None:
    arguments = [
        each
        for name in public(mf, inspect.isfunction)
        for each in inspect.signature(FUNCTIONS[name]).parameters.values()
    ]
    names = {name for each in arguments for name in re.findall(r"\w+(?:Name|Mode)\b", str(each.annotation))}
    assert names <= set(vars(typing)) and len(names) > 9


def test_the_types_of_filters_are_those_of_their_functions() -> None:
    assert graph_stub.STUB.read_text(encoding="utf-8") == graph_stub.stub(), "python docs/graph_stub.py --write"
    assert {f"mpsfunc.graph.{name}" for name in graph_stub.filters()} < set(FUNCTIONS)


@pytest.mark.needs_cpu_module
@pytest.mark.needs_dev("nanobind")
def test_the_types_of_the_module_are_what_nanobind_tells() -> None:
    import primitives_stub

    told = primitives_stub.STUB.read_text(encoding="utf-8")
    assert told == primitives_stub.stub(), "python docs/primitives_stub.py --write"
    assert "\ndef avg_pool(inputs: Sequence[mlx.core.array], params: Sequence[int]," in told
