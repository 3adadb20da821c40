"""The parameters of kernels have one contract: records of Python against the structs of metal/, compiled as C++."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import mlx.core as mx
import pytest

from mpsfunc.core import launch, params
from mpsfunc.core.params import Unsigned, for_cpu
from mpsfunc.selftest import calls

ROOT = Path(__file__).parents[2]
METAL = ROOT / "metal"
SHARED = METAL / "shared" / "base.h", METAL / "shared" / "geometry.h"
HEADERS = (*SHARED, *sorted(METAL.glob("*/params.h")))
RECORDS = sorted((ROOT / "mpsfunc").glob("*/params.py"))
BESIDE = sorted((ROOT / "mpsfunc" / "channels").glob("*.py")), ROOT / "mpsfunc" / "windows" / "axis.py"

SUFFIXES = (".h", ".cpp", ".metal", ".py")

_STRUCT = re.compile(
    r"(?P<comment>(?:^//.*\n)*)(?:^MPSF_BEGIN_PARAMS\n)?(?P<template>^template <typename Real>\n)?"
    r"^struct (?P<name>\w+) \{\n(?P<body>[^}]*)^\};",
    re.MULTILINE,
)
_FIELDS = re.compile(r"^ *(unsigned int|[\w<>]+) ([\w, ]+);", re.MULTILINE)


class Struct(NamedTuple):
    """A struct of a header."""

    name: str
    comment: str
    is_template: bool
    fields: tuple[tuple[str, str], ...]  # name and type

    def of(self, real: str) -> str:
        return f"{self.name}<{real}>" if self.is_template else self.name


def structs_of(header: str) -> Iterator[Struct]:
    for found in _STRUCT.finditer(header):
        lines = _FIELDS.findall(found["body"])
        fields = [(name, kind) for kind, names in lines for name in names.split(", ")]
        yield Struct(found["name"], found["comment"], bool(found["template"]), tuple(fields))


def records_of(file: Path) -> dict[str, Any]:
    """The named tuples that a module makes."""
    module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    made = {name: kind for name, kind in vars(module).items() if inspect.isclass(kind) and hasattr(kind, "_fields")}
    return {name: kind for name, kind in made.items() if kind.__module__ == module.__name__}


def is_of_words(kind: Any) -> bool:
    try:
        return bool(params.codes(kind))
    except (AttributeError, NameError, TypeError):  # a field that is neither a number nor a record
        return False


ALL = [each for header in HEADERS for each in structs_of(header.read_text())]
STRUCTS = {each.name: each for each in ALL}
IN_PARAMS = [each.name for header in HEADERS if header not in SHARED for each in structs_of(header.read_text())]
KINDS: dict[str, Any] = {}
for file in RECORDS:
    KINDS |= records_of(file)
for file in (*BESIDE[0], BESIDE[1]):
    KINDS |= {name: kind for name, kind in records_of(file).items() if name in STRUCTS and is_of_words(kind)}
BOTH = sorted(KINDS.keys() & STRUCTS.keys())


def type_of(kind: Any, is_template: bool) -> str:
    """What a struct calls the type of a record's field."""
    if kind in (int, Unsigned):
        return "int" if kind is int else "unsigned int"
    real = "Real" if is_template else "float"
    return real if kind is float else STRUCTS[kind.__name__].of(real)


def sample(kind: Any, count: Iterator[int]) -> Any:
    """A record of numbers that all differ."""
    if kind is int:
        return -next(count)
    if kind is Unsigned:
        return 2**31 + next(count)
    if kind is float:
        return next(count) + 1 / 3
    return kind(*(sample(of, count) for _, of in params.fields(kind)))


def reals_of(name: str) -> tuple[str, ...]:
    """What numbers a struct is compiled with: a CPU's are double, a GPU's float; without a Real, the GPU's or none."""
    if STRUCTS[name].is_template:
        return ("float", "double")
    return ("float",) if "f" in params.codes(KINDS[name]) else ("float", "double")


