"""The palette: what it finds, and what choosing it does."""

from __future__ import annotations

import pytest

from app.chat.repository import SqliteChatRepository
from app.protocol.errors import ServiceError
from app.settings.settings import SETTINGS
from tests.app.client.scripted_client import ScriptedClient
from tests.tui.model_scenes import client_with_models
from tui.palette import PaletteEntry, entry_line, matched_letters, rate


async def _searches(user, typed: str) -> None:
    await user.presses("ctrl+p")
    await user.sees("Search commands, models")
    await user.types(typed)


@pytest.mark.slow
async def test_a_word_of_commands_finds_these_alone_and_scattered_letters_where_there_is_no_such_word(open_app):
    async with open_app(client_with_models(), size=(100, 30)) as user:
        await user.sees("ready")
        await _searches(user, "theme")
        await user.sees("Theme ", "Setting: theme")
        assert "Chat with the new model" not in user.screen_text
        await user.presses("ctrl+a", "ctrl+k")
        await user.types("slctabv")
        await user.sees("Select the message above")


@pytest.mark.slow
@pytest.mark.parametrize("screen", ["", "f9"])
async def test_a_command_of_another_screen_is_found_and_its_key_named(open_app, screen):
    async with open_app(client_with_models()) as user:
        await user.presses(*filter(None, [screen]))
        await _searches(user, "quan")
        await user.sees("Models: Quantize")
        await user.presses("enter")
        await user.sees("qwen3-0.6b-Q8_0", "Q: quantize")


@pytest.mark.slow
async def test_a_command_of_the_chat_is_run_from_another_screen(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.presses("f10")
        await user.sees("Telemetry: none")
        await _searches(user, "system prompt")
        await user.sees("Chat: System prompt")
        await user.presses("enter")
        await user.sees("No system prompt is set.")


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "seen"), [("models", "elsewhere 1"), ("bye", "Quit")])
async def test_screens_and_words_of_other_programs_are_found(open_app, typed, seen):
    async with open_app(client_with_models()) as user:
        await _searches(user, typed)
        await user.until(lambda: user.screen_text.lower().count(typed) > 1 or seen in user.screen_text, "not found")
        if typed == "models":
            await user.presses("enter")
        await user.sees(seen)


@pytest.mark.slow
async def test_a_local_model_is_found_and_chosen(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await user.sees("guide  ● ready")
        await _searches(user, "qwen3")
        await user.sees("Chat with qwen3-0.6b-Q8_0")
        await user.presses("enter")
        await user.until(lambda: client.loads[-1:] == ["/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"], "not loaded")


@pytest.mark.slow
async def test_a_stored_chat_is_found_by_its_words_and_opened(open_app, tmp_path):
    repository = SqliteChatRepository(tmp_path / "data")
    async with repository, open_app(ScriptedClient(), repository=repository) as user:
        await user.asks("Where do zebras sleep?")
        await user.sees("Hello.", "ready")
        await user.presses("ctrl+n")
        await user.no_longer_sees("zebras")
        await _searches(user, "zebras")
        await user.sees("Open: Where do zebras sleep?")
        await user.presses("enter")
        await user.sees("▌ Where do zebras sleep?", "Hello.")


@pytest.mark.slow
async def test_a_setting_is_found_and_selected(open_app):
    async with open_app(ScriptedClient()) as user:
        await _searches(user, "parallel")
        await user.sees("Setting: parallel")
        await user.presses("enter")
        await user.sees("Telemetry: none")
        await user.until(lambda: user.app.screen.table.setting_name == "parallel", "not selected")


@pytest.mark.slow
async def test_without_a_service_everything_else_is_found(open_app):
    client = client_with_models()

    async def failing(**_):
        raise ServiceError("No service.", "Start it.")

    client.library.models = failing
    async with open_app(client) as user:
        await _searches(user, "quan")
        await user.sees("Models: Quantize")


@pytest.mark.slow
async def test_markup_in_the_name_of_a_model_is_text(open_app):
    client = client_with_models()
    client.library.here[0:0] = [type(client.library.here[0])(id="[red]x[/", where="library", path="/m", n_bytes=1)]
    async with open_app(client) as user:
        await _searches(user, "chat with x")
        await user.sees("Chat with [red]x[/")


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (PaletteEntry("Quantize", "", print), PaletteEntry("Chat", "quantize", print)),
        (PaletteEntry("Models: Quantize", "", print), PaletteEntry("A question and an answer", "", print)),
        (PaletteEntry("Quit", "", print, "quantum"), PaletteEntry("Unquantized", "", print)),
        (PaletteEntry("Quantize", "", print), PaletteEntry("Quantize", "", print, rank=0.9)),
    ],
)
def test_what_begins_with_the_typed_letters_comes_before_what_only_has_them(better, worse):
    assert rate(better, "quan", 0.5) > rate(worse, "quan", 0.5) > 0


def test_what_has_nothing_of_the_typed_letters_is_not_found():
    assert rate(PaletteEntry("Quit", "", print), "zzz", 0.0) == 0
    assert rate(PaletteEntry("Quit", "", print), " ", 0.0) == 0


@pytest.mark.slow
async def test_what_was_chosen_last_comes_first_in_the_next_palette(open_app):
    async with open_app(ScriptedClient()) as user:
        await _searches(user, "parallel")
        await user.sees("Setting: parallel")
        await user.presses("enter")
        await user.sees("Telemetry: none")
        await user.presses("f6")
        await user.sees("Models")
        await user.presses("ctrl+p")
        await user.sees("Recent", "Setting: parallel", "On this screen", "Del")


@pytest.mark.slow
async def test_the_selected_entry_is_explained_in_full(open_app):
    async with open_app(ScriptedClient()) as user:
        await _searches(user, "attach a file")
        await user.sees("Attach a text, document, picture or sound; also @FILE")


@pytest.mark.slow
async def test_nothing_found_says_so_and_enter_leaves_the_palette_open(open_app):
    async with open_app(ScriptedClient()) as user:
        await _searches(user, "qqqqzz")
        await user.sees("Nothing is found for qqqqzz.")
        await user.presses("enter")
        await user.sees("Nothing is found for qqqqzz.")


@pytest.mark.parametrize("width", [30, 60, 90])
@pytest.mark.parametrize("keys", ["", "Q", "Ctrl+Down"])
def test_the_rows_of_a_palette_are_as_wide_as_it_is_and_end_with_the_keys(width, keys):
    entry = PaletteEntry("Quantize 模型", "to a type or a size", print, keys=keys)
    line = entry_line(entry, "quan", 20, 9, width)
    assert line.cell_length == width
    assert line.plain.endswith(keys)


@pytest.mark.parametrize(
    ("title", "typed", "positions"),
    [
        ("Quantize", "quan", [0, 1, 2, 3]),
        ("Chat with qwen", "with chat", [0, 1, 2, 3, 5, 6, 7, 8]),
        ("New chat", "nct", [0, 4, 7]),
        ("New chat", "zz", []),
        ("New chat", "", []),
    ],
)
def test_the_letters_that_were_typed_are_marked(title, typed, positions):
    assert matched_letters(title, typed) == positions


@pytest.mark.slow
async def test_notes_end_with_a_word_and_the_selected_one_is_whole_at_80_columns(open_app):
    async with open_app(ScriptedClient(), size=(80, 24)) as user:
        await user.presses("ctrl+p")
        await user.sees("Regenerate the last…")
        await user.types("Setting: draft")
        await user.sees("Setting: draft")
        shown = " ".join(user.screen_text.split())
        assert SETTINGS["draft"].help in shown, "the longest of all notes"
