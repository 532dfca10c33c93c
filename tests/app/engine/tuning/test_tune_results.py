from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.fake import FakeBackend
from app.engine.load.machine_file import model_key
from app.engine.messages import EngineConfig, Truncation
from app.engine.tuning.tune_results import (
    DEFAULT_WORKLOAD,
    PLAIN_FROM,
    PLAIN_TYPES,
    RuntimeSettings,
    SettingChoice,
    SpeedMeasurement,
    TuneFile,
    Workload,
    best_measurement,
    choose,
    choose_setting,
    default_setting,
    describe_drafts,
    describe_settings,
    fastest,
    plain_from_of,
    seconds,
    tune_key,
    with_kv_type,
)
from app.protocol.codec import encode
from app.protocol.status import LoadedSetting
from quantizer.gguf.header import read_header

PLAIN = RuntimeSettings(2, flash_attention=False, extra_buffers=False)
FUSED = RuntimeSettings(2, flash_attention=True, extra_buffers=False)
FAST_PREFILL = SpeedMeasurement(FUSED, 219.0, ((0, 15.0), (512, 12.0), (1792, 6.5)), ((1, 1.0),))
FAST_DECODE = SpeedMeasurement(PLAIN, 134.0, ((0, 19.0), (512, 17.6), (1792, 14.1)), ((1, 1.0),))


def test_chat_takes_the_setting_that_decodes_fast() -> None:
    assert fastest([FAST_PREFILL, FAST_DECODE], DEFAULT_WORKLOAD) is FAST_DECODE


def test_work_that_is_mostly_prompts_takes_the_setting_that_prefills_fast() -> None:
    assert fastest([FAST_PREFILL, FAST_DECODE], Workload(n_prefill=4000, n_decode=40, depth=2000)) is FAST_PREFILL


def test_speed_between_measured_depths_is_linear_and_beyond_them_constant() -> None:
    middle = Workload(n_prefill=0, n_decode=100, depth=256)
    beyond = Workload(n_prefill=0, n_decode=100, depth=9999)
    assert seconds(FAST_DECODE, middle) == pytest.approx(100 / 18.3)
    assert seconds(FAST_DECODE, beyond) == pytest.approx(100 / 14.1)


def test_a_cpu_begins_without_fused_attention_and_a_gpu_with_it() -> None:
    assert not default_setting(2, has_gpu=False, extra_buffers_are_safe=True).flash_attention
    assert default_setting(2, has_gpu=True, extra_buffers_are_safe=True).flash_attention


def test_a_cache_of_quantized_values_brings_fused_attention_with_it() -> None:
    assert with_kv_type(PLAIN, "q8_0") == RuntimeSettings(2, flash_attention=True, extra_buffers=False, kv_type="q8_0")
    assert not with_kv_type(PLAIN, "q8_0,f16").flash_attention


def test_measurements_are_found_by_machine_and_model(tmp_path: Path) -> None:
    cache_dir = tmp_path / "cache"
    results = TuneFile(cache_dir, "this machine")
    results.store("model", "name.gguf", [FAST_PREFILL, FAST_DECODE])
    results.record_use("model", Workload(1, 2, 3), {1: 1.0, 16: 4.0})
    assert TuneFile(cache_dir, "this machine").measured("model") == (FAST_PREFILL, FAST_DECODE)
    assert TuneFile(cache_dir, "this machine").work("model") == Workload(1, 2, 3)
    assert TuneFile(cache_dir, "this machine").step_ratios("model") == {1: 1.0, 16: 4.0}
    assert results.names() == {"model": "name.gguf"}
    assert TuneFile(cache_dir, "another machine").measured("model") == ()
    assert TuneFile(cache_dir, "another machine").work("model") == DEFAULT_WORKLOAD


