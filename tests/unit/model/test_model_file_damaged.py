"""Model files that are damaged, or that somebody else made: refused, never believed."""

import io
import json
import os
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask import SADIH
from sadih_dask.errors import FormatError, InputError, IntegrityError, SadihError
from sadih_dask.files import archive
from sadih_dask.files.archive import read_archive, write_archive
from sadih_dask.model.model_file import KIND, VERSION
from tests.support.datasets import blobs
from tests.support.models import QUICK


@pytest.fixture(scope="module")
def small() -> SADIH:
    """A small model that has every kind of member."""
    parameters = {**QUICK, "n_init": 1, "max_iter": 1, "encoder": "posterior"}
    return SADIH(3, anchors=2, **parameters).fit(*blobs(12, 2))


@pytest.fixture
def path(tmp_path: Path, small: SADIH) -> Path:
    small.save(tmp_path / "model.sadih")
    return tmp_path / "model.sadih"


# --- damage ----------------------------------------------------------------------------------


def refused_or_whole(path: Path, damaged: bytes, whole: bytes) -> bool:
    """Whether a file is refused; when it is not, it must hold the very same model."""
    other = path.with_name("damaged")
    other.write_bytes(damaged)
    try:
        loaded = SADIH.load(other)
    except (IntegrityError, FormatError):
        return True
    loaded.save(other)
    assert other.read_bytes() == whole
    return False


def test_a_flipped_bit_anywhere(path: Path) -> None:
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as members:
        directory = members.start_dir
    rng = np.random.default_rng(0)
    places = [*rng.choice(directory, 300, replace=False), *range(directory, len(whole))]
    refused = 0
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.integers(8)
        refused += refused_or_whole(path, bytes(damaged), whole)
    assert refused > 0.6 * len(places)  # the rest are dates and other bytes that say nothing


def test_a_flipped_bit_in_any_array_or_in_the_json(path: Path) -> None:
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    with zipfile.ZipFile(path) as members:
        for info in members.infolist():
            start = whole.index(members.read(info))
            for _ in range(5):
                damaged = bytearray(whole)
                damaged[start + rng.integers(info.file_size)] ^= 1 << rng.integers(8)
                assert refused_or_whole(path, bytes(damaged), whole), info.filename


def test_truncation_anywhere(path: Path) -> None:
    whole = path.read_bytes()
    for length in {*range(0, len(whole), 41), *range(len(whole) - 60, len(whole))}:
        assert refused_or_whole(path, whole[:length], whole), length


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06", b"not a zip file at all", b"\0" * 4096])
def test_not_a_model_at_all(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"damaged or not a sadih-model.*write it anew"):
        SADIH.load(path)


# --- files that somebody else made -----------------------------------------------------------


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as members:
        return {name: members.read(name) for name in members.namelist()}


def pack(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as made:
        for name, content in members.items():
            made.writestr(name, content)


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), **options)
    return file.getvalue()


def npy_of_header(header: str) -> bytes:
    text = (header + "\n").encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def test_a_newer_version_names_both(path: Path) -> None:
    meta, arrays = read_archive(path, KIND, VERSION)
    write_archive(path, KIND, VERSION + 1, {**meta, "format_version": VERSION + 1}, arrays)
    with pytest.raises(
        FormatError, match=f"version {VERSION + 1}; this release reads version .*{VERSION}"
    ):
        SADIH.load(path)


def test_another_kind_of_archive(path: Path) -> None:
    write_archive(path, "sadih-something", VERSION, {}, {})
    with pytest.raises(FormatError, match="holds 'sadih-something'; expected 'sadih-model'"):
        SADIH.load(path)


def test_a_zip_file_of_something_else(path: Path) -> None:
    pack(path, {"readme.txt": b"hello"})
    with pytest.raises(FormatError, match=r"not a sadih-model: it has no member meta\.json"):
        SADIH.load(path)


