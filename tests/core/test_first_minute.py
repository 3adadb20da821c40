"""An MLX that is missing, incomplete or foreign is one sentence with the command that mends it."""

from __future__ import annotations

import fnmatch
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
OLDEST, NEWEST, FOREIGN = TABLE[0].mlx, TABLE[-1].mlx, "0.1.0"
WORKS = f"mpsfunc {versions.VERSION} works with mlx>={OLDEST},<{END}, but "
CPU = f"pip install 'mlx[cpu]=={NEWEST}'"
EITHER = f"{CPU} (or, for an NVIDIA GPU, 'mlx[cuda13]=={NEWEST}')"

# What pip has left, whether libmlx is there and whether it loads, and the end of the sentence on Linux.
STATES = {
    "nothing": ((), False, f"MLX is not installed; run: {EITHER}"),
    "no backend": ((f"mlx-{NEWEST}",), False, f"mlx {NEWEST} is installed without a backend; run: {EITHER}"),
    "another backend": (
        (f"mlx-{NEWEST}", f"mlx_cpu-{FOREIGN}"),
        True,
        f"mlx {NEWEST} is installed beside mlx-cpu {FOREIGN}, which does not fit it; run: {CPU}",
    ),
    "another backend of a GPU": (
        (f"mlx-{NEWEST}", f"mlx_cuda_13-{END}.1"),
        True,
        f"mlx {NEWEST} is installed beside mlx-cuda-13 {END}.1, which does not fit it; "
        f"run: pip install 'mlx[cuda13]=={NEWEST}'",
    ),
    "libmlx uninstalled with another backend": (
        (f"mlx-{NEWEST}", f"mlx_cuda_12-{NEWEST}"),
        False,
        "libmlx is gone, which mlx-cuda-12 brought; run: pip uninstall -y mlx-cuda-12 && "
        f"pip install 'mlx[cuda12]=={NEWEST}'",
    ),
    "two backends, one of another version": (
        (f"mlx-{NEWEST}", f"mlx_cpu-{FOREIGN}", f"mlx_cuda_13-{NEWEST}"),
        True,
        f"mlx {NEWEST} is installed beside mlx-cpu {FOREIGN}, which does not fit it; "
        f"run: pip uninstall -y mlx-cpu mlx-cuda-13 && pip install 'mlx[cuda13]=={NEWEST}'",
    ),
    "two backends": (
        (f"mlx-{NEWEST}", f"mlx_cpu-{NEWEST}", f"mlx_cuda_13-{NEWEST}"),
        True,
        f"mlx {NEWEST} is installed with mlx-cpu and mlx-cuda-13, which exclude each other; "
        f"run: pip uninstall -y mlx-cpu mlx-cuda-13 && pip install 'mlx[cuda13]=={NEWEST}'",
    ),
    "an MLX of the window stays": (
        (f"mlx-{OLDEST}", f"mlx_cpu-{FOREIGN}"),
        True,
        f"mlx {OLDEST} is installed beside mlx-cpu {FOREIGN}, which does not fit it; "
        f"run: pip install 'mlx[cpu]=={OLDEST}'",
    ),
    "one that pip does not find is replaced": (
        (f"mlx-{NEWEST}.dev1", f"mlx_cpu-{FOREIGN}"),
        True,
        f"mlx {NEWEST}.dev1 is installed beside mlx-cpu {FOREIGN}, which does not fit it; run: {CPU}",
    ),
}
# Of MLX's that are whole by their names, but do not load: what is wrong with which file, the version, and the sentence.
BROKEN = {
    "no library": ("lib/libmlx.*", NEWEST, f"mlx {NEWEST} does not load (*libmlx*)"),
    "a core that is no library": ("core.*.so", OLDEST, f"mlx {OLDEST} does not load (*core.*)"),
    "the core of another Python": (
        "core.*.so away",
        NEWEST,
        f"mlx {NEWEST} does not load (it has no mlx.core for this Python)",
    ),
    "too new": ("lib/libmlx.*", f"{END}.1", f"mlx {END}.1 is installed"),
    "too old": ("lib/libmlx.*", "0.30.0", "mlx 0.30.0 is installed"),
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
    assert all(package.replace("-", " ").replace("_", "-") in done.stdout for package in packages)


@linux
def test_an_mlx_that_fits_is_imported(tmp_path: Path) -> None:
    environment(tmp_path / "site", (f"mlx-{HERE}", f"mlx_cpu-{HERE}"), True)
    program = "import mlx.core, mpsfunc; print(mlx.core.__file__)"
    # An editable install keeps its module where this environment does not look, and warns of that.
    done = run(tmp_path / "site", "-W", "ignore", "-c", program)
    assert done.stderr == "" and done.stdout.startswith(str(tmp_path))


@linux
@pytest.mark.parametrize("version", ["0.1.2", "0.33.0", "1.0"])
def test_an_mlx_out_of_reach_is_told(tmp_path: Path, version: str) -> None:
    environment(tmp_path / "site", (f"mlx-{version}", f"mlx_cpu-{version}"), True)
    done = run(tmp_path / "site", "-c", f"import mlx.core as mx; mx.__version__ = '{version}'; import mpsfunc")
    assert done.stderr.splitlines()[-1] == f"ImportError: {WORKS}mlx {version} is installed; run: {CPU}"


@linux
@pytest.mark.parametrize("lacks", [FEATURES[:1], FEATURES])
def test_an_older_mlx_is_refused_by_what_it_lacks(tmp_path: Path, lacks: tuple[str, ...]) -> None:
    environment(tmp_path / "site", ("mlx-0.32.2", "mlx_cpu-0.32.2"), True)
    taken = "".join(f"del mx.{name}; " for name in lacks)
    program = f"import mlx.core as mx; {taken}mx.__version__ = '0.32.2'; import mpsfunc"
    told = " and no ".join(f"mx.{name}" for name in lacks)
    last = run(tmp_path / "site", "-c", program).stderr.splitlines()[-1]
    assert last == f"ImportError: {WORKS}mlx 0.32.2 has no {told}; run: {CPU}"


@linux
@pytest.mark.parametrize("how", ["-c", "-m"])
@pytest.mark.parametrize(("what", "version", "told"), BROKEN.values(), ids=BROKEN)
def test_an_mlx_that_does_not_load_is_installed_again(
    tmp_path: Path, what: str, version: str, told: str, how: str
) -> None:
    environment(tmp_path / "site", (f"mlx-{version}", f"mlx_cpu-{version}"), True)
    pattern, away, _ = what.partition(" away")
    (file,) = (tmp_path / "site" / "mlx").glob(pattern)
    if away:
        file.rename(file.with_name("core.cpython-27-x86_64-linux-gnu.so"))
    else:
        file.write_bytes(b"no library")
    done = run(tmp_path / "site", *{"-c": ("-c", "import mpsfunc"), "-m": ("-m", "mpsfunc")}[how])
    loads = "does not load" not in told
    mends = CPU if loads else f"pip install --force-reinstall 'mlx[cpu]=={version}'"
    last = done.stderr.splitlines()[-1].removeprefix("ImportError: ")
    assert done.returncode == 1 and fnmatch.fnmatchcase(last, f"{WORKS}{told}; run: {mends.replace('[', '[[]')}")
    assert done.stderr.count("Traceback") == (0 if how == "-m" else 1 if loads else 2), "with the error that led to it"
    assert how == "-c" or f"packages   mlx {version}, mlx-cpu {version}\n" in done.stdout


@pytest.mark.parametrize(
    "words", [("-mmpsfunc",), ("-Wignore", "-Bm", "mpsfunc", "--no-test"), ("-m", "mpsfunc.__main__")]
)
def test_every_way_to_write_the_command(tmp_path: Path, words: tuple[str, ...]) -> None:
    environment(tmp_path / "site", (), False)
    done = run(tmp_path / "site", *words)
    assert done.stdout.startswith("mpsfunc ") and done.stderr.startswith(WORKS) and done.stderr.count("\n") == 1


def test_another_program_named_so_is_none(tmp_path: Path) -> None:
    environment(tmp_path / "site", (), False)
    (tmp_path / "site" / "other.py").write_text("import mpsfunc")
    for words in (("-m", "other", "mpsfunc"), ("other.py", "-m", "mpsfunc")):
        done = run(tmp_path / "site", *words)
        assert done.stdout == "" and "\nImportError: " in done.stderr


def test_an_mlx_that_lacks_something_is_not_told_to_stay() -> None:
    here = Installed(OLDEST, {"mlx-cpu": OLDEST}, libmlx=True)
    assert complaint(here, OLDEST, FEATURES[:1]) == f"{WORKS}mlx {OLDEST} has no mx.{FEATURES[0]}; run: " + (
        CPU if sys.platform == "linux" else f"pip install mlx=={NEWEST}"
    )


def test_an_mlx_that_was_built_here_needs_no_package_of_a_backend() -> None:
    assert complaint(Installed(HERE, {}, libmlx=True), HERE) == ""
    assert complaint(Installed("", {}, libmlx=True), HERE) == ""
    told = complaint(Installed("", {}, libmlx=True), "", (), "undefined symbol")
    assert told.startswith(f"{WORKS}mlx does not load (undefined symbol); run: pip install --force-reinstall ")