def test_a_damaged_file_counts_as_empty_and_is_rewritten(tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text("{")
    file = TuneFile(tmp_path, "machine")
    assert file.measured("model") == ()
    file.store("model", "name", [FAST_DECODE])
    assert file.measured("model") == (FAST_DECODE,)


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "m", "measured": [{}]},
        {"name": "m", "measured": {"a": 1}},
        {"name": "m", "measured": 5},
        {"name": "m", "measured": [{**encode(FAST_DECODE), "prefill": "fast"}]},
        {"name": "m", "measured": [{**encode(FAST_DECODE), "prefill": 0.0}]},
        {"name": "m", "measured": [{**encode(FAST_DECODE), "decode": []}]},
        {"name": "m", "measured": [{**encode(FAST_DECODE), "decode": [[0, -1.0]]}]},
        {"name": "m", "work": {"n_prefill": None}},
        {"name": "m", "work": [1]},
        {"measured": [{}]},
        {"name": "m", "work": {"n_prefill": 9, "n_decode": 9, "depth": 9, "n_step": 0.0}},
        {"name": "m", "work": {"n_prefill": 0, "n_decode": 0, "depth": 9}},
        {"name": "m", "work": {"n_prefill": -9, "n_decode": 9, "depth": 9}},
        {"name": "m", "measured": [{**encode(FAST_DECODE), "step_ratios": [[2, 0.0]]}]},
        {"name": "m", "used_steps": {"two": 1.0}},
        {"name": "m", "used_steps": [2, 1.0]},
        {"name": "m", "used_steps": {"2": None}},
        ["m"],
        "m",
    ],
)
def test_damaged_measurements_count_as_none_and_are_made_again(entry: object, tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text(json.dumps({"machine": {"model": entry}}))
    file = TuneFile(tmp_path, "machine")
    assert (file.measured("model"), file.work("model")) == ((), DEFAULT_WORKLOAD)
    assert file.step_ratios("model") == {}
    assert set(file.names().values()) <= {"m", ""}
    file.add("model", "name", FAST_DECODE)
    assert file.measured("model") == (FAST_DECODE,)


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(0, 4000))
def test_no_other_setting_is_clearly_faster_than_the_chosen_one(n_prefill: int, n_decode: int, depth: int) -> None:
    work = Workload(n_prefill, n_decode, depth)
    best = fastest([FAST_PREFILL, FAST_DECODE], work)
    assert all(seconds(best, work) <= 1.02 * seconds(other, work) for other in (FAST_PREFILL, FAST_DECODE))


def test_of_settings_that_are_as_fast_the_one_is_taken_that_decodes_several_answers_faster() -> None:
    alone = replace(FAST_DECODE, batched_decode=30.0)
    together = replace(FAST_DECODE, setting=FUSED, prefill=133.0, batched_decode=33.0)
    slower = replace(together, prefill=80.0, batched_decode=40.0)
    assert fastest([alone, together, slower], DEFAULT_WORKLOAD) is together


def figures(prefill: float, decode: float, batched: float, noise: float = 0.0) -> SpeedMeasurement:
    """Speeds in shares of the default's."""
    by_depth = ((0, 19.0 * decode), (512, 17.0 * decode), (1792, 14.0 * decode))
    return SpeedMeasurement(FUSED, 200.0 * prefill, by_depth, ((1, 1.0),), 30.0 * batched, noise, noise, noise)


USED = Workload(n_prefill=4000, n_decode=40, depth=2000)


@pytest.mark.parametrize(
    ("candidate", "work", "is_taken"),
    [
        (figures(1.0, 1.1, 1.0), DEFAULT_WORKLOAD, True),
        (figures(0.99, 1.1, 0.99), DEFAULT_WORKLOAD, True),  # within what two tunings differ by
        (figures(1.0, 1.1, 0.9), DEFAULT_WORKLOAD, False),  # wins alone, loses beside three others
        (figures(0.9, 1.3, 1.1), DEFAULT_WORKLOAD, False),  # wins answers, loses prompts
        (figures(1.3, 0.9, 1.1), DEFAULT_WORKLOAD, False),
        (figures(1.01, 1.01, 1.5), DEFAULT_WORKLOAD, False),  # no faster at the work
        (figures(0.9, 1.3, 0.9, noise=0.06), DEFAULT_WORKLOAD, True),  # whether it loses nobody knows
        (figures(1.0, 1.1, 1.1, noise=0.06), DEFAULT_WORKLOAD, False),  # nor whether it wins
        (figures(1.3, 0.8, 1.0), USED, True),  # what the model is used for outweighs a slower answer
        (figures(1.3, 0.8, 0.9), USED, False),
        (figures(1.08, 0.9, 1.0), USED, False),  # not by so little
    ],
)
def test_a_setting_is_taken_that_wins_without_losing_a_part(
    candidate: SpeedMeasurement, work: Workload, is_taken: bool
) -> None:
    default = replace(figures(1.0, 1.0, 1.0), setting=PLAIN)
    found = choose([default, candidate], default, work, is_used=work is USED)
    assert (found is candidate) is is_taken


