"""What `mf.load` refuses: files that are cut off, changed, of somebody else, hostile, or from the future."""

from __future__ import annotations

import json
import re
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trees import same_tree

import mpsfunc as mf
from mpsfunc.saving import files, safetensors, trees

TREE: dict[str, Any] = {
    "step": 7,
    "pool": mf.avg_pool_state((1, 4, 4, 2), 2),
    "w": mx.array([[1.5, -0.0], [2.0, 3.0]]),
    "labels": [mx.array([True, False]), (mx.array(3, mx.uint8), -0.0, "é", 2**70, float("nan"))],
    "empty": mx.zeros((0, 2), mx.bfloat16),
}
U8 = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
PAIR = {"list": [{"array": "a"}, {"array": "b"}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "saved"


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("valid") / "saved"
    mf.save(path, TREE)
    return path.read_bytes()


def with_header(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def forged(tree: Any, entries: dict[str, Any] | None = None, data: bytes = b"", version: str = "4") -> bytes:
    """A file with every checksum right."""
    text = tree if isinstance(tree, str) else json.dumps(tree)
    listed = [
        safetensors.Tensor(name, entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
        for name, entry in (entries or {}).items()
    ]
    crc = zlib.crc32(data, files._checksum(text, listed, int(version) if version.isdigit() else 4))
    metadata = {"mpsfunc.version": version, "mpsfunc.tree": text, "mpsfunc.crc32": f"{crc:08x}"}
    return with_header({"__metadata__": metadata, **(entries or {})}, data)


def refused(path: Path, contents: bytes, words: str) -> None:
    """Asserts an error in the house's form, before anything large is allocated."""
    path.write_bytes(contents)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"(?s)^load: .*{words}") as caught:
            mf.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20 + 40 * len(contents)
    finally:
        tracemalloc.stop()
    assert f"got path={str(path)!r}, expected " in str(caught.value)
    assert len(str(caught.value)) < 1000 + len(str(path))


LARGE = '{"int":"0x1' + 1023 * "0" + '"}'


@pytest.mark.parametrize("number", ["9223372036854775808", LARGE, '{"list":[{"int":"-0x8000000000000001"}]}'])
def test_ints_of_records_have_64_bits(number: str, path: Path) -> None:
    for record in (
        '{"Neuron":{"type":"relu","a":NUMBER,"b":null,"c":null}}',
        '{"AvgPoolState":{"op":"avg_pool","channels":{"tuple":[1,NUMBER]},"rows":1,"cols":1}}',
    ):
        refused(path, forged(record.replace("NUMBER", number)), "a part of the tree is none that save writes")
    path.write_bytes(forged(f'{{"list":[{number}]}}'))
    assert len(mf.load(path)) == 1


@pytest.mark.parametrize("digits", [1024 * "0" + "1", "01", "", "F", "g"])
@pytest.mark.parametrize("sign", ["", "-"])
def test_ints_outside_of_records_have_any_size(sign: str, digits: str, path: Path) -> None:
    for version in ("1", "2", "3", "4"):
        path.write_bytes(forged({"int": f"{sign}0x{'f' * 250_000}"}, version=version))
        assert mf.load(path) == (-1 if sign else 1) * (2**1_000_000 - 1)
        refused(path, forged({"int": f"{sign}0x{digits}"}, version=version), "none that save writes")


# Nothing but the same tree ------------------------------------------------------------------------------


def same_or_refused(path: Path, contents: bytes) -> bool:
    """Whether the tree came back."""
    path.write_bytes(contents)
    try:
        tree = mf.load(path)
    except ValueError as error:
        assert str(path) in str(error)
        return False
    assert same_tree(tree, TREE)
    return True


def test_forged_files_are_as_good_as_true_ones(path: Path) -> None:
    entries = {"a": U8, "b": {"dtype": "BF16", "shape": [1, 1], "data_offsets": [2, 4]}}
    path.write_bytes(forged(PAIR, entries, b"\1\2\x80\x3f"))
    assert same_tree(mf.load(path), [mx.array([1, 2], mx.uint8), mx.ones((1, 1), mx.bfloat16)])


def test_every_truncation_is_refused(valid: bytes, path: Path) -> None:
    assert same_or_refused(path, valid)
    assert not any(same_or_refused(path, valid[:length]) for length in range(len(valid)))
    assert not same_or_refused(path, valid + b"\0")


def test_no_flipped_bit_goes_unnoticed(valid: bytes, path: Path) -> None:
    for at in range(len(valid)):
        for mask in (1, 2, 0x20, 0x80, 0xFF):
            same_or_refused(path, valid[:at] + bytes([valid[at] ^ mask]) + valid[at + 1 :])
    for at in range(8 + int.from_bytes(valid[:8], "little"), len(valid)):
        assert not same_or_refused(path, valid[:at] + bytes([valid[at] ^ 4]) + valid[at + 1 :])


edits = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20), st.binary(max_size=20)), min_size=1, max_size=3)


