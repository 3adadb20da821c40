"""Where the processes of a test run keep what cases launched."""

from __future__ import annotations

import os

import pytest

from metal_host import runs


@pytest.fixture(scope="session", autouse=True)
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        runs.folder = tmp_path_factory.getbasetemp().parent / "runs"
        runs.folder.mkdir(exist_ok=True)
