"""The house rules that a reader of the code may rely on: who imports whom, and one name everywhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import draw_map
import pytest

import mpsfunc as mf
from mpsfunc.core import texts

ROOT = Path(__file__).parents[2]
PACKAGE, METAL, PRIMITIVES = ROOT / "mpsfunc", ROOT / "metal", ROOT / "primitives"
MODULES = {str(path.relative_to(PACKAGE).with_suffix("")): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}

# Rooms -----------------------------------------------------------------------------------------------------

BENEATH = {"core", "windows", "channels", "activation"}
FAMILIES = {"pooling", "convolution", "normalization", "losses", "elementwise", "image"}
MAY_IMPORT = {
    "core": set(),
    "windows": {"core"},
    "channels": {"core"},
    "activation": {"core", "channels"},
    **dict.fromkeys(FAMILIES, BENEATH),
    **{"saving": BENEATH | FAMILIES, "exporting": {"core", "saving"}},
    "mpsfunc": BENEATH | FAMILIES | {"exporting", "saving"},
    "graph": {"mpsfunc", "core", "elementwise"},
    "nn": {"mpsfunc", "core", "convolution"},
    "selftest": {"mpsfunc", "core"},
    "__main__.py": {"mpsfunc", "core", "nn", "selftest"},
    "primitives/runtime": {"metal"},
    "primitives/kernels": {"metal", "primitives/runtime"},
    "primitives/binding": {"primitives/runtime"},
    "metal": set(),
}
ARROWS = draw_map.arrows()


def plain(room: str) -> str:
    """A room's name without that of the package."""
    return room.removeprefix("mpsfunc/")


def test_every_room_is_known() -> None:
    assert set(map(plain, ARROWS)) == set(MAY_IMPORT)


@pytest.mark.parametrize("room", sorted(ARROWS))
def test_imports_point_one_way(room: str) -> None:
    assert set(map(plain, ARROWS[room])) <= MAY_IMPORT[plain(room)]


def test_the_house_stays_small() -> None:
    assert len(ARROWS) <= 21 and sum(map(len, ARROWS.values())) <= 60
    assert len(draw_map.floors(ARROWS)) <= 9  # a circle is an error


def test_a_circle_is_an_error() -> None:
    with pytest.raises(ValueError, match="in a circle, among: a, b"):
        draw_map.floors({"a": {"b"}, "b": {"a"}, "c": set()})


def test_the_map_is_that_of_the_code() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    start, end = draw_map.MARKS
    assert text.partition(start)[2].partition(end)[0].strip() == draw_map.drawn()


def private_imports(name: str, text: str) -> Iterator[str]:
    """What a module uses of another room's private names."""
    room = name.partition("/")[0]
    modules: dict[str, str] = {}
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mpsfunc."):
            other = node.module.split(".")[1]
            if other != room:
                modules |= {alias.asname or alias.name: node.module for alias in node.names}
                yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr.startswith("_"):
            if node.value.id in modules and not node.attr.startswith("__") and node.attr not in ("_replace", "_fields"):
                yield f"{modules[node.value.id]}.{node.value.id}.{node.attr}"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_room_uses_private_names_of_another(name: str) -> None:
    assert not list(private_imports(name, MODULES[name]))


def test_private_names_are_seen() -> None:
    text = "from mpsfunc.core import launch\nfrom mpsfunc.core.launch import _kernel\nlaunch._ahead\nlaunch.launch"
    assert list(private_imports("pooling/l2", text)) == ["mpsfunc.core.launch._kernel", "mpsfunc.core.launch._ahead"]


def imports(text: str) -> set[str]:
    """Every module that a text imports; names from the package itself as ``mpsfunc.<name>``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= (
                {f"mpsfunc.{alias.name}" for alias in node.names} if node.module == "mpsfunc" else {str(node.module)}
            )
    return found


def files_beneath(text: str) -> set[str]:
    """The files of the package that a text imports, or names of which it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "mpsfunc":
            folder = str(node.module).removeprefix("mpsfunc").removeprefix(".").replace(".", "/")
            found |= {name for alias in node.names for name in (folder, f"{folder}/{alias.name}".strip("/"))}
    return found & set(MODULES)


