from __future__ import annotations

from pathlib import Path

from app.engine.load.machine_file import MachineFile, fingerprint


def test_entries_of_one_machine_are_not_those_of_another(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "found.json"
    MachineFile(path, "here").update("a", {"n": 1})
    MachineFile(path, "here").update("a", {"m": 2})
    assert MachineFile(path, "here").entry("a") == {"n": 1, "m": 2}
    assert MachineFile(path, "here").entry("b") == {}
    assert MachineFile(path, "there").entries() == {}


def test_a_file_that_cannot_be_read_counts_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    path.write_text("{", encoding="utf-8")
    assert MachineFile(path, "here").entry("a") == {}


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
