"""What the screens about models look like. `pytest tests/tui --snapshot-update` draws them anew."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from model_scenes import client_with_models

from app.client_fake import ScriptedClient
from tui.app import LocalllmApp
from tui.connection import Connection

DRAWN_WITH = {"textual": "8.2.8", "rich": "15.0.0"}

pytestmark = pytest.mark.skipif(
    {name: version(name) for name in DRAWN_WITH} != DRAWN_WITH,
    reason=f"another version draws other pixels; these were drawn with {DRAWN_WITH}",
)


async def _until(pilot, text):
    for _ in range(2000):
        if text in "\n".join(strip.text for strip in pilot.app.screen._compositor.render_strips()):
            return
        await pilot.pause(0.005)
    raise AssertionError(f"{text!r} never came")


async def models(pilot):
    await pilot.press("f6")
    await _until(pilot, "Recommended")
    await _until(pilot, "qwen3-0.6b")


async def search(pilot):
    await models(pilot)
    await pilot.press("slash", *"tiny", "enter")
    await _until(pilot, "maker/Tiny-Coder")


async def card(pilot):
    await models(pilot)
    await pilot.press("down", "c")
    await _until(pilot, "Esc closes")


async def quantize(pilot):
    await models(pilot)
    await pilot.press("down", "q")
    await _until(pilot, "+0.1754")


async def removal(pilot):
    await models(pilot)
    await pilot.press("down", "d")
    await _until(pilot, "That frees")


def drawn(theme: str, client: ScriptedClient) -> LocalllmApp:
    app = LocalllmApp(Connection(client.opened, "guide"), clock=lambda: 0.0)
    app.theme = theme
    return app


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
@pytest.mark.parametrize("scene", [models, search, card, quantize, removal], ids=lambda scene: scene.__name__)
def test_screen_looks_as_drawn(snap_compare, scene, size, theme):
    assert snap_compare(drawn(theme, client_with_models()), terminal_size=size, run_before=scene)
