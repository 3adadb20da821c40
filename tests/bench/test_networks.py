"""The benchmark of whole networks: what it compares, what it keeps and leaves, and the page that it writes."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from . import networks, networks_csv, networks_page, networks_turns, whole
from .networks_csv import Machine
from .networks_turns import COMPILED, EAGER, GRAPHS, JAX, OURS, STOCK, Measured, Refused
from .whole import INFERENCE, TRAINING, Cell

ZEN = Machine("amd", "a Zen", "avx512", "", "mlx 1, torch 2", "c0ffee", "2026-11-27 10:00 UTC")
TRAINED = Cell("small", TRAINING, 8, "float32", 32)
INFERRED = Cell("small", INFERENCE, 1, "float32", 32)


@pytest.fixture
def on_torch() -> Any:
    """Where PyTorch is."""
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def timed(cell: Cell, **seconds: float) -> Measured:
    """A cell of sides that took so long in each of three rounds."""
    names = {"ours": OURS, "eager": EAGER, "compiled": COMPILED, "jax": JAX}
    taken = {names[side]: [each, 1.01 * each, 0.99 * each] for side, each in seconds.items()}
    megabytes = {name: 10.0 + i for i, name in enumerate(taken)}
    return Measured(cell, taken, megabytes, dict.fromkeys(taken, float("nan")), {})


# The matrix ----------------------------------------------------------------------------------------------------


def test_the_matrix_has_every_network_in_every_mode() -> None:
    cells = whole.cells("cpu")
    assert len(cells) == 11 * 3 * 2 == len(set(cells))
    assert Counter((cell.mode, cell.batch) for cell in cells) == dict.fromkeys(
        [(TRAINING, 8), (INFERENCE, 1), (INFERENCE, 8)], 22
    )
    on_gpu = [cell.batch for cell in whole.cells("gpu") if cell.trains]
    assert Counter(on_gpu) == {128: 18, 512: 4}


def test_sides_are_those_that_the_issue_asks_for() -> None:
    assert networks_turns.sides(Cell("U-Net", TRAINING, 8, "float32", 128)) == [OURS, EAGER]
    assert networks_turns.sides(Cell("U-Net", INFERENCE, 1, "bfloat16", 128)) == [OURS, EAGER, COMPILED]
    assert networks_turns.sides(Cell("ResNet-50", INFERENCE, 1, "float32", 224)) == [OURS, EAGER, COMPILED, JAX, STOCK]
    on_gpu = networks_turns.sides(Cell("U-Net", TRAINING, 128, "bfloat16", 128, "gpu"))
    assert EAGER in on_gpu and COMPILED in on_gpu and JAX not in on_gpu


def test_what_is_asked_for_is_measured() -> None:
    args = networks.parser().parse_args(["--only", "U-Net", "small", "--modes", "inference", "--batch", "8"])
    asked = networks.wanted(args)
    assert {(cell.network, cell.mode, cell.batch) for cell in asked} == {
        ("U-Net", INFERENCE, 8),
        ("small", INFERENCE, 8),
    }
    assert {cell.dtype for cell in asked} == {"float32", "bfloat16"}


@pytest.mark.parity
@pytest.mark.parametrize("network", whole.NETWORKS)
def test_a_twin_has_every_parameter_once(network: str, on_torch: Any) -> None:
    """`copied` compares names and shapes; and twins have as many convolutions."""
    import mlx.nn as nn

    cell = Cell(network, INFERENCE, 1, "float32", 32)
    model = whole.of_mlx(cell)
    zeros = {path: np.zeros(a.shape, np.float32) for path, a in tree_flatten(model.parameters())}
    with on_torch.no_grad():
        twin = whole.of_torch(cell, zeros)
    ours = sum(isinstance(each, nn.Conv2d | nn.ConvTranspose2d) for each in model.modules())
    kinds = on_torch.nn.Conv2d, on_torch.nn.ConvTranspose2d
    assert ours == sum(isinstance(each, kinds) for each in twin.modules())


def test_networks_have_as_many_parameters_as_people_say() -> None:
    millions = {"ResNet-18": 11.69, "ResNet-50": 25.56, "MobileNetV2": 3.50, "MobileNetV3-Large": 5.48}
    millions |= {"EfficientNet-B0": 5.29, "ConvNeXt-T": 28.59, "ResNet-20": 0.27}
    for network, expected in millions.items():
        model = whole.of_mlx(Cell(network, TRAINING, 1, "float32", 32))
        count = sum(a.size for path, a in tree_flatten(model.parameters()) if ".running_" not in path)
        assert count / 1e6 == pytest.approx(expected, abs=0.01), network


# One cell ------------------------------------------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.programs
@pytest.mark.needs_cpu_module
@pytest.mark.parametrize(
    ("network", "dtype", "mode"),
    [
        ("small", "bfloat16", INFERENCE),
        ("small", "float32", TRAINING),
        ("ResNet-20", "bfloat16", TRAINING),
        ("DCGAN generator", "float32", INFERENCE),
    ],
)
def test_both_sides_compute_the_same_and_are_timed(network: str, dtype: str, mode: str, on_torch: Any) -> None:
    cell = Cell(network, mode, 4, dtype, whole.NETWORKS[network].pixels)
    measured = networks_turns.measure(cell, [OURS, EAGER], 1, 1)
    assert measured.seconds.keys() == {OURS, EAGER} and not measured.notes
    assert all(0 < seconds < 60 for (seconds,) in measured.seconds.values())
    assert all(0 <= grown < 2000 for grown in measured.megabytes.values())


@pytest.mark.parity
@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("mode", whole.MODES)
def test_other_weights_are_found(mode: str, tmp_path: Path, on_torch: Any) -> None:
    """One scale of one layer, a hundredth more."""
    cell = Cell("ResNet-20", mode, 4, "float32", 32)
    whole.write_weights(cell, tmp_path / "weights.npz")
    right = reported(EAGER, cell, tmp_path, "right")
    networks_turns.agree(cell, right, reported(OURS, cell, tmp_path, "same"))
    weights = whole.weights(tmp_path / "weights.npz")
    weights["stages.1.layers.0.short.layers.1.weight"][3] *= 1.1
    np.savez(tmp_path / "weights.npz", **weights)
    with pytest.raises(Refused, match="otherwise" if mode == TRAINING else "other results"):
        networks_turns.agree(cell, right, reported(OURS, cell, tmp_path, "other"))


def reported(side: str, cell: Cell, folder: Path, name: str) -> dict[str, Any]:
    """What a side says of its first steps, in this process."""
    before = mx.default_device()
    try:
        runner = networks_turns.built(side, cell, folder)
        curve = [runner.run(1) for _ in range(networks_turns.CURVE)]
        np.savez(folder / name, *runner.outputs())
    finally:
        mx.set_default_device(before)
    return {"curve": curve, "outputs": str(folder / f"{name}.npz")}


@pytest.mark.parity
@pytest.mark.parametrize("mode", whole.MODES)
@pytest.mark.parametrize("network", ["small", "ResNet-20"])
def test_jax_has_the_same_networks(network: str, mode: str, tmp_path: Path, on_torch: Any) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    cell = Cell(network, mode, 4, "float32", 32)
    whole.write_weights(cell, tmp_path / "weights.npz")
    right, found = reported(EAGER, cell, tmp_path, "right"), reported(JAX, cell, tmp_path, "found")
    networks_turns.agree(cell, right, found)


def test_a_side_that_learns_otherwise_is_refused_although_it_begins_alike() -> None:
    right = {"curve": [2.0, 1.9, 1.8]}
    networks_turns.agree(TRAINED, right, {"curve": [2.0, 1.91, 1.81]})
    for curve in ([2.0, 1.95, 1.9], [2.0, 1.9, 1.7], [2.01, 1.91, 1.81], [2.0, 2.0, float("nan")]):
        with pytest.raises(Refused):
            networks_turns.agree(TRAINED, right, {"curve": curve})


@pytest.mark.parity
@pytest.mark.needs_cpu_module
def test_a_side_that_does_not_run_is_a_note(on_torch: Any) -> None:
    """JAX may not be installed, and if it is, there is no generator for it."""
    measured = networks_turns.measure(INFERRED._replace(network="DCGAN generator"), [OURS, EAGER, JAX], 1, 1)
    assert measured.seconds.keys() == {OURS, EAGER}
    assert re.match("ended with 1: (KeyError|ModuleNotFoundError)", measured.notes[JAX])


# The table -----------------------------------------------------------------------------------------------------


def test_what_a_table_has_of_this_machine_and_commit_is_not_measured_again(tmp_path: Path) -> None:
    table = tmp_path / "networks_amd.csv"
    cells = [TRAINED, INFERRED, INFERRED._replace(batch=8)]
    assert networks_csv.lacking(networks_csv.read(table), cells, ZEN) == cells
    networks_csv.keep(table, timed(INFERRED, ours=1.0, eager=2.0), ZEN)
    assert networks_csv.lacking(networks_csv.read(table), cells, ZEN) == [cells[0], cells[2]]
    for other in (ZEN._replace(commit="d0d0"), ZEN._replace(name="another Zen"), ZEN._replace(isa="avx2")):
        assert networks_csv.lacking(networks_csv.read(table), cells, other) == cells
    networks_csv.keep(table, timed(TRAINED, ours=1.0, eager=2.0), ZEN._replace(commit="d0d0"))
    assert [record["mode"] for record in networks_csv.read(table)] == [TRAINING, TRAINING, INFERENCE, INFERENCE]
    networks_csv.keep(table, timed(TRAINED, ours=3.0, eager=2.0, compiled=1.0), ZEN)  # in the place of the older
    records = [record for record in networks_csv.read(table) if record["mode"] == TRAINING]
    assert [record["side"] for record in records] == [OURS, EAGER, COMPILED]
    assert {record["commit"] for record in records} == {"c0ffee"}
    assert records[0]["ms"] == "3000" and records[1]["times_ours"] == "0.66667" and records[0]["rounds"] == "3"
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.needs_cpu_module
def test_instruction_sets_have_tables_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row takes the place of another of its cell, so those of two sets may not lie in one table."""
    monkeypatch.setattr(networks_csv.report, "vendor", lambda: "amd")
    assert networks_csv.kind_of("avx512_bf16", "avx512_bf16") == "amd"
    sets = [("avx2", ""), ("avx512", "avx512_bf16"), ("avx512_bf16", "amx")]
    assert [networks_csv.kind_of(*each) for each in sets] == ["amd_avx2", "amd_avx512", "amd_avx512_bf16"]
    here = networks_csv.machine(False, "c0ffee")
    assert here.kind == networks_csv.kind_of(here.isa, here.bfloat16_by)


