"""An MLX that is missing, incomplete or foreign is one sentence with the command that mends it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from mpsfunc.core import versions
from mpsfunc.core.mlx_table import END, FEATURES, TABLE
from mpsfunc.core.versions import Installed, complaint

ROOT = Path(__file__).parents[2]
MLX = Path(mx.__file__).parent
HERE = mx.__version__
WORKS = f"mpsfunc {versions.VERSION} works with mlx>={TABLE[0].mlx},<{END}, but "
CPU = f"pip install 'mlx[cpu]=={TABLE[-1].mlx}'"
EITHER = f"{CPU} (or, for an NVIDIA GPU, 'mlx[cuda13]=={TABLE[-1].mlx}')"

# What pip has left, whether libmlx is there and whether it loads, and the end of the sentence on Linux.
STATES = {
    "nothing": ((), False, f"MLX is not installed; run: {EITHER}"),
    "no backend": (("mlx-0.32.4",), False, f"mlx 0.32.4 is installed without a backend; run: {EITHER}"),
    "another backend": (
        ("mlx-0.32.4", "mlx_cpu-0.32.3"),
        True,
        f"mlx 0.32.4 is installed beside mlx-cpu 0.32.3, which does not fit it; run: {CPU}",
    ),
    "a newer backend": (
        ("mlx-0.32.4", "mlx_cuda_13-0.32.5"),
        True,
        "mlx 0.32.4 is installed beside mlx-cuda-13 0.32.5, which does not fit it; "
        "run: pip install 'mlx[cuda13]==0.32.4'",
    ),
    "libmlx uninstalled with another backend": (
        ("mlx-0.32.4", "mlx_cuda_12-0.32.4"),
        False,
        "libmlx is gone, which mlx-cuda-12 brought; run: pip uninstall -y mlx-cuda-12 && "
        "pip install 'mlx[cuda12]==0.32.4'",
    ),
    "two backends": (
        ("mlx-0.32.4", "mlx_cpu-0.32.3", "mlx_cuda_13-0.32.4"),
        True,
        "mlx 0.32.4 is installed beside mlx-cpu 0.32.3, which does not fit it; "
        "run: pip uninstall -y mlx-cpu mlx-cuda-13 && pip install 'mlx[cuda13]==0.32.4'",
    ),
    "an MLX of the window stays": (
        ("mlx-0.32.3", "mlx_cpu-0.32.4"),
        True,
        "mlx 0.32.3 is installed beside mlx-cpu 0.32.4, which does not fit it; run: pip install 'mlx[cpu]==0.32.3'",
    ),
}
linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a package of MLX brings its backend")


def environment(site: Path, packages: tuple[str, ...], library: bool) -> None:
    """Makes a folder of packages as pip does, with this machine's MLX, but for what is missing."""
    site.mkdir()
    for package in packages:
        (site / f"{package}.dist-info").mkdir()
    if packages:
        shutil.copytree(MLX, site / "mlx", ignore=shutil.ignore_patterns(*([] if library else ["lib"]), "include"))
    for libraries in MLX.parent.glob("mlx_*.libs"):
        shutil.copytree(libraries, site / libraries.name)


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python that sees these packages and mpsfunc."""
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, env=paths, cwd=site, capture_output=True, text=True, timeout=60, check=False)


@linux
@pytest.mark.parametrize(("packages", "library", "told"), STATES.values(), ids=STATES)
def test_import_says_what_mends_mlx(tmp_path: Path, packages: tuple[str, ...], library: bool, told: str) -> None:
    environment(tmp_path / "site", packages, library)
    done = run(tmp_path / "site", "-c", "import mpsfunc")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: {WORKS}{told}"
    assert done.stderr.count("Traceback") == 1, "without the error that led to it"


@linux
@pytest.mark.parametrize(("packages", "library", "told"), STATES.values(), ids=STATES)
def test_the_report_says_what_mends_mlx(tmp_path: Path, packages: tuple[str, ...], library: bool, told: str) -> None:
    environment(tmp_path / "site", packages, library)
    done = run(tmp_path / "site", "-m", "mpsfunc")
    assert (done.returncode, done.stderr) == (1, f"{WORKS}{told}\n")
    facts = [line.split()[0] for line in done.stdout.splitlines()]
    assert facts == ["mpsfunc", "python", "packages"]
    assert all(package.replace("_", "-").replace("-0.", " 0.") in done.stdout for package in packages)


@linux
def test_an_mlx_that_fits_is_imported(tmp_path: Path) -> None:
    environment(tmp_path / "site", (f"mlx-{HERE}", f"mlx_cpu-{HERE}"), True)
    done = run(tmp_path / "site", "-c", "import mlx.core, mpsfunc; print(mlx.core.__file__)")
    assert done.stderr == "" and done.stdout.startswith(str(tmp_path))


@pytest.mark.parametrize("version", ["0.1.2", "0.33.0", "1.0"])
def test_an_mlx_out_of_reach_is_told(tmp_path: Path, version: str) -> None:
    environment(tmp_path / "site", (f"mlx-{version}", f"mlx_cpu-{version}"), True)
    done = run(tmp_path / "site", "-c", f"import mlx.core as mx; mx.__version__ = '{version}'; import mpsfunc")
    assert done.stderr.splitlines()[-1] == f"ImportError: {WORKS}mlx {version} is installed; run: {CPU}"


@pytest.mark.parametrize("lacks", [FEATURES[:1], FEATURES])
def test_an_older_mlx_is_refused_by_what_it_lacks(tmp_path: Path, lacks: tuple[str, ...]) -> None:
    environment(tmp_path / "site", ("mlx-0.32.2", "mlx_cpu-0.32.2"), True)
    taken = "".join(f"del mx.{name}; " for name in lacks)
    program = f"import mlx.core as mx; {taken}mx.__version__ = '0.32.2'; import mpsfunc"
    told = " and no ".join(f"mx.{name}" for name in lacks)
    last = run(tmp_path / "site", "-c", program).stderr.splitlines()[-1]
    assert last == f"ImportError: {WORKS}mlx 0.32.2 has no {told}; run: {CPU}"


@linux
def test_what_nobody_knows_is_left_as_mlx_says_it(tmp_path: Path) -> None:
    environment(tmp_path / "site", (f"mlx-{HERE}", f"mlx_cpu-{HERE}"), True)
    next((tmp_path / "site" / "mlx" / "lib").glob("libmlx.*")).write_bytes(b"no library")
    done = run(tmp_path / "site", "-c", "import mpsfunc")
    assert done.returncode == 1 and "libmlx" in done.stderr.splitlines()[-1] and "run:" not in done.stderr


def test_an_mlx_that_was_built_here_needs_no_package_of_a_backend() -> None:
    assert complaint(Installed(HERE, {}, libmlx=True), HERE) == ""
    assert complaint(Installed("", {}, libmlx=True), HERE) == ""
