"""Curve, text and controls of a plan, without a screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App

from app.protocol.library import PlanDraft
from app.protocol.plan import MeasuredRun, PlanReport, PlanRequest
from tests.tui.plans import planner_for
from tui.design.braille import BrailleCanvas
from tui.plan.display import (
    aside,
    curve_lines,
    describe_load,
    draft_lines,
    engine_words,
    headline,
    machine_text,
    memory_lines,
    remedy_line,
)
from tui.plan.screen import Stepper, StepperState, apply_step, plan_controls

ANSWER = planner_for()
FULL = PlanRequest(is_full=True)
RUN = MeasuredRun(kind="decode", depth=512, tps=12.0, gpu_layers=20, at_s=1.0)


def report(request: PlanRequest = FULL, **changes: Any) -> PlanReport:
    return replace(ANSWER(request), **changes)


def test_a_line_touches_both_of_its_ends() -> None:
    canvas = BrailleCanvas(4, 2)
    canvas.line((0, 0), (1, 1))
    top, bottom = canvas.rows()
    assert (top[:2], bottom[2:]) == ("  ", "  ")
    assert ord(bottom[0]) & 0x40  # the lowest dot on the left
    assert ord(top[3]) & 0x08  # the highest one on the right


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=2), st.integers(1, 20), st.integers(1, 8))
def test_a_drawing_keeps_its_size_whatever_is_drawn(points: list[tuple[float, float]], columns: int, rows: int) -> None:
    canvas = BrailleCanvas(columns, rows)
    canvas.line(points[0], points[1])
    for x, y in points:
        canvas.mark(x, y, "◆")
        canvas.upright(x, "┊")
    drawn = canvas.rows()
    assert [len(row) for row in drawn] == [columns] * rows
    assert "◆" in "".join(drawn)


@pytest.mark.parametrize("n_columns", [1, 15, 16, 30, 60, 120])
@pytest.mark.parametrize("n_rows", [1, 4, 5, 8, 30])
def test_a_curve_fits_into_its_space_or_becomes_text(n_columns: int, n_rows: int) -> None:
    lines = curve_lines(report(measured=(RUN,)), 30, n_columns, n_rows)
    assert any("plan: 39 layers" in line for line in lines)
    if len(lines) > 3:
        assert len(lines) <= n_rows


def test_a_curve_shows_the_plan_the_memory_limit_and_the_measurements() -> None:
    found = report(PlanRequest(n_ctx=8192, gpu_layers={"CUDA0": 12}), measured=(replace(RUN, tps=9.0),))
    drawn = curve_lines(found, 38, 80, 16)
    text = "\n".join(drawn)
    assert text.count("◆") == text.count("●") == 2  # in the drawing and where it is explained
    assert text.count("┊") > 5
    assert "memory ends: 38" in text
    here, measured = (next(line.index(sign) for line in drawn if sign in line) for sign in "◆●")
    assert here < measured


def test_without_a_gpu_the_measured_answers_are_drawn_beside_the_predicted_speed() -> None:
    found = planner_for(machine="processor only, 32 GB", measured=(replace(RUN, tps=6.0, gpu_layers=0),))(PlanRequest())
    text = "\n".join(curve_lines(found, None, 60, 12))
    assert text.count("●") == 2
    assert "1 answer measured here" in text
    assert text.count("┄") > 10


@pytest.mark.parametrize(("n_columns", "n_rows"), [(10, 2), (40, 5), (80, 20)])
def test_without_a_gpu_and_answers_the_space_says_what_will_be_there(n_columns: int, n_rows: int) -> None:
    found = planner_for(machine="processor only, 32 GB")(PlanRequest())
    text = "\n".join(curve_lines(found, None, n_columns, n_rows))
    assert "not measured yet" in text.lower()
    assert n_rows < 20 or text.count("┄") > 40
    unknown = replace(found, decode_tps=None)
    assert "Not measured yet" in curve_lines(unknown, None, n_columns, n_rows)[0]


def run(kind: Any, tps: float, gpu_layers: int | None) -> MeasuredRun:
    return replace(RUN, kind=kind, tps=tps, gpu_layers=gpu_layers)


@pytest.mark.parametrize(
    ("name", "runs", "said"),
    [
        ("llama-3.1-8b", (), "All 33 layers on the GPU: about "),
        (
            "llama-3.1-8b",
            (run("decode", 33.0, 33), run("decode", 35.0, 33), run("prefill", 512.0, 33)),
            "All 33 layers on the GPU: reads 512, writes 34 tokens a second · measured here. At 29 layers",
        ),
        ("llama-3.1-8b", (run("decode", 12.0, 20),), "All 33 layers on the GPU: about "),  # of other layers
    ],
)
def test_the_headline_is_what_was_measured_with_these_layers_else_a_prediction(
    name: str, runs: tuple[MeasuredRun, ...], said: str
) -> None:
    found = planner_for(name, measured=runs)(FULL)
    assert headline(found).startswith(said)
    assert ("predicted, not measured" in aside(found)) == ("about" in said)
    assert "±" not in headline(found) + aside(found)
    assert "±" in " ".join(engine_words(found))


def test_fewer_layers_are_compared_by_what_was_measured_here() -> None:
    found = replace(planner_for("llama-3.1-8b")(FULL), measured=(run("decode", 10.0, 33),))
    share = found.curve[29] / found.curve[33]
    assert f"At 29 layers it would fall to {10 * share:.1f}." in headline(found)


def test_on_a_processor_the_headline_says_so() -> None:
    runs = (run("decode", 12.0, 0), run("prefill", 33.0, None))
    found = planner_for("llama-3.1-8b", "Q4_K_M", "processor only, 32 GB", measured=runs)(PlanRequest())
    assert headline(found).startswith("On the processor: reads 33, writes 12 tokens a second · measured here.")


@pytest.mark.parametrize(
    ("runs", "said", "beside"),
    [
        ((("decode", 12.0, True),), "On the processor: writes 12 tokens", "not measured yet · a prompt of 2,048"),
        ((("decode", 12.0, True), ("prefill", 64.0, True)), "reads 64, writes 12 tokens", "tokens is read in 32 s"),
        # what a busy machine did does not count beside what a quiet one did, and else is all there is
        ((("decode", 4.0, False), ("decode", 12.0, True)), "writes 12 tokens", "median of 1 answer"),
        (
            (("decode", 4.0, False), ("decode", 6.0, False)),
            "writes 5 tokens a second · measured here beside other programs",
            "median of 2 answers",
        ),
    ],
)
def test_reading_and_writing_are_those_measured_here_and_what_is_not_measured_says_so(
    runs: tuple[tuple[Any, float, bool], ...], said: str, beside: str
) -> None:
    measured = tuple(replace(run(kind, tps, 0), is_quiet=is_quiet) for kind, tps, is_quiet in runs)
    found = planner_for("llama-3.1-8b", "Q4_K_M", "processor only, 32 GB", measured=measured)(PlanRequest())
    assert said in headline(found)
    assert beside in aside(found)
    assert "reads about" not in aside(found) or not any(kind == "prefill" for kind, _, _ in runs)


def test_an_overfull_device_shows_by_how_much() -> None:
    request = PlanRequest(n_ctx=8192, gpu_layers={"CUDA0": 43})
    found = report(request)
    assert found.verdict == "wont_run"
    text = "\n".join(line.plain for line in memory_lines(found, 76))
    assert "43 of 43" in text
    assert " over" in text
    assert headline(found).startswith("Does not fit. With enough memory: about ")
    assert "fall to" not in headline(found)
    assert describe_load(request, found).startswith("! CUDA0 would hold ")


@pytest.mark.parametrize("n_columns", [20, 40, 58, 118])
def test_the_table_of_memory_has_every_device_within_its_room(n_columns: int) -> None:
    lines = [line.plain for line in memory_lines(report(), n_columns)]
    text = "\n".join(lines)
    assert all(f"\n{sign} " in text for sign in "█▓▒·")
    assert all(name in text for name in ("CUDA0", "CPU", "GiB"))
    assert max(map(len, lines)) <= max(n_columns, 24)


@pytest.mark.parametrize("n_columns", [50, 76, 116, 200])
def test_what_helps_has_its_key_its_gain_and_fits_into_a_row(n_columns: int) -> None:
    found = report()
    assert found.remedies
    for index in range(len(found.remedies)):
        line = remedy_line(found, index, n_columns).plain
        assert line.startswith(f"{index + 1} ")
        assert "tokens a second (+" in line
        assert "--" not in line
        assert n_columns < 116 or len(line) <= n_columns


def test_controls_stop_at_their_limits() -> None:
    found = report()
    assert [stepper.label for stepper in plan_controls(PlanRequest(), found)] == [
        "Context",
        "Cache type",
        "Answers at once",
        "Layers: CUDA0",
    ]
    most = apply_step(PlanRequest(), found, "n_ctx", 99)
    assert most.n_ctx == found.n_ctx_train
    assert not plan_controls(most, found)[0].has_more
    least = apply_step(PlanRequest(), found, "n_ctx", -99)
    assert least.n_ctx == 512
    assert not plan_controls(least, found)[0].has_less


def test_changing_layers_starts_at_the_planners_choice() -> None:
    found = report()
    request = apply_step(PlanRequest(), found, "layers:CUDA0", -3)
    assert request.gpu_layers == {"CUDA0": found.n_on_gpus - 3}
    assert apply_step(request, found, "layers:CUDA0", 99).gpu_layers == {"CUDA0": found.n_layers}
    assert apply_step(request, found, "layers:CUDA0", -99).gpu_layers == {"CUDA0": 0}


TWO_CARDS = planner_for("llama-3.1-8b", "Q4_K_M", "2 × RTX 3090, 64 GB RAM")(PlanRequest())


@given(st.lists(st.tuples(st.sampled_from(["CUDA0", "CUDA1"]), st.integers(-50, 50)), max_size=8))
def test_two_gpus_never_get_more_layers_than_there_are(turns: list[tuple[str, int]]) -> None:
    found, request = TWO_CARDS, PlanRequest()
    for name, n_steps in turns:
        request = apply_step(request, found, f"layers:{name}", n_steps)
    layers: Mapping[str, int] = request.gpu_layers or {}
    assert sum(layers.values()) <= found.n_layers
    assert all(count >= 0 for count in layers.values())


def test_a_cache_type_of_the_settings_that_no_control_offers_is_still_shown() -> None:
    request = PlanRequest(kv_type="q8_0,q4_0")
    stepper = plan_controls(request, report())[1]
    assert stepper.value == "q8_0,q4_0"
    assert apply_step(request, report(), "kv_type", 1).kv_type == report().kv_types[0]


def test_machines_are_named_as_they_were_given() -> None:
    assert machine_text(PlanRequest()) == "this machine"
    assert machine_text(PlanRequest(vram=("RTX 3060=12GiB",), ram="32GiB")) == "RTX 3060=12GiB + 32GiB RAM"


def test_a_label_that_does_not_fit_ends_in_an_ellipsis_before_the_arrows():
    state = StepperState("layers:RPC0", "Layers: RPC0[192.168.1.20:50052]", "4 of 28", has_less=True, has_more=True)
    assert Stepper(state, lambda *_: None).render().plain == "Layers: RPC0[19… ◀ 4 of 28 ▶"


async def test_a_label_is_whole_where_there_is_room_for_it():
    state = StepperState("layers:RTX 3060", "Layers: RTX 3060 12 GB", "4 of 28", has_less=True, has_more=True)
    stepper = Stepper(state, lambda *_: None)

    class Alone(App[None]):
        def compose(self):
            yield stepper

    async with Alone().run_test(size=(56, 5)):
        assert stepper.render().plain.startswith("Layers: RTX 3060 12 GB")


def drafted(what: str, gain: float, file_type: str = "") -> PlanDraft:
    return PlanDraft(
        what=what,
        bytes=3 << 30,
        layers=0,
        draft_tokens=2,
        acceptance=0.8,
        decode_tps=10 * gain,
        gain=gain,
        least_acceptance=0.4 if gain > 1 else None,
        file_type=file_type,
    )


def test_drafts_that_pay_are_listed_with_how_to_use_them() -> None:
    shown = report(drafts=(drafted("a copy of itself in Q2_K", 1.35, "Q2_K"), drafted("small", 1.1)))
    first, second, how = draft_lines(shown)
    assert first.startswith(
        "a copy of itself in Q2_K (3.0 GiB): 1.35 times as fast where 80% of its tokens are accepted"
    )
    assert first.endswith("faster than without from 40% on")
    assert second.startswith("small (3.0 GiB): 1.10 times")
    assert "copy makes the copy" in how


def test_where_no_draft_pays_the_best_one_says_so() -> None:
    (line,) = draft_lines(report(drafts=(drafted("small", 0.9), drafted("a copy", 0.7, "Q2_K"))))
    assert line.startswith("small (3.0 GiB): does not pay here, 0.90 times as fast")
    assert "never faster" in line
    assert list(draft_lines(report())) == []