@given(edits)
def test_no_edit_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, valid: bytes, edits: Any) -> None:
    contents = valid
    for where, length, instead in edits:
        at = int(where * len(contents))
        contents = contents[:at] + instead + contents[at + length :]
    same_or_refused(tmp_path_factory.getbasetemp() / "edited", contents)


# Foreign, future ----------------------------------------------------------------------------------------


def test_a_missing_file_is_missing(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
        mf.load(path)


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"", "no header begins a file of 0 bytes"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "no header begins a file of 108 bytes"),
        (bytes(100), "no header"),
        (b"\x93NUMPY\1\0" + bytes(100), "no header"),
        (with_header(b"{}"), "somebody else's"),
        (with_header({"a": U8}, b"12"), "somebody else's"),
        (with_header({"__metadata__": {"format": "pt"}, "a": U8}, b"12"), "somebody else's"),
        (with_header({"__metadata__": {"mpsfunc.version": "3"}}), "somebody else's"),
        (forged(None, version="one"), "somebody else's"),
        (forged(None, version="-1"), "somebody else's"),
        (
            forged(None, version="5"),
            "of version 5, which a later mpsfunc wrote;.*expected version 4 or a newer mpsfunc",
        ),
        (forged(None, {"a": {"dtype": "F4", "shape": [], "data_offsets": [0, 9]}}, version="31"), "of version 31,"),
    ],
)
def test_foreign_and_future_files(contents: bytes, words: str, path: Path) -> None:
    refused(path, contents, words)


def test_files_of_mlx_and_of_numpy_are_foreign(path: Path) -> None:
    mx.save_safetensors(f"{path}.safetensors", {"a": mx.ones(3)}, {"format": "mlx"})
    refused(path, Path(f"{path}.safetensors").read_bytes(), "somebody else's")
    np.save(path.with_suffix(".npy"), np.ones(3))
    refused(path, path.with_suffix(".npy").read_bytes(), "no header")


# Hostile headers ----------------------------------------------------------------------------------------

DEEP = 10_000