def test_a_run_that_is_begun_again_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where time was used up, and where it was interrupted."""
    asked: list[Cell] = []

    def measure(cell: Cell, names: object, rounds: int, processes: int) -> Measured:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(cell)
        return timed(cell, ours=1.0, eager=2.0)

    monkeypatch.setattr(networks_turns, "measure", measure)
    monkeypatch.setattr(networks_csv, "machine", lambda on_gpu, commit: ZEN._replace(commit=commit or "c0ffee"))
    monkeypatch.setattr(networks.os, "sched_setaffinity", lambda *_: None, raising=False)
    arguments = ["--only", "small", "--dtype", "float32", "--out", str(tmp_path)]
    networks.main([*arguments, "--minutes", "1e-9"])
    assert asked == whole.cells("cpu")[-12:-11]
    networks.main(arguments)
    assert [(cell.mode, cell.batch) for cell in asked] == [(TRAINING, 8), (INFERENCE, 1), (INFERENCE, 8)]
    networks.main(arguments)
    assert len(asked) == 3
    networks.main([*arguments, "--again"])  # is interrupted at once, and keeps what there was
    with (tmp_path / "networks_amd.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 6


def test_a_page_says_of_which_commit_rows_are(tmp_path: Path) -> None:
    table = tmp_path / "networks_amd.csv"
    for cell in (TRAINED, INFERRED):
        networks_csv.keep(table, timed(cell, ours=1.0, eager=2.0), ZEN)
    assert networks_page.facts(networks_csv.read(table))["commit"] == "c0ffee"
    for cell in (INFERRED._replace(batch=8), INFERRED._replace(dtype="bfloat16")):
        networks_csv.keep(table, timed(cell, ours=1.0, eager=2.0), ZEN._replace(commit="d0d0"))
    networks_csv.keep(table, timed(TRAINED._replace(dtype="bfloat16"), ours=1.0, eager=2.0), ZEN)
    said = networks_page.facts(networks_csv.read(table))["commit"]
    assert said == "c0ffee; but d0d0 of: small, inference x8, float32; small, inference x1, bfloat16"


def test_a_commit_of_tables_alone_changes_nothing(tmp_path: Path) -> None:
    def commit(name: str) -> str:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
        git = ["git", "-c", "user.name=a", "-c", "user.email=b", "-C", str(tmp_path)]
        for command in (["init", "-q"], ["add", "."], ["commit", "-qm", name]):
            subprocess.run([*git, *command], check=True)
        return networks_csv.last_change(tmp_path)

    assert networks_csv.last_change(tmp_path) == "unknown"
    code = commit("mpsfunc/code.py")
    assert re.fullmatch("[0-9a-f]{12}", code) and commit("docs/networks_amd.csv") == code
    assert commit("primitives/code.cpp") != code
    (tmp_path / "mpsfunc" / "code.py").write_text("2")
    assert networks_csv.last_change(tmp_path).endswith("-dirty")


# The page ------------------------------------------------------------------------------------------------------


def page(tmp_path: Path, *cells: Measured, on: Machine = ZEN) -> str:
    """That of these cells."""
    table = tmp_path / f"networks_{on.kind}.csv"
    for measured in cells:
        networks_csv.keep(table, measured, on)
    return networks_page.write(table)


def test_the_page_is_written_of_the_table_alone(tmp_path: Path) -> None:
    training = timed(TRAINED, ours=1.0, eager=2.0)
    inference = timed(INFERRED, ours=1.0, eager=4.0, compiled=0.5, jax=3.0)
    text = page(tmp_path, training, inference._replace(notes={STOCK: "a step takes over a minute"}))
    assert "| small | training | 8 | float32 | 1000 | 2000 |  | PyTorch | 2.00 (2.00 to 2.00) |" in text
    line = next(line for line in text.splitlines() if line.startswith("| small | inference | 1 |"))
    assert line.endswith("| PyTorch, compiled | 0.50 (0.50 to 0.50) | 10 | 11 | 12 | 1 x | **missed** |")
    assert "| small | inference | 1 | float32 | MLX |  | a step takes over a minute |  |" in text
    assert "| small | inference | 1 | float32 | JAX | 3000 | 3.00 (3.00 to 3.00) | 13 |" in text
    assert "mpsfunc is 2.83 times as fast as PyTorch eager in the geometric mean over 2 cells" in text
    assert "| small | 8 | float32 | 10 | 11 | 1 x | met |" in text
    assert "2 of 3 targets are met, 1 missed](networks_amd.svg)" in text
    assert (tmp_path / "networks_amd.md").read_text(encoding="utf-8") == text
    assert text.startswith("# Whole networks on an AMD CPU\n")
    narrower = page(tmp_path, training, on=ZEN._replace(kind="amd_avx2", isa="avx2"))
    assert narrower.startswith("# Whole networks on an AMD CPU with avx2\n")
    assert (tmp_path / "networks_amd.md").read_text(encoding="utf-8") == text


def test_bfloat16_has_its_own_target_where_the_processor_does_not_multiply_it(tmp_path: Path) -> None:
    narrow = TRAINED._replace(dtype="bfloat16")
    cells = timed(TRAINED, ours=1.0, eager=2.0), timed(narrow, ours=1.05, eager=0.5)
    ending = re.compile(r"^\| small \| training \| 8 \| bfloat16 \|.*\| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
    found = ending.search(page(tmp_path / "one", *cells))
    assert found and found.groups() == ("1.1 x the time in float32", "met")
    found = ending.search(page(tmp_path / "two", *cells, on=ZEN._replace(bfloat16_by="amx")))
    assert found and found.groups() == ("1 x", "**missed**")


def test_the_picture_shows_every_verdict_of_a_page(tmp_path: Path) -> None:
    import benchmark_pages
    import draw_benchmarks

    text = page(tmp_path, timed(TRAINED, ours=1.0, eager=2.0), timed(INFERRED, ours=1.0, eager=0.5))
    drawn = draw_benchmarks.draw(benchmark_pages.read(tmp_path / "networks_amd.csv"))
    for verdict, cell in (("met", r"\bmet \|"), ("missed", r"\bmissed(\*\*)? \|")):
        assert drawn.count(f'data-verdict="{verdict}"') == len(re.findall(cell, text)) > 0
    assert "2 of 3 targets met, 1 missed" in drawn and "one image" in drawn


@pytest.mark.parametrize(("side", "first"), [(OURS, True), (GRAPHS, True), (STOCK, False), (EAGER, False)])
def test_mpsfunc_is_imported_before_mlx_runs_anything(side: str, first: bool) -> None:
    """As users do: on a GPU that is when it has its say in how MLX launches."""
    program = f"""
import sys
from pathlib import Path
from types import SimpleNamespace
from tests.bench import networks_turns, whole
networks_turns._module = lambda name: SimpleNamespace(runner=lambda *a, **k: "mpsfunc" in sys.modules)
whole.weights = lambda file: {{}}
assert "mpsfunc" not in sys.modules
print(networks_turns.built({side!r}, whole.Cell("small", "training", 8, "float32", 32, "gpu"), Path()))
"""
    root = Path(__file__).parents[2]
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root)
    assert told.stdout.strip() == str(first)
