"""The context of batches: which models have one, and that it is made as large as half of the free memory allows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine import llama
from app.engine.fake import FakeBackend
from app.engine.load import loading
from app.engine.messages import BackendFacts, EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.footprint.model import PlannedModel
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.system.errors import EngineError

GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
N_CTX = 4096
MIB = 1 << 20


@dataclass
class Weights:
    """Stands for a loaded model; `made` has the contexts that it was asked for."""

    made: list[tuple[EngineConfig, RuntimeSettings, bool]] = field(default_factory=list)

    def context(self, config: EngineConfig, setting: RuntimeSettings, *, is_wide: bool) -> FakeBackend:
        self.made.append((config, setting, is_wide))
        return FakeBackend()


def new_backend(weights: Weights, facts: BackendFacts, model: PlannedModel, *, has_head: bool = False) -> Any:
    native: Any = SimpleNamespace(
        backend=SimpleNamespace(facts=facts),
        model=weights,
        setting=RuntimeSettings(2, flash_attention=False, extra_buffers=True),
        has_head=has_head,
    )
    attempt: Any = SimpleNamespace(config=EngineConfig(n_ctx=N_CTX, n_cells=8 * N_CTX, n_sequences=8, kv_type="f16"))
    return loading._batch_context(native, attempt, model)


def facts(**changes: Any) -> BackendFacts:
    return replace(FakeBackend(n_ctx=N_CTX).facts, **changes)


@pytest.fixture(scope="module")
def guide() -> PlannedModel:
    return PlannedModel.read(GUIDE)


def in_q4_1(model: PlannedModel) -> PlannedModel:
    kind = tensor_type_named("Q4_1").type_id
    return replace(model, tensors=tuple(replace(tensor, type_id=kind) for tensor in model.tensors))


@pytest.mark.parametrize(("features", "is_wide"), [("CPU (AVX512_BF16)", True), ("CPU (AVX2)", False)])
def test_attention_is_fused_and_weights_are_widened_where_the_processor_multiplies_bf16(
    guide: PlannedModel,
    monkeypatch: pytest.MonkeyPatch,
    features: str,
    is_wide: bool,
) -> None:
    monkeypatch.setattr(loading, "host_memory", lambda: SimpleNamespace(free_bytes=8192 * MIB))
    monkeypatch.setattr(llama, "system_info", lambda: features)
    weights = Weights()
    new_backend(weights, facts(), in_q4_1(guide))()
    ((config, setting, was_wide),) = weights.made
    assert (config.n_ctx, config.n_sequences, setting.flash_attention) == (N_CTX, 32, True)
    assert (config.n_cells, was_wide) == (16_384, is_wide)


def test_less_memory_makes_it_smaller_and_then_none(guide: PlannedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Weights()
    monkeypatch.setattr(llama, "system_info", lambda: "CPU (AVX512_BF16)")
    make = new_backend(weights, facts(), in_q4_1(guide))
    for free_mib in (8192, 512, 384, 256, 192, 128, 96, 64):
        free_bytes = free_mib * MIB
        monkeypatch.setattr(
            loading, "host_memory", lambda free_bytes=free_bytes: SimpleNamespace(free_bytes=free_bytes)
        )
        with suppress(EngineError):
            make()
    sizes = [(is_wide, config.n_cells) for config, _, is_wide in weights.made]
    assert sizes[0] == (True, 16_384)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 1
    monkeypatch.setattr(loading, "host_memory", lambda: SimpleNamespace(free_bytes=16 * MIB))
    with pytest.raises(EngineError, match="half of the 16 MiB that are free"):
        make()


@pytest.mark.parametrize(
    "changes",
    [
        {"is_on_host": False},  # a GPU's memory is planned to the end
        {"can_generate": False},
        {"truncation": FakeBackend(supports_truncation=False).facts.truncation},
        {"truncation": FakeBackend(n_window=64).facts.truncation},
    ],
)
def test_other_models_answer_batches_among_the_others(guide: PlannedModel, changes: dict[str, Any]) -> None:
    assert new_backend(Weights(), facts(**changes), guide) is None


def test_a_model_with_a_draft_head_answers_batches_among_the_others(guide: PlannedModel) -> None:
    assert new_backend(Weights(), facts(), guide, has_head=True) is None
