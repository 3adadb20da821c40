"""The pages say what is true: their examples run, their links lead somewhere, and the names they use exist."""

from __future__ import annotations

import csv
import doctest
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten
from reference import filled

import mpsfunc as mf
import mpsfunc.activation.activations
import mpsfunc.activation.beyond_mps
from mpsfunc import graph

ROOT = Path(__file__).parents[2]
TEXTS = {
    str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
}


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if ">>> " in text])
def test_examples_run(page: str) -> None:
    text = re.sub(r"^```.*$", "", TEXTS[page], flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    report: list[str] = []
    with mx.stream(mx.cpu):
        result = doctest.DocTestRunner().run(examples, out=report.append)
    assert result.attempted > 0
    assert not result.failed, "".join(report)


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", TEXTS[page]):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings down to the third level, as GitHub and the site have them."""
    prose = re.sub(r"^```.*?^```", "", TEXTS[page], flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#{1,3} (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_anchors_of_links_are_headings(page: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", TEXTS[page]):
        leads = (ROOT / page).parent.joinpath(target).resolve().relative_to(ROOT.resolve()) if target else Path(page)
        assert anchor in anchors(str(leads)), f"{target}#{anchor}"


@pytest.mark.parametrize("page", TEXTS)
def test_names_exist(page: str) -> None:
    for name in re.findall(r"\bmf\.([A-Za-z_]\w*)", TEXTS[page]):
        assert hasattr(mf, name), f"mf.{name}"


def test_names_of_the_graph_exist() -> None:
    for name in re.findall(r"\bgraph\.([a-z_]\w*)", TEXTS["docs/graph.md"]):
        assert hasattr(graph, name) or name in ("svg", "md"), f"graph.{name}"
    table = TEXTS["docs/graph.md"].partition("## Nodes")[2].partition("## The training graph")[0]
    modules = mpsfunc.activation.activations, mpsfunc.activation.beyond_mps
    by_name = [entry for module in modules for entry in vars(module).items()]
    activations = {"prelu", *(name for name, value in by_name if value is getattr(mf, name, None))}
    for name, value in vars(graph).items():
        if inspect.isfunction(value) and name not in activations | {"compile", "training_graph"}:
            assert f"`{name}`" in table, name


def test_the_reference_has_every_public_name() -> None:
    told = set(
        re.findall(
            r"auto(?:function|class):: mpsfunc\.([\w.]+)", "".join(filled(TEXTS[p]) for p in TEXTS if "api" in p)
        )
    )
    kinds = inspect.isfunction, inspect.isclass
    public = {name for name in mf.__all__ if any(kind(getattr(mf, name)) for kind in kinds)}
    layers = {f"nn.{name}" for name, value in vars(mf.nn).items() if name[0] != "_" and any(k(value) for k in kinds)}
    assert told == public | layers


ARGUMENTS = {"padding", "offset", "out_size", "edge_mode", "momentum"}


@pytest.mark.parametrize("page", ["docs/comparison/from-mps.md", "docs/comparison/from-pytorch.md"])
def test_the_tables_name_what_there_is(page: str) -> None:
    cells = [line.rstrip(" |").rpartition("|")[2] for line in TEXTS[page].splitlines() if line.startswith("| ")]
    names = {name for cell in cells for name in re.findall(r"`([a-z][a-z0-9_]*)(?=[`(])", cell)}
    assert len(names) > 25
    missing = {name for name in names if not hasattr(mf, name)} - ARGUMENTS
    assert missing <= {"f_fwd", "f_state", "w", "x"}, missing


def test_the_port_runs() -> None:
    """The right column of the table is a program, whose gradients are those of autodiff."""
    rows = re.findall(r"^\| `.*?` \| `(.*)` \|$", TEXTS["docs/graph.md"].partition("## A port")[2], re.MULTILINE)
    assert len(rows) == 18
    inputs = {"image": mx.random.normal((4, 28, 28, 1)), "labels": mx.array([1, 2, 3, 4]).reshape(4, 1, 1)}
    here = {"graph": graph, "mx": mx, "optim": optim, "inputs": inputs, "batch": 4}
    *build, run, update, wait = rows
    exec("\n".join(build), here)
    params, key = dict(here["params"]), here["states"]["drop"]
    exec(run, here)

    def loss(p: dict) -> mx.array:
        same: dict = {"padding": mf.PaddingPolicy()}
        x = mf.relu(mf.conv(inputs["image"], p["conv1"]["w"], p["conv1"]["b"], **same))
        x = mf.relu(mf.fully_connected(mf.max_pool(x, 2, edge_mode="clamp", **same), p["fc1"]["w"], p["fc1"]["b"]))
        x = mf.fully_connected(mf.dropout(x, keep_probability=0.5, key=key), p["fc2"]["w"], p["fc2"]["b"])
        return mf.loss_value(x, inputs["labels"], "softmax_cross_entropy", "sum", weight=1 / 4).sum()

    want = dict(tree_flatten(mx.grad(loss)(params)))
    got = dict(tree_flatten(here["gradients"]))
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert mx.allclose(got[name], value, rtol=1e-4, atol=1e-5), name
    exec(f"{update}\n{wait}", here)
    assert not mx.array_equal(here["params"]["conv1"]["w"], params["conv1"]["w"])


@pytest.mark.parametrize("page", TEXTS)
def test_files_exist(page: str) -> None:
    for name in re.findall(r"`((?:mpsfunc|metal|primitives|tests|docs|\.ci)/[\w./-]+)`", TEXTS[page]):
        assert (ROOT / name).exists(), name


def test_every_public_function_is_in_the_table() -> None:
    public = {name for name in mf.__all__ if callable(getattr(mf, name))}
    states = {name for name in public if name.endswith("State")}
    threads = {"set_num_threads", "get_num_threads"}
    for name in public - states - threads:
        assert f"`{name}`" in TEXTS["docs/comparison/functions.md"], name


def first_cells(table: str) -> list[str]:
    """The first cells of a table's rows below its head, without what follows a comma."""
    return [row.split("|")[1].partition(",")[0].strip() for row in table.splitlines() if row.startswith("| ")][2:]


def test_every_family_is_compared_with_other_libraries() -> None:
    ours = TEXTS["docs/comparison/functions.md"].partition("## Devices")[0]
    theirs, _, rest = TEXTS["docs/comparison/libraries.md"].partition("## Across families")
    assert len(first_cells(ours)) > 20
    assert first_cells(theirs) == first_cells(ours)
    rows = [row for row in (theirs + rest).splitlines() if row.startswith("| ")]
    assert len(rows) > 30
    assert all(cell.strip() for row in rows for cell in row.strip("|").split("|")[1:]), "a cell is empty"


def test_the_readme_is_short() -> None:
    assert len(TEXTS["README.md"].split()) <= 900
    assert len(re.findall(r"!\[", TEXTS["README.md"])) == 1
    assert "Apple GPU" in "\n".join(TEXTS["README.md"].splitlines()[:20])


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_readme_has_the_figures_of_the_pages() -> None:
    """Each time in its table of networks is on the page that the row links to, for that network, batch and dtype."""
    rows = [
        cells(line) for line in TEXTS["README.md"].splitlines() if "](docs/benchmarks/networks_" in line and "|" in line
    ]
    assert len(rows) == 4
    for network, task, ours, theirs, where in rows:
        (page,) = re.findall(r"\((docs/.*\.md)\)", where)
        mode, batch, dtype = re.fullmatch(r"(\w+)(?: step)?, (\d+) images?, (\w+)", task).groups()
        name = network.removesuffix(" CNN").replace("-", "").lower()
        table = [cells(line) for line in TEXTS[page].splitlines() if line.startswith("| ")]
        found = {
            cell
            for row in table
            if row[0].replace("-", "").lower() == name and {batch, dtype} <= set(row)
            if {mode} <= set(row) or not {"training", "inference"} & set(row)
            for cell in row
        }
        times = re.findall(r"([\d.]+) ms", f"{ours} {theirs}")
        assert len(times) >= 2 and set(times) <= found, (network, task, times)


MACHINES = [f"docs/benchmarks/{name}.md" for name in ("amd", "intel", "h100", "h200")]


@pytest.mark.parametrize("page", MACHINES)
def test_a_machine_has_the_results_of_its_pages(page: str) -> None:
    """How many targets are met is what the linked pages say, and each page is linked to by one machine."""
    linked = set(re.findall(r"\]\(([\w/]+\.md)\) ?\|?", TEXTS[page])) - {"method.md", *(Path(m).name for m in MACHINES)}
    listed = set(TEXTS[page].partition("{toctree}")[2].split()) - {":hidden:", "```"}
    assert {name.removesuffix(".md") for name in linked} == listed
    for line in TEXTS[page].splitlines():
        told = re.search(r"(\d+) of (\d+) (?:targets|limits) met", line)
        counts = [
            re.search(r"(\d+) of (\d+) (?:targets|limits) are met", TEXTS[f"docs/benchmarks/{name}"])
            for name in re.findall(r"\]\(([\w/]+\.md)\)", line.rpartition(" | ")[0])
        ]
        if told:
            assert [sum(int(count[i]) for count in counts) for i in (1, 2)] == [int(told[1]), int(told[2])], line


def test_ratios_of_networks_are_those_of_their_pages() -> None:
    """The least and the greatest median of each kind on the CPU, and those on the GPU beside PyTorch."""
    here = {row[0]: row[1:] for line in TEXTS["docs/benchmarks/README.md"].splitlines() if (row := cells(line))[1:]}
    rows = [cells(line) for line in TEXTS["docs/benchmarks/networks_amd.md"].splitlines() if line.startswith("| ")]

    def spread(mode: str, dtype: str, batches: str) -> str:
        found = [re.match(r"([\d.]+) \(", r[8]) for r in rows if r[1:2] == [mode] and r[3] == dtype and r[2] in batches]
        medians = sorted((made[1] for made in found), key=float)
        return f"{medians[0]} to {medians[-1]}"

    training, inference, narrow, _ = here["AMD EPYC, two cores"]
    assert (training, inference) == (spread("training", "float32", "8"), spread("inference", "float32", "1"))
    parts = spread("training", "bfloat16", "8"), spread("inference", "bfloat16", "18")
    assert narrow == "training {}; inference of six networks, 1 and 8 images, {}".format(*parts)

    gpu = [
        cells(line)
        for line in TEXTS["docs/benchmarks/networks_gpu.md"].splitlines()
        if "| PyTorch NHWC | 1 x |" in line
    ]
    medians = {(row[0], row[2]): row[5].partition(" ")[0] for row in gpu}
    training, _, narrow, _ = here["NVIDIA H200, batch 512"]
    assert training == f"{medians['small', 'float32']} and {medians['resnet20', 'float32']}"
    assert narrow == f"training {medians['small', 'bfloat16']} (one network)"

    with (ROOT / "docs/benchmarks/networks_h200.csv").open(encoding="utf-8") as file:
        known = {
            (row["mode"], row["side"], row["network"]): f"{float(row['times_ours']):.2f}"
            for row in csv.DictReader(file)
        }
    networks = ("ResNet-50", "MobileNetV2")
    assert {network for _, _, network in known} == set(networks)
    eager, compiled, beside_compiled = (
        [known[mode, side, network] for network in networks]
        for mode, side in (
            ("training", "PyTorch"),
            ("training", "PyTorch, compiled"),
            ("inference", "PyTorch, compiled"),
        )
    )
    told = "training {} and {}; inference of 128 images {} and {}".format(*eager, *beside_compiled)
    assert here["NVIDIA H200, batch 128"][2] == told
    assert "are {} and {} times\nas fast as with it".format(*compiled) in TEXTS["docs/benchmarks/README.md"]


def test_every_row_of_the_defaults_is_executed() -> None:
    """`test_examples_run` runs the examples; here each row of the table has one, which its number names."""
    table, _, examples = TEXTS["docs/defaults.md"].partition("## Each row, executed")
    rows = {int(n): line for n, line in re.findall(r"^\| (\d+) \|(.*)$", table, re.MULTILINE)}
    lines = [line for line in examples.splitlines() if line.startswith(">>> ") and " # " in line]
    named = [set(re.findall(r"\b\d+(?=[,:]|$)", line.rpartition(" # ")[2])) for line in lines]
    assert len(rows) > 30 and list(rows) == list(range(1, len(rows) + 1))
    assert {int(n) for numbers in named for n in numbers} == set(rows)


def test_the_page_says_which_kernel_cases_ci_runs() -> None:
    (said,) = re.findall(r"MPSFUNC_KERNEL_SAMPLE=(\d+)", (ROOT / ".ci/run").read_text(encoding="utf-8"))
    (row,) = re.findall(r"^\| `MPSFUNC_KERNEL_SAMPLE` \| .*$", TEXTS["CONTRIBUTING.md"], re.MULTILINE)
    assert set(re.findall(r"\d+", row)) == {said}


def test_make_knows_the_commands_of_the_pages() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    used = {
        command for text in TEXTS.values() for command in re.findall(r"(?:`|^    )make ([a-z]+)", text, re.MULTILINE)
    }
    assert used >= {"demo", "test"}
    for command in used:
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE), command


def test_make_parity_knows_where_parity_is_tested() -> None:
    told = re.search(r"^of_parity := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    places = [ROOT / place for place in told[1].replace("$(wildcard ", "").replace(")", "").split()]
    marked = [path for path in ROOT.glob("tests/**/test_*.py") if "pytest.mark.parity" in path.read_text()]
    marked.remove(Path(__file__))
    assert len(marked) > 8
    for path in marked:
        assert any(place in path.parents or path.match(str(place)) for place in places), path


@pytest.mark.programs
@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_a_family_can_be_tested_alone() -> None:
    """What `make test FAMILY=losses` names is there, and is collected without the other operations' records."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    make = ["make", "--dry-run", "test", "FAMILY=losses"]
    printed = subprocess.run(make, cwd=ROOT, env=alone, capture_output=True, text=True, check=True).stdout
    (command,) = (line for line in printed.splitlines() if " -m pytest " in line)
    arguments = shlex.split(command.partition(' -m pytest -n auto -m "not kernels and not programs" ')[2])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert arguments and done.returncode == 0, done.stdout[-2000:]
    found = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert {"tests/losses/test_values.py", "tests/generic/test_bad_calls.py"} <= found
    assert not any("[avg_pool" in line for line in done.stdout.splitlines())
