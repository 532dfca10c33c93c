from __future__ import annotations

from pathlib import Path

import pytest

from app.engine.dry_run import dry_compute_bytes
from offload.kv_cache import KvTypes
from offload.model import PlannedModel
from offload.profile import Setting
from quantizer.errors import EngineError
from quantizer.gate import admit, tensors_of

SETTING = Setting(n_ctx=1024, n_cells=1024, kv_types=KvTypes(), n_sequences=4, is_fused=False)


def test_a_dry_run_tells_what_a_context_computes_in(tiny_model: Path) -> None:
    n_bytes = dry_compute_bytes(tiny_model, SETTING)
    scores = 4 * 1024 * 512 * 4  # heads, cells, tokens of a micro-batch, F32
    assert scores < n_bytes < 2 * scores


def test_a_plan_takes_what_the_dry_run_says(tiny_model: Path) -> None:
    header = admit(tiny_model)
    model = PlannedModel(header, tensors_of(header))
    n_bytes = dry_compute_bytes(tiny_model, SETTING)
    assert model.measured(SETTING, n_bytes).profile(SETTING).compute_bytes == pytest.approx(n_bytes, rel=1e-6)


def test_a_file_that_llama_cpp_refuses_is_told_of_with_its_words(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(EngineError, match=r"cannot load no\.gguf"):
        dry_compute_bytes(path, SETTING)
