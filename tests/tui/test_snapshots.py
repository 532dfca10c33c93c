"""What every screen looks like, at two sizes, dark and light. `pytest tests/tui --snapshot-update` draws them anew."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.pilot import Pilot

from tests.tui.scenes import SCENES, Scene

DRAWN_WITH = {"textual": "8.2.8", "rich": "15.0.0", "pillow": "12.3.0", "textual-image": "0.12.0"}
SCENES_BY_NAME = {scene.name: scene for scene in SCENES}

pytestmark = pytest.mark.skipif(
    {name: version(name) for name in DRAWN_WITH} != DRAWN_WITH,
    reason=f"another version draws other pixels; these were drawn with {DRAWN_WITH}",
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
        pytest.param((120, 40), "textual-light", id="120x40-light", marks=pytest.mark.slow),
        pytest.param((80, 24), "textual-light", id="80x24-light", marks=pytest.mark.slow),
        pytest.param((120, 40), "textual-dark", id="120x40-dark", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", [scene.name for scene in SCENES if not scene.is_stored])
def test_screen_looks_as_drawn(snap_compare, user_of, name: str, size: tuple[int, int], theme: str):
    scene = SCENES_BY_NAME[name]
    assert snap_compare(scene.app(theme), terminal_size=size, run_before=_walk(scene, user_of))


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
def test_chats_at_the_side_look_as_drawn(snap_compare, user_of, theme: str):
    scene = SCENES_BY_NAME["sidebar"]
    assert snap_compare(scene.app(theme), terminal_size=(140, 40), run_before=_walk(scene, user_of))


@pytest.mark.parametrize("name", ["answered", "settings"])
def test_screen_in_high_contrast_looks_as_drawn(snap_compare, user_of, name: str):
    scene = SCENES_BY_NAME[name]
    assert snap_compare(scene.app("high-contrast"), terminal_size=(80, 24), run_before=_walk(scene, user_of))


def _walk(scene: Scene, user_of: type) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def act(pilot: Pilot[None]) -> None:
        user = user_of(pilot)
        for keys, *texts in (scene.first, *scene.steps):
            for pasted, pressed in re.findall("'([^']+)'|([^']+)", keys):
                await (user.pastes(pasted) if pasted else user.presses(*pressed.split()))
            await user.sees(*texts)
        for text in scene.gone:
            await user.no_longer_sees(text)

    return act
