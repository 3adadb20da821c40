"""Files that are nearly those of `mpsfunc.save`: bytes changed anywhere, or parts changed with the checksum made right.

What a file is, is written down here a second time, after docs/recipes/saving.md.
"""

from __future__ import annotations

import copy
import json
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from mpsfunc.saving import safetensors, trees

VERSION, TREE, CRC = "mpsfunc.version", "mpsfunc.tree", "mpsfunc.crc32"
NUMBERS = (0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), 2**63, 10**19, 10**20, 10**30)
FLOATS = (0.5, -0.0, 1e308, 5e-324, 1.0)
WORDS = ("", "a", "tree", "relu", "é", "\ud800", "\0", "__metadata__", "__class__", "a.b~2", "x" * 300)
VERSIONS = ("1", "2", "3", "0", "-1", "01", "1.0", "1e0", "999999999", "9999999999", "²", "", "one", " 2", "2\n")
_KINDS = tuple(trees.RECORDS)


class File:
    """The parts of a file: metadata, entries of the arrays, and their bytes."""

    def __init__(self, contents: bytes) -> None:
        length = int.from_bytes(contents[:8], "little")
        self.entries: dict[str, Any] = json.loads(contents[8 : 8 + length])
        self.metadata: dict[str, Any] = self.entries.pop("__metadata__")
        self.data = contents[8 + length :]

    @property
    def tree(self) -> Any:
        return json.loads(self.metadata[TREE])

    @tree.setter
    def tree(self, tree: Any) -> None:
        self.metadata[TREE] = json.dumps(tree, separators=(",", ":"))

    def contents(self) -> bytes:
        """The whole file."""
        text = json.dumps({"__metadata__": self.metadata, **self.entries}, separators=(",", ":")).encode()
        return len(text).to_bytes(8, "little") + text + self.data

    def seal(self) -> None:
        """Makes the checksum right, if there can be one."""
        try:
            listed = [[name, e["dtype"], e["shape"], *e["data_offsets"]] for name, e in self.entries.items()]
            listed.sort(key=lambda each: (each[3], each[4], each[0]))
            text = json.dumps([int(self.metadata[VERSION]), self.metadata[TREE], listed])
            self.metadata[CRC] = f"{zlib.crc32(self.data, zlib.crc32(text.encode())):08x}"
        except (KeyError, IndexError, TypeError, ValueError):
            pass


