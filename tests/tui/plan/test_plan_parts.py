"""Curve, text and controls of a plan, without a screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App

from app.protocol.plan import MeasuredRun, PlanReport, PlanRequest
from tests.tui.plans import planner_for
from tui.plan.display import BrailleCanvas, curve_lines, describe_load, device_lines, headline, machine_text
from tui.plan.screen import Stepper, StepperState, apply_step, plan_controls

ANSWER = planner_for()
FULL = PlanRequest(is_full=True)
RUN = MeasuredRun(kind="decode", depth=512, tps=12.0, gpu_layers=20, at_s=1.0)


def report(request: PlanRequest = FULL, **changes: Any) -> PlanReport:
    return replace(ANSWER(request), **changes)


MEASURED = report(measured=(RUN,))


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
    lines = curve_lines(MEASURED, 30, n_columns, n_rows)
    assert any("plan: 43 layers" in line for line in lines)
    if len(lines) > 3:
        assert len(lines) <= n_rows


def test_a_curve_shows_the_plan_the_memory_limit_and_the_measurements() -> None:
    found = report(PlanRequest(n_ctx=8192, gpu_layers={"CUDA0": 12}), measured=(replace(RUN, tps=9.0),))
    drawn = curve_lines(found, 38, 80, 16)
    text = "\n".join(drawn)
    assert text.count("◆") == text.count("×") == 2  # in the drawing and where it is explained
    assert text.count("┊") > 5
    assert "memory limit: 38" in text
    here, measured = (next(line.index(sign) for line in drawn if sign in line) for sign in "◆×")
    assert here < measured


def test_without_a_gpu_the_missing_curve_is_explained_and_measurements_are_shown() -> None:
    found = planner_for(machine="processor only, 32 GB", measured=(replace(RUN, tps=6.0),))(PlanRequest())
    text = " ".join(curve_lines(found, None, 40, 8))
    assert "without a GPU" in text
    assert "6.0 tok/s (answers: 1)" in text


def test_an_overfull_device_shows_by_how_much() -> None:
    request = PlanRequest(n_ctx=8192, gpu_layers={"CUDA0": 43})
    found = report(request)
    assert found.verdict == "wont_run"
    bar, figures = device_lines(found, 76)[:2]
    assert "43 of 43 layers" in bar
    assert "over 11.5 GiB free" in figures
    assert "Does not fit" in headline(found)
    assert describe_load(request, found).startswith("! CUDA0 would hold ")


@pytest.mark.parametrize("n_columns", [40, 58, 76, 118])
def test_bars_are_as_wide_as_their_room_and_show_every_part(n_columns: int) -> None:
    bar = device_lines(report(), n_columns)[2]
    assert all(sign in bar for sign in "█▓▒·") or n_columns < 58
    assert len(bar) <= n_columns


def test_controls_stop_at_their_limits() -> None:
    found = report()
    assert [stepper.label for stepper in plan_controls(PlanRequest(), found)] == [
        "Context",
        "Cache",
        "Parallel",
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
    assert Stepper(state, lambda *_: None).render().plain == "Layers: RPC0[1… ◀ 4 of 28 ▶"


async def test_a_label_is_whole_where_there_is_room_for_it():
    state = StepperState("layers:RTX 3060", "Layers: RTX 3060 12 GB", "4 of 28", has_less=True, has_more=True)
    stepper = Stepper(state, lambda *_: None)

    class Alone(App[None]):
        def compose(self):
            yield stepper

    async with Alone().run_test(size=(56, 5)):
        assert stepper.render().plain.startswith("Layers: RTX 3060 12 GB")
