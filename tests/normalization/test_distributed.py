"""Batch statistics across processes: what several compute together is what one computes, and no process waits for ever.

Each group is launched once, as users would, by mlx.launch; distributed_worker.py is what its processes run.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import select
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import Any

import across_processes
import mlx.core as mx
import numpy as np
import pytest
from mlx._distributed_utils import config, launch
from normalization import distributed_worker as worker
from support import numbers
from support.groups import PLENTY, launched, run

import mpsfunc as mf
from mpsfunc.channels.activation_spec import NO_ACTIVATION
from mpsfunc.core import launch as core_launch
from mpsfunc.normalization import across_processes as normalization_across_processes
from mpsfunc.normalization import composed, nccl_messages

pytestmark = [
    pytest.mark.needs_cpu_module,
    pytest.mark.skipif(sys.platform == "win32", reason="MLX's ring needs POSIX"),
]

TESTS = Path(__file__).parents[1]
WORKER = str(Path(__file__).with_name("distributed_worker.py"))
PATIENCE = 5.0  # seconds that a process may be silent where one is meant to be


def wait_for(paths: list[Path], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end, f"{[p.name for p in paths if not p.exists()]} missing after {seconds} s"
        time.sleep(0.05)


# The whole batch ----------------------------------------------------------------------------------------

TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 2e-2}


@pytest.fixture(scope="module")
def alone() -> dict[str, np.ndarray]:
    """Every result of one process with the whole batch."""
    with mx.stream(mx.cpu):
        return {
            f"{name} {key}": worker.numpy(value)
            for name, dtype in worker.DTYPES.items()
            for key, value in worker.results(dtype, 1, 0, None).items()
        }


@pytest.fixture(scope="module", params=[(2,), (4,), (2, "as by NCCL")], ids=lambda how: " ".join(map(str, how)))
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, np.ndarray]]:
    """Every result of each process of a group; also of what is sent and computed with NCCL, but by the ring."""
    folder = tmp_path_factory.mktemp("group")
    size, *how = request.param
    output = run(size, WORKER, str(folder), *how)
    found = [folder / f"{rank}.npz" for rank in range(size)]
    assert all(path.exists() for path in found), output
    return [dict(np.load(path)) for path in found]


FORWARD, DERIVED = ("explicit", "parts", "fwd"), ("grad", "sum", "compiled", "second", "jvp", "vmap")
CASES = [(case, dtype) for dtype in worker.DTYPES for case in FORWARD + (() if dtype == "bfloat16" else DERIVED)]


@pytest.mark.programs
@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_a_group_computes_what_one_process_does(
    together: list[dict[str, np.ndarray]], alone: dict[str, np.ndarray], case: str, dtype: str
) -> None:
    names = [name for name in alone if name.split()[0] == dtype and name.split()[2] == case]
    assert names
    for name in names:
        way, parts, expected = name.split()[1], [of_one[name] for of_one in together], alone[name]
        if way == "images":
            actual = np.concatenate(parts)
        elif way == "added":
            actual = np.sum(parts, axis=0)
        else:
            actual = parts[0]
            for part in parts:
                assert part.dtype == expected.dtype and part.tobytes() == actual.tobytes(), name
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE[dtype] * scale, err_msg=name)


@pytest.mark.programs
def test_every_case_is_compared(alone: dict[str, np.ndarray]) -> None:
    assert {name.split()[2] for name in alone} == {*FORWARD, *DERIVED}


@pytest.mark.programs
def test_counts_are_exact(together: list[dict[str, np.ndarray]]) -> None:
    n, h, w, _ = worker.SHAPE
    for of_one in together:
        for name, value in of_one.items():
            if name.endswith(" count"):
                assert value.dtype == np.int64 and (value == n * h * w).all(), name


@pytest.mark.programs
def test_the_example_has_the_same_losses_with_two_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture, on_cpu: mx.Device
) -> None:
    losses = across_processes.main()
    assert losses[-1] < 0.7 * losses[0]
    printed = capsys.readouterr().out
    assert printed.startswith("loss: ") and printed in run(2, WORKER, str(tmp_path), "train")
    assert f"    {printed}" in (TESTS.parent / "docs" / "recipes" / "distributed.md").read_text()
    for rank in range(2):
        np.testing.assert_allclose(json.loads((tmp_path / f"{rank}.json").read_text()), losses, rtol=1e-5)


# Processes that go --------------------------------------------------------------------------------------


@pytest.mark.programs
@pytest.mark.parametrize(("how", "size"), [("killed", 4), ("exits", 2), ("stopped", 4)])
def test_a_process_that_goes_is_an_error_in_all_others_in_time(how: str, size: int, tmp_path: Path) -> None:
    who = 1
    command = [WORKER, str(tmp_path), how, str(who)]
    os.mkfifo(tmp_path / "alive")
    reading = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    patience = PATIENCE if how == "stopped" else PLENTY
    with open(reading, "rb", 0) as alive, launched(size, *command, patience=patience):
        notes = {rank: tmp_path / f"{rank}.json" for rank in range(size) if rank != who}
        wait_for([tmp_path / "leaving"], 2 * PLENTY)
        if how != "stopped":
            assert select.select([alive], [], [], PLENTY)[0] and alive.read(1) == b""  # it has ended
        ended = time.monotonic()
        wait_for(list(notes.values()), 2 * PLENTY)
    waited = []
    for path in notes.values():
        noted = json.loads(path.read_text())
        assert noted["first"].startswith("mpsfunc: "), noted
        if how == "stopped":
            assert noted["first seconds"] < PATIENCE + 2
        else:  # a process that exits takes a while to end, but then it is at once
            assert noted["first at"] < ended + 2
        for again in ("second", "third"):  # at once, though MLX would then wait without end
            assert noted[again].startswith("mpsfunc: another process of the group ended"), noted
            assert noted[f"{again} seconds"] < 1
        assert noted["alone"]
        waited.append("no answer" in noted["first"])
    assert any(waited) == (how == "stopped")


@pytest.mark.programs
def test_a_wait_that_cannot_be_interrupted_ends_the_process(tmp_path: Path) -> None:
    output = run(2, WORKER, str(tmp_path), "sleeps", "1", patience=3)
    assert "no answer from the group's other processes in 3 s" in output
    assert "this process ends" in output
    assert "rank 0 exited with code 1" in output


@pytest.mark.programs
def test_processes_that_evaluate_in_different_orders_get_an_error(tmp_path: Path) -> None:
    run(2, WORKER, str(tmp_path), "disagree")
    messages = [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)]
    assert all(message.startswith("mpsfunc: ") for message in messages), messages
    assert any("not in step" in message for message in messages), messages


# The pages ----------------------------------------------------------------------------------------------

DOCS = TESTS.parent / "docs"
COMMANDS = [
    (str(page.relative_to(DOCS)), line.partition("  #")[0].strip())
    for page in sorted(DOCS.glob("**/*.md"))
    for line in page.read_text().splitlines()
    if line.startswith("    mlx.")
]


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # MLX leaves the file of hosts open
@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_the_launcher_takes_the_commands_of_the_pages(
    page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, *arguments = shlex.split(command)
    if program == "mlx.distributed_config":  # which would ask the hosts at once
        known = inspect.getsource(config)
        assert all(f'"{a}"' in known for a in arguments if a.startswith("--") or a in ("ring", "jaccl", "ethernet"))
        return
    assert program == "mlx.launch"
    hostfiles = re.findall(r"^    (\{.*?\]\})$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    count, backend = 2, arguments[arguments.index("--backend") + 1] if "--backend" in arguments else "ring"
    if "--hostfile" in arguments:
        (content,) = hostfiles
        hosts = json.loads(content)
        for i, host in enumerate(hosts["hosts"]):  # as mlx.distributed_config would add them
            host["rdma"] = [None if i == j else f"rdma_en{j}" for j in range(len(hosts["hosts"]))]
        (tmp_path / "hosts.json").write_text(json.dumps(hosts))
    else:
        named = arguments[arguments.index("--hosts") + 1].split(",") if "--hosts" in arguments else [""]
        count = len(named) * (int(arguments[arguments.index("-n") + 1]) if "-n" in arguments else 1)
    started: list[tuple[str, Any, list[str]]] = []
    for name in ("ring", "mpi", "nccl", "jaccl"):

        def note(parser: Any, hosts: Any, given: Any, words: list[str], name: str = name) -> None:
            started.append((name, hosts, words))

        monkeypatch.setattr(launch, f"launch_{name}", note)
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    monkeypatch.chdir(tmp_path)
    launch.main()
    ((chosen, hosts, (python, script)),) = started
    assert (chosen, len(hosts), python) == (backend, count, "python")
    assert script == "train.py" or (TESTS.parent / script).exists()
    assert chosen == "mpi" or all(host.ips for host in hosts)


# One process --------------------------------------------------------------------------------------------


@pytest.fixture
def only() -> Any:
    group = mx.distributed.init()
    if group.size() > 1:
        pytest.skip("launched as a group")
    return group


def test_connections_that_do_not_fit_are_left_alone(tmp_path: Path) -> None:
    """Descriptors kept beyond a mistake would keep the ring open after this process; so count them."""
    listening = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listening.getsockname())
    far, _ = listening.accept()
    port = listening.getsockname()[1]
    hosts = tmp_path / "hosts.json"
    before = len(os.listdir("/dev/fd"))
    with listening, near, far:
        for nodes, rank, size in (
            ([[f"127.0.0.1:{port}"]] * 2, 0, 2),  # more connections than a ring of two has there
            ([[f"127.0.0.1:{port}"]], 0, 2),
            ([[f"127.0.0.1:{port}"]] * 2, 5, 2),
            ([["nowhere"]] * 2, 0, 2),
            ([[1]] * 2, 0, 2),
            (3, 0, 2),
        ):
            hosts.write_text(json.dumps(nodes))
            normalization_across_processes._ring.cache_clear()
            assert normalization_across_processes._ring(os.getpid(), str(hosts), rank, size) == ()
            assert len(os.listdir("/dev/fd")) == before
    normalization_across_processes._ring.cache_clear()


def test_a_group_of_one_is_no_group(on_cpu: mx.Device, only: Any) -> None:
    with_group = worker.results(mx.float32, 1, 0, only)
    for name, value in worker.results(mx.float32, 1, 0, None).items():
        assert worker.numpy(value).tobytes() == worker.numpy(with_group[name]).tobytes(), name
    with pytest.raises(ValueError, match="no elements to take statistics of"):
        mf.bn_stats(mx.zeros((0, 2, 2, 3)), group=only)


@pytest.mark.parametrize("group", [1, "ring", object()])
def test_what_is_no_group_is_refused(on_cpu: mx.Device, group: Any) -> None:
    x = numbers((2, 2, 2, 3))
    for call in (
        lambda: mf.bn_stats(x, group=group),
        lambda: mf.bn_stats_grad(x, x, mf.bn_stats(x), group=group),
        lambda: mf.batch_norm(x, group=group),
    ):
        with pytest.raises(TypeError, match="not a group; got group="):
            call()


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan", "inf"])
def test_what_is_no_timeout_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("MPSFUNC_DISTRIBUTED_TIMEOUT", given)
    with pytest.raises(ValueError, match="MPSFUNC_DISTRIBUTED_TIMEOUT: not a time"):
        normalization_across_processes._timeout()


def test_only_where_mlx_has_nccl_do_gpus_communicate(monkeypatch: pytest.MonkeyPatch) -> None:
    """With MPI and the ring of MLX the CPU does, whatever computes."""
    for variable in ("NCCL_HOST_IP", "MLX_HOSTFILE"):
        monkeypatch.delenv(variable, raising=False)
    on = mx.default_stream(mx.cpu)
    monkeypatch.setattr(core_launch, "backend", lambda stream: "cuda")
    assert not nccl_messages.are_sent(on)
    monkeypatch.setenv("NCCL_HOST_IP", "127.0.0.1")
    assert nccl_messages.are_sent(on)
    monkeypatch.setenv("MLX_HOSTFILE", "hosts.json")
    assert not nccl_messages.are_sent(on)
    monkeypatch.delenv("MLX_HOSTFILE")
    monkeypatch.setattr(core_launch, "backend", lambda stream: "cpu")
    assert not nccl_messages.are_sent(on)


def test_no_images_are_an_error_where_others_would_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = composed.Spec(False, 0, 1e-5, NO_ACTIVATION, mx.distributed.init(), mx.default_stream(mx.cpu))
    x = mx.zeros((0, 2, 2, 3))
    assert composed._of_nothing(x, spec) is None
    monkeypatch.setattr(core_launch, "backend", lambda stream: "cuda")
    with pytest.raises(ValueError, match=r"no images; got x of shape \(0, 2, 2, 3\), expected an image or more"):
        composed._of_nothing(x, spec)
    assert composed._of_nothing(x, spec._replace(processes=None)) is not None


def test_counts_of_any_size_go_through_nccl() -> None:
    """As two numbers that float32 has, in this process's rows; the others are 0, so that a sum gathers."""
    mean, var = mx.array([1.5, -2.0, 3.0]), mx.array([0.25, 4.0, 1.0])
    rows = nccl_messages.moments(mean, var, mx.array(2**33 + 5, mx.int64), 1, 3)
    expected = np.zeros((12, 3))
    expected[4:8] = np.array(mean), np.array(var), np.full(3, 2**17), np.full(3, 5)
    np.testing.assert_array_equal(np.array(rows), expected)