def pair(**second: Any) -> tuple[dict[str, Any], bytes]:
    return {"a": U8, "b": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4], **second}}, b"1234"


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ((2**63).to_bytes(8, "little") + b"{}", "no header"),
        ((10**8 - 1).to_bytes(8, "little") + b"{}", "the header of 99999999 bytes ends after the file of 10 bytes"),
        ((3).to_bytes(8, "little") + b"{}", "ends after"),
        (with_header(b"[]"), "not an object"),
        (with_header(b" {}"), "not an object"),
        (with_header(b"{]"), "no JSON"),
        (with_header(b'{"\xff":1}'), "no JSON"),
        (with_header("{}".encode("utf-16")), "no JSON"),
        (with_header(b"[" * DEEP + b"]" * DEEP), "nested too deep"),
        (with_header(b'{"a":' * DEEP + b"1" + b"}" * DEEP), "nested too deep"),
        (with_header(b'{"a":1,"a":1}'), "a name is there twice"),
        (with_header(b'{"a":' + b"1" * 10_000 + b"}"), "a number is too long"),
        (with_header(b'{"a":NaN}'), "NaN is not a number"),
        (with_header({"__metadata__": []}), "metadata"),
        (with_header({"__metadata__": {"a": 1}}), "metadata"),
    ],
)
def test_headers_that_are_none(contents: bytes, words: str, path: Path) -> None:
    refused(path, contents, words)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"data_offsets": [2, 5]}, "lies from byte 2 to 5; .* expected the 2 bytes"),
        ({"data_offsets": [4, 6]}, "begins at byte 4"),
        ({"data_offsets": [1, 3]}, "begins at byte 1; .* expected byte 2"),
        ({"data_offsets": [0, 2]}, "begins at byte 0; .* expected byte 2"),
        ({"data_offsets": [2**62, 2**62 + 2]}, "begins at byte 4611686018427387904"),
        ({"data_offsets": [4, 2]}, "lies from byte 4 to 2"),
        ({"data_offsets": [-2, 0]}, "offsets"),
        ({"data_offsets": [2.0, 4.0]}, "offsets"),
        ({"data_offsets": [2]}, "offsets"),
        ({"data_offsets": "24"}, "offsets"),
        ({"shape": [3]}, "expected the 3 bytes"),
        ({"shape": [2**31 - 1] * 2}, "shape|expected the"),
        ({"shape": [2**31 - 1] * 3}, "has the shape"),
        ({"shape": [0, 2**31 - 1, 2**31 - 1, 2**31 - 1], "data_offsets": [2, 2]}, "has the shape"),
        ({"shape": [2**31, 0], "data_offsets": [2, 2]}, "has the shape"),
        ({"shape": [1] * 65 + [2]}, "has the shape"),
        ({"shape": [-1, -2]}, "has the shape"),
        ({"shape": [True, 2]}, "has the shape"),
        ({"shape": [2.0]}, "has the shape"),
        ({"shape": None}, "has the shape"),
        ({"dtype": "F4"}, "unknown dtype"),
        ({"dtype": "F8_E4M3"}, "unknown dtype"),
        ({"dtype": ["U8"]}, "unknown dtype"),
        ({"dtype": "x" * 10_000}, "unknown dtype"),
        ({"dtype": "U16"}, "expected the 4 bytes"),
        ({"more": 1}, "entry"),
        ({"dtype": "U8", "shape": [1], "data_offsets": [2, 3]}, "4 bytes follow the header; .* expected the 3 bytes"),
    ],
)
def test_entries_that_do_not_fit(second: dict[str, Any], words: str, path: Path) -> None:
    entries, data = pair(**second)
    metadata = {"mpsfunc.version": "1", "mpsfunc.tree": json.dumps(PAIR), "mpsfunc.crc32": "00000000"}
    refused(path, with_header({"__metadata__": metadata, **entries}, data), words)


def test_an_entry_that_is_none(path: Path) -> None:
    metadata = {"mpsfunc.version": "1", "mpsfunc.tree": json.dumps(PAIR), "mpsfunc.crc32": "00000000"}
    for entry in (None, [], {}, {"dtype": "U8"}, "x" * 10_000):
        refused(path, with_header({"__metadata__": metadata, "a": entry}), "the entry of array 'a' is incomplete")


def test_bools_are_bools(path: Path) -> None:
    entries = {"a": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}}
    path.write_bytes(forged({"array": "a"}, entries, b"\0\1"))
    assert mf.load(path).tolist() == [False, True]
    refused(path, forged({"array": "a"}, entries, b"\0\2"), "no bools")


# Hostile trees ------------------------------------------------------------------------------------------

POLICY = dict(mf.PaddingPolicy()._asdict())


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ("", "no JSON"),
        ("[" * DEEP + "]" * DEEP, "nested too deep"),
        ('{"list":[' * DEEP + "]}" * DEEP, "nested too deep"),
        ('{"list":[' * 150 + "]}" * 150, "the tree is nested too deep"),
        ('{"list":[' * 101 + "]}" * 101, "the tree is nested too deep"),
        ('{"dict":{"a":1,"a":2}}', "twice"),
        ("NaN", "NaN"),
        ("1e999", "none that save writes"),
        ("1" * 10_000, "too long"),
        ("[]", "none that save writes"),
        ({}, "none that save writes"),
        ({"list": [], "tuple": []}, "none that save writes"),
        ({"list": {}}, "none that save writes"),
        ({"dict": []}, "none that save writes"),
        ({"set": []}, "none that save writes"),
        ({"int": "0b1"}, "none that save writes"),
        ({"int": 1}, "none that save writes"),
        ({"float": "7ff"}, "none that save writes"),
        ({"float": 1.0}, "none that save writes"),
        ({"array": "a"}, "none that save writes"),
        ({"array": 0}, "none that save writes"),
        ({"array": ["a"]}, "none that save writes"),
        ({"os.system": {"command": "true"}}, "none that save writes"),
        ({"RECORDS": {}}, "none that save writes"),
        ({"PaddingPolicy": list(POLICY.values())}, "none that save writes"),
        ({"PaddingPolicy": dict(list(POLICY.items())[:-1])}, "none that save writes"),
        ({"PaddingPolicy": {**POLICY, "more": 1}}, "none that save writes"),
        ({"PaddingPolicy": dict(reversed(POLICY.items()))}, "none that save writes"),
        ({"PaddingPolicy": {**POLICY, "size": ["os"]}}, "none that save writes"),
    ],
)
def test_trees_that_are_none(tree: Any, words: str, path: Path) -> None:
    refused(path, forged(tree), words)


