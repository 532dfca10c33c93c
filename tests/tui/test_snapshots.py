"""What the screens look like at two sizes. `pytest tests/tui --snapshot-update` draws them anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib.metadata import version

import pytest
from textual.pilot import Pilot

from app.client_fake import LOADING, READY, ScriptedClient, ScriptedReply
from quantizer.errors import ContextOverflowError
from tui.app import LocalllmApp
from tui.chat_commands import EXAMPLES
from tui.connection import Connection

DRAWN_WITH = {"textual": "8.2.8", "rich": "15.0.0"}

pytestmark = pytest.mark.skipif(
    {name: version(name) for name in DRAWN_WITH} != DRAWN_WITH,
    reason=f"another version draws other pixels; these were drawn with {DRAWN_WITH}",
)

ANSWER = """I am **localllm**. I can:

- answer questions,
- *quote* and `edit` text.

```python
def double(n: int) -> int:
    return 2 * n  # twice
```

| type | bits |
|---|---|
| Q4_K_M | 4.8 |
"""
SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])

Scene = tuple[ScriptedClient, Callable[[Pilot[None]], Awaitable[None]]]


async def _until(pilot: Pilot[None], text: str) -> None:
    for _ in range(2000):
        if text in "\n".join(strip.text for strip in pilot.app.screen._compositor.render_strips()):
            return
        await pilot.pause(0.005)
    raise AssertionError(f"{text!r} never came")


def empty() -> Scene:
    async def act(pilot: Pilot[None]) -> None:
        await _until(pilot, "ready")

    return ScriptedClient(model=replace(READY, notices=("A slower path is used on this CPU.",))), act


def loading() -> Scene:
    async def act(pilot: Pilot[None]) -> None:
        await _until(pilot, "loading")
        await pilot.press("f2")
        await _until(pilot, "waiting for the answer")

    return ScriptedClient(model=replace(LOADING, progress=0.3)), act


def answered() -> Scene:
    async def act(pilot: Pilot[None]) -> None:
        await pilot.press("f2")
        await _until(pilot, "48.0 tok/s")

    return ScriptedClient(ScriptedReply(deltas=(ANSWER,))), act


def stopped() -> Scene:
    async def act(pilot: Pilot[None]) -> None:
        await pilot.press("f2")
        await _until(pilot, "answering")
        await pilot.press("escape")
        await _until(pilot, "stopped")

    return ScriptedClient(ScriptedReply(deltas=("Half an answer ",), pause_after=1)), act


def overflow() -> Scene:
    async def act(pilot: Pilot[None]) -> None:
        await pilot.press("f4")
        await _until(pilot, "No answer")

    return ScriptedClient(ScriptedReply(ending=ContextOverflowError(2100, 2048))), act


def help_screen() -> Scene:
    async def act(pilot: Pilot[None]) -> None:
        await _until(pilot, EXAMPLES[0])
        await _until(pilot, "ready")
        await pilot.press("f1")
        await _until(pilot, "Keys and commands")

    return ScriptedClient(), act


@SIZES
@pytest.mark.parametrize("scene", [empty, loading, answered, stopped, overflow, help_screen], ids=lambda s: s.__name__)
def test_screen_looks_as_drawn(snap_compare, scene, size):
    client, act = scene()
    app = LocalllmApp(Connection(client.opened, "guide"), clock=lambda: 0.0)
    assert snap_compare(app, terminal_size=size, run_before=act)
