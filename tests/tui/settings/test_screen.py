"""The settings screen."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from app.connection import ServiceConnection
from app.options.option import Section
from app.protocol.chat import ThreadUse
from app.protocol.plan import PlanRequest
from app.settings.settings import SETTINGS, load_settings
from tests.app.client.scripted_client import PLAN, READY, ScriptedClient
from tui.app import LocalllmApp
from tui.settings.controller import SettingsController

pytestmark = pytest.mark.slow


@asynccontextmanager
async def running_app(
    root: Path,
    text: str = "",
    flags: dict[str, object] | None = None,
    client: ScriptedClient | None = None,
    **variables: str,
) -> AsyncIterator[LocalllmApp]:
    """The app with this settings file, these flags and variables of the environment."""
    path = root / "config.toml"
    path.write_text(text)
    environment = {
        "LOCALLLM_CONFIG": str(path),
        "LOCALLLM_DATA_DIR": str(root / "data"),
        "LOCALLLM_CACHE_DIR": str(root / "cache"),
        **{f"LOCALLLM_{name}": value for name, value in variables.items()},
    }
    settings = load_settings(flags, environment)
    async with ServiceConnection((client or ScriptedClient()).opened, "guide") as connection:
        settings_controller = SettingsController(settings, flags, environment)
        app = LocalllmApp(connection, clock=lambda: 0.0, settings=settings, settings_controller=settings_controller)
        async with app.run_test(size=(120, 80), notifications=True):
            yield app


def written(tmp_path: Path) -> dict[str, Any]:
    return tomllib.loads((tmp_path / "config.toml").read_text())


def row_of(user: Any, name: str) -> str:
    """The row of a setting, its words separated by single spaces; "" while there is none."""
    rows = (" ".join(line.split()) for line in user.screen_text.splitlines())
    return next((row for row in rows if row.startswith(f"{name} ")), "")


async def test_every_setting_is_there_with_its_source_and_no_telemetry(tmp_path, user_of):
    async with running_app(tmp_path, "threads = 3\n", {"model": "other"}, CTX="512", API_KEY="sesame") as app:
        user = user_of(Pilot(app))
        await user.presses("f10")
        await user.sees("Telemetry: none", "threads", "LOCALLLM_MODEL")
        assert row_of(user, "Default model") == "Default model other default guide flag"
        assert row_of(user, "Processor threads") == "Processor threads 3 default auto file"
        assert row_of(user, "Context length") == "Context length 512 default auto environment"
        assert row_of(user, "Use GPUs") == "Use GPUs on"
        assert "sesame" not in user.screen_text
        titles = {name: option.shown_title for name, option in SETTINGS.items()}
        assert len(set(titles.values())) == len(titles)
        for section in Section:
            assert row_of(user, f"{section} ") or f" {section}\n" in user.screen_text, section
        for title in (*titles.values(), "Telemetry", "API keys", "Service log"):
            assert row_of(user, title), title
        assert row_of(user, "API key").startswith("API key (hidden)")


async def test_a_change_is_validated_saved_and_announced_for_the_next_start(tmp_path, user_of):
    async with running_app(tmp_path, "# mine\nthreads = 3\n") as app:
        user = user_of(Pilot(app))
        await user.presses("f10", "down", "enter")
        await user.sees("Context length in tokens", "Enter confirms")
        await user.presses("backspace", "x", "enter")
        await user.sees("It takes a whole number")
        await user.presses("backspace", *"4096", "enter")
        await user.sees("Context length: 4096. L reloads", "auto  → 4096: L reloads", "file")
        assert written(tmp_path) == {"threads": 3, "ctx": 4096}
        await user.presses("r")
        await user.sees("Context length: auto. L reloads")
        assert row_of(user, "Context length") == "Context length auto (2,048)"
        assert "→" not in user.screen_text
        assert (tmp_path / "config.toml").read_text() == "# mine\nthreads = 3\n"


async def test_a_model_is_loaded_with_what_is_written_after_a_yes(tmp_path, user_of):
    client = ScriptedClient()
    async with running_app(tmp_path, "ctx = 512\n", client=client) as app:
        user = user_of(Pilot(app))
        await user.presses("f10", "l")
        await user.sees("The model already uses")
        (tmp_path / "config.toml").write_text(
            'ctx = 4096\nkv_type = "q8_0"\nthreads = 2\ncontext_shift = true\ngpu = false\n'
        )
        await user.presses("l")
        await user.sees("reloads with context 4096, cache q8_0,", "threads 2, context shift")
        await user.presses("escape")
        await user.no_longer_sees("guide is unloaded")
        assert not client.reloads
        await user.presses("l")
        await user.sees("Reload it now")
        await user.presses("enter")
        await user.sees("Loading: Esc")
    assert client.reloads == [PlanRequest(model="guide", n_ctx=4096, kv_type="q8_0", n_threads=2, context_shift=True)]


async def test_what_only_localllm_can_choose_waits_for_the_next_start(tmp_path, user_of):
    async with running_app(tmp_path, "ctx = 512\n") as app:
        user = user_of(Pilot(app))
        await user.presses("f10", "down", "r")
        await user.sees("512  → auto: at the next start")
        await user.presses("l")
        await user.sees("The model already uses")


async def test_a_switch_and_a_choice_are_selected_and_an_override_of_the_file_is_reported(tmp_path, user_of):
    async with running_app(tmp_path, CONTEXT_SHIFT="false") as app:
        user = user_of(Pilot(app))
        await user.presses("f10", *["down"] * 3, "e")
        await user.sees("Drop the oldest tokens", "Enter selects")
        await user.presses("home", "enter")
        await user.sees("LOCALLLM_CONTEXT_SHIFT in the")
        assert written(tmp_path) == {"context_shift": True}
        assert row_of(user, "Drop the oldest text") == "Drop the oldest text off environment"


async def test_what_is_chosen_automatically_is_shown_once_the_service_says_it(tmp_path, user_of):
    plan = replace(PLAN.setting, kv_type="q8_0")
    model = replace(READY, n_ctx=8192, threads=ThreadUse(1, 2), plan=replace(PLAN, setting=plan))
    async with running_app(tmp_path, client=ScriptedClient(model=model)) as app:
        user = user_of(Pilot(app))
        await user.presses("f10")
        await user.sees("auto (8,192)", "auto (2)", "auto (q8_0)")


async def test_the_search_finds_settings_by_their_words_and_escape_shows_all_again(tmp_path, user_of):
    async with running_app(tmp_path) as app:
        user = user_of(Pilot(app))
        await user.presses("f10", "slash", *"half memory")
        await user.sees("Cache type")
        await user.no_longer_sees("Default model")
        await user.presses("escape")
        await user.sees("Default model")
        await user.presses("slash", *"zebra")
        await user.sees("No setting matches")
        await user.presses("enter", "e")  # nothing is selected
        await user.presses("escape")
        await user.sees("Ask something")


async def test_the_sentence_below_explains_the_selected_setting(tmp_path, user_of):
    async with running_app(tmp_path, "ctx = 512\n") as app:
        user = user_of(Pilot(app))
        await user.presses("f10", "down")
        await user.sees("how much text of a chat the model sees", "Set in the settings file.", "LOCALLLM_CTX")
        await user.presses("down")
        await user.sees("f16 is exact, q8_0 takes half the memory", "This is the default.")


async def test_a_theme_applies_at_once_and_is_saved(tmp_path, user_of):
    async with running_app(tmp_path) as app:
        user = user_of(Pilot(app))
        await user.asks("/theme")
        await user.sees("High contrast", "ANSI, dark")
        await user.presses("down", "down", "enter")
        await user.sees("Theme: high-contrast. It is effective now")
        assert app.theme == "high-contrast"
    assert written(tmp_path) == {"theme": "high-contrast"}
    async with running_app(tmp_path, 'theme = "high-contrast"\n') as app:
        await user_of(Pilot(app)).sees("ready")
        assert app.theme == "high-contrast"


async def test_a_theme_is_named_behind_its_command_which_completes_it(tmp_path, user_of):
    async with running_app(tmp_path) as app:
        user = user_of(Pilot(app))
        await user.types("/theme solarized-l")
        await user.sees("solarized-light")
        await user.presses("enter")
        await user.sees("Theme: solarized-light. It is effective now")
        assert app.theme == "solarized-light"
        await user.asks("/theme pink")
        await user.sees("There is no theme pink. Themes: textual-dark")


async def test_keys_of_the_settings_work_and_are_shown(tmp_path, user_of):
    async with running_app(tmp_path, '[keys]\ngo-settings = "f11,ctrl+f11"\nhelp = "f12"\n') as app:
        user = user_of(Pilot(app))
        await user.sees("ready")
        await user.presses("ctrl+f11")
        await user.sees("Telemetry: none", "Settings")
        await user.presses("f12")
        await user.sees("F11, Ctrl+F11", "/settings")


async def test_keys_are_changed_while_the_app_runs_and_bad_ones_refused(tmp_path, user_of):
    async with running_app(tmp_path) as app:
        user = user_of(Pilot(app))
        await user.presses("f10", "slash", *"bindings", "enter", "enter")
        await user.sees("Key bindings of the terminal app")
        await user.pastes("help=f5")
        await user.presses("enter")
        await user.sees("f5 is assigned to both")
        await user.presses("ctrl+u")
        await user.pastes("help=f12")
        await user.presses("enter")
        await user.sees("Keys: help=f12. It is effective now.")
        await user.presses("f12")
        await user.sees("Keys and commands")
    assert written(tmp_path) == {"keys": {"help": "f12"}}


async def test_invalid_settings_are_reported_and_the_app_starts(tmp_path, user_of):
    async with running_app(tmp_path, 'theme = "[red]pink"\n[keys]\nnope = "f2"\n') as app:
        user = user_of(Pilot(app))
        await user.sees("'nope' is no", "ready")
        await user.presses("alt+n")  # both are listed; the line shows only the newest
        await user.sees("[red]pink", "'nope' is no")
        await user.presses("escape", "f1")
        await user.sees("Keys and commands")


async def test_no_color_leaves_no_colour_in_any_theme(tmp_path, user_of, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    for theme in ("", "high-contrast", "ansi-dark"):
        async with running_app(tmp_path, f'theme = "{theme}"\n') as app:
            user = user_of(Pilot(app))
            await user.sees("ready")
            await user.presses("f10")
            await user.sees("Telemetry: none")
            assert not colours_of(app), theme
    monkeypatch.delenv("NO_COLOR")
    async with running_app(tmp_path) as app:
        await user_of(Pilot(app)).sees("ready")
        assert colours_of(app)


def colours_of(app: LocalllmApp) -> set[str]:
    """The colours on the screen, the terminal's own among them."""
    styles = [segment.style for strip in app.screen._compositor.render_strips() for segment in strip if segment.style]
    colours = {colour for style in styles for colour in (style.color, style.bgcolor) if colour is not None}
    return set(map(str, colours))
