"""make release: what it refuses, and that whatever fails leaves the tree and the branch as they were."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = "# Changelog\n\n## [0.2.0] - unreleased\n\n- Much.\n\n## [0.1.0] - 2026-01-01\n"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="a release is a commit")


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, in a repository of its own; building makes a wheel there, one for GPUs and a source distribution."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "A test")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "test@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    loader = importlib.machinery.SourceFileLoader("release", str(ROOT / ".ci" / "release"))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("release", loader))
    loader.exec_module(module)
    root = tmp_path / "tree"
    (root / "mpsfunc" / "core").mkdir(parents=True)
    (root / "mpsfunc" / "core" / "versions.py").write_text('VERSION = "0.1.0"\n')
    (root / "CHANGELOG.md").write_text(CHANGES)
    (root / ".gitignore").write_text("/dist/\n")
    for name, path in {"ROOT": "", "VERSION": "mpsfunc/core/versions.py", "CHANGES": "CHANGELOG.md"}.items():
        monkeypatch.setattr(module, name, root / path)
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "All")
    true_run = module.run

    def run(*command: object, **environment: str) -> str:
        """Git as it is; what builds leaves files."""
        if command[0] == "git":
            return true_run(*command, **environment)
        if "--sdist" in command:
            Path(str(command[-1]), "mpsfunc-0.2.0.tar.gz").write_text("source")
        if into := environment.get("OUT"):
            Path(into, "gpu-only").mkdir()
            for wheel in ("mpsfunc-0.2.0-cp311-cp311-manylinux.whl", "gpu-only/mpsfunc-0.2.0-py3-none-any.whl"):
                Path(into, wheel).write_text("wheel")
        return ""

    monkeypatch.setattr(module, "run", run)
    return module


def state(module: ModuleType) -> tuple[str, ...]:
    """What a release changes: the two files, the last commit, what is not committed, and the tags."""
    asked = (("log", "--format=%H"), ("status", "--porcelain"), ("tag", "--list"))
    return (module.VERSION.read_text(), module.CHANGES.read_text(), *(git(module.ROOT, *words) for words in asked))


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("0.2", "VERSION: no version; got '0.2', expected one like 0.2.0"),
        ("v0.2.0", "VERSION: no version; got 'v0.2.0'"),
        ("0.3.0", "CHANGELOG.md begins with '## [0.2.0] - unreleased', expected '## [0.3.0] - unreleased'"),
        ("0.2.0", ""),
    ],
)
def test_what_cannot_be_released(release: ModuleType, version: str, why: str) -> None:
    told = release.refusal(version, CHANGES)
    assert told.startswith(why) and bool(told) == bool(why)


def test_a_tree_with_changes_or_with_the_tag_is_refused(release: ModuleType) -> None:
    git(release.ROOT, "tag", "v0.2.0")
    assert release.refusal("0.2.0", CHANGES) == "there is a tag v0.2.0 already"
    (release.ROOT / "new").touch()
    assert release.refusal("0.2.0", CHANGES) == "the tree has changes that are not committed"
    before = state(release)
    with pytest.raises(SystemExit, match="release: the tree has changes"):
        release.main("0.2.0")
    assert state(release) == before


def test_a_release_is_a_commit_of_two_files_and_a_tag(release: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    release.main("0.2.0")
    version, changes, log, status, tags = state(release)
    assert version == 'VERSION = "0.2.0"\n' and "## [0.2.0] - 20" in changes and "unreleased" not in changes
    assert (len(log.split()), status, tags) == (2, "", "v0.2.0\n")
    sums = (release.ROOT / "dist" / "0.2.0" / "SHA256SUMS").read_text()
    assert sorted(line.split()[1] for line in sums.splitlines()) == [
        "gpu-only/mpsfunc-0.2.0-py3-none-any.whl",
        "mpsfunc-0.2.0-cp311-cp311-manylinux.whl",
        "mpsfunc-0.2.0.tar.gz",
    ]
    # pip would prefer the wheel without C++ to the source distribution.
    upload = capsys.readouterr().out.rpartition("twine upload ")[2].split()
    uploaded = [path.name for pattern in upload for path in release.ROOT.glob(pattern)]
    assert sorted(uploaded) == ["mpsfunc-0.2.0-cp311-cp311-manylinux.whl", "mpsfunc-0.2.0.tar.gz"]


@pytest.mark.parametrize("fails", ["build", "commit", "tag", "Ctrl-C"])
def test_what_fails_leaves_everything_as_it_was(
    release: ModuleType, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, build, run = state(release), release.build, release.run

    def broken(into: Path) -> None:
        assert 'VERSION = "0.2.0"' in release.VERSION.read_text()
        raise KeyboardInterrupt if fails == "Ctrl-C" else SystemExit("build failed")

    def without(*command: object, **environment: str) -> str:
        if command[:2] == ("git", fails) and "--list" not in command:
            raise SystemExit(f"{fails} failed")
        return run(*command, **environment)

    monkeypatch.setattr(release, "build", build if fails in ("commit", "tag") else broken)
    monkeypatch.setattr(release, "run", without)
    with pytest.raises(KeyboardInterrupt if fails == "Ctrl-C" else SystemExit, match=f"{fails} failed|^$"):
        release.main("0.2.0")
    assert state(release) == before


def test_a_command_that_fails_ends_it_with_its_output(release: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="release: git no-such-command failed; nothing is released"):
        release.run("git", "no-such-command")