def test_every_member_is_needed(path: Path) -> None:
    whole = members_of(path)
    assert len(whole) > 10
    for name in whole:
        pack(path, {k: v for k, v in whole.items() if k != name})
        with pytest.raises((FormatError, IntegrityError), match=name.replace(".", r"\.")):
            SADIH.load(path)


def test_a_member_more_or_twice(path: Path) -> None:
    whole = members_of(path)
    pack(path, {**whole, "more.npy": npy([1.0])})
    with pytest.raises(IntegrityError, match=r"does not hold the members that it lists.*more"):
        SADIH.load(path)
    pack(path, whole)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as made:
        made.writestr("offset.npy", whole["offset.npy"])
    with pytest.raises(IntegrityError, match="twice"):
        SADIH.load(path)


def test_a_compressed_member(path: Path) -> None:
    pack(path, members_of(path), zipfile.ZIP_DEFLATED)
    with pytest.raises(FormatError, match="is compressed; archives hold stored members only"):
        SADIH.load(path)


class Bomb:
    def __reduce__(self) -> Any:
        return os.abort, ()


ARRAYS: dict[str, bytes] = {
    "a pickle": npy(np.array([Bomb()], object), allow_pickle=True),
    "a bare pickle": pickle.dumps(Bomb()),
    "no array": b"hello",
    "nothing": b"",
    "a giant": npy_of_header("{'descr': '<f8', 'fortran_order': False, 'shape': (2**45,), }"),
    "a giant by product": npy_of_header(
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2147483648, 2147483648), }"
    ),
    "negative": npy_of_header("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 0), }"),
    "empty but endless": npy_of_header(
        "{'descr': '<f8', 'fortran_order': False, 'shape': (0, " + "9" * 40 + "), }"
    ),
    "no bytes an item": npy_of_header("{'descr': '<U0', 'fortran_order': False, 'shape': (9,), }"),
    "an unknown type": npy_of_header("{'descr': '<q9', 'fortran_order': False, 'shape': (0,), }"),
    "deep": npy_of_header("(" * 3000),
    "open": npy_of_header("{'descr': '''"),
    "version 9": b"\x93NUMPY\x09\x00" + bytes(20),
    "text": npy(np.array(["a", "b"])),
    "complex": npy(np.zeros(3, complex)),
    "another shape": npy(np.zeros((2, 3, 4))),
    "big-endian": npy(np.zeros(3, ">f8")),
}


@pytest.mark.parametrize("case", ARRAYS)
@pytest.mark.parametrize("member", ["offset", "label_codes", "groups.indptr"])
def test_a_member_that_is_not_the_array_it_should_be(path: Path, case: str, member: str) -> None:
    whole = members_of(path)
    pack(path, {**whole, f"{member}.npy": ARRAYS[case]})
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=member.replace(".", r"\.")):
            SADIH.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_classes_that_are_no_text(path: Path) -> None:
    meta, arrays = read_archive(path, KIND, VERSION)
    n_classes = len(arrays["classes"])
    arrays["classes"] = np.full(n_classes, 2**31, np.uint32).view("U1")
    write_archive(path, KIND, VERSION, meta, arrays)
    with pytest.raises(FormatError, match="classes are not text"):
        SADIH.load(path)


def test_codes_with_more_bits_than_they_have(path: Path) -> None:
    meta, arrays = read_archive(path, KIND, VERSION)
    arrays["label_codes"][0, -1] |= 1 << 3
    write_archive(path, KIND, VERSION, meta, arrays)
    with pytest.raises(FormatError, match="label_codes have bits beyond their 3"):
        SADIH.load(path)


def test_groups_that_point_outside(path: Path) -> None:
    whole = members_of(path)
    for member, value, message in [
        ("groups.indptr", [0, 2, 1, 3], "ascend"),
        ("groups.indptr", [1, 2, 3, 3], "ascend"),
        ("groups.indptr", [0, 1, 2, 10**9], "groups.indices"),
        ("groups.indices", [0, 1, 3], "do not exist"),
        ("groups.indices", [-1, 1, 2], "do not exist"),
        ("statistics.counts", [5, -1, 5], "no numbers of rows"),
        ("statistics.counts", [5, 0, 5], "no numbers of rows"),
        ("statistics.counts", [2**62, 2**62, 2**62], "no numbers of rows"),
    ]:
        pack(path, {**whole, f"{member}.npy": npy(np.array(value, np.int64))})
        with pytest.raises(FormatError, match=message):
            SADIH.load(path)


