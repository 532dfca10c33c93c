from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from app.engine.load.sizing import size_context
from app.engine.protocol.messages import EngineConfig
from offload.footprint.kv_cache import KvTypes, bytes_per_cell
from quantizer.gguf.header import read_header
from quantizer.gguf.layer_caches import kv_shape_of
from quantizer.system.errors import EngineError, UsageError

GUIDE = read_header(Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf")
N_CTX_TRAIN = GUIDE.integer(f"{GUIDE.architecture}.context_length") or 0


def test_a_small_model_gets_the_context_it_was_trained_on_and_cells_for_all_answers() -> None:
    config, notice = size_context(EngineConfig(n_sequences=2), GUIDE, is_on_host=True)
    assert (config.n_ctx, config.n_cells, config.kv_type) == (N_CTX_TRAIN, 2 * N_CTX_TRAIN, "f16")
    assert notice == ""


def test_a_context_beyond_the_memory_of_this_machine_is_an_error_before_loading() -> None:
    n_ctx = psutil.virtual_memory().total // bytes_per_cell(KvTypes(), kv_shape_of(GUIDE)) + 1
    with pytest.raises(EngineError, match="MiB of KV cache"):
        size_context(EngineConfig(n_ctx=n_ctx), GUIDE, is_on_host=True)
    assert size_context(EngineConfig(n_ctx=n_ctx), GUIDE, is_on_host=False)[0].n_ctx == n_ctx


def test_requested_cache_types_are_validated() -> None:
    assert size_context(EngineConfig(kv_type="Q8_0"), GUIDE, is_on_host=True)[0].kv_type == "q8_0"
    with pytest.raises(UsageError, match="no type"):
        size_context(EngineConfig(kv_type="q3"), GUIDE, is_on_host=True)
