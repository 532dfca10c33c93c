"""The context of deterministic answers: its size, what it is computed with, and what is said without memory for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.cache.deterministic_cache import DETERMINISTIC_STEP
from app.engine.fake import FakeBackend
from app.engine.load import loading
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.devices.machine import Device, DeviceKind
from offload.footprint.model import PlannedModel
from quantizer.system.errors import EngineError

GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
N_CTX = 4096
MIB = 1 << 20
TUNED = RuntimeSettings(2, flash_attention=True, extra_buffers=True, plain_from=24, copies=(("Q4_1", "BF16"),))


@dataclass
class Weights:
    """Stands for a loaded model; `made` has the contexts that it was asked for."""

    made: list[tuple[EngineConfig, RuntimeSettings]] = field(default_factory=list)

    def context(self, config: EngineConfig, setting: RuntimeSettings, *, with_mtp: bool) -> FakeBackend:
        assert not with_mtp
        self.made.append((config, setting))
        return FakeBackend()


def new_backend(weights: Weights, setting: RuntimeSettings = TUNED, projector: object = None, **changes: Any) -> Any:
    facts = replace(FakeBackend(n_ctx=N_CTX).facts, **changes)
    native: Any = SimpleNamespace(
        backend=SimpleNamespace(facts=facts), model=weights, setting=setting, projector=projector
    )
    config = EngineConfig(n_ctx=N_CTX, n_cells=8 * N_CTX, n_sequences=8, kv_type=setting.kv_type)
    host = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=9999 * MIB, free_bytes=9999 * MIB)
    machine = SimpleNamespace(host=host)
    attempt: Any = SimpleNamespace(config=config, plan=SimpleNamespace(assessment=SimpleNamespace(machine=machine)))
    return loading._deterministic_context(native, attempt, PlannedModel.read(GUIDE))


@pytest.mark.parametrize(
    ("setting", "facts", "is_fused"),
    [
        (TUNED, {}, False),
        (replace(TUNED, kv_type="q8_0"), {}, True),  # nothing else can read quantized values
        (TUNED, {"is_on_host": False}, True),  # as its GPU is planned
        (replace(TUNED, flash_attention=False), {"is_on_host": False}, False),
    ],
)
def test_it_has_one_answer_small_steps_and_the_models_own_weights(
    monkeypatch: pytest.MonkeyPatch, setting: RuntimeSettings, facts: dict[str, Any], is_fused: bool
) -> None:
    monkeypatch.setattr(loading, "host_memory", lambda: SimpleNamespace(free_bytes=9999 * MIB))
    weights = Weights()
    new_backend(weights, setting, **facts)()
    ((config, used),) = weights.made
    assert (config.n_ctx, config.n_cells, config.n_sequences) == (N_CTX, N_CTX, 1)
    assert config.n_batch == used.n_ubatch == DETERMINISTIC_STEP
    assert (used.flash_attention, used.copies, used.plain_from) == (is_fused, (), setting.plain_from)


def test_a_model_that_sees_keeps_the_steps_that_a_picture_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "host_memory", lambda: SimpleNamespace(free_bytes=9999 * MIB))
    weights = Weights()
    new_backend(weights, projector=object())()
    ((config, used),) = weights.made
    assert config.n_batch == used.n_ubatch == 512


def test_without_memory_it_says_how_much_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "host_memory", lambda: SimpleNamespace(free_bytes=9 * MIB))
    with pytest.raises(EngineError, match=r"context of their own, which needs \d+ MiB; 9 MiB are free"):
        new_backend(Weights())()


def test_a_model_that_only_embeds_has_none() -> None:
    assert new_backend(Weights(), can_generate=False) is None