@given(*[st.floats(0.5, 2.0)] * 3, st.floats(0.0, 0.2), st.booleans())
def test_no_choice_loses_answers_beside_each_other_or_the_work(
    prefill: float, decode: float, batched: float, noise: float, is_used: bool
) -> None:
    default = replace(figures(1.0, 1.0, 1.0), setting=PLAIN)
    found = choose([default, figures(prefill, decode, batched, noise)], default, USED, is_used=is_used)
    assert seconds(found, USED) <= seconds(default, USED)
    assert found.batched_decode >= default.batched_decode * (1 - max(0.02, 2 * noise)) * 0.999


def test_a_default_that_is_measured_again_stays_the_one_that_others_have_to_beat(tmp_path: Path) -> None:
    results = TuneFile(tmp_path, "this machine")
    for item in (FAST_DECODE, FAST_PREFILL, replace(FAST_DECODE, prefill=140.0)):
        results.add("model", "name.gguf", item)
    assert [item.setting for item in results.measured("model")] == [PLAIN, FUSED]


def test_a_new_measurement_replaces_that_of_the_same_setting(tmp_path: Path) -> None:
    results = TuneFile(tmp_path, "this machine")
    results.add("model", "name.gguf", FAST_PREFILL)
    results.add("model", "name.gguf", FAST_DECODE)
    again = SpeedMeasurement(PLAIN, 1.0, FAST_DECODE.decode, FAST_DECODE.step_ratios)
    results.add("model", "name.gguf", again)
    assert results.measured("model") == (FAST_PREFILL, again)


def test_measurements_that_were_made_in_another_way_are_not_found(tiny_model: Path) -> None:
    assert tune_key(read_header(tiny_model)) == tune_key(read_header(tiny_model))
    assert tune_key(read_header(tiny_model)) != model_key(tiny_model)  # the key of earlier versions


def test_dropped_measurements_count_no_more_and_are_not_listed(tmp_path: Path) -> None:
    results = TuneFile(tmp_path, "this machine")
    results.store("model", "name.gguf", [FAST_PREFILL])
    results.record_use("model", Workload(1, 2, 3), {1: 1.0, 16: 4.0})
    results.drop("model")
    results.drop("another")
    assert results.measured("model") == ()
    assert results.step_ratios("model") == {}
    assert not results.names()


DEFAULT = default_setting(2, has_gpu=False, extra_buffers_are_safe=True, plain_from=PLAIN_FROM)
REPACKED = RuntimeSettings(2, flash_attention=False, extra_buffers=True)
PLAIN_SETTING = replace(REPACKED, extra_buffers=False)
BOTH = replace(REPACKED, plain_from=PLAIN_FROM)
CONFIG = EngineConfig(n_threads=2, kv_type="f16")
FACTS = FakeBackend(512, 1024, 2).facts


def speeds(setting: RuntimeSettings, prefill: float, decode: float, four: float = 2.0) -> SpeedMeasurement:
    return SpeedMeasurement(setting, prefill, ((0, decode),), ((1, 1.0), (4, four)))


MEASURED = (speeds(PLAIN_SETTING, 180.0, 29.0), speeds(REPACKED, 112.0, 34.0), speeds(BOTH, 180.0, 34.0))


def chosen(measured: tuple[SpeedMeasurement, ...], work: Workload = DEFAULT_WORKLOAD) -> SettingChoice:
    default = speeds(DEFAULT, 1.0, 1.0)
    return choose_setting((default, *measured), work, CONFIG, has_gpu=False, is_safe=True, plain_from=PLAIN_FROM)


def described(choice: SettingChoice, **changes: object) -> dict[str, LoadedSetting]:
    loaded = replace(choice.setting, **changes)  # type: ignore[arg-type]  # fields by name
    return {item.name: item for item in describe_settings(choice, loaded, CONFIG, FACTS)}


def test_both_layouts_win_where_each_is_faster_at_its_part() -> None:
    assert chosen(MEASURED).setting == BOTH


def test_several_clients_choose_by_the_cost_of_their_steps() -> None:
    one, many = speeds(PLAIN_SETTING, 180.0, 34.0, four=3.0), speeds(REPACKED, 180.0, 30.0, four=1.5)
    assert chosen((one, many)).setting == PLAIN_SETTING
    assert chosen((one, many), Workload(512, 1024, 768, n_step=4.0)).setting == REPACKED


def test_threads_that_were_fastest_before_a_quota_are_no_more_than_it_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.engine.tuning.tune_results.usable_processors", lambda: 3)
    monkeypatch.setattr("app.engine.tuning.tune_results.default_threads", lambda: 3)
    automatic, eight = replace(CONFIG, n_threads=0), replace(DEFAULT, n_threads=8)
    measured = (speeds(DEFAULT, 9.0, 9.0), speeds(eight, 99.0, 99.0))
    found = choose_setting(measured, DEFAULT_WORKLOAD, automatic, has_gpu=False, is_safe=True, plain_from=PLAIN_FROM)
    assert found.setting.n_threads == 3
    fixed = choose_setting(measured, DEFAULT_WORKLOAD, CONFIG, has_gpu=False, is_safe=True, plain_from=PLAIN_FROM)
    assert fixed.setting.n_threads == 2