def of_version_1(contents: bytes) -> bytes:
    """The same file as version 1 had it."""

    def earlier(node: Any) -> Any:
        if isinstance(node, list):
            return [earlier(part) for part in node]
        if not isinstance(node, dict):
            return node
        ((kind, body),) = node.items() if len(node) == 1 else ((None, None),)
        if kind in _KINDS and isinstance(body, dict):
            return {kind: {name: earlier(body[name]) for name in trees.fields_of(str(kind), 1)}}
        return {name: earlier(part) for name, part in node.items()}

    def named(node: Any) -> set[str]:
        if isinstance(node, list):
            return set().union(*map(named, node))
        if not isinstance(node, dict):
            return set()
        return {node["array"]} if [*node] == ["array"] else set().union(*map(named, node.values()))

    file = File(contents)
    file.metadata[VERSION], file.tree = "1", earlier(file.tree)
    kept, data = named(file.tree), b""
    for name, entry in sorted(file.entries.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        if name in kept:
            entry["data_offsets"] = [len(data), len(data) + end - begin]
            data += file.data[begin:end]
    file.entries, file.data = {name: entry for name, entry in file.entries.items() if name in kept}, data
    file.seal()
    return file.contents()


# Trees --------------------------------------------------------------------------------------------------


class Spot(NamedTuple):
    """A place in a value of JSON."""

    parent: Any
    key: Any


def spots(value: Any) -> list[Spot]:
    """Every place; whoever changes the whole has it in a list."""
    found: list[Spot] = []
    left = [value]  # which may be deeper than Python calls
    while left:
        part = left.pop()
        keys = list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        found += [Spot(part, key) for key in keys]
        left += [part[key] for key in keys]
    return found


def grown(chance: random.Random, names: list[str], depth: int = 0) -> Any:
    """A part of a tree, mostly one that `save` could write."""
    kind = chance.randrange(9 if depth < 3 else 5)
    if kind == 0:
        return chance.choice((*NUMBERS, *FLOATS, *WORDS, True, False, None))
    if kind == 1:
        return {"int": chance.choice("-+ ")[: chance.random() < 0.3] + hex(chance.getrandbits(chance.choice(BITS)))}
    if kind == 2:
        return {"float": struct.pack(">Q", chance.getrandbits(64) | chance.choice((0, 0x7FF << 52))).hex()}
    if kind == 3:
        return {"array": chance.choice(names or ["a"])}
    if kind == 4:
        return chance.choice(
            ([], {}, {"int": 5}, {"float": 1.0}, {"array": "none"}, {"list": {}}, {"os": []}, {"a": 1})
        )

    def part() -> Any:
        return grown(chance, names, depth + 1)

    if kind == 5:
        return {chance.choice(("list", "tuple")): [part() for _ in range(chance.randrange(4))]}
    if kind == 6:
        return {"dict": {chance.choice(WORDS): part() for _ in range(chance.randrange(4))}}
    record = chance.choice(_KINDS)
    return {record: {name: part() for name in trees.fields_of(record, chance.choice((1, 2, 2)))}}


BITS = (1, 64, 65, 100, 1000, 4095, 4096, 4097, 20000)


def _in_tree(chance: random.Random, file: File) -> None:
    """One part of the tree becomes another, goes, comes twice, changes places or lies deeper."""
    whole = [file.tree]
    every = spots(whole)
    spot, other = chance.choice(every), chance.choice(every)
    names = list(file.entries)
    doing = chance.randrange(7)
    if doing <= 1:
        spot.parent[spot.key] = grown(chance, names)
    elif doing == 2:
        spot.parent[spot.key] = copy.deepcopy(other.parent[other.key])
    elif doing == 3 and spot.parent is not whole:
        del spot.parent[spot.key]
    elif doing == 4:
        levels, kind = chance.choice((1, 2, 50, 98, 99, 100, 101, 120, 400)), chance.choice(("list", "tuple"))
        for _ in range(levels):
            spot.parent[spot.key] = {kind: [spot.parent[spot.key]]}
    elif doing == 5 and type(spot.parent) is list:
        spot.parent.append(copy.deepcopy(spot.parent[spot.key]))
    elif type(spot.parent) is dict:
        items = [(chance.choice(WORDS + _KINDS) if key == spot.key else key, v) for key, v in spot.parent.items()]
        if doing == 6:
            items = list(spot.parent.items())
            chance.shuffle(items)
        spot.parent.clear()
        spot.parent.update(items)
    file.tree = whole[0]


def _in_text(chance: random.Random, file: File) -> None:
    """The text of the tree, where it may become no JSON at all."""
    text = file.metadata[TREE]
    at = chance.randrange(len(text) + 1)
    end = min(len(text), at + chance.choice((0, 0, 1, 2, 10)))
    deep = chance.choice((1, 200, 5000))
    instead = chance.choice(
        (
            *'{}[],:"\\ 01-',
            "NaN",
            "1e999",
            "-Infinity",
            "1" * 5000,
            "[" * deep,
            '{"list":[' * deep,
            "\\ud800",
            "\0",
            "é",
        )
    )
    file.metadata[TREE] = text[:at] + instead + text[end:]


# The rest of a file -------------------------------------------------------------------------------------


def _in_metadata(chance: random.Random, file: File) -> None:
    key = chance.choice((VERSION, VERSION, TREE, CRC))
    doing = chance.randrange(4)
    if doing <= 1:
        file.metadata[VERSION] = chance.choice(VERSIONS)
    elif doing == 2:
        file.metadata[key] = chance.choice((*NUMBERS, *WORDS, None, []))
    else:
        del file.metadata[key]


def _in_entries(chance: random.Random, file: File) -> None:
    """One array's name, dtype, shape or bytes; some of that makes another good file."""
    names = list(file.entries)
    if not names:
        return
    name = chance.choice(names)
    entry = file.entries[name]
    doing = chance.randrange(9)
    if doing == 0:
        file.entries[chance.choice(WORDS + tuple(names))] = file.entries.pop(name)
    elif doing == 1:
        del file.entries[name]
    elif doing == 2:
        entry["dtype"] = chance.choice((*safetensors.DTYPES, "F8_E4M3", "f32", None, 4))
    elif doing == 3:
        _resized(chance, entry["shape"])
    elif doing == 4:
        entry["data_offsets"] = [
            chance.choice((*NUMBERS, *entry["data_offsets"])) for _ in range(chance.choice((2, 2, 3)))
        ]
    elif doing == 5:
        entry[chance.choice(("dtype", "shape", "data_offsets", "more"))] = chance.choice(
            (*NUMBERS, *WORDS, None, {}, [])
        )
    elif doing == 6:
        same = [d for d, (dtype, _) in safetensors.DTYPES.items() if _width(entry["dtype"]) == dtype.size]
        entry["dtype"] = chance.choice(same or ["U8"])
    elif doing == 7:
        other = file.entries[chance.choice(names)]
        entry["data_offsets"], other["data_offsets"] = other["data_offsets"], entry["data_offsets"]
    else:
        file.entries[name] = chance.choice((None, [], 1, "x", {}))


def _width(dtype: Any) -> int:
    known = safetensors.DTYPES.get(dtype) if isinstance(dtype, str) else None
    return known[0].size if known else 0


def _resized(chance: random.Random, shape: list[Any]) -> None:
    doing = chance.randrange(4)
    if doing == 0:
        shape[:] = shape[::-1]
    elif doing == 1:
        shape[chance.randrange(len(shape) + 1) :] = [1] * chance.choice((1, 2, 60, 65))
    elif doing == 2:
        shape.insert(chance.randrange(len(shape) + 1), chance.choice((*NUMBERS, 1.0, True, None)))
    elif shape:
        shape[chance.randrange(len(shape))] = chance.choice(NUMBERS)


def _in_data(chance: random.Random, file: File) -> None:
    file.data = changed(chance, file.data, file.data)


INSIDE: dict[str, Callable[[random.Random, File], None]] = {
    "tree": _in_tree,
    "text of the tree": _in_text,
    "metadata": _in_metadata,
    "entries": _in_entries,
    "arrays": _in_data,
}


def inside(chance: random.Random, contents: bytes) -> tuple[str, bytes]:
    """Parts of a file changed, the checksum mostly made right; what was done, and the file."""
    file = File(contents)
    done = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        kind = chance.choice((*INSIDE, "tree", "tree"))
        done.append(kind)
        try:
            INSIDE[kind](chance, file)
        except (
            KeyError,
            TypeError,
            AttributeError,
            ValueError,
            IndexError,
            RecursionError,
        ):  # the step before left none
            break
    if chance.random() < 0.9:
        file.seal()
    return done[0], file.contents()


def changed(chance: random.Random, contents: bytes, other: bytes) -> bytes:
    """Bytes flipped, cut off, taken out, put in twice, or those of another file from somewhere on."""
    at = chance.randrange(len(contents) + 1)
    end = min(len(contents), at + chance.choice((1, 2, 8, 100)))
    doing = chance.randrange(6)
    if doing <= 1 and at < len(contents):
        return contents[:at] + bytes([contents[at] ^ chance.randrange(1, 256)]) + contents[at + 1 :]
    if doing == 2:
        return contents[:at]
    if doing == 3:
        return contents[:at] + contents[end:]
    if doing == 4:
        return contents[:end] + contents[at:end] * chance.choice((1, 2, 50)) + contents[end:]
    return contents[:at] + other[chance.randrange(len(other) + 1) :]


def parts(contents: bytes) -> bool:
    """Whether a file has parts that can be changed: a header with strings of ours."""
    try:
        file = File(contents)
        return isinstance(file.metadata, dict) and isinstance(file.metadata[TREE], str) and bool(spots([file.tree]))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return False