def test_files_do_not_import_in_a_circle() -> None:
    arrows = {name: files_beneath(text) for name, text in MODULES.items()}
    assert "core/grids" in arrows["core/launch"] and "core/nvrtc" in arrows["core/launch"]
    assert len(draw_map.floors(arrows)[0]) > 3


def test_placement_does_not_know_mlx() -> None:
    windows = [text for name, text in MODULES.items() if name.startswith("windows/")]
    assert len(windows) > 4 and not any(module.startswith("mlx") for text in windows for module in imports(text))


GRAPH = {name.removeprefix("graph/"): imports(text) for name, text in MODULES.items() if name.startswith("graph/")}
# Each knows those before it.
ABOVE = "nodes loss_nodes cropping regions kinds factory filters training drawing dependency plan".split()
ABOVE += ["reduction_filters", "placeholders", "program", "__init__"]


def test_the_graph_is_in_floors() -> None:
    assert set(GRAPH) == set(ABOVE)
    for name, modules in GRAPH.items():
        known = {f"mpsfunc.graph.{below}" for below in ABOVE[: ABOVE.index(name)]} | {"mpsfunc.graph"}
        assert {module for module in modules if module.startswith("mpsfunc.graph")} <= known
        if name != "__init__":
            text = MODULES[f"graph/{name}"]
            brought = re.findall(r"^from mpsfunc\.graph import (.*)$", text, re.MULTILINE)
            assert set(", ".join(brought).split(", ")) <= {"", "kinds", "cropping", "regions"}


def test_the_layers_are_in_floors() -> None:
    parts = """step_watch torch_layers torch_weights copying functions laying_out folding following reading drop_in
    activations activations_beyond_mps convolutions poolings layers extra_layers checkpointing rewriting
    rewritten_classes naming observing report conversion comparison timing __init__""".split()
    for path in PACKAGE.glob("nn/*.py"):
        known = set(parts[: parts.index(path.stem)]) - ({"extra_layers"} if path.stem == "conversion" else set())
        known = known if path.stem != "checkpointing" else set()
        inside = {module for module in imports(path.read_text()) if module.startswith("mpsfunc.nn.")}
        assert inside <= {f"mpsfunc.nn.{name}" for name in known}


# Calls -----------------------------------------------------------------------------------------------------

CALLS = draw_map.calls()
MOST_FILES = {"avg_pool": 8, "conv_grad_weights": 15, "bn_grad": 13}


@pytest.mark.parametrize("name", MOST_FILES)
def test_a_call_passes_through_few_files(name: str) -> None:
    files = draw_map.passed(CALLS[name])
    assert 3 <= len(files) <= MOST_FILES[name]
    assert not [path for path, lines in files.items() if draw_map.only_hands_on(path, lines)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(x):\n    return g(x)", True),
        ("def f(x):\n    '''Says so.'''\n    y: int = g(x, 1)\n    return y", True),
        ("def f(x):\n    return g(x + 1)", False),
        ("def f(x):\n    return known[type(x)](x)", False),
        ("def f(x):\n    check(x)\n    return g(x)", False),
    ],
)
def test_handing_on_is_seen(text: str, expected: bool) -> None:
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef) and draw_map.hands_on(function) == expected


# Public names ----------------------------------------------------------------------------------------------


def test_public_names_are_listed_and_nothing_else() -> None:
    brought: dict[str, object] = {}
    exec("from mpsfunc import *", brought)
    public = {name for name, value in vars(mf).items() if name[0] != "_" and not isinstance(value, ModuleType)}
    assert mf.__all__ == sorted(mf.__all__) == sorted({*public, "__version__", "graph", "nn"})
    assert dir(mf) == mf.__all__ and {*mf.__all__} < {*brought}
    assert isinstance(mf.nn, ModuleType) and isinstance(mf.graph, ModuleType)


