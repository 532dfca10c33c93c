"""What the plan screen looks like. `pytest tests/tui --snapshot-update` draws it anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version

import pytest
from plans import planner_for
from textual.pilot import Pilot

from app.client_fake import ScriptedClient
from tui.app import LocalllmApp
from tui.connection import Connection

DRAWN_WITH = {"textual": "8.2.8", "rich": "15.0.0"}

pytestmark = pytest.mark.skipif(
    {name: version(name) for name in DRAWN_WITH} != DRAWN_WITH,
    reason=f"another version draws other pixels; these were drawn with {DRAWN_WITH}",
)

RUN = {"kind": "decode", "depth": 512, "tps": 12.0, "gpu_layers": 30, "at_s": 1.0}
SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
THEMES = pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])

Act = Callable[[Pilot[None]], Awaitable[None]]


async def until(pilot: Pilot[None], text: str) -> None:
    for _ in range(2000):
        if text in "\n".join(strip.text for strip in pilot.app.screen._compositor.render_strips()):
            return
        await pilot.pause(0.005)
    raise AssertionError(f"{text!r} never came")


async def planned(pilot: Pilot[None]) -> None:
    await pilot.press("f7")
    await until(pilot, "What would help")


async def overfull(pilot: Pilot[None]) -> None:
    await planned(pilot)
    await pilot.press("a", "right", "l")
    await until(pilot, "L again does it")


@THEMES
@SIZES
@pytest.mark.parametrize("act", [planned, overfull], ids=lambda act: act.__name__)
def test_plan_screen_looks_as_drawn(snap_compare, act: Act, size: tuple[int, int], theme: str):
    client = ScriptedClient()
    client.planner.answer = planner_for(measured=(RUN,))
    app = LocalllmApp(Connection(client.opened, "guide"), clock=lambda: 0.0)
    app.theme = theme
    assert snap_compare(app, terminal_size=size, run_before=act)
