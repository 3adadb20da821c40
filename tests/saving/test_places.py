"""Where `mf.save` writes and where it refuses to, and what it keeps of a file it replaces."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpsfunc as mf

USERS = Path("/proc/self/uid_map")  # one where root is alone, such as unshare --map-root-user makes
as_root = pytest.mark.skipif(
    os.geteuid() != 0 or (USERS.exists() and USERS.read_text().split()[2:] == ["1"]),
    reason="only root changes owners, and only to those that are there",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "saved"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Names with their kinds and numbers: the same before and after where nothing was touched."""
    return {entry.name: (entry.lstat().st_mode, entry.lstat().st_ino) for entry in folder.iterdir()}


# Only new names and files -------------------------------------------------------------------------------


def _socket(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # since a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # that of /dev/null
    except PermissionError:
        pytest.skip("devices cannot be made here")


def _loop(path: Path) -> None:
    path.symlink_to(path.with_name("other"))
    path.with_name("other").symlink_to(path)


PLACES: dict[str, Callable[[Path], Any]] = {
    "a folder": os.mkdir,
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a device": _device,
    "a symbolic link loop": _loop,
}


@pytest.mark.parametrize("linked", [False, True], ids=["itself", "by a link"])
@pytest.mark.parametrize("kind", PLACES)
def test_what_is_no_file_is_refused_and_left(kind: str, linked: bool, path: Path) -> None:
    PLACES[kind](path)
    given = path
    if linked:
        given = path.with_name("link")
        given.symlink_to(path)
    before = listing(path.parent)
    with pytest.raises(
        ValueError, match=f"^save: path leads to {kind}; got path='.*', expected a new name or a file's"
    ):
        mf.save(given, 1)
    with pytest.raises(ValueError, match=f"^load: path leads to {kind}; got path='.*', expected a file that save"):
        mf.load(given)
    assert listing(path.parent) == before


@pytest.mark.parametrize("name", ["file/", "folder/", "folder/.", "folder/..", "/"])
def test_what_names_no_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    mf.save(tmp_path / "file", 1)
    before = listing(tmp_path)
    with pytest.raises(ValueError, match="^save: path names no file; got path='.*', expected"):
        mf.save(f"{tmp_path}/{name}", 2)
    with pytest.raises(ValueError, match="^load: path names no file; got path='.*', expected"):
        mf.load(f"{tmp_path}/{name}")
    assert listing(tmp_path) == before and mf.load(tmp_path / "file") == 1


@pytest.mark.parametrize("call", [lambda name: mf.save(name, 1), mf.load], ids=["save", "load"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "path names no file; got path='', expected a (new name or a file's|file that save wrote)"),
        ("a\0b", "no file has such a name; got path='.*', expected a path without NUL"),
        ("\ud800", "no file has such a name; got path='.*', expected characters of file names"),
    ],
)
def test_what_no_file_can_be_called_is_refused(call: Callable[[str], Any], name: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"^(save|load): {words}$"):
        call(name)


@pytest.mark.parametrize("name", ["missing/file", "missing/../file"])
def test_a_missing_folder_is_named(name: str, tmp_path: Path) -> None:
    folder = os.path.dirname(f"{tmp_path}/{name}")
    with pytest.raises(FileNotFoundError, match=f"save: there is no such folder: '{folder}'"):
        mf.save(f"{tmp_path}/{name}", 1)
    with pytest.raises(FileNotFoundError, match=f"load: the file cannot be read: No such .*: '{tmp_path}/{name}'"):
        mf.load(f"{tmp_path}/{name}")
    assert not listing(tmp_path)


@pytest.mark.parametrize("name", ["file/inside", "file/../other"])
def test_a_file_is_no_folder(name: str, tmp_path: Path) -> None:
    mf.save(tmp_path / "file", 1)
    for call in (lambda path: mf.save(path, 2), mf.load):
        with pytest.raises(NotADirectoryError, match="(save|load): "):
            call(f"{tmp_path}/{name}")
    assert os.listdir(tmp_path) == ["file"] and mf.load(tmp_path / "file") == 1


def test_folders_in_loops_and_names_that_are_too_long(path: Path) -> None:
    _loop(path)
    before = listing(path.parent)
    for call in (lambda name: mf.save(name, 1), mf.load):
        with pytest.raises(ValueError, match="(save|load): path leads to a symbolic link loop; got path="):
            call(path / "file")
        with pytest.raises(OSError, match="(save|load): the file cannot be (written|read): File name too long"):
            call(path.with_name("n" * 300))
    assert listing(path.parent) == before


@pytest.mark.parametrize("name", ["/n" * 2500, "n" * 5000, "n" * 5000 + "/file", "n/" * 2500, "n" * 5000 + "\0"])
def test_long_paths_are_told_in_brief(name: str, tmp_path: Path) -> None:
    for call in (lambda path: mf.save(path, 1), mf.load):
        for path in (name, str(tmp_path / name)):
            with pytest.raises((OSError, ValueError), match="(save|load): ") as caught:
                call(path)
            assert len(str(caught.value)) < 400


@pytest.mark.parametrize("end", ["", ".", ".."])
def test_a_link_names_a_file_as_a_path_does(end: str, path: Path) -> None:
    path.symlink_to(f"other/{end}")
    path.with_name("other").mkdir()
    before = listing(path.parent)
    with pytest.raises(ValueError, match="^save: path names no file; got path='.*', expected"):
        mf.save(path, 1)
    assert listing(path.parent) == before


