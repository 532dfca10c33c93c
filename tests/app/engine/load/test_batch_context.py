"""The context of batches: which models have one, and that it is made as large as half of the free memory allows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.fake import FakeBackend
from app.engine.load import loading
from app.engine.load.type_tables import TypeTables, host_key
from app.engine.messages import BackendFacts, EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.devices.host import default_threads
from offload.footprint.model import PlannedModel
from offload.speed.type_costs import ProductCost, TypeCost
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.system.errors import EngineError

GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
N_CTX = 4096
MIB = 1 << 20


@dataclass
class Weights:
    """Stands for a loaded model; `made` has the contexts that it was asked for, with the copies of weights."""

    made: list[tuple[EngineConfig, RuntimeSettings, dict[str, str] | None]] = field(default_factory=list)

    def new_copies(self, copies: dict[str, str], _has_room: Any) -> dict[str, str]:
        return copies

    def context(
        self, config: EngineConfig, setting: RuntimeSettings, *, copies: dict[str, str] | None, copy_from: int
    ) -> FakeBackend:
        assert copy_from == 4
        self.made.append((config, setting, copies))
        return FakeBackend()


def new_backend(
    weights: Weights,
    facts: BackendFacts,
    model: PlannedModel,
    cache_dir: Path,
    *,
    has_head: bool = False,
    copies: tuple[tuple[str, str], ...] = (),
    copies_weights: bool = True,
) -> Any:
    native: Any = SimpleNamespace(
        backend=SimpleNamespace(facts=facts),
        model=weights,
        setting=RuntimeSettings(2, flash_attention=False, extra_buffers=True, copies=copies),
        has_head=has_head,
    )
    config = EngineConfig(n_ctx=N_CTX, n_cells=8 * N_CTX, n_sequences=8, kv_type="f16", copies_weights=copies_weights)
    attempt: Any = SimpleNamespace(config=config)
    setting = partial(loading._batch_setting, native.setting, model, config, cache_dir)
    return loading._batch_context(native, attempt, model, setting)


def facts(**changes: Any) -> BackendFacts:
    return replace(FakeBackend(n_ctx=N_CTX).facts, **changes)


@pytest.fixture(scope="module")
def guide() -> PlannedModel:
    return PlannedModel.read(GUIDE)


def in_q4_1(model: PlannedModel) -> PlannedModel:
    kind = tensor_type_named("Q4_1").type_id
    return replace(model, tensors=tuple(replace(tensor, type_id=kind) for tensor in model.tensors))


def measured(cache_dir: Path, **paces: float) -> None:
    """Store what types take here: so many ns for each weight and token."""
    for name, pace_ns in paces.items():
        each = ProductCost(pace_ns * 1e-9, 0.0)
        TypeTables(cache_dir).add(host_key(default_threads()), name, TypeCost(each, each, each, each))


@pytest.mark.parametrize(
    ("paces", "copies"),
    [
        ({"Q4_1": 0.05, "BF16": 0.01, "F16": 0.02}, {"Q4_1": "BF16"}),
        ({"Q4_1": 0.05, "BF16": 0.04, "F16": 0.02}, {"Q4_1": "F16"}),
        ({"Q4_1": 0.05, "BF16": 0.04, "F16": 0.05}, None),
        ({}, None),
    ],
)
def test_attention_is_fused_and_slow_weights_are_copied_into_what_is_fastest_here(
    tmp_path: Path,
    guide: PlannedModel,
    monkeypatch: pytest.MonkeyPatch,
    paces: dict[str, float],
    copies: dict[str, str] | None,
) -> None:
    monkeypatch.setattr(loading, "host_memory", lambda: SimpleNamespace(free_bytes=8192 * MIB))
    measured(tmp_path, **paces)
    weights = Weights()
    new_backend(weights, facts(), in_q4_1(guide), tmp_path)()
    ((config, setting, used),) = weights.made
    assert (config.n_ctx, config.n_sequences, setting.flash_attention) == (N_CTX, 32, True)
    assert (config.n_cells, used) == (16_384, copies)


def test_copies_that_prompts_use_serve_batches_too(tmp_path: Path, guide: PlannedModel) -> None:
    measured(tmp_path, Q4_1=0.05, BF16=0.01)
    weights, copies = Weights(), (("Q4_1", "BF16"),)
    new_backend(weights, facts(), in_q4_1(guide), tmp_path, copies=copies)()
    ((_, setting, own),) = weights.made
    assert setting.copies == copies
    assert own is None


def test_a_user_who_wants_no_copies_gets_none(tmp_path: Path, guide: PlannedModel) -> None:
    measured(tmp_path, Q4_1=0.05, BF16=0.01)
    weights = Weights()
    new_backend(weights, facts(), in_q4_1(guide), tmp_path, copies_weights=False)()
    assert [copies for _, _, copies in weights.made] == [None]


def test_less_memory_makes_it_smaller_and_then_none(
    tmp_path: Path, guide: PlannedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = Weights()
    measured(tmp_path, Q4_1=0.05, BF16=0.01)
    make = new_backend(weights, facts(), in_q4_1(guide), tmp_path)
    for free_mib in (8192, 512, 384, 256, 192, 128, 96, 64):
        free_bytes = free_mib * MIB
        monkeypatch.setattr(
            loading, "host_memory", lambda free_bytes=free_bytes: SimpleNamespace(free_bytes=free_bytes)
        )
        with suppress(EngineError):
            make()
    sizes = [(bool(copies), config.n_cells) for config, _, copies in weights.made]
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
        {"fetches_weights": True},
        {"can_generate": False},
        {"truncation": FakeBackend(supports_truncation=False).facts.truncation},
        {"truncation": FakeBackend(n_window=64).facts.truncation},
    ],
)
def test_other_models_answer_batches_among_the_others(
    tmp_path: Path, guide: PlannedModel, changes: dict[str, Any]
) -> None:
    assert new_backend(Weights(), facts(**changes), guide, tmp_path) is None


def test_a_model_with_a_draft_head_answers_batches_among_the_others(tmp_path: Path, guide: PlannedModel) -> None:
    assert new_backend(Weights(), facts(), guide, tmp_path, has_head=True) is None
