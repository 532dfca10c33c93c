"""What the metrics screen makes of counters, runs and jobs, without a screen."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from app.protocol.job import Job
from app.protocol.plan import MeasuredRun
from app.protocol.status import (
    AnswerRecord,
    EngineCounters,
    LatencySummary,
    LoadedSetting,
    ModelStatus,
    Occupancy,
    ServiceStatus,
    ThreadUse,
)
from quantizer.system.errors import ErrorInfo
from tests.app.client.scripted_client import READY
from tests.tui.plans import split_plan
from tui.metrics.screen import (
    MetricsHistory,
    answer_rows,
    bench_runs,
    chart_lines,
    compared_lines,
    expected_duration,
    history_lines,
    model_lines,
    run_line,
    sparkline,
    summary_line,
)

NOW = datetime(2026, 3, 12, 15, 0, tzinfo=UTC)
NO_WAIT = LatencySummary(0, None, None)


def counters(
    n_output: int = 0, n_prompt: int = 0, cached: float = 0.0, first: LatencySummary = NO_WAIT
) -> EngineCounters:
    return EngineCounters(
        n_finished=1,
        n_prompt_tokens=n_prompt,
        n_output_tokens=n_output,
        cached_share=cached,
        prefill_tokens_per_s=900.0,
        decode_tokens_per_s=48.0,
        n_drafted_tokens=0,
        n_accepted_tokens=0,
        first_token_s=first,
        inter_token_s=NO_WAIT,
    )


def status(found: EngineCounters | None, **changes: Any) -> ServiceStatus:
    model = replace(READY, counters=found, occupancy=Occupancy(1, 0, 300, 2048) if found else None, n_bytes=400 << 20)
    return ServiceStatus(version="1", default_model="guide", models=(replace(model, **changes),))


def test_rates_are_computed_between_two_snapshots() -> None:
    log = MetricsHistory()
    log.take(status(counters(100, 1000, 0.5, LatencySummary(2, 0.2, 0.3, 0.5))), 10.0)
    log.take(status(counters(124, 1200, 0.5, LatencySummary(4, 0.2, 0.3, 0.9))), 10.5)
    (sample,) = log.samples("guide")
    assert sample.output_tps == pytest.approx(48.0)
    assert sample.first_token_s == pytest.approx(0.2)
    assert sample.cached_share == pytest.approx(0.5)


def test_what_was_read_ahead_is_shown_once_there_is_any() -> None:
    found = status(replace(counters(), n_read_ahead_tokens=12_300, n_vain_tokens=400)).models[0]
    (line,) = [line for line in model_lines(found, (), 100) if line.startswith("read ahead")]
    assert line.split(maxsplit=2)[2].rstrip() == "12,300, 400 in vain"
    assert not any(line.startswith("read ahead") for line in model_lines(status(counters()).models[0], (), 100))


def test_chats_that_left_the_cache_are_shown_with_what_the_plan_allows_them() -> None:
    found = status(counters(), plan=replace(split_plan("fits", 0, 4), saved_chats_bytes=3 << 30)).models[0]
    assert not any(line.startswith("saved chats") for line in model_lines(found, (), 100))
    held = replace(found, occupancy=Occupancy(1, 0, 300, 2048, saved_bytes=200 << 20))
    (line,) = [line for line in model_lines(held, (), 100) if line.startswith("saved chats")]
    assert line.split(maxsplit=2)[2].rstrip() == "200 MiB of 3.0 GiB"


def test_without_answers_there_are_no_latencies_and_cache_hits() -> None:
    log = MetricsHistory()
    for at_s in (1.0, 1.5):
        log.take(status(counters(7, 70, 0.2)), at_s)
    (sample,) = log.samples("guide")
    assert (sample.output_tps, sample.first_token_s, sample.cached_share) == (0.0, None, None)


def test_a_new_worker_begins_at_zero_and_makes_no_negative_rate() -> None:
    log = MetricsHistory()
    for at_s, found in enumerate((counters(100), counters(3), counters(9))):
        log.take(status(found), float(at_s))
    assert [sample.output_tps for sample in log.samples("guide")] == [6.0]


def test_a_loading_or_removed_model_has_no_samples() -> None:
    log = MetricsHistory()
    log.take(status(counters(1)), 0.0)
    log.take(status(None), 1.0)
    log.take(status(counters(5)), 2.0)
    assert log.samples("guide") == ()
    log.take(status(counters(6)), 3.0)
    assert len(log.samples("guide")) == 1
    log.take(ServiceStatus(version="1", default_model="", models=()), 4.0)
    assert log.samples("guide") == ()


def test_two_minutes_are_kept_and_no_more() -> None:
    log = MetricsHistory()
    for look in range(500):
        log.take(status(counters(look)), look / 2)
    assert len(log.samples("guide")) == 240


@pytest.mark.parametrize(
    ("values", "most", "drawn"),
    [([], None, ""), ([0, 0], None, "▁▁"), ([0, 4, 8], None, "▁▅█"), ([1, None, 1], 2.0, "▅ ▅"), ([9.0], 3.0, "█")],
)
def test_a_sparkline_shows_shares_of_its_most_and_gaps(values: list[float], most: float | None, drawn: str) -> None:
    assert sparkline(values, 8, most) == drawn


def test_a_sparkline_shows_the_newest_where_room_is_short() -> None:
    assert sparkline([8, 0, 0], 2) == "▁▁"
    assert sparkline([1.0], 0) == sparkline([1.0], -3) == ""


@pytest.mark.parametrize("n_columns", [57, 77, 117])
def test_lines_of_a_model_fit_into_their_room(n_columns: int) -> None:
    log = MetricsHistory()
    for look in range(200):
        log.take(status(counters(look * 1000, look * 10, 0.5, LatencySummary(look, 0.2, 0.4, look / 5))), look / 2)
    lines = model_lines(status(counters(1)).models[0], log.samples("guide"), n_columns)
    assert [line.split()[0] for line in lines[1:]] == ["tok/s", "first", "cache", "memory", "KV"]
    assert max(len(line) for line in lines[1:]) <= n_columns


def test_a_loading_model_is_one_line_and_a_split_one_shows_it() -> None:
    brief = split_plan("partial", 20, 33)
    model: ModelStatus = status(None, state="loading", plan=brief).models[0]
    assert model_lines(model, (), 80) == ["guide · loading · 20 of 33 layers on GPUs"]


def test_names_of_one_engine_say_so_of_each_other() -> None:
    model: ModelStatus = status(None, shares_with=("mario", "luigi")).models[0]
    assert model_lines(model, (), 80) == ["guide · ready · shares an engine with mario, luigi"]


@pytest.mark.parametrize(
    ("threads", "words"),
    [
        (ThreadUse(2, 2, 0.05), ""),
        (ThreadUse(1, 2, 0.46), " · 1 of 2 threads beside other programs, which take 46% of the processors"),
        (ThreadUse(3, 8), " · 3 of 8 threads beside other programs"),
    ],
)
def test_a_model_beside_other_programs_says_so(threads: ThreadUse, words: str) -> None:
    model: ModelStatus = status(None, threads=threads).models[0]
    assert model_lines(model, (), 80) == [f"guide · ready{words}"]


@pytest.mark.parametrize("n_columns", [57, 117])
def test_a_model_says_what_it_runs_with_and_why(n_columns: int) -> None:
    settings = (
        LoadedSetting("attention", "plain", "measured", "180 + 34 tok/s, fused 180 + 12 tok/s"),
        LoadedSetting("threads", "2", "option"),
    )
    _, *lines = model_lines(status(counters(1), settings=settings).models[0], (), n_columns)[5:]
    assert " ".join(line.strip() for line in lines) == (
        "runs with    attention plain (measured: 180 + 34 tok/s, fused 180 + 12 tok/s) · threads 2 (option)"
    )
    assert max(map(len, lines)) <= n_columns


def test_history_counts_answers_since_a_date() -> None:
    runs = [
        MeasuredRun(kind="decode", depth=512, tps=tps, gpu_layers=0, at_s=at_s)
        for tps, at_s in ((40.0, 0.0), (48.0, 1.7e9), (50.0, 1.7e9))
    ]
    prompt = replace(runs[0], kind="prefill", tps=900.0)
    (line,) = history_lines([*runs, prompt], 100)
    assert line.startswith("3 answers since 2023-11-1")
    assert "median 48 tok/s, last 50" in line
    assert history_lines([prompt], 80) == []


def answer(number: int, **changes: Any) -> AnswerRecord:
    made = AnswerRecord(
        model="guide",
        at_s=NOW.timestamp() - 60.0 * number,
        n_prompt_tokens=1200,
        n_cached_tokens=0,
        n_output_tokens=55,
        first_token_s=0.25,
        prefill_tps=900.0,
        decode_tps=48.0,
    )
    return replace(made, **changes)


@pytest.mark.parametrize("n_columns", [20, 58, 77, 117])
def test_answers_are_a_table_with_their_models_and_no_speed_where_none_was_measured(n_columns: int) -> None:
    answers = (
        answer(0),
        answer(2, model="qwen3-0.6b-with-a-long-name-Q8_0", decode_tps=None),
        *map(answer, range(3, 40)),
    )
    head, first, second, *others = (line.plain for line in answer_rows(answers, NOW, n_columns))
    assert head.split()[:2] == ["when", "model"]
    assert first.split() == ["now", "guide", "1,200", "55", "0.25", "s", "48"]
    assert second.startswith("2 min       q")
    assert second.split()[-2:] == ["0.25", "s"]
    assert len(others) == 18
    assert len({len(line) for line in (head, first, second)}) == 1
    assert len(first) <= max(n_columns, 58)


def test_the_longest_moment_does_not_touch_the_name_of_the_model() -> None:
    _, last_year = answer_rows((answer(60 * 24 * 120),), NOW, 80)
    assert last_year.plain.startswith("12 Nov 2025 guide ")


@pytest.mark.parametrize("n_columns", [0, 10, 22, 40])
@pytest.mark.parametrize("n_rows", [0, 2, 3, 7])
@pytest.mark.parametrize("values", [(), (5.0,), (0.0, 0.0), (1.0, 3.0, 2.0)])
def test_a_chart_keeps_to_its_room(values: tuple[float, ...], n_columns: int, n_rows: int) -> None:
    lines = chart_lines(values, "3.0", n_columns, n_rows)
    assert len(lines) == n_rows
    assert all(len(line) <= n_columns or not line for line in lines)
    if values and n_columns == 40 and n_rows == 7:
        assert lines[0].startswith("     3.0│")
        assert any(0x2800 < ord(sign) < 0x2900 for sign in "".join(lines))


def test_a_benchmark_takes_as_long_as_the_last_one_of_the_model() -> None:
    runs = (bench(3, 48.0, arguments={"model": "other"}, started_s=1.0, ended_s=2.0), bench(2, 48.0), bench(1, 48.0))
    assert "minutes" in expected_duration(runs, "guide")
    timed = (*runs, bench(0, 48.0, started_s=10.0, ended_s=190.0))
    assert expected_duration(timed, "guide") == "about 3 min"


def test_a_model_is_one_line_in_words() -> None:
    line = summary_line(status(counters(1), n_ctx=2048).models[0]).plain
    assert line == "● guide  400 MiB · context 2,048 tokens · 1 answering, 0 waiting"
    assert summary_line(status(None, state="unloaded").models[0]).plain == "○ guide  unloaded"


def bench(number: int, decode: float, **changes: Any) -> Job:
    measured = [
        {"work": "decode", "case": "depth 0", "unit": "tok/s", "median": decode},
        {"work": "turns", "case": "next", "unit": "ms", "median": 8000 / decode},
    ]
    result = {"results": [{"measurements": measured}], "rooflines": [{"share": 0.81}]}
    job = Job(
        id=str(number),
        kind="bench",
        title="",
        arguments={"model": "guide"},
        created_s=1.7e9 + number,
        state="done",
        result=result,
    )
    return replace(job, **changes)


def test_runs_are_the_jobs_that_measure_the_newest_first() -> None:
    jobs = (bench(1, 40.0), replace(bench(2, 40.0), kind="pull"), bench(3, 48.0))
    assert [job.id for job in bench_runs(jobs)] == ["3", "1"]


def test_a_run_shows_its_speed_and_roofline_or_its_state() -> None:
    assert run_line(bench(1, 40.0)).endswith("guide: answers 40 tok/s, 81% of the memory bandwidth limit")
    assert run_line(bench(1, 40.0, state="running", result=None)).endswith("guide: running")
    failure = ErrorInfo("EngineError", "It died.", "")
    assert run_line(bench(1, 40.0, state="failed", result=None, error=failure)).endswith("failed. It died.")
    assert run_line(bench(1, 40.0, result={"results": []})).endswith("no results")


def test_two_runs_are_compared_by_what_is_better_of_each_figure() -> None:
    decode, turns = compared_lines(bench(1, 40.0), bench(2, 80.0))
    assert decode.split()[-2:] == turns.split()[-2:] == ["2.00", "×"]
    assert compared_lines(bench(1, 40.0), bench(2, 40.0, result={})) == ["These runs have no measurements in common."]
