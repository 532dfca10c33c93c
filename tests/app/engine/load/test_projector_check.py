from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from app.engine.load import projector_check
from app.engine.load.projector_check import check_projector
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from quantizer.system.errors import UserError
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_projectors import tiny_projector

N_DAMAGED = 12


def test_a_projector_is_tested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(tmp_path / "m.gguf")
    projector = tiny_projector(tmp_path / "mmproj.gguf", 64)
    check_projector(model, projector, tmp_path / "cache")
    monkeypatch.setattr(projector_check, "run_to_exit", None)
    check_projector(model, projector, tmp_path / "cache")
    assert "true" in (tmp_path / "cache" / "projectors.json").read_text()


def test_a_projector_that_ends_its_process_is_refused(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:  # libmtmd asserts the type of a number
        writer.kv_data[0]["clip.vision.patch_size"] = gguf.GGUFValue("14", gguf.GGUFValueType.STRING)

    projector = tiny_projector(tmp_path / "mmproj.gguf", 64, edit=edit)
    with pytest.raises(ModelFileError, match="cannot run the projector mmproj"):
        check_projector(tiny_llama(tmp_path / "m.gguf"), projector, tmp_path / "cache")
    assert not (tmp_path / "cache" / "projectors.json").exists()


def test_the_error_of_a_projector_is_raised_here(tmp_path: Path) -> None:
    projector = tiny_projector(tmp_path / "mmproj.gguf", 64, "idefics3")
    with pytest.raises(ModelFileError, match="vocabulary lacks"):
        check_projector(tiny_llama(tmp_path / "m.gguf"), projector, tmp_path / "cache")


@pytest.mark.slow
def test_damaged_projectors_are_refused_or_run(tmp_path: Path) -> None:
    """The header of each has other bytes somewhere; none may end more than the child."""
    model = tiny_llama(tmp_path / "m.gguf")
    whole = tiny_projector(tmp_path / "whole.gguf", 64).read_bytes()
    n_header = read_header(tmp_path / "whole.gguf").fields["clip.use_gelu"].stop
    random = np.random.default_rng(0)
    found = {}
    for seed in range(N_DAMAGED):
        data = bytearray(whole)
        for place in random.integers(24, n_header, 3):
            data[place] = int(random.integers(256))
        (path := tmp_path / f"{seed}.gguf").write_bytes(data)
        try:
            check_projector(model, path, tmp_path / "cache")
            found[seed] = "runs"
        except UserError as error:
            found[seed] = type(error).__name__
    assert len(found) == N_DAMAGED
    assert set(found.values()) <= {"runs", "ModelFileError", "EngineError"}
