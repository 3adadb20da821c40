"""The house rules that a reader of the code may rely on: who imports whom, and one name everywhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import mpsfunc as mf

ROOT = Path(__file__).parents[1]
PACKAGE, METAL, PRIMITIVES = ROOT / "mpsfunc", ROOT / "metal", ROOT / "primitives"
MODULES = {path.stem: path.read_text() for path in sorted(PACKAGE.glob("*.py"))}

FAMILIES = {
    "pooling", "max_pooling", "l2_pooling", "convolution", "conv_transpose", "fully_connected", "sub_pixel", "weights",
    "batch_norm", "instance_norm", "cross_channel_norm", "spatial_norm", "neuron", "activations",
    "dropout", "arithmetic",
    "upsample", "resize", "padding", "images",
    "softmax", "loss",
}  # fmt: skip
# What each floor may import from the package; a family's own private parts are its own.
FLOOR = {"_rules", "_launch", "_lazy", "_check", "window", "_activation", "_near", "_plain", "_printing"}
PARTS = {
    "pooling": {"_avg_kernels", "_pool_stages"},
    "max_pooling": {"_pool_stages", "_max_kernels"},
    "l2_pooling": {"_pool_stages", "_l2_kernels"},
    "convolution": {"_conv_rules", "_conv_spec", "_conv_state", "_fused_neuron", "_reverse"},
    "conv_transpose": {"_conv_library", "_conv_rules", "_conv_spec", "_conv_state", "_fused_neuron", "_reverse"},
    "fully_connected": {"_conv_rules", "_conv_state", "_fused_neuron"},
    "sub_pixel": {"_policy"},
    "batch_norm": {"_across", "_bn_rules", "_bn_state", "_composed_norm", "_fused_neuron", "_prelu"},
    "instance_norm": {"_composed_norm", "_zeros"},
    "cross_channel_norm": {"_window_norms"},
    "spatial_norm": {"_window_norms"},
    "softmax": {"_softmax_kernels"},
    "loss": {"_loss_arguments", "_loss_kernels"},
    "neuron": {"_fused_neuron", "_prelu"},
    "activations": {"_neuron"},
    "arithmetic": {"_arithmetic_kernels", "_operands"},
    "dropout": {"_arithmetic_kernels", "_broadcast", "_dropout_kernels"},
    "upsample": {"_policy", "_resized"},
    "resize": {"_policy", "_resized"},
    "padding": {"_resample", "_sampling"},
    "images": {"_avg_kernels", "_pool_stages"},
}
ALLOWED: dict[str, set[str]] = {
    "_policy": {"_near", "_plain", "_printing"},
    "window": {"_near", "_plain", "_policy", "_printing"},
    "_version": set(),
    "_check": {"_near", "_plain", "_printing"},
    "_nvrtc": {"_printing"},
    "_near": {"_plain", "_printing"},
    "_plain": set(),
    "_printing": set(),
    "_environment": {"_printing"},
    "_launch": {"_environment", "_plain", "_primitives", "_printing", "_nvrtc"},
    "_lazy": {"_launch"},
    "_mlx_settings": set(),
    "_threads": {"_launch", "_plain", "_printing"},
    "_rules": {"_launch"},
    "_zeros": {"_launch", "_lazy"},
    "_vectors": FLOOR,
    "_channel_stages": FLOOR,
    "_channels": FLOOR | {"_channel_stages", "_neuron", "_vectors"},
    "_activation": {"_launch"},
    "_neuron_stages": FLOOR,
    "_neuron": FLOOR | {"_neuron_stages"},
    "_prelu": FLOOR | {"_channels", "_neuron", "_neuron_stages"},
    "_fused_neuron": FLOOR | {"_neuron", "_prelu"},
    "_reverse": {"_plain", "_policy", "window"},
    "_conv_spec": {"_activation", "window"},
    "_conv_library": FLOOR | {"_conv_spec"},
    "_conv_edges": FLOOR,
    "_conv_stages": FLOOR | {"_conv_spec"},
    "_conv_kernels": FLOOR | {"_conv_edges", "_conv_library", "_conv_spec", "_conv_stages", "_environment", "_sums"},
    "_conv_rules": FLOOR | {"_conv_kernels", "_conv_spec", "_neuron", "_zeros"},
    "_conv_state": FLOOR | {"_conv_edges", "_conv_spec", "_fused_neuron", "_neuron", "_policy", "_zeros"},
    "_pool_stages": FLOOR,
    "_avg_kernels": FLOOR | {"_pool_stages"},
    "_max_kernels": FLOOR | {"_pool_stages"},
    "_l2_kernels": FLOOR | {"_pool_stages"},
    "_across": FLOOR | {"_vectors"},
    "_bn_rules": FLOOR | {"_channel_stages", "_channels", "_vectors"},
    "_composed_norm": FLOOR | {"_across", "_channel_stages", "_channels", "_vectors", "_zeros"},
    "_bn_state": FLOOR | {"_across", "_composed_norm", "_vectors"},
    "_softmax_stages": FLOOR,
    "_losses": FLOOR | {"_softmax_kernels"},
    "_loss_stages": FLOOR | {"_losses"},
    "_loss_kernels": FLOOR | {"_loss_stages", "_losses"},
    "_loss_arguments": FLOOR | {"_loss_kernels", "_losses"},
    "_softmax_kernels": FLOOR | {"_softmax_stages"},
    "_window_norm_stages": FLOOR,
    "_sums": FLOOR,
    "_broadcast": FLOOR,
    "_operands": FLOOR | {"_broadcast"},
    "_arithmetic_kernels": FLOOR | {"_broadcast", "_sums"},
    "_dropout_kernels": FLOOR | {"_broadcast"},
    "_window_norms": FLOOR | {"_window_norm_stages"},
    "_sampling": set(),
    "_resample": FLOOR | {"_sampling"},
    "_resized": FLOOR | {"_resample", "_sampling"},
    "_earlier_files": {"_bn_state", "_launch"},
    "_safetensors": {"_printing"},
    "_recomputing": {"_plain", "_printing"},
    "checkpointing": {"_printing", "_recomputing"},
    "_saved_tree": FLOOR
    | FAMILIES
    | {
        "_bn_state",
        "_conv_state",
        "_earlier_files",
        "_fused_neuron",
        "_policy",
        "_resized",
        "_safetensors",
        "_sampling",
    },
    "_saved_places": {"_plain", "_printing", "_safetensors"},
    "saving": {"_printing", "_safetensors", "_saved_places", "_saved_tree"},
    "_selftest": {"mpsfunc", "_launch"},
    "__main__": {"mpsfunc", "_launch", "_mlx_settings", "_nvrtc", "_selftest"},
    **{family: FLOOR | PARTS.get(family, set()) for family in FAMILIES},
}


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


def test_every_module_has_its_floor() -> None:
    assert set(ALLOWED) == set(MODULES) - {"__init__"}


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_imports_point_one_way(name: str) -> None:
    inside = {module.removeprefix("mpsfunc.") for module in imports(MODULES[name]) if module.startswith("mpsfunc")}
    assert inside <= ALLOWED[name]


GRAPH = {path.stem: imports(path.read_text()) for path in sorted(PACKAGE.glob("graph/*.py"))}
# Each knows those before it.
ABOVE = (
    *("nodes", "kinds", "making", "filters", "training", "drawing", "ordering", "plan", "values", "program"),
    "__init__",
)


def test_the_graph_sits_on_top() -> None:
    assert not any("graph" in module for text in MODULES.values() for module in imports(text))
    assert set(GRAPH) == set(ABOVE)
    for name, modules in GRAPH.items():
        known = {f"mpsfunc.graph.{below}" for below in ABOVE[: ABOVE.index(name)]} | {"mpsfunc.graph"}
        assert {module for module in modules if module.startswith("mpsfunc.graph")} <= known
        if name != "__init__":
            text = (PACKAGE / "graph" / f"{name}.py").read_text()
            assert set(re.findall(r"^from mpsfunc\.graph import (.*)$", text, re.MULTILINE)) <= {"kinds"}


def test_the_layers_sit_on_top() -> None:
    assert not any(module.startswith("mpsfunc.nn") for text in MODULES.values() for module in imports(text))
    parts = ("fusing", "activations", "layers", "more", "conversion", "checkpointing", "__init__")
    beneath = {
        "fusing": {"mpsfunc._lazy"},
        "checkpointing": {"mpsfunc._plain", "mpsfunc._printing", "mpsfunc._recomputing"},
        "conversion": {"mpsfunc._plain", "mpsfunc._printing"},
        "layers": {"mpsfunc._printing"},
    }
    for path in PACKAGE.glob("nn/*.py"):
        known = set(parts[: parts.index(path.stem)]) - ({"more"} if path.stem == "conversion" else set())
        known = known if path.stem != "checkpointing" else set()
        inside = {module for module in imports(path.read_text()) if module.startswith("mpsfunc")}
        inside_nn = {"mpsfunc", "mpsfunc.nn", *(f"mpsfunc.nn.{name}" for name in known)}
        assert inside <= inside_nn | beneath.get(path.stem, set())


def test_placement_does_not_know_mlx() -> None:
    assert not any(
        module.startswith("mlx")
        for name in ("window", "_policy", "_reverse", "_sampling")
        for module in imports(MODULES[name])
    )


def names(text: str) -> set[str]:
    """Every identifier that the code of a text uses; comments and docstrings do not count."""
    tree = ast.parse(text)
    plain = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return plain | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize(
    ("word", "owner"),
    [
        ("custom_function", "_rules"),
        ("metal_kernel", "_launch"),
        ("cuda_kernel", "_launch"),
        ("_primitives", "_launch"),
        ("distributed", "_across"),
    ],
)
def test_one_file_owns_each_mechanism(word: str, owner: str) -> None:
    assert [name for name, text in MODULES.items() if word in names(text)] == [owner]


# One name everywhere ------------------------------------------------------------------------------------

BY_A_STATE = {"bn_normalize_by", "bn_stats_grad_by", "bn_grad_by"}


def named(pattern: str) -> set[str]:
    """What a call that starts like this names first, in any module."""
    return {name for text in MODULES.values() for name in re.findall(rf'{pattern}\(\s*"(\w+)"', text)}


def operations() -> set[str]:
    """The operations on images that Python launches."""
    norms = named(r"_(?:both|by_squares)\(\s*\*")  # each with its gradient
    return named(r"_(?:launch\.launch|launched|run)") | norms | {f"{name}_grad" for name in norms}


def vector_operations() -> set[str]:
    """Those between two of them, which MLX compiles for a GPU."""
    return named("@_one_launch")


def words(text: str) -> set[str]:
    """Every string that the code of a text holds."""
    return {str(node.value) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}


def test_every_operation_is_a_primitive_and_the_other_way_round() -> None:
    listed = re.findall(r"^\s+X\((\w+)\)", (PRIMITIVES / "runtime" / "operations.h").read_text(), re.MULTILINE)
    assert sorted([*operations(), *vector_operations()]) == sorted(listed)


def test_every_kernel_text_is_named_and_every_named_one_is_there() -> None:
    texts = {path.stem for path in METAL.glob("*/*.metal")}
    assert texts <= set().union(*map(words, MODULES.values()))
    # MLX has powers for a GPU; the logarithm of softmax is the text of softmax, normalization by a state and as a whole
    # those of its parts. A stage without a name of its own is called after its operation.
    others = {"power", "log_softmax", "log_softmax_grad", "batch_norm", "batch_norm_grad", *BY_A_STATE}
    assert named(r"\bStage") | operations() <= texts | others


def test_every_operation_is_public_or_a_gradient_that_its_family_folds_in() -> None:
    # One is of dropout with a mask, one of conv_grad_weights, one of every gradient behind a neuron, one of batch norm
    # and three of its parts by a state, two are tangents, three of second orders, and two are what images are resampled
    # and padded by.
    folded = {
        *("batch_norm_grad", *BY_A_STATE),
        *("dropout_by_mask", "conv_grad_bias", "neuron_pull", "max_pool_take", "l2_pool_tangent"),
        *("neuron_curve", "window_sum", "power", "pick", "resample"),
    }
    assert operations() - folded <= set(vars(mf))


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
    assert len(path.read_text().splitlines()) <= 420


def test_a_file_of_cpp_or_metal_is_known_by_its_name() -> None:
    """Texts are found by it, whatever their folder."""
    known = [path.name for path in SOURCES if path.suffix in (".metal", ".h")]
    assert "geometry.h" in known and len(set(known)) == len(known)


FOLDERS = ("mpsfunc", "primitives", "metal", "tests", "docs")


def lines_of(folder: str) -> int:
    """Lines of the sources and pages below a folder; an archive without git has the same."""
    paths = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".h", ".cpp", ".metal", ".md")]
    ours = [path for path in paths if not any(part[0] in "._" for part in path.relative_to(ROOT).parts[:-1])]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in ours)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_readme_knows_how_large_a_folder_is(folder: str) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{folder}` \| (.*) \| ([\d,]+) \|$", text, re.MULTILINE)
    assert row, f"README.md: no row of a table for `{folder}`"
    told, lines = int(row[2].replace(",", "")), lines_of(folder)
    assert told % 100 == 0
    assert abs(told - lines) <= 0.05 * lines, f"README.md wants: | `{folder}` | {row[1]} | {round(lines, -2):,} |"


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_public_functions_say_what_they_do() -> None:
    for name, value in vars(mf).items():
        if callable(value) and not name.startswith("_"):
            assert value.__doc__ and value.__doc__.splitlines()[0].endswith("."), name