def change_meta(whole: dict[str, bytes], change: Callable[[Any], None]) -> dict[str, bytes]:
    meta = json.loads(whole["meta.json"])
    change(meta)
    return {**whole, "meta.json": json.dumps(meta).encode()}


META: dict[str, Callable[[Any], Any]] = {
    "no seed": lambda meta: meta.pop("seed"),
    "no trace": lambda meta: meta.pop("trace"),
    "an empty trace": lambda meta: meta["trace"].update(records=[]),
    "no parameters": lambda meta: meta.pop("parameters"),
    "no arrays": lambda meta: meta.pop("arrays"),
    "arrays of another kind": lambda meta: meta.update(arrays="offset"),
    "other columns": lambda meta: meta.update(n_features_in=99),
    "text for a number": lambda meta: meta.update(seed="seed"),
    "a list for a number": lambda meta: meta.update(sigma=[1]),
}


@pytest.mark.parametrize("case", META)
def test_json_that_does_not_fit(path: Path, case: str) -> None:
    pack(path, change_meta(members_of(path), META[case]))
    with pytest.raises(FormatError, match=r"model\.sadih.*[wW]rite"):
        SADIH.load(path)


def test_an_unknown_parameter(path: Path) -> None:
    whole = members_of(path)
    pack(path, change_meta(whole, lambda meta: meta["parameters"].update(depth=3)))
    with pytest.raises(InputError, match=r"unknown parameters \['depth'\]"):
        SADIH.load(path)


@pytest.mark.parametrize(
    "text",
    [b"{", b"\xff\xfe", b"[" * 200_000, b'{"seed": ' + b"9" * 10_000 + b"}", b"nonsense"],
    ids=["open", "not text", "deep", "a long number", "nonsense"],
)
def test_json_that_is_none(path: Path, text: bytes) -> None:
    pack(path, {**members_of(path), "meta.json": text})
    with pytest.raises(IntegrityError, match="damaged or not a sadih-model"):
        SADIH.load(path)


@pytest.mark.parametrize("text", [b"[]", b"3", b"null", b'{"kind": 7}'])
def test_json_of_something_else(path: Path, text: bytes) -> None:
    pack(path, {**members_of(path), "meta.json": text})
    with pytest.raises(FormatError, match="expected 'sadih-model'"):
        SADIH.load(path)


def test_huge_json_is_not_parsed(path: Path, small: SADIH, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "META_BYTES", 100_000)
    pack(path, {**members_of(path), "meta.json": b"[" + b"{}," * 100_000 + b"{}]"})
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"meta\.json takes 300004 bytes; expected at most"):
            SADIH.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(archive, "META_BYTES", 100)
    with pytest.raises(InputError, match=r"meta\.json of .* would take .* at most 100"):
        small.save(path)


def test_members_that_overlap(path: Path) -> None:
    """Every entry of the directory may claim the whole file: that would unfold quadratically."""
    big = {"meta.json": b"{}", "a.npy": bytes(50_000), "b.npy": bytes(50_000)}
    pack(path, big)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as members:
        entry = content.index(b"PK\x01\x02", members.start_dir)
    for _ in range(3):
        content[entry + 20 : entry + 28] = (99_000).to_bytes(4, "little") * 2
        entry = content.find(b"PK\x01\x02", entry + 1)
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match="declares 297000 bytes of members"):
        SADIH.load(path)


def test_errors_are_of_this_package_and_of_a_built_in() -> None:
    for error, built_in in ((IntegrityError, OSError), (FormatError, ValueError)):
        assert issubclass(error, SadihError)
        assert issubclass(error, built_in)
