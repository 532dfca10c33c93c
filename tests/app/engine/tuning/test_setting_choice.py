"""Which setting a model is loaded with, and what is said about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.fake import FakeBackend
from app.engine.protocol.messages import EngineConfig, Truncation
from app.engine.tuning.setting_choice import SettingChoice, choose_setting, describe_drafts, describe_settings
from app.engine.tuning.tune_results import (
    DEFAULT_WORKLOAD,
    PLAIN_FROM,
    PLAIN_TYPES,
    RuntimeSettings,
    SpeedMeasurement,
    Workload,
    default_setting,
    plain_from_of,
)
from app.protocol.status import LoadedSetting
from quantizer.gguf.header import read_header

DEFAULT = default_setting(2, has_gpu=False, extra_buffers_are_safe=True, plain_from=PLAIN_FROM)
REPACKED = RuntimeSettings(2, flash_attention=False, extra_buffers=True)
PLAIN = replace(REPACKED, extra_buffers=False)
BOTH = replace(REPACKED, plain_from=PLAIN_FROM)
CONFIG = EngineConfig(n_threads=2, kv_type="f16")
FACTS = FakeBackend(512, 1024, 2).facts


def speeds(setting: RuntimeSettings, prefill: float, decode: float, four: float = 2.0) -> SpeedMeasurement:
    return SpeedMeasurement(setting, prefill, ((0, decode),), ((1, 1.0), (4, four)))


MEASURED = (speeds(PLAIN, 180.0, 29.0), speeds(REPACKED, 112.0, 34.0), speeds(BOTH, 180.0, 34.0))


def chosen(measured: tuple[SpeedMeasurement, ...], work: Workload = DEFAULT_WORKLOAD) -> SettingChoice:
    default = speeds(DEFAULT, 1.0, 1.0)
    return choose_setting((default, *measured), work, CONFIG, has_gpu=False, is_safe=True, plain_from=PLAIN_FROM)


def described(choice: SettingChoice, **changes: object) -> dict[str, LoadedSetting]:
    loaded = replace(choice.setting, **changes)  # type: ignore[arg-type]  # fields by name
    return {item.name: item for item in describe_settings(choice, loaded, CONFIG, FACTS)}


def test_both_layouts_win_where_each_is_faster_at_its_part() -> None:
    assert chosen(MEASURED).setting == BOTH


def test_several_clients_choose_by_the_cost_of_their_steps() -> None:
    one, many = speeds(PLAIN, 180.0, 34.0, four=3.0), speeds(REPACKED, 180.0, 30.0, four=1.5)
    assert chosen((one, many)).setting == PLAIN
    assert chosen((one, many), Workload(512, 1024, 768, n_step=4.0)).setting == REPACKED


def test_without_the_default_measured_the_default_is_loaded_and_says_so() -> None:
    choice = choose_setting(
        (speeds(PLAIN, 9e9, 9e9),), DEFAULT_WORKLOAD, CONFIG, has_gpu=False, is_safe=True, plain_from=PLAIN_FROM
    )
    assert choice.setting == DEFAULT == BOTH
    assert described(choice)["weights"].source == "default"
    assert described(choice)["attention"].reason == "not measured yet"


def test_only_weights_that_gain_are_kept_in_both_layouts(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "AMD64")
    header = read_header(tiny_model)
    assert plain_from_of(header) == 0
    faster = replace(header, tensors=(replace(header.tensors[0], type_id=next(iter(PLAIN_TYPES))), *header.tensors[1:]))
    assert plain_from_of(faster) == PLAIN_FROM
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert plain_from_of(faster) == 0


def test_a_build_that_cannot_run_repacked_weights_gets_none() -> None:
    choice = choose_setting(MEASURED, DEFAULT_WORKLOAD, CONFIG, has_gpu=False, is_safe=False)
    assert choice.setting.weights == "plain"


def test_a_measured_part_names_the_fastest_alternative_with_its_speeds() -> None:
    weights = described(chosen(MEASURED))["weights"]
    assert weights.source == "measured"
    assert weights.value == f"repacked, from {PLAIN_FROM} tokens a step as in the file"
    assert weights.reason == "180 + 34 tok/s, as in the file 180 + 29 tok/s"


def test_too_little_memory_for_both_layouts_is_the_reason_for_one() -> None:
    weights = described(chosen(MEASURED), plain_from=0)["weights"]
    assert (weights.value, weights.source, weights.reason) == ("repacked", "default", "too little free memory for both")


def test_a_micro_batch_that_is_smaller_for_its_memory_says_so() -> None:
    found = described(chosen(MEASURED), n_ubatch=128)["micro-batch"]
    assert (found.value, found.source) == ("128", "default")
    assert found.reason == f"512 would take too much memory with {FACTS.n_cells:,} cells"


def test_options_are_named_as_the_users_choice() -> None:
    found = described(chosen(MEASURED))
    assert found["threads"] == LoadedSetting("threads", "2", "option")
    assert found["KV cache"].source == "default"
    assert described(chosen(MEASURED), kv_type="q8_0", flash_attention=True)["attention"].source == "option"


@pytest.mark.parametrize(
    ("truncation", "words"),
    [
        (Truncation(), "anywhere"),
        (Truncation(n_window=512), "within a window of 512 tokens"),
        (Truncation(has_states=True), "at its end"),
        (Truncation(has_states=True, n_rollback=7, n_holds=4), "by 7 tokens, to 4 held states, at its end"),
    ],
)
def test_the_kind_of_cache_is_said_in_words(truncation: Truncation, words: str) -> None:
    facts = replace(FACTS, truncation=truncation)
    found = {item.name: item for item in describe_settings(chosen(MEASURED), BOTH, CONFIG, facts)}
    assert found["truncation"] == LoadedSetting("truncation", words, "model")


def test_drafts_name_their_sources() -> None:
    assert describe_drafts((), has_draft_model=False).value == "none"
    named = describe_drafts(("prompt lookup", "draft model"), has_draft_model=True)
    assert (named.value, named.source) == ("prompt lookup, draft model", "option")
