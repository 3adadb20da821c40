"""States and other trees in files: one safetensors file each, without pickle, there whole or not at all."""

from __future__ import annotations

import io
import json
import os
import re
import zlib
from collections.abc import Sequence
from typing import Any, TypeVar, overload

import mlx.core as mx

from mpsfunc.core.printing import describe
from mpsfunc.saving import places, safetensors, trees
from mpsfunc.saving.expected import checked
from mpsfunc.saving.safetensors import Refused, Tensor
from mpsfunc.saving.trees import Tree

_Expected = TypeVar("_Expected")

_VERSION = 4  # of the format; earlier_files.py says what files of earlier ones mean
_VERSION_KEY, _TREE_KEY, _CRC_KEY = "mpsfunc.version", "mpsfunc.tree", "mpsfunc.crc32"


def save(path: str | os.PathLike[str], tree: object) -> None:
    """Writes a tree to a file, which `load` reads again.

    A tree is an array, a state of this package or another of its records (`Neuron`, `PaddingPolicy`), None, a bool, an
    int, a float, a string, or a dict with string keys, list or tuple of trees; ``mx.random.state`` is saved as a list
    with its key. So parameters are a tree, and so is the ``state`` of an optimizer of MLX. Arrays may have any dtype
    and layout; they are evaluated. An array that occurs twice is written once.

    The file is replaced atomically once all of it is on the disk: readers see the old file or the new one, and a
    process that is killed leaves one of them (and perhaps a ``.mpsfunc-....tmp`` in the folder). The new file keeps the
    mode of the file that it replaces and, if the process is allowed to, its owner and group.

    Args:
        path: A new name in an existing folder, or a file, or a link to either; nothing is added to the name.
        tree: What to save.

    Raises:
        TypeError: The tree holds something else, or a key that is not a string; the error says where.
        ValueError: The path leads to a folder, a pipe, a socket, a device or a symbolic link loop, or names no file; or
            the tree is deeper than 100 levels, has too many parts for a header, or an int of over 64 bits in a record.
        OSError: The file cannot be written; a FileNotFoundError if there is no such folder.

    Example:
        >>> import os, tempfile
        >>> from mpsfunc import conv_state
        >>> path = os.path.join(tempfile.mkdtemp(), "training.safetensors")
        >>> save(path, {"step": 7, "conv": conv_state((1, 4, 4, 2), (3, 3, 3, 2))})
        >>> saved = load(path)
        >>> saved["step"], type(saved["conv"]).__name__, saved["conv"].dw.shape
        (7, 'ConvState', (3, 3, 3, 2))
    """
    name = places.name_of("save", path)
    with places.errors("save", name):
        target, before = places.destination("save", name)
    encoder = trees.Encoder()
    text = encoder.text(tree)
    arrays = encoder.arrays
    mx.eval(arrays)
    tensors = safetensors.layout(arrays)

    def header(crc: int) -> bytes:
        metadata = {_VERSION_KEY: str(_VERSION), _TREE_KEY: text, _CRC_KEY: f"{crc:08x}"}
        return safetensors.header(metadata, tensors)

    blank = header(0)

    def write(file: io.BufferedWriter) -> None:
        file.write(blank)
        crc = safetensors.write_arrays(file, arrays, tensors, _checksum(text, tensors, _VERSION))
        file.seek(0)
        file.write(header(crc))
        file.flush()

    with places.errors("save", name):
        places.put("save", name, target, before, write)


@overload
def load(path: str | os.PathLike[str]) -> Tree: ...


@overload
def load(path: str | os.PathLike[str], expected: type[_Expected]) -> _Expected: ...


def load(path: str | os.PathLike[str], expected: type[_Expected] | None = None) -> _Expected | Tree:
    """Reads the tree that `save` wrote.

    Types, the order of keys, and every bit of every array and float are as they were saved. The arrays are evaluated
    and independent of the file. Nothing in a file is executed, and it can name no classes but those of this package.

    Args:
        path: A file that `save` wrote.
        expected: The type that the tree must be of, which is then known to type checkers: a class of what can be saved,
            a TypedDict, ``list[...]``, ``tuple[...]`` or ``dict[str, ...]``, and inside those also unions and object.
            Default: any tree.

    Returns:
        The tree.

    Raises:
        FileNotFoundError: There is no such file.
        TypeError: expected is another type.
        ValueError: It is not a file of `save`, not whole, changed since, or of a later version of the format; the tree
            is not as expected; or the path leads to a folder, a pipe, a socket, a device or a symbolic link loop, or
            names no file.
        OSError: The file cannot be read.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "key")
        >>> mx.random.seed(7)
        >>> save(path, mx.random.state)
        >>> (key,) = load(path, list[mx.array])
        >>> key
        array([0, 7], dtype=uint32)
    """
    name = places.name_of("load", path)
    try:
        with places.errors("load", name), places.opened("load", name) as file:
            tree: Tree = _read(file)
    except Refused as why:
        complaint, rule = why.args
        raise ValueError(f"load: {complaint}; got path={describe(name)}, expected {rule}") from None
    return tree if expected is None else checked(tree, expected)


def _read(file: io.BufferedReader) -> Any:
    header = safetensors.read_header(file)
    metadata = header.metadata
    written = metadata.get(_VERSION_KEY, "")
    if not re.fullmatch("[1-9][0-9]{0,8}", written) or not {_TREE_KEY, _CRC_KEY} <= set(metadata):
        raise Refused("somebody else's safetensors file", "one that mpsfunc.save wrote")
    version = int(written)
    if version > _VERSION:
        raise Refused(f"of version {version}, which a later mpsfunc wrote", f"version {_VERSION} or a newer mpsfunc")
    text, tensors = metadata[_TREE_KEY], safetensors.checked(header)
    trees.decode(text, {tensor.name: None for tensor in tensors}, version)  # before much is read
    arrays, crc = safetensors.read_arrays(file, tensors, _checksum(text, tensors, version))
    if metadata[_CRC_KEY] != f"{crc:08x}":
        raise Refused("the file has changed since it was saved", "the checksum of its contents")
    return trees.decode(text, arrays, version)


def _checksum(text: str, tensors: Sequence[Tensor], version: int) -> int:
    """That of all but the bytes of the arrays, which go on from it."""
    listed = sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end, tensor.name))
    return zlib.crc32(json.dumps([version, text, listed]).encode())