def test_no_public_function_shadows_a_module() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()} | {path.stem for path in PACKAGE.glob("*.py")}
    assert not (set(mf.__all__) - {"graph", "nn"}) & rooms


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("pooling", "avg_pool", "mpsfunc.avg_pool"),
        ("convolution", "conv", "mpsfunc.conv"),
        ("convolution", "ConvState", "mpsfunc.ConvState"),
        ("saving", "load", "mpsfunc.load"),
        ("max_pooling", "max_pool", "mpsfunc.max_pool"),
        ("window", "PaddingPolicy", "mpsfunc.PaddingPolicy"),
    ],
)
def test_an_old_module_says_where_its_functions_are(module: str, name: str, now: str) -> None:
    with pytest.raises(AttributeError, match=f"{now}$"):
        getattr(getattr(mf, module), name)


def test_what_never_was_is_an_ordinary_error() -> None:
    for of, name in ((mf, "maxpool"), (mf.pooling, "max_pooling")):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'$"):
            getattr(of, name)


# Mechanisms ------------------------------------------------------------------------------------------------


def names(text: str) -> set[str]:
    """Every identifier that the code of a text uses; comments and docstrings do not count."""
    tree = ast.parse(text)
    plain = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return plain | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize(
    ("word", "owner"),
    [
        ("custom_function", "core/operation"),
        ("metal_kernel", "core/launch"),
        ("cuda_kernel", "core/launch"),
        ("_primitives", "core/launch"),
        ("distributed", "normalization/across_processes"),
    ],
)
def test_one_file_owns_each_mechanism(word: str, owner: str) -> None:
    beneath = {name: text for name, text in MODULES.items() if not name.startswith(("nn/", "graph/"))}
    assert [name for name, text in beneath.items() if word in names(text)] == [owner]


# One name everywhere ------------------------------------------------------------------------------------

BY_A_STATE = {"bn_normalize_by", "bn_stats_grad_by", "bn_grad_by"}
OF_A_SUM, LAID_OUT = ("bn_normalize_add", "batch_norm_add"), ("conv_layout", "conv_laid_out")


def named(pattern: str) -> set[str]:
    """What a call that starts like this names first, in any module."""
    return {name for text in MODULES.values() for name in re.findall(rf'{pattern}\(\s*(?:\*\()?"(\w+)"', text)}


def operations() -> set[str]:
    """The operations on images that Python launches."""
    return named(r"(?:\blaunch\.launch|_launched|_run)") - vector_operations()


def vector_operations() -> set[str]:
    """Those between two of them, which MLX compiles for a GPU."""
    return set(re.findall(r'@operation\("(\w+)"\)', MODULES["channels/vector_rules"]))


def words(text: str) -> set[str]:
    """Every string that the code of a text holds."""
    return {str(node.value) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}


def test_every_operation_is_a_primitive_and_the_other_way_round() -> None:
    listed = re.findall(r"^\s+X\((\w+)\)", (PRIMITIVES / "runtime/operations.h").read_text(), re.MULTILINE)
    assert sorted([*operations(), *vector_operations()]) == sorted(listed)


def test_every_kernel_text_is_named_and_every_named_one_is_there() -> None:
    texts = {path.stem for path in METAL.rglob("*.metal")}
    assert texts <= set().union(*map(words, MODULES.values()))
    # MLX has powers, layer norm and reductions for a GPU; softmin and the logarithm of softmax are softmax's text,
    # normalization by a state and as a whole those of its parts, also of a sum, and so is the Dice loss. A stage
    # without a name of its own is called after its operation.
    others = {"power", "softmin", "log_softmax", "log_softmax_grad", "batch_norm", "batch_norm_grad", *BY_A_STATE}
    others |= {"layer_norm", "layer_norm_grad", "layer_norm_grad_grad", *LAID_OUT, *OF_A_SUM}
    others |= {"dice_sums", "dice_grad", "dice_loss_grad", "nms", "gram_matrix", "gram_matrix_grad"}
    assert named(r"\bKernelLaunch") | operations() <= texts | others | {op for op in operations() if "reduce_" in op}