def test_without_the_default_measured_the_default_is_loaded_and_says_so() -> None:
    choice = choose_setting(
        (speeds(PLAIN_SETTING, 9e9, 9e9),), DEFAULT_WORKLOAD, CONFIG, has_gpu=False, is_safe=True, plain_from=PLAIN_FROM
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


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_a_smaller_kv_type_is_not_chosen_unasked_however_fast_it_is(
    tmp_path: Path, tiny_model: Path, kv_type: str
) -> None:
    """q4_0 is four times as far from the truth as llama-server's default: tests/bench/engine/accuracy_by_setting.py."""
    faster = speeds(with_kv_type(BOTH, kv_type), 9e9, 9e9)
    assert chosen((*MEASURED, faster)).setting == BOTH
    asked = replace(CONFIG, kv_type=kv_type)
    default = speeds(with_kv_type(DEFAULT, kv_type), 1.0, 1.0)
    choice = choose_setting((default, faster), DEFAULT_WORKLOAD, asked, has_gpu=False, is_safe=True, plain_from=24)
    assert choice.setting == faster.setting
    header = read_header(tiny_model)
    TuneFile(tmp_path).store(tune_key(header), "tiny", [*MEASURED, faster])
    best = best_measurement(header, tmp_path)
    assert best is not None
    assert best.setting == BOTH, "what a model's page and the costs of its steps are by"


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


COPIES = (("Q4_1", "BF16"),)
COPIED = replace(BOTH, copies=COPIES)


def chosen_with_copies(*measured: SpeedMeasurement) -> SettingChoice:
    return choose_setting(
        measured, DEFAULT_WORKLOAD, CONFIG, has_gpu=False, is_safe=True, plain_from=PLAIN_FROM, copies=COPIES
    )


@pytest.mark.parametrize(
    ("prefill", "setting", "value", "reason"),
    [
        (300.0, COPIED, "Q4_1 as BF16 from 24 tokens a step, 191 MiB", "300 + 30 tok/s, the same 100 + 30 tok/s"),
        # As fast: a copy only takes memory.
        (100.5, BOTH, "the same", "100 + 30 tok/s, Q4_1 as BF16 from 24 tokens a step 100 + 30 tok/s"),
    ],
)
def test_copies_for_prompts_are_used_where_they_were_measured_to_win(
    prefill: float, setting: RuntimeSettings, value: str, reason: str
) -> None:
    choice = chosen_with_copies(speeds(COPIED, prefill, 30.0), speeds(BOTH, 100.0, 30.0))
    assert choice.setting == setting
    found = describe_settings(choice, choice.setting, CONFIG, FACTS, 200_000_000 if setting.copies else 0)
    assert [item for item in found if item.name == "weights for prompts"] == [
        LoadedSetting("weights for prompts", value, "measured", reason)
    ]


def test_copies_are_used_before_the_model_was_tuned_as_its_types_were_measured() -> None:
    choice = chosen_with_copies()
    assert choice.setting == COPIED
    (found,) = (item for item in describe_settings(choice, COPIED, CONFIG, FACTS, 1) if "prompts" in item.name)
    assert (found.source, found.reason) == ("default", "these types read slowly here")


def test_too_little_memory_for_copies_is_said() -> None:
    choice = chosen_with_copies(speeds(COPIED, 300.0, 30.0))
    found = described(choice, copies=())["weights for prompts"]
    assert (found.value, found.source, found.reason) == ("the same", "default", "too little free memory for both")


def test_a_measurement_with_copies_that_this_machine_no_longer_has_is_not_chosen() -> None:
    faster = speeds(replace(BOTH, copies=(("Q4_1", "F16"),)), 9e9, 9e9)
    assert chosen_with_copies(speeds(COPIED, 300.0, 30.0), faster).setting == COPIED
    assert chosen((speeds(COPIED, 9e9, 9e9), *MEASURED)).setting == BOTH


def test_a_model_without_slow_types_says_nothing_of_copies() -> None:
    assert "weights for prompts" not in described(chosen(MEASURED))


def test_gpus_compute_without_copies() -> None:
    assert default_setting(2, has_gpu=True, extra_buffers_are_safe=True, copies=COPIES).copies == ()
