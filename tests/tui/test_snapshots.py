"""What every screen looks like, small and dark or large and light, and that it survives a terminal of any size, also
while it becomes larger again. `pytest tests/tui --snapshot-update` draws the pictures anew."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.pilot import Pilot

from tests.tui.scenes import SCENES, Scene
from tests.tui.screen_text import screen_text

pytestmark = pytest.mark.slow

SIZES = ((1, 24), (20, 24), (80, 1), (1, 1))  # 1 × 1 is laid out as 12 × 4 is
MORE_SIZES = ((13, 24), (17, 24), (30, 24))  # by default each scene has one of them, in the slow part all
MIN_COLUMNS = 12
DRAWN_WITH = {"textual": "8.2.8", "rich": "15.0.0", "pillow": "12.3.0", "textual-image": "0.12.0"}
SCENES_BY_NAME = {scene.name: scene for scene in SCENES}

IS_DRAWN_OTHERWISE = {name: version(name) for name in DRAWN_WITH} != DRAWN_WITH
DRAWN_AS_HERE = pytest.mark.skipif(
    IS_DRAWN_OTHERWISE, reason=f"another version draws other pixels; these were drawn with {DRAWN_WITH}"
)


@pytest.fixture(autouse=True)
def _one_folder_disk_and_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**11, used=69 * 10**9, free=31 * 10**9))
    if hasattr(time, "tzset"):
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()


@pytest.mark.parametrize(
    ("size", "theme"),
    [
        pytest.param((80, 24), "textual-dark", id="80x24-dark"),
        pytest.param((120, 40), "textual-light", id="120x40-light", marks=[pytest.mark.slow, DRAWN_AS_HERE]),
    ],
)
@pytest.mark.parametrize("name", [scene.name for scene in SCENES if not scene.is_stored])
def test_screen_looks_as_drawn(snap_compare, user_of, name: str, size: tuple[int, int], theme: str):
    """Then it is made as small as a terminal can be: the way to it is gone once for both."""
    scene = SCENES_BY_NAME[name]
    by_turns = MORE_SIZES[SCENES.index(scene) % len(MORE_SIZES)]
    sizes = (by_turns, *SIZES) if theme == "textual-dark" else MORE_SIZES
    walk = _walk(scene, user_of, sizes)
    assert snap_compare(scene.app(theme), terminal_size=size, run_before=walk) or IS_DRAWN_OTHERWISE


@pytest.mark.parametrize("theme", ["textual-dark", pytest.param("textual-light", marks=DRAWN_AS_HERE)])
def test_chats_at_the_side_look_as_drawn(snap_compare, user_of, theme: str):
    scene = SCENES_BY_NAME["sidebar"]
    walk = _walk(scene, user_of, SIZES if theme == "textual-dark" else MORE_SIZES)
    assert snap_compare(scene.app(theme), terminal_size=(140, 40), run_before=walk) or IS_DRAWN_OTHERWISE


@DRAWN_AS_HERE
@pytest.mark.parametrize("name", ["answered", "settings"])
def test_screen_in_high_contrast_looks_as_drawn(snap_compare, user_of, name: str):
    scene = SCENES_BY_NAME[name]
    assert snap_compare(scene.app("high-contrast"), terminal_size=(80, 24), run_before=_walk(scene, user_of))


def _walk(
    scene: Scene, user_of: type, sizes: Sequence[tuple[int, int]] = ()
) -> Callable[[Pilot[None]], Awaitable[None]]:
    """Return the way to `scene`, and on to the terminal's `sizes` once the picture is taken."""

    async def act(pilot: Pilot[None]) -> None:
        user = user_of(pilot)
        for keys, *texts in (scene.first, *scene.steps):
            for pasted, pressed in re.findall("'([^']+)'|([^']+)", keys):
                await (user.pastes(pasted) if pasted else user.presses(*pressed.split()))
            await user.sees(*texts)
        for text in scene.gone:
            await user.no_longer_sees(text)
        if sizes:
            await pilot.pause()
            picture = pilot.app.export_screenshot(title=pilot.app.title, simplify=True)
            pilot.app.export_screenshot = lambda **_: picture  # of the screen before it became small
            await _resize(pilot, sizes)

    return act


async def _resize(pilot: Pilot[None], sizes: Sequence[tuple[int, int]]) -> None:
    usual = pilot.app.size
    for width, height in sizes:
        await pilot.resize_terminal(width, height)
        await pilot.pause(0.02)  # Textual waits for a moment before it lays out
        assert pilot.app.failure is None, (width, height)
    await pilot.resize_terminal(*usual)
    await pilot.pause(0.02)
    assert max(len(row) for row in screen_text(pilot.app).splitlines()) > MIN_COLUMNS