def test_a_pipe_that_comes_between_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mf.save(path, 1)
    true = os.open

    def exchanged(name: Any, *rest: Any, **more: Any) -> int:
        path.unlink()
        os.mkfifo(path)
        return true(name, *rest, **more)

    monkeypatch.setattr(os, "open", exchanged)
    with pytest.raises(ValueError, match="^load: path leads to a pipe; got path="):
        mf.load(path)


def test_links_are_followed_to_files_and_to_new_names(path: Path) -> None:
    first, second = path.with_name("first"), path.with_name("second")
    first.symlink_to(second)
    second.symlink_to("saved")
    for value in (1, 2):  # to a new name, then to a file
        mf.save(first, value)
        assert first.is_symlink() and second.is_symlink() and not path.is_symlink()
        assert mf.load(path) == mf.load(first) == value


def test_a_link_that_is_exchanged_meanwhile_leads_nothing_astray(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, other = path.with_name("link"), path.with_name("other")
    mf.save(path, "old")
    mf.save(other, "other")
    link.symlink_to(path)
    true = os.fsync

    def exchanged(file: int) -> None:
        if os.readlink(link) != str(other):
            link.unlink()
            link.symlink_to(other)
        true(file)

    monkeypatch.setattr(os, "fsync", exchanged)
    mf.save(link, "new")
    assert mf.load(path) == "new" and mf.load(other) == "other" and os.readlink(link) == str(other)


def test_a_folder_that_is_exchanged_meanwhile_leads_nothing_astray(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [path.with_name(name) for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        mf.save(folder / "file", "old")
    path.symlink_to(folders[0])
    true = os.fsync

    def exchanged(file: int) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(folders[1])
        true(file)

    monkeypatch.setattr(os, "fsync", exchanged)
    mf.save(path / "file", "new")
    assert [mf.load(folder / "file") for folder in folders] == ["new", "old"]
    assert all(os.listdir(folder) == ["file"] for folder in folders)


@pytest.mark.parametrize("kind", PLACES)
def test_what_is_put_there_meanwhile_is_left(kind: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mf.save(path, "old")
    true = os.fsync

    def exchanged(file: int) -> None:
        if path.is_file() and not path.is_symlink():
            path.unlink()
            PLACES[kind](path)
        true(file)

    with monkeypatch.context() as patch, pytest.raises(ValueError, match=f"^save: path leads to {kind};"):
        patch.setattr(os, "fsync", exchanged)
        mf.save(path, "new")
    assert not [name for name in os.listdir(path.parent) if name.startswith(".mpsfunc")]
    assert os.path.lexists(path) and not (path.is_file() and not path.is_symlink())


# What is kept -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o664, 0o755])
def test_the_mode_stays(mode: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mf.save(path, 1)
    path.chmod(mode)
    seen = []
    true = os.fsync

    def look(file: int) -> None:
        seen.append(stat.S_IMODE(os.fstat(file).st_mode))
        true(file)

    monkeypatch.setattr(os, "fsync", look)
    mf.save(path, 2)
    assert stat.S_IMODE(path.stat().st_mode) == mode and mf.load(path) == 2
    assert seen[0] == mode


def test_nobody_else_reads_what_is_on_its_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mf.save(path, 1)
    path.chmod(0o644)
    modes = []
    true = os.open

    def watched(name: Any, flags: int, *rest: Any, **more: Any) -> int:
        made = true(name, flags, *rest, **more)
        if flags & os.O_CREAT:
            modes.append(stat.S_IMODE(os.fstat(made).st_mode))
        return made

    monkeypatch.setattr(os, "open", watched)
    mf.save(path, 2)
    assert modes == [0o600]


def test_a_new_file_has_the_mode_that_the_process_gives(path: Path) -> None:
    before = os.umask(0o027)
    try:
        mf.save(path, 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@as_root
def test_the_owner_stays(path: Path) -> None:
    mf.save(path, 1)
    os.chown(path, 1234, 4321)
    path.chmod(0o640)
    mf.save(path, 2)
    about = path.stat()
    assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (1234, 4321, 0o640)


@pytest.mark.parametrize(("mode", "left"), [(0o2664, 0o644), (0o640, 0o600), (0o604, 0o600), (0o4755, 0o755)])
def test_what_a_group_could_do_is_not_for_another(
    mode: int, left: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mf.save(path, 1)
    true = os.lstat

    def of_another_group(name: Any) -> Any:
        about = list(true(name))
        if os.fspath(name) == str(path):
            about[stat.ST_GID] += 1
            about[stat.ST_MODE] = stat.S_IFREG | mode
        return os.stat_result(about)

    def not_allowed(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "lstat", of_another_group)
    monkeypatch.setattr(os, "chown", not_allowed)
    mf.save(path, 2)
    monkeypatch.undo()
    assert stat.S_IMODE(path.stat().st_mode) == left


@pytest.mark.parametrize("before", [None, 0o644])
def test_a_mode_that_changes_meanwhile_stays(before: int | None, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is not None:
        mf.save(path, 1)
        path.chmod(before)
    true = os.fsync

    def closed(file: int) -> None:
        if stat.S_ISREG(os.fstat(file).st_mode):  # the folder's turn is when all is done
            path.touch()
            path.chmod(0o600)
        true(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", closed)
        mf.save(path, 2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and mf.load(path) == 2


def test_a_folder_that_nobody_may_list_takes_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = os.open

    def listed(name: Any, *rest: Any, **more: Any) -> int:
        if os.fspath(name) == str(path.parent):
            raise PermissionError
        return true(name, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", listed)
        mf.save(path, 1)
    assert mf.load(path) == 1
