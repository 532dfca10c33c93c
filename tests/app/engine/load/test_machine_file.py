from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from app.engine.load import machine_file
from app.engine.load.machine_file import MachineFile, fingerprint, this_build


def test_entries_of_one_machine_are_not_those_of_another(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "found.json"
    MachineFile(path, "here").update("a", {"n": 1})
    MachineFile(path, "here").update("a", {"m": 2})
    assert MachineFile(path, "here").entry("a") == {"n": 1, "m": 2}
    assert MachineFile(path, "here").entry("b") == {}
    assert MachineFile(path, "there").entries() == {}


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, "[]", "1", '{"here": 1}', '{"here": []}', '{"here": {"a": 1}}', '{"here": {"a": [1]}}']
)
def test_what_is_no_entry_counts_as_none_and_is_written_anew(text: str, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    path.write_text(text, encoding="utf-8")
    assert MachineFile(path, "here").entry("a") == {}
    MachineFile(path, "here").update("a", {"n": 1})
    assert MachineFile(path, "here").entry("a") == {"n": 1}


def test_a_fingerprint_changes_with_the_weights_and_with_the_layout(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(bytes(300_000))
    before = fingerprint(path, "flash")
    assert fingerprint(path, "flash") == before
    assert fingerprint(path, "plain") != before
    data = bytearray(path.read_bytes())
    data[150_000] = 1
    path.write_bytes(data)
    assert fingerprint(path, "flash") != before


def test_a_file_that_cannot_be_written_keeps_nothing_and_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    file = MachineFile(tmp_path / "cache" / "found.json", "here")
    file.update("a", {"n": 1})
    assert file.entry("a") == {}


def test_an_error_of_the_disk_that_passes_loses_no_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = MachineFile(tmp_path / "found.json", "here")
    file.update("a", {"n": 1})

    def fails(*_: object, **__: object) -> str:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(machine_file, "read_regular", fails)
        assert file.entry("a") == {}
        file.update("b", {"n": 2})
    assert file.entry("a") == {"n": 1}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed llama.cpp for processors."""
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ("libggml.so", "libggml-base.so", "libggml-cpu.so", "libllama.so"):
        (folder / name).write_bytes(name.encode() * 1000)
    monkeypatch.setattr(machine_file, "library_folders", lambda: (folder, tmp_path / "bin"))
    return folder


def test_a_rebuild_for_a_gpu_or_by_another_compiler_is_another_build(library: Path) -> None:
    before = this_build()
    assert this_build() == before
    (library / "libggml-cuda.so").write_bytes(b"kernels")
    with_gpu = this_build()
    (library / "libggml-cuda.so").unlink()
    (library / "libggml-cpu.so").write_bytes(b"of the same size"[:16] * (len("libggml-cpu.so") * 1000 // 16))
    assert len({before, with_gpu, this_build()}) == 3


def test_a_copied_or_touched_library_is_the_same_build(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = this_build()
    os.utime(library / "libggml-cpu.so", (1, 1))
    assert this_build() == before
    shutil.copytree(library, tmp_path / "elsewhere")
    monkeypatch.setattr(machine_file, "library_folders", lambda: (tmp_path / "elsewhere",))
    assert this_build() == before


def test_what_was_measured_with_one_build_is_not_used_with_another(library: Path, tmp_path: Path) -> None:
    MachineFile(tmp_path / "tune.json", this_build()).update("model", {"measured": 1})
    (library / "libggml-vulkan.so").write_bytes(b"kernels")
    assert MachineFile(tmp_path / "tune.json", this_build()).entry("model") == {}
    (library / "libggml-vulkan.so").unlink()
    assert MachineFile(tmp_path / "tune.json", this_build()).entry("model") == {"measured": 1}