def test_every_operation_is_public_or_a_gradient_that_its_family_folds_in() -> None:
    # Gradients behind activations and losses, parts of batch norm, tangents, second orders, what images are resampled,
    # padded and sampled by, and weights laid out.
    folded = {
        *("batch_norm_grad", *BY_A_STATE, *OF_A_SUM, "glu_grad", "dice_sums", "dice_grad"),
        *("dropout_by_mask", "conv_grad_bias", "neuron_grad_from_output", "max_pool_gather", "l2_pool_jvp"),
        *("neuron_grad_grad", "layer_norm_grad_grad", "window_sum", "power", "gather_pixels", "resample", *LAID_OUT),
    }
    of_places = {name for name in operations() if name.startswith(("deform_", "box_sample", "reduce_"))}
    assert operations() - folded - of_places <= set(mf.__all__)


# Headers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", sorted(path.stem for path in METAL.glob("pooling/*.metal")))
def test_a_pooling_carries_few_headers(body: str) -> None:
    assert len(texts.header(body, metal=True)) <= 20_000


def test_every_header_of_a_body_is_included_once_and_behind_what_it_needs() -> None:
    whole = texts.header("avg_pool_grad_tile", metal=True)
    parts = [f"shared/{name}.h" for name in ("base", "geometry", "vector_load")]
    at = [whole.index(texts.text(part)) for part in (*parts, "pooling/params.h", "pooling/tile.h")]
    assert at[0] < at[1] < at[3] < at[4] and at[2] > at[0] and "#include" not in whole
    assert all(whole.count(texts.text(part)) == 1 for part in (*parts, "pooling/params.h", "pooling/tile.h"))
    assert "shared/moments.h" not in whole and texts.text("shared/moments.h") not in whole


# Sizes and packaging ------------------------------------------------------------------------------------

SOURCES = [
    path
    for folder, endings in (
        (PACKAGE, "**/*.py"),
        (METAL, "**/*"),
        (PRIMITIVES, "**/*"),
        *((ROOT / name, "**/*.py") for name in ("tests", "docs")),
    )  # fmt: skip
    for path in sorted(folder.glob(endings))
    if path.is_file() and path.suffix in (".py", ".metal", ".h", ".cpp")
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_one_room(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= (400 if path.name.startswith("test_") else 420)


HELPERS = [
    path
    for path in (ROOT / "tests").rglob("*.py")
    if ("support" in path.parts and not path.name.startswith("test_"))
    or path.name in ("opinfo.py", "case.py", "geometry.py", "strategies.py")
]


@pytest.mark.parametrize("path", HELPERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_helper_of_the_tests_says_what_it_is(path: Path) -> None:
    module = ast.parse(path.read_text())
    made = [each for each in module.body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    named = [each for each in made if not each.name.startswith("_")]
    assert ast.get_docstring(module)
    assert [each.name for each in named if not ast.get_docstring(each)] == []


def test_a_body_is_known_by_its_name() -> None:
    """Texts of kernels are found by it, whatever their folder; and headers mean one thing, but for params.h."""
    known = [path.name for path in SOURCES if path.suffix in (".metal", ".h") and path.name != "params.h"]
    assert {"avg_pool.metal", "tile.h"} <= set(known) and len(set(known)) == len(known)


FOLDERS = ("mpsfunc", "primitives", "metal", "tests", "docs")


def lines_of(folder: str) -> int:
    """Lines of the sources and pages below a folder; an archive without git has the same."""
    paths = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".h", ".cpp", ".metal", ".md")]
    ours = [path for path in paths if not any(part[0] in "._" for part in path.relative_to(ROOT).parts[:-1])]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in ours)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_overview_knows_how_large_a_folder_is(folder: str) -> None:
    text = (ROOT / "docs/internals/overview.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{folder}` \| (.*) \| ([\d,]+) \|$", text, re.MULTILINE)
    assert row, f"docs/internals/overview.md: no row of a table for `{folder}`"
    told, lines = int(row[2].replace(",", "")), lines_of(folder)
    assert told % 100 == 0
    assert abs(told - lines) <= 0.05 * lines, f"the page wants: | `{folder}` | {row[1]} | {round(lines, -2):,} |"


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_public_functions_say_what_they_do() -> None:
    for name in mf.__all__:
        value = getattr(mf, name)
        if callable(value):
            assert value.__doc__ and value.__doc__.splitlines()[0].endswith("."), name
