from __future__ import annotations

from pathlib import Path

import pytest

from app.engine.llama.native import init_numa, lib
from app.engine.load import loading
from app.engine.load.loading import LoadListener, load_model
from app.engine.messages import EngineConfig
from offload.devices.host import affinity

pytestmark = pytest.mark.slow

SILENT = LoadListener(lambda _: True, lambda _: None, lambda _: None)


@pytest.mark.parametrize(
    ("n_nodes", "numa", "expected"),
    [
        (1, "auto", []),
        (1, "distribute", []),
        (2, "auto", ["GGML_NUMA_STRATEGY_DISTRIBUTE"]),
        (2, "off", []),
        (2, "isolate", ["GGML_NUMA_STRATEGY_ISOLATE"]),
    ],
)
def test_threads_are_spread_before_a_model_is_loaded_where_there_are_several_nodes(
    n_nodes: int, numa: str, expected: list[str], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(loading, "numa_nodes", lambda: (affinity(),) * n_nodes)
    monkeypatch.setattr(lib, "llama_numa_init", calls.append)
    init_numa.cache_clear()
    config = EngineConfig(n_ctx=64, n_sequences=1, uses_gpu=False, numa=numa)
    loaded = load_model(tiny_model, config, tmp_path, SILENT)
    with loaded.owned:
        shown = {each.name: each.value for each in loaded.settings}
    init_numa.cache_clear()
    assert calls == [getattr(lib, name) for name in expected]
    assert ("NUMA" in shown) is (n_nodes > 1)