def test_arrays_that_the_tree_does_not_name(path: Path) -> None:
    entries, data = pair()
    path.write_bytes(forged(PAIR, entries, data))
    assert len(mf.load(path)) == 2
    refused(path, forged({"array": "a"}, entries, data), "array 'b' is not in the tree")


def test_a_tree_is_refused_before_its_arrays_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries, data = pair()
    monkeypatch.setattr(safetensors, "read_arrays", None)
    refused(path, forged({"array": "c"}, entries, data), "none that save writes")


def test_a_file_that_is_cut_off_while_it_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mf.save(path, mx.zeros(100_000))

    def checked(header: safetensors.Header) -> list[safetensors.Tensor]:
        with path.open("r+b") as file:
            file.truncate(200_000)
        return whole(header)

    whole = safetensors.checked
    monkeypatch.setattr(safetensors, "checked", checked)
    with pytest.raises(ValueError, match="load: the file ends within array 'tree'"):
        mf.load(path)


def test_a_wrong_checksum(path: Path, valid: bytes) -> None:
    at = valid.index(b'crc32":"') + 8
    refused(path, valid[:at] + b"01234567" + valid[at + 8 :], "has changed since it was saved")


# Version 1 stays readable -------------------------------------------------------------------------------

OF_VERSION_1 = (
    b"\xb8\x01\x00\x00\x00\x00\x00\x00"
    b'{"__metadata__":{"mpsfunc.version":"1","mpsfunc.tree":"{\\"dict\\":{\\"step\\":3,\\"w\\":{\\"array\\":\\"w\\"},'
    b'\\"pad\\":{\\"PaddingPolicy\\":{\\"align\\":\\"centered\\",\\"remainder\\":\\"top_left\\",\\"size\\":\\"same\\",'
    b'\\"exclude_edges\\":false}},\\"key\\":{\\"list\\":[{\\"array\\":\\"key.0\\"},{\\"float\\":\\"7ff0000000000000\\"}]}}}",'
    b'"mpsfunc.crc32":"cbb890be"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    b'"key.0":{"dtype":"U8","shape":[],"data_offsets":[8,9]}}  \x00\x00\xc0?\x00\x00\x00\xc0\x07'
)
FIELDS_OF_VERSION_1 = {
    "AvgPoolState": "op channels rows cols",
    "Axis": "n_in n_out size stride dilation pad edge zero_pad begin end",
    "BatchNormState": "mean var count dgamma dbeta op eps frozen",
    "ConvState": "dw db y slopes op neuron a b c groups rows cols",
    "ConvTransposeState": "dw db y slopes op neuron a b c groups rows cols unrotated",
    "CrossChannelNormState": "op size alpha beta delta",
    "DropoutState": "key mask op keep_probability mask_stride shape",
    "GroupNormState": "mean var dgamma dbeta op eps",
    "InstanceNormState": "mean var dgamma dbeta op eps",
    "L2PoolState": "norms op rows cols",
    "LocalContrastNormState": "op kernel_size alpha beta delta p0 pm ps",
    "LossState": "gradient op type reduction",
    "MaxPoolState": "winners op rows cols",
    "Neuron": "type a b c",
    "PadState": "op rows cols channels",
    "Padded": "n_in before after mode",
    "PaddingPolicy": "align remainder size exclude_edges",
    "ResampleState": "op channels rows cols",
    "Resized": "n_in n_out method coordinate edge",
    "SpatialNormState": "op kernel_size alpha beta delta",
}


def test_a_file_of_version_1(path: Path) -> None:
    tree = {"step": 3, "w": mx.array([1.5, -2.0]), "pad": mf.PaddingPolicy(), "key": [mx.array(7, mx.uint8), np.inf]}
    path.write_bytes(OF_VERSION_1)
    assert same_tree(mf.load(path), tree)


def test_records_of_version_1_have_their_fields() -> None:
    """Whatever they gain is in the table of later fields, which says what files of this version mean."""
    fields = {name: " ".join(trees.fields_of(name, 1)) for name in trees.RECORDS}
    assert {name: fields[name] for name in FIELDS_OF_VERSION_1} == FIELDS_OF_VERSION_1
