"""What the settings screen looks like. `pytest tests/tui --snapshot-update` draws it anew."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.client_fake import ScriptedClient
from app.settings import Settings
from tui.app import LocalllmApp
from tui.connection import Connection
from tui.settings_book import SettingsBook

DRAWN_WITH = {"textual": "8.2.8", "rich": "15.0.0"}
ENVIRONMENT = {
    "LOCALLLM_CONFIG": "config.toml",
    "LOCALLLM_CTX": "4096",
    "LOCALLLM_DATA_DIR": "data",
    "LOCALLLM_CACHE_DIR": "cache",
}
SETTINGS = Settings(data_dir=Path("data"), cache_dir=Path("cache"))

pytestmark = pytest.mark.skipif(
    {name: version(name) for name in DRAWN_WITH} != DRAWN_WITH,
    reason=f"another version draws other pixels; these were drawn with {DRAWN_WITH}",
)


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
def test_settings_look_as_drawn(snap_compare, meet, size: tuple[int, int], theme: str):
    assert snap_compare(drawn(theme), terminal_size=size, run_before=visits(meet, "f10 down down down"))


def test_settings_in_high_contrast_look_as_drawn(snap_compare, meet):
    assert snap_compare(drawn("high-contrast"), terminal_size=(80, 24), run_before=visits(meet, "f10"))


def drawn(theme: str) -> LocalllmApp:
    book = SettingsBook(SETTINGS, {"model": "guide"}, ENVIRONMENT)
    app = LocalllmApp(Connection(ScriptedClient().opened, "guide"), clock=lambda: 0.0, settings=SETTINGS, book=book)
    app.theme = theme
    return app


def visits(meet: type, keys: str):
    async def act(pilot: Pilot[None]) -> None:
        person = meet(pilot)
        await person.sees("ready")
        await person.presses(*keys.split())
        await person.sees("Telemetry: none", "4096 at the next start", "LOCALLLM_")

    return act