CASES = [(name, real) for name in BOTH for real in reals_of(name)]


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Offset and size of each field of each struct, for float and for double; those of all are at the name ""."""
    folder = tmp_path_factory.mktemp("params")
    includes = "".join(f'#include "{header.relative_to(METAL)}"\n' for header in HEADERS)
    code = ""
    for name, real in CASES:
        code += f'  {{ using S = {STRUCTS[name].of(real)}; told("{name}", "{real}", "", 0, sizeof(S));\n'
        for field, _ in STRUCTS[name].fields:
            code += f'    told("{name}", "{real}", "{field}", offsetof(S, {field}), sizeof(S::{field}));\n'
        code += "  }\n"
    (folder / "layouts.cpp").write_text(
        f"#include <cstddef>\n#include <cstdio>\n{includes}"
        "void told(const char* name, const char* real, const char* field, size_t offset, size_t size) {\n"
        '  printf("%s|%s|%s|%zu|%zu\\n", name, real, field, offset, size);\n}\n'
        f"int main() {{\n{code}}}\n"
    )
    command = [os.environ.get("CXX", "c++"), "-std=c++17", f"-I{METAL}", "layouts.cpp", "-o", "layouts"]
    subprocess.run(command, cwd=folder, check=True)
    lines = subprocess.run([folder / "layouts"], check=True, capture_output=True, text=True).stdout.split()
    rows = [line.split("|") for line in lines]
    return {(name, real, field): (int(offset), int(size)) for name, real, field, offset, size in rows}


def test_each_struct_has_a_name_of_its_own() -> None:
    assert len(STRUCTS) == len(ALL)


def test_structs_and_records_are_pairs() -> None:
    assert sorted(IN_PARAMS) == sorted(set(IN_PARAMS) & KINDS.keys())
    assert sorted(KINDS) == BOTH
    assert {"Axis", "Threadgroup", "PoolParams", "Operand", "ArithmeticGradParams"} <= set(BOTH)


def test_all_structs_and_fields_are_parsed() -> None:
    """None is of a form that this file passes by."""
    for header in HEADERS:
        code = re.sub(r"//.*", "", header.read_text())
        assert len(re.findall(r"\bstruct\b", code)) == len(list(structs_of(header.read_text()))), header
        for found in _STRUCT.finditer(code):
            assert re.sub(_FIELDS, "", found["body"]).strip() == "", found["name"]


@pytest.mark.parametrize("name", BOTH)
def test_fields_have_the_names_order_and_types_of_the_struct(name: str) -> None:
    made = STRUCTS[name]
    assert made.fields == tuple((field, type_of(of, made.is_template)) for field, of in params.fields(KINDS[name]))


@pytest.mark.parametrize(("name", "real"), CASES)
def test_words_lie_where_the_struct_has_them(name: str, real: str, layouts: Any) -> None:
    words_of = params.for_gpu if real == "float" else params.for_cpu
    record = sample(KINDS[name], itertools.count(1))
    words = words_of(record)
    assert layouts[name, real, ""] == (0, 4 * len(words))
    for (field, of), value in zip(params.fields(KINDS[name]), record, strict=True):
        offset, size = layouts[name, real, field]
        code = {int: "i", Unsigned: "I", float: real[0]}.get(of)
        packed = (
            struct.pack(f"={len(words_of(value))}i", *words_of(value)) if code is None else struct.pack(code, value)
        )
        assert struct.pack(f"={len(words)}i", *words)[offset : offset + size] == packed, field
        assert size == len(packed)


@pytest.mark.parametrize("name", BOTH)
def test_short_structs_tell_that_they_are_constant(name: str) -> None:
    """MSL hands arrays under eight elements over as `constant`, so a comment tells of structs that a kernel reads."""
    texts = "".join(text.read_text() for text in METAL.glob("*/*.metal"))
    is_read = f"params_as<{STRUCTS[name].of('float')}>(params)" in texts
    is_short = len(params.codes(KINDS[name])) < 8
    assert ("`constant`" in STRUCTS[name].comment) == (is_read and is_short)


def folders_of(*roots: str) -> list[str]:
    """The folders that hold sources, each by itself."""
    files = [file for root in roots for file in (ROOT / root).rglob("*") if file.suffix in SUFFIXES]
    return sorted({str(file.parent.relative_to(ROOT)) for file in files})


def matching(folder: str, pattern: str) -> list[str]:
    """Lines of a folder's sources with a match."""
    files = sorted(file for file in (ROOT / folder).glob("*") if file.suffix in SUFFIXES)
    return [line for file in files for line in file.read_text().splitlines() if re.search(pattern, line)]


@pytest.mark.parametrize("folder", folders_of("metal", "primitives"))
def test_nobody_counts_parameters(folder: str) -> None:
    """Fields are asked for by name, and nobody asks for a number among the words nor for an address behind them."""
    assert matching(folder, r"\bparams_?\s*(?:\[|\+\s*\w)") == []


def test_words_are_ints(on_cpu: mx.Device) -> None:
    """Bools among them would be: MLX hands them to a kernel for CUDA as single bytes. The Metal host asks the same."""
    seen: dict[str, tuple[int, ...]] = {}

    def watched(record: Any) -> tuple[int, ...]:
        seen[type(record).__name__] = words = for_cpu(record)
        assert all(type(word) is int for word in words), record
        return words

    with mock.patch.object(launch, "for_cpu", watched):
        assert [family for family in calls.test(on_cpu) if family.wrong or family.error] == []
    assert len(seen) > 15
