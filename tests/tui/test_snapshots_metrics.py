"""What the metrics screen looks like. `pytest tests/tui --snapshot-update` draws it anew."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import pytest
from textual.pilot import Pilot

from app.client import EngineCounters, Job, Occupancy, ServiceStatus, Spread
from app.client.planner_fake import PLAN
from app.client_fake import READY, ScriptedClient
from tui.app import LocalllmApp
from tui.connection import Connection

DRAWN_WITH = {"textual": "8.2.8", "rich": "15.0.0"}

pytestmark = pytest.mark.skipif(
    {name: version(name) for name in DRAWN_WITH} != DRAWN_WITH,
    reason=f"another version draws other pixels; these were drawn with {DRAWN_WITH}",
)

COUNTERS = EngineCounters(
    n_finished=3,
    n_prompt_tokens=100,
    n_output_tokens=60,
    cached_share=0.6,
    prefill_tokens_per_s=900.0,
    decode_tokens_per_s=48.0,
    n_drafted_tokens=0,
    n_accepted_tokens=0,
    first_token_s=Spread(3, 0.2, 0.4, 0.7),
    inter_token_s=Spread(50, 0.02, 0.03, 1.0),
)
N_LOOKS = 3


class WorkingClient(ScriptedClient):
    """A service whose model makes more tokens between any two of the first looks, and then stands still, as its clock
    does."""

    is_watched = False
    n_looks = 0

    def clock(self) -> float:
        return self.n_looks / 2

    async def status(self) -> ServiceStatus:
        if self.is_watched and self.n_looks < N_LOOKS:
            self.n_looks += 1
        counters = replace(COUNTERS, n_output_tokens=self.n_looks**2 * 12)
        self.model = replace(READY, counters=counters, occupancy=Occupancy(1, 2, 900, 2048), n_bytes=400 << 20)
        return await super().status()


def run(number: int, tps: float) -> Job:
    measured = [{"work": "decode", "case": "depth 0", "unit": "tok/s", "median": tps}]
    result: dict[str, Any] = {"results": [{"measurements": measured}], "rooflines": [{"share": 0.8}]}
    created_s = 1.7e9 + number
    return Job(
        id=str(number),
        kind="bench",
        title="",
        arguments={"model": "guide"},
        created_s=created_s,
        state="done",
        result=result,
    )


async def until(pilot: Pilot[None], text: str) -> None:
    for _ in range(2000):
        if text in "\n".join(strip.text for strip in pilot.app.screen._compositor.render_strips()):
            return
        await pilot.pause(0.005)
    raise AssertionError(f"{text!r} never came")


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
def test_metrics_screen_looks_as_drawn(snap_compare, monkeypatch, size: tuple[int, int], theme: str):
    monkeypatch.setenv("TZ", "UTC")
    if hasattr(time, "tzset"):
        time.tzset()
    client = WorkingClient(jobs=[run(1, 40.0), run(2, 60.0)])
    runs = [{"kind": "decode", "depth": 9, "tps": tps, "gpu_layers": 0, "at_s": 1.7e9} for tps in (30.0, 60.0)]
    client.planner.answer = lambda _: {**PLAN, "measured": runs}
    app = LocalllmApp(Connection(client.opened, "guide"), clock=client.clock)
    app.theme = theme

    async def compared(pilot: Pilot[None]) -> None:
        await until(pilot, "ready")
        client.is_watched = True
        await pilot.press("f9")
        for text in ("answers 60 tok/s", "answers since", "120, answers 48"):
            await until(pilot, text)
        await pilot.press("down", "enter", "down", "enter")
        await until(pilot, "1.50 ×")

    assert snap_compare(app, terminal_size=size, run_before=compared)
