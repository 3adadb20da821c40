"""States and other trees in files: one safetensors file each, without pickle, there whole or not at all."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import zlib
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mpsfunc import _safetensors, _saved_tree
from mpsfunc._printing import told
from mpsfunc._safetensors import Refused, Tensor

_VERSION = 1
_VERSION_KEY, _TREE_KEY, _CRC_KEY = "mpsfunc.version", "mpsfunc.tree", "mpsfunc.crc32"


def save(path: str | os.PathLike[str], tree: Any) -> None:
    """Writes a tree to a file, which `load` reads again.

    A tree is an array, a state of this package or another of its records (`Neuron`, `PaddingPolicy`), None, a bool, an
    int, a float, a string, or a dict with string keys, list or tuple of trees; ``mx.random.state`` counts as the list
    of its key. So parameters are one, and ``state`` of an optimizer of MLX. Arrays may have every dtype and layout;
    they are evaluated. The same array in two places is written once.

    The file takes its place at once when all of it has reached the disk: whoever looks sees the old file or the new
    one, and a process that is killed leaves one of them. Its folder may then keep a ``.mpsfunc-....tmp``.

    Args:
        path: Where; nothing is added to the name.
        tree: What.

    Raises:
        TypeError: The tree holds something else, or a key that is not a string; the error says where.
        ValueError: The tree is deeper than 100 levels or has too many parts for a header.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> from mpsfunc import conv_state
        >>> path = os.path.join(tempfile.mkdtemp(), "training.safetensors")
        >>> save(path, {"step": 7, "conv": conv_state((1, 4, 4, 2), (3, 3, 3, 2))})
        >>> saved = load(path)
        >>> saved["step"], type(saved["conv"]).__name__, saved["conv"].dw.shape
        (7, 'ConvState', (3, 3, 3, 2))
    """
    target = os.path.realpath(_name("save", path))  # a link stays one
    encoder = _saved_tree.Encoder()
    text = encoder.text(tree)
    arrays = encoder.arrays
    mx.eval(arrays)
    tensors = _safetensors.layout(arrays)

    def header(crc: int) -> bytes:
        metadata = {_VERSION_KEY: str(_VERSION), _TREE_KEY: text, _CRC_KEY: f"{crc:08x}"}
        return _safetensors.header(metadata, tensors)

    blank, folder = header(0), os.path.dirname(target)
    beside = os.path.join(folder, f".mpsfunc-{secrets.token_hex(8)}.tmp")
    try:
        with open(beside, "xb") as file:
            file.write(blank)
            crc = _safetensors.write_arrays(file, arrays, tensors, _checksum(text, tensors))
            file.seek(0)
            file.write(header(crc))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise
    if os.name == "posix":  # the new name must reach the disk, too
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def load(path: str | os.PathLike[str]) -> Any:
    """Reads the tree that `save` wrote.

    Everything is as it was: types, the order of keys, and every bit of every array and float. The arrays are evaluated
    and have nothing more to do with the file. No code comes from a file, and no class but those of this package.

    Args:
        path: A file that `save` wrote.

    Returns:
        The tree.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not a file of `save`, not whole, changed since, or of a later version of the format.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "key")
        >>> mx.random.seed(7)
        >>> save(path, mx.random.state)
        >>> load(path)
        [array([0, 7], dtype=uint32)]
    """
    name = _name("load", path)
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):  # a pipe would keep its reader waiting
            raise Refused("not a file", "a file that save wrote")
        return _read(name)
    except Refused as why:
        complaint, rule = why.args
        raise ValueError(f"load: {complaint}; got path={told(name)}, expected {rule}") from None


def _read(name: str) -> Any:
    with open(name, "rb") as file:
        header = _safetensors.read_header(file)
        metadata = header.metadata
        version = metadata.get(_VERSION_KEY, "")
        if not re.fullmatch("[1-9][0-9]{0,8}", version) or not {_TREE_KEY, _CRC_KEY} <= set(metadata):
            raise Refused("somebody else's safetensors file", "one that mpsfunc.save wrote")
        if int(version) > _VERSION:
            raise Refused(
                f"of version {version}, which a later mpsfunc wrote", f"version {_VERSION} or a newer mpsfunc"
            )
        text, tensors = metadata[_TREE_KEY], _safetensors.checked(header)
        _saved_tree.decode(text, {tensor.name: None for tensor in tensors})  # before much is read
        arrays, crc = _safetensors.read_arrays(file, tensors, _checksum(text, tensors))
    if metadata[_CRC_KEY] != f"{crc:08x}":
        raise Refused("the file has changed since it was saved", "the checksum of its contents")
    return _saved_tree.decode(text, arrays)


def _checksum(text: str, tensors: Sequence[Tensor]) -> int:
    """That of all but the bytes of the arrays, which go on from it."""
    listed = sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end, tensor.name))
    return zlib.crc32(json.dumps([_VERSION, text, listed]).encode())


def _name(op: str, path: Any) -> str:
    """A path as a string."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise TypeError(f"{op}: path is not a path; got path={told(path)}, expected a str or os.PathLike")
    return name
