"""The settings screen."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from app.protocol.plan import PlanRequest
from app.settings.settings import SETTINGS, load_settings
from tests.app.client.scripted_client import ScriptedClient
from tui.app import LocalllmApp
from tui.connection import ServiceConnection
from tui.settings.controller import SettingsController


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
        async with app.run_test(size=(120, 56), notifications=True):
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
        assert row_of(user, "model") == "model other flag"
        assert row_of(user, "threads") == "threads 3 file"
        assert row_of(user, "ctx") == "ctx 512 environment"
        assert row_of(user, "gpu") == "gpu true default"
        assert "sesame" not in user.screen_text
        for name in ("port", "host", "data_dir", "API keys", "service log", "telemetry"):
            assert row_of(user, name), name


async def test_a_change_is_validated_saved_and_announced_for_the_next_start(tmp_path, user_of):
    async with running_app(tmp_path, "# mine\nthreads = 3\n") as app:
        user = user_of(Pilot(app))
        await user.presses("f10", "down", "enter")
        await user.sees("Context length in tokens", "Enter confirms")
        await user.presses("backspace", "x", "enter")
        await user.sees("It takes a whole number")
        await user.presses("backspace", *"4096", "enter")
        await user.sees("ctx is saved", "0 → 4096: L reloads", "file")
        assert written(tmp_path) == {"threads": 3, "ctx": 4096}
        await user.presses("r")
        await user.sees("ctx is reset")
        assert row_of(user, "ctx").startswith("ctx 0 ")
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
        await user.sees("512 → 0 at the next start")
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
        assert row_of(user, "context_shift").startswith("context_shift false ")


async def test_a_theme_applies_at_once_and_is_saved(tmp_path, user_of):
    async with running_app(tmp_path) as app:
        user = user_of(Pilot(app))
        await user.asks("/theme")
        await user.sees("High contrast", "ANSI, dark")
        await user.presses("down", "down", "enter")
        await user.sees("high-contrast: It is effective now")
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
        await user.sees("solarized-light: It is effective now")
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
        await user.presses("f10", *["down"] * list(SETTINGS).index("keys"), "enter")
        await user.sees("Key bindings of the terminal app")
        await user.pastes("help=f5")
        await user.presses("enter")
        await user.sees("f5 is assigned to both")
        await user.presses("ctrl+u")
        await user.pastes("help=f12")
        await user.presses("enter")
        await user.sees("keys is saved. It is effective now.")
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
