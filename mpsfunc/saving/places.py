"""Where files lie: what a path leads to, what of it may be written or read, and whom the file is open to."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from mpsfunc.core.arguments import is_a, text
from mpsfunc.core.printing import brief, describe
from mpsfunc.saving.safetensors import Refused

_LINKS = 40  # behind one another, as Linux follows
_EXPECTED = {
    **dict.fromkeys(("save", "export"), "a new name or a file's"),
    **{"load": "a file that save wrote", "exported": "a file that export or MLX wrote"},
}
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link loop"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


def name_of(op: str, path: Any) -> str:
    """A path as a string that names a file."""
    name = text(os.fspath(path) if is_a(path, os.PathLike) else path)
    if name is None:
        raise TypeError(f"{op}: path is not a path; got path={describe(path)}, expected a str or os.PathLike")
    if "\0" in name:
        raise ValueError(f"{op}: no file has such a name; got path={describe(name)}, expected a path without NUL")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise ValueError(
            f"{op}: no file has such a name; got path={describe(name)}, expected characters of file names"
        ) from None
    if os.path.basename(name) in ("", ".", ".."):
        raise ValueError(f"{op}: path names no file; got path={describe(name)}, expected {_EXPECTED[op]}")
    return name


@contextlib.contextmanager
def errors(op: str, name: str) -> Iterator[None]:
    """Tells errors of the system as those of a call, of the same type."""
    try:
        yield
    except OSError as error:
        if error.errno is None or str(error.strerror).startswith(f"{op}: "):
            raise
        if error.errno == errno.ELOOP:
            raise ValueError(_leads(op, name, "a symbolic link loop")) from None
        done = "written" if op in ("save", "export") else "read"
        raise OSError(error.errno, f"{op}: the file cannot be {done}: {error.strerror}", brief(name)) from error


def destination(op: str, name: str) -> tuple[str, os.stat_result | None]:
    """The file that a path means, behind all links, and what is there: None where it is new.

    Its folder has no links left, so that nothing which is exchanged later leads elsewhere.
    """
    at = name
    for _ in range(_LINKS):
        folder, last = os.path.split(at)
        if last in ("", ".", ".."):  # a link can end so, too
            raise ValueError(f"{op}: path names no file; got path={describe(name)}, expected {_EXPECTED[op]}")
        target = os.path.join(_folder(op, folder or "."), last)
        try:
            if not stat.S_ISLNK(os.lstat(target).st_mode):
                return target, regular(op, name, target)
        except FileNotFoundError:
            return target, None
        at = os.path.join(os.path.dirname(target), os.readlink(target))
    raise ValueError(_leads(op, name, "a symbolic link loop"))


def _folder(op: str, folder: str) -> str:
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):  # before names are put together: no file has a ".."
            raise NotADirectoryError(errno.ENOTDIR, f"{op}: this is no folder", brief(folder))
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, f"{op}: there is no such folder", brief(folder)) from None
    return os.path.realpath(folder, strict=True)


def regular(op: str, name: str, target: str) -> os.stat_result | None:
    """What is known of the file there; None where there is none, and an error where it is none to be replaced."""
    try:
        about = os.lstat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(about.st_mode):
        return about
    raise ValueError(_leads(op, name, _kind(about)))


def _kind(about: os.stat_result) -> str:
    return next((kind for is_one, kind in _KINDS if is_one(about.st_mode)), "something else")


def _leads(op: str, name: str, kind: str) -> str:
    return f"{op}: path leads to {kind}; got path={describe(name)}, expected {_EXPECTED[op]}"


def put(
    op: str,
    name: str,
    target: str,
    before: os.stat_result | None,
    write: Callable[[io.BufferedWriter], None],
) -> None:
    """Writes a file beside another one, and puts it in its place."""
    folder = os.path.dirname(target)
    beside = os.path.join(folder, f".mpsfunc-{os.urandom(8).hex()}.tmp")
    try:
        # What replaces a file is at no moment open to more users than that is.
        made = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if before is None else 0o600)
        with open(made, "wb") as file:
            write(file)
            if before is not None:
                permit(made, before)
            os.fsync(made)
            at_last = regular(op, name, target)  # whatever was put there meanwhile
            if at_last is not None and access(at_last) != access(before):
                permit(made, at_last)
        os.replace(beside, target)
        sync(folder)  # the new name must reach the disk, too
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def access(about: os.stat_result | None) -> tuple[int, int, int] | None:
    """What decides who may do what with a file."""
    return about and (about.st_uid, about.st_gid, about.st_mode)


def permit(file: int, before: os.stat_result) -> None:
    """Gives an open file the owner, the group and the mode of another, as far as this process may."""
    mode = stat.S_IMODE(before.st_mode)
    for uid, gid in ((before.st_uid, before.st_gid), (-1, before.st_gid)):
        with contextlib.suppress(OSError):  # what it means that a process may not differs from system to system
            os.chown(file, uid, gid)
            break
    about = os.fstat(file)
    if about.st_gid != before.st_gid:  # the group's members may be anybody, and anybody may be of the other group
        shared = mode >> 3 & mode & stat.S_IRWXO
        mode = mode & ~(stat.S_IRWXG | stat.S_IRWXO) | shared << 3 | shared
    if (about.st_uid, about.st_gid) != (before.st_uid, before.st_gid):
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    if stat.S_IMODE(about.st_mode) != mode:  # some file systems have one for all, and refuse
        os.chmod(file, mode)


def sync(folder: str) -> None:
    """Waits until the names in a folder are on the disk, if it may be read."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def opened(op: str, name: str) -> io.BufferedReader:
    """A file for reading; nothing else is opened, since a pipe keeps its reader waiting and a device may act."""

    def checked(about: os.stat_result) -> None:
        if not stat.S_ISREG(about.st_mode):
            raise Refused(f"path leads to {_kind(about)}", _EXPECTED[op])

    checked(os.stat(name))
    file = open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        checked(os.fstat(file.fileno()))  # whatever was put there meanwhile
    except BaseException:
        file.close()
        raise
    return file
