"""The models screen, acted on through keys."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.conversation import MessageContent
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.protocol.library import LocalModel, ModelUpdate
from quantizer.system.errors import ErrorInfo, UserError
from tests.app.client.scripted_client import ScriptedClient
from tests.app.small_models import small_model
from tests.tui.conftest import QUICK_CLOCK
from tests.tui.model_scenes import client_with_models


async def _opens_quantize(user) -> None:
    """Open the dialog for a model, with its sizes."""
    await user.presses("f6")
    await _chosen(user, "qwen3-0.6b-Q8_0")
    await user.presses("q")
    await user.sees("397 MB")


async def _chosen(user, name, among="Recommended for this machine"):
    """Go down to the row of which the lines below the list say that it is `name`."""
    await user.sees(among)
    for _ in range(30):
        if f"\n {name} ·" in user.screen_text:
            return
        await user.presses("down")
    raise AssertionError(f"{name} was never chosen:\n{user.screen_text}")


@pytest.mark.slow
async def test_models_are_listed_with_their_figures_and_metadata_and_enter_talks_with_one_that_is_whole(open_app):
    client = client_with_models()
    async with open_app(client, size=(100, 30)) as user:
        await user.presses("f6")
        await user.sees("▶ guide", "812 tok/s", "✕ no", "tight", "In other programs", "llama3.2:3b")
        await user.sees("✕ It ends too early.", "Recommended for this machine", "Qwen3 4B Instruct")
        await _chosen(user, "cut-short")
        await user.presses("enter")
        await user.sees("cut-short cannot run")
        await _chosen(user, "qwen3-0.6b-Q8_0")
        await user.presses("c")
        await user.sees("architecture  qwen3")
        await user.presses("escape")
        await user.no_longer_sees("architecture  qwen3")
        await user.presses("enter")
        await user.sees("Type a question")
    assert client.loads[-1] == "/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"


@pytest.mark.slow
async def test_words_search_here_and_on_the_hub_and_enter_fetches_a_quant(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await user.presses("f6", "slash")
        await user.types("tiny")
        await user.sees("someone/Tiny-Coder-GGUF", "1,234 downloads", "No local model matches.")
        await user.no_longer_sees("qwen3-0.6b")
        await user.presses("enter")
        await _chosen(user, "someone/Tiny-Coder-GGUF:Q4_K_M", among="1,234 downloads")
        await user.presses("enter")
        await user.sees("queued")
        job = (await client.jobs())[0]
        client.change(replace(job, state="running", fraction=0.43, bytes_per_s=12.3e6, remaining_s=119))
        await user.sees("43%, 12.3 MB/s, 2 min left")
        await user.presses("x")
        await user.sees("Partial data is kept")
    assert client.started == [("pull", {"reference": "someone/Tiny-Coder-GGUF:Q4_K_M"})]
    assert client.library.searched[-1] == "tiny"  # a slow machine may pause while "tiny" is typed


@pytest.mark.slow
async def test_a_checkpoint_is_fetched_to_be_quantized(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await user.presses("f6", "slash")
        await user.types("tiny")
        await user.sees("maker/Tiny-Coder")
        await user.presses("enter")
        await _chosen(user, "maker/Tiny-Coder", among="99 downloads")
        await user.presses("enter")
        await user.sees("queued")
    assert client.started == [("pull", {"reference": "maker/Tiny-Coder", "quantize": "Q6_K"})]


@pytest.mark.slow
async def test_a_finished_download_is_announced_everywhere_and_one_key_chats_with_it(open_app):
    client = client_with_models()
    async with open_app(client, size=(100, 30)) as user:
        await user.presses("f6")
        await _chosen(user, "org/Qwen3-4B-GGUF:Q4_K_M")
        await user.presses("enter")
        await user.sees("queued")
        await user.presses("escape")
        job = (await client.jobs())[0]
        client.change(replace(job, state="done", result={"path": "/data/models/new.gguf"}))
        await user.sees("Ctrl+T chats with the new model")
        await user.presses("ctrl+t")
        await user.sees("ready")
    assert client.loads[-1] == "/data/models/new.gguf"


async def test_an_old_catalogue_is_said_beside_its_models(open_app):
    client = client_with_models()
    client.library.catalogue_notice = "The catalogue is of May 2026, 7 months old."
    async with open_app(client) as user:
        await user.presses("f6")
        await user.sees("Recommended for this machine", "Qwen3 4B Instruct", "of May 2026, 7 months old")


async def test_a_program_whose_models_cannot_be_read_is_named_beside_the_others(open_app):
    client = client_with_models()
    client.library.skipped = ("Models of Ollama are left out: /x cannot be read (Permission denied). Join the group.",)
    async with open_app(client) as user:
        await user.presses("f6")
        await user.sees("In other programs", "Models of Ollama are left out", "the group.", "qwen3-0.6b-Q8_0")


@pytest.mark.slow
async def test_an_unreachable_hub_is_reported_and_the_rest_works(open_app):
    client = client_with_models()
    remedy = "Check the network. Where the hub is blocked, name a mirror in HF_ENDPOINT, or localllm import FILE."
    client.library.hub_error = UserError("huggingface.co cannot be reached: the connection was reset.", remedy)
    async with open_app(client) as user:
        await user.presses("f6", "slash")
        await user.types("qwen")
        await user.sees("cannot be reached", "qwen3-0.6b-Q8_0", "Qwen3 4B Instruct")
        await user.sees("HF_ENDPOINT", "import FILE.")  # the end of a long line is not cut


@pytest.mark.slow
async def test_quantizing_shows_size_loss_and_speed_before_it_begins(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await user.presses("f6")
        await _chosen(user, "qwen3-0.6b-Q8_0")
        await user.presses("q")
        await user.sees("397 MB", "little more", "62 tok/s", "recommended", "Down selects a type")
        await user.presses("down")
        await user.sees("the usual balance", "+0.1754 perplexity")
        await user.presses("down")
        await user.sees("computes an importance matrix first")
        await user.presses("up", "enter")
        await user.sees("has started: F8 shows the jobs")
    source = "/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"
    assert client.started == [("quantize", {"source": source, "file_type": "Q4_K_M"})]


@pytest.mark.slow
async def test_of_a_quantized_model_todays_type_is_marked_and_larger_ones_are_not_offered_as_better(open_app):
    client = client_with_models()
    client.library.here[1] = replace(client.library.here[1], file_type="Q4_K_M", n_bytes=397_000_000)
    async with open_app(client, size=(100, 30)) as user:
        await user.presses("f6")
        await _chosen(user, "qwen3-0.6b-Q8_0")
        await user.presses("q")
        await user.sees("today Q4_K_M, 397 MB", "has lost what Q4_K_M loses", "1 larger types are left out")
        assert "almost nothing" not in user.screen_text
        await user.presses("down", "enter")
        await user.sees("has started: F8 shows the jobs")
    assert client.started[0][1]["file_type"] == "IQ2_XS"


@pytest.mark.slow
async def test_a_model_whose_types_cannot_be_computed_says_why_in_the_dialog(open_app):
    client = client_with_models()

    async def failing(_):
        raise UserError("The tensor x is damaged.", "Download the model again.")

    client.library.types = failing
    async with open_app(client) as user:
        await user.presses("f6")
        await _chosen(user, "qwen3-0.6b-Q8_0")
        await user.presses("q")
        await user.sees("The tensor x is damaged. Download the model again.")
        await user.presses("escape")
        await user.no_longer_sees("is damaged")


@pytest.mark.slow
async def test_a_word_meant_for_the_search_opens_the_choice_of_types_and_its_enter_starts_nothing(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await user.presses("f6")
        await _chosen(user, "qwen3-0.6b-Q8_0")
        await user.sends_at_once(*"qwen", "enter")
        await user.sees("397 MB", "Down selects a type")
        await user.presses("escape", "f8")
        await user.sees("No jobs")
    assert client.started == []


@pytest.mark.slow
async def test_a_size_is_typed_right_behind_the_key_that_opens_the_dialog(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await user.presses("f6")
        await _chosen(user, "qwen3-0.6b-Q8_0")
        await user.sends_at_once(*"q300MB", "enter")
        await user.sees("has started: F8 shows the jobs")
    assert client.started[0][1]["n_bytes"] == 300_000_000


@pytest.mark.slow
async def test_the_choice_of_types_and_the_field_for_a_size_are_seen_in_a_tiny_terminal(open_app):
    async with open_app(client_with_models(), size=(100, 30)) as user:
        await _opens_quantize(user)
        for size in ((80, 24), (60, 18), (20, 6)):
            await user.pilot.resize_terminal(*size)
            await user.sees("Q4_K_M", "or a maximum")
            assert size[0] < 60 or "62 tok/s" in user.screen_text


@pytest.mark.slow
async def test_quantizing_says_at_once_that_it_prepares_and_a_second_press_opens_one_dialog(open_app):
    client = client_with_models()
    may_go_on = asyncio.Event()
    types = client.library.types

    async def slow_types(model):
        await may_go_on.wait()
        return await types(model)

    client.library.types = slow_types
    async with open_app(client) as user:
        await user.presses("f6")
        await _chosen(user, "qwen3-0.6b-Q8_0")
        await user.presses("q")
        await user.sees("Preparing: computing the sizes that qwen3-0.6b-Q8_0")
        await user.presses("q")
        may_go_on.set()
        await user.sees("397 MB")
        assert "Preparing" not in user.screen_text
        await user.presses("escape")
        await user.no_longer_sees("397 MB")


@pytest.mark.slow
async def test_a_model_is_quantized_to_a_size(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await _opens_quantize(user)
        await user.presses("tab")
        await user.types("nonsense")
        await user.presses("enter")
        await user.sees("nonsense")
        await user.presses(*["backspace"] * 8)
        await user.pastes("300MB")
        await user.presses("enter")
        await user.sees("has started: F8 shows the jobs")
    assert client.started[0][1]["n_bytes"] == 300_000_000


@pytest.mark.slow
async def test_files_to_delete_are_listed_before_the_removal(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await user.presses("f6")
        await _chosen(user, "qwen3-0.6b-Q8_0")
        await user.presses("delete")
        await user.sees("This frees 639 MB.", "qwen3-0.6b-Q8_0.gguf")
        await user.presses("enter")
        await user.no_longer_sees("This frees")
        assert client.library.removed == []
        await user.presses("delete")
        await user.sees("This frees 639 MB.")
        await user.presses("down", "enter")
        await user.sees("is removed")
    assert client.library.removed == ["/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"]


@pytest.mark.slow
async def test_another_programs_model_is_imported(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await user.presses("f6")
        await _chosen(user, "llama3.2:3b")
        await user.presses("i")
        await user.sees("is imported")
    assert client.library.imported == ["/ollama/blobs/sha256-1"]


@pytest.mark.slow
async def test_a_loaded_model_stays_for_a_while_and_is_unloaded(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await user.presses("f6")
        await user.sees("▶ guide")
        await user.presses("k")
        await user.sees("guide unloads when idle for 10m.")
        await user.presses("u")
        await user.sees("guide is unloaded")
        await user.no_longer_sees("▶ guide")
    assert client.library.keep_alives == [("guide", "10m")]


@pytest.mark.slow
async def test_an_engine_that_is_not_localllm_is_reported_as_chat_only(open_app):
    client = ScriptedClient()
    del client.library
    async with open_app(client) as user:
        await user.presses("f6")
        await user.sees("At the connected engine")
        for place in ("f7", "f8", "f9"):
            await user.presses(place)
            await user.sees("only supports chat")


@pytest.mark.slow
async def test_names_from_elsewhere_reach_the_terminal_clean(open_app):
    client = client_with_models()
    hostile = "evil\x1b]52;c;aGk=\x07[red]name"
    client.library.here.append(replace(client.library.here[1], id=hostile, path="/x.gguf"))
    async with open_app(client, size=(100, 30)) as user:
        await user.presses("f6")
        await user.sees("evil]52;c;aGk=[red]name")
        assert "\x1b" not in user.screen_text
        assert "\x07" not in user.screen_text


@pytest.mark.slow
async def test_a_file_copied_into_the_models_folder_appears_while_the_screen_is_open(open_app, tmp_path):
    folder = tmp_path / "models"
    client = client_with_models()
    client.library.folder = str(folder)
    growing = LocalModel(id="loose", where="library", path=str(folder / "loose.gguf"), n_bytes=900, is_arriving=True)
    async with open_app(client) as user:
        await user.presses("f6")
        await user.sees("guide", "✕ It ends too early.")
        _copy(client, growing)
        await user.sees("loose", "still being copied")
        client.library.here[-1] = replace(growing, n_bytes=5_120_000, is_arriving=False)  # the folder stays as it is
        await user.sees("5.12 MB")
        await user.no_longer_sees("still being copied")
        assert "✕ It ends too early." in user.screen_text, "others keep their faults"


def _row_of(user, name):
    lines = (line.strip(" ▶│") for line in user.screen_text.splitlines())
    return next((line for line in lines if line.startswith(name)), "")


def _copy(client, model):
    path = Path(model.path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    client.library.here.append(model)


@pytest.mark.slow
async def test_a_typed_path_never_reaches_the_hub_and_enter_imports_the_file(open_app, tmp_path):
    client = client_with_models()
    path = small_model(tmp_path / "my models" / "mine.gguf")
    client.library.files[str(path)] = LocalModel(id="mine", where="", path=str(path), n_bytes=100)
    async with open_app(client) as user:
        await user.presses("f6", "slash")
        await user.types(str(path.parent)[:-3])
        await user.sees("Import a GGUF file", "my models/")
        await user.presses("tab")
        await user.sees("mine.gguf", "In other programs")
        await user.presses("tab", "enter")
        await user.sees("mine is imported")
    assert client.library.imported == [str(path)]
    assert client.library.searched == []


@pytest.mark.slow
async def test_a_dropped_file_is_taken_without_its_quotes(open_app, tmp_path):
    client = client_with_models()
    path = small_model(tmp_path / "my models" / "mine.gguf")
    async with open_app(client) as user:
        await user.presses("f6", "slash")
        await user.pastes(f"'{path}'")
        await user.sees("mine.gguf", "Import a GGUF file")
    assert client.library.searched == []


@pytest.mark.slow
async def test_i_on_any_row_offers_files_and_what_other_programs_hold(open_app, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    client = client_with_models()
    path = small_model(tmp_path / "files" / "mine.gguf")
    client.library.files[str(path)] = LocalModel(id="mine", where="", path=str(path), n_bytes=100)
    async with open_app(client, clock=QUICK_CLOCK) as user:
        await user.presses("f6")
        await user.sees("guide")
        await user.presses("i")
        await user.sees("files/", "Tab completes it", "In other programs", "llama3.2:3b")
        await user.presses("down", "enter")
        await user.sees("mine.gguf")
        await user.presses("i")
        await user.sees("mine is imported")
        await user.presses("i")
        await user.sees("files/")
        await user.presses("escape")
        await user.no_longer_sees("mine is imported")
        await user.sees("Recommended for this machine")
    assert client.library.imported == [str(path)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("/data/models/x.gguf", "/data/models/x.gguf"),
        ("models/x.gguf", "~/models/x.gguf"),
        ("~/x.gguf", "~/x.gguf"),
        ("'/with space/x.gguf'", "'/with space/x.gguf'"),
        ("file:///x.gguf", "file:///x.gguf"),
    ],
)
@pytest.mark.parametrize("is_pasted", [True, False])
async def test_a_path_that_starts_anew_replaces_the_prefilled_home(open_app, typed, value, is_pasted):
    if not is_pasted and typed.startswith(("'", "file")):
        pytest.skip("only pasted paths are quoted")
    async with open_app(client_with_models()) as user:
        await user.presses("f6")
        await user.sees("qwen3-0.6b")
        await user.presses("i")
        await (user.pastes(typed) if is_pasted else user.sends_at_once(*typed))
        await user.until(lambda: user.app.focused.value == value, "another value")


@pytest.mark.slow
async def test_a_slash_in_the_middle_of_a_path_stays_where_it_is(open_app):
    async with open_app(client_with_models()) as user:
        await user.presses("f6")
        await user.sees("qwen3-0.6b")
        await user.sends_at_once("i", *"a", "slash", *"b")
        await user.until(lambda: user.app.focused.value == "~/a/b", "another value")


@pytest.mark.slow
async def test_the_row_above_says_what_is_here_and_the_header_what_room_there_is(open_app):
    client = client_with_models()
    client.library.here.append(replace(client.library.here[1], id="e", path="/e.gguf", architecture="bert"))
    async with open_app(client, size=(100, 30)) as user:
        await user.presses("f6")
        await user.sees("chat 3 · embedding 1 · elsewhere 1", "GB memory · ", "of disk free", "default")


@pytest.mark.slow
async def test_keys_that_do_nothing_with_the_selected_row_are_dimmed_and_do_nothing(open_app):
    async with open_app(client_with_models(), size=(140, 30)) as user:
        await user.presses("f6")
        await _chosen(user, "guide", among="qwen3-0.6b")
        hints = {hint.word: hint.is_enabled for hint in user.app.screen.key_hints()}
        assert (hints["chat"], hints["plan"], hints["delete"], hints["rename"]) == (True, True, False, False)
        await user.presses("delete", "R")
        assert not user.app.screen.is_modal
        await user.pilot.pause(0.3)  # what is typed behind R at once would be for its field
        await _chosen(user, "cut-short")
        hints = {hint.word: hint.is_enabled for hint in user.app.screen.key_hints()}
        assert (hints["chat"], hints["quantize"], hints["delete"]) == (False, False, True)
        await _chosen(user, "org/Qwen3-4B-GGUF:Q4_K_M")
        hints = {hint.word: hint.is_enabled for hint in user.app.screen.key_hints()}
        assert (hints["download"], hints["quantize"], hints["details"]) == (True, False, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "is_loaded", "keys"),
    [("qwen3-0.6b-Q8_0", True, "R"), ("guide", False, "R"), ("org/Qwen3-4B-GGUF:Q4_K_M", False, "q")],
)
async def test_what_is_typed_behind_a_refused_key_runs_no_commands(open_app, model, is_loaded, keys):
    client = client_with_models()
    here = client.library.here
    for index, each in enumerate(here):
        if is_loaded and each.id == model:
            here[index] = replace(each, state="ready", loaded_as=model)
    async with open_app(client, size=(140, 30)) as user:
        await user.presses("f6")
        await _chosen(user, model, among="qwen3-0.6b")
        n_loads = len(client.loads)
        await user.sends_at_once(keys, *"museum pqvui", "enter")
        await user.pilot.pause(0.4)
        assert (client.started, client.loads[n_loads:], client.library.removed) == ([], [], [])
        assert not user.app.screen.is_modal
        await user.sees("Models")  # Enter did not go to the chat with the model
        await user.presses("slash")
        await user.types("x")
        await user.until(lambda: getattr(user.app.focused, "value", "") == "x", "the field lost a letter")


@pytest.mark.slow
async def test_keys_to_verify_and_to_ask_for_updates_are_in_the_last_row(open_app):
    async with open_app(client_with_models(), size=(120, 30)) as user:
        await user.presses("f6")
        await _chosen(user, "qwen3-0.6b-Q8_0", among="qwen3-0.6b")
        await user.sees("v verify", "o updates")


@pytest.mark.slow
async def test_enter_without_a_type_says_how_one_is_selected(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await _opens_quantize(user)
        await user.presses("enter")
        await user.sees("Nothing is selected yet: Down selects a type")
    assert client.started == []


@pytest.mark.slow
async def test_a_model_is_renamed_and_becomes_the_default(open_app):
    client = client_with_models()
    async with open_app(client, size=(140, 30)) as user:
        await user.presses("f6")
        await _chosen(user, "qwen3-0.6b-Q8_0", among="qwen3-0.6b")
        await user.sends_at_once("R", "ctrl+u", *"coder", "enter")
        await user.sees("qwen3-0.6b-Q8_0 is coder now.")
        assert client.library.removed == ["/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "verb"), [("R", "rename"), ("delete", "delete")])
async def test_a_loaded_model_is_refused_before_a_dialog_asks(open_app, key, verb):
    client = client_with_models()
    loaded = next(index for index, model in enumerate(client.library.here) if model.id == "qwen3-0.6b-Q8_0")
    here = client.library.here
    here[loaded] = replace(here[loaded], state="ready", loaded_as="qwen3-0.6b-Q8_0")
    async with open_app(client, size=(140, 30)) as user:
        await user.presses("f6")
        await _chosen(user, "qwen3-0.6b-Q8_0", among="qwen3-0.6b")
        await user.presses(key)
        await user.sees(f"qwen3-0.6b-Q8_0 is loaded. Unload it with u, then {verb} it.")
        assert not user.app.screen.is_modal


@pytest.mark.slow
async def test_a_renamed_model_stays_selected(open_app):
    async with open_app(client_with_models(), size=(140, 30)) as user:
        await user.presses("f6")
        await _chosen(user, "qwen3-0.6b-Q8_0", among="qwen3-0.6b")
        await user.sends_at_once("R", "ctrl+u", *"coder", "enter")
        await user.sees("\n coder ·")  # below the list, of the selected row


@pytest.mark.slow
async def test_a_path_that_was_left_in_the_field_hides_no_models_later_and_a_search_stays(open_app):
    async with open_app(client_with_models(), size=(140, 30)) as user:
        await user.presses("f6")
        await user.sees("qwen3-0.6b")
        await user.presses("i", *"nosuch")
        await user.sees("There is no folder or GGUF file that begins with nosuch.")
        await user.presses("f8", "f6")
        await user.sees("qwen3-0.6b", "Recommended for this machine")
        await user.no_longer_sees("~/nosuch")
        await user.presses("slash", *"tiny", "enter", "f8", "f6")
        await user.sees("someone/Tiny-Coder-GGUF")


@pytest.mark.slow
async def test_chats_and_the_default_follow_a_model_that_is_renamed(open_app, tmp_path):
    former, path = "qwen3-0.6b-Q8_0", "/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"
    with ChatStore(tmp_path / "data") as store:
        for title, model in (("by its name", former), ("by its path", path), ("of another", "guide")):
            chat = store.chats.create(title=title)
            question = store.messages.add(chat.id, None, MessageContent(role="user", content="Hi"))
            store.messages.add(chat.id, question.id, MessageContent(role="assistant", content="Ho", model=model))
            store.chats.use_model(chat.id, model)
    client = client_with_models()
    async with SqliteChatRepository(tmp_path / "data") as repository, open_app(client, (140, 30), repository) as user:
        await user.sees("ready")
        await user.presses("f6")
        await _chosen(user, former, among="qwen3-0.6b")
        await user.presses("m")
        await user.sees(f"Default model: {former}.")
        await user.sends_at_once("R", "ctrl+u", *"coder", "enter")
        await user.sees(f"{former} is coder now.")
        assert user.app.app_context.settings_controller.text("model") == "coder"
        await user.presses("f5")
        await user.sees("by its path", "coder", "guide")
        assert not [row for row in user.screen_text.splitlines() if "by its" in row and "coder" not in row]
        await user.presses("/", *"path", "enter", "enter")
        await user.until(lambda: user.app.current_mode == "chat", "the chat was not opened")
        await user.until(lambda: user.app.app_context.connection.is_using("coder"), "another model")
        await user.sees("coder", "Ho")
        await user.no_longer_sees("qwen3")
    with ChatStore(tmp_path / "data") as store:
        assert [store.chats.get(number).model for number in (1, 2, 3)] == ["coder", "coder", "guide"]
        assert [store.messages.of(number)[1].model for number in (1, 2, 3)] == ["coder", "coder", "guide"]


@pytest.mark.slow
async def test_an_open_chat_follows_its_model_that_is_renamed(open_app, tmp_path):
    former = "qwen3-0.6b-Q8_0"
    client = client_with_models()
    client.model = replace(client.model, id=former)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, (140, 30), repository) as user:
        await user.sees("ready")
        await user.asks("Hello?")
        await user.sees("Hello.", former)
        await user.presses("f6")
        await _chosen(user, former, among="qwen3-0.6b")
        await user.sends_at_once("R", "ctrl+u", *"coder", "enter")
        await user.sees(f"{former} is coder now.")
        await user.presses("escape", "escape")
        await user.sees("Its model is called coder now.")
        await user.no_longer_sees(former)
        await user.asks("And now?")
        await user.until(lambda: client.loads[-1] == "coder", "the chat asked for the former name")


@pytest.mark.slow
async def test_the_default_model_is_one_setting_in_the_same_words_on_both_screens(open_app):
    name = "qwen3-0.6b-Q8_0"
    async with open_app(client_with_models(), size=(160, 30)) as user:
        said = "It takes effect at the next start of app and service."
        await user.presses("f6")
        await _chosen(user, name, among="qwen3-0.6b")
        await user.presses("m")
        await user.sees(f"Default model: {name}. {said}")
        assert user.app.app_context.settings_controller.text("model") == name
        assert user.app.app_context.connection.default_model == name
        await user.until(lambda: _row_of(user, name).endswith("default"), "its row does not say so")
        await user.presses("f10")
        await user.sees(f"→ {name}: at the next start")
        await user.presses("r")
        await user.sees(f"Default model: guide. {said}")
        assert user.app.app_context.connection.default_model == "guide"
        await user.presses("f6")
        await user.until(lambda: "default" not in _row_of(user, name), "the row of the former default still says so")


@pytest.mark.slow
async def test_a_model_is_verified_in_the_background_and_its_row_says_how_that_ended(open_app):
    client = client_with_models()
    name, path = "qwen3-0.6b-Q8_0", "/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"
    async with open_app(client, size=(140, 30)) as user:
        await user.presses("f6")
        await _chosen(user, name, among="qwen3-0.6b")
        await user.presses("v")
        await user.sees("Verifying qwen3-0.6b-Q8_0", "verifying: queued", "x stops it")
        assert client.started == [("verify", {"model": path})]
        (job,) = await client.jobs()
        client.change(replace(job, state="running", fraction=0.4, remaining_s=8.0))
        await user.sees("verifying: 40%, 8 s left")
        await user.presses("v")
        await user.sees("is being verified")
        await user.presses("x")
        await user.sees("is cancelled")
        assert [job.state for job in await client.jobs()] == ["cancelled"]
        await user.no_longer_sees("verifying:")
        note = "Its SHA-256 is the recorded one."
        client.change(replace(job, state="done", ended_s=2e9, message=note))
        await user.sees(f"{name} ✓", f"Verified. {note}")
        error = ErrorInfo("ModelFileError", f"{name} is damaged: the header is cut off.", "Download it again.")
        again = replace(job, id="job-2", state="failed", ended_s=2e9, error=error)
        client.change(again)
        await user.sees(f"{name} ✕", "is damaged: the header is cut off. Download it again.")


NEWER = ModelUpdate(
    id="qwen3-0.6b-Q8_0",
    path="/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf",
    repo="org/qwen",
    state="newer",
    reference="org/qwen/qwen3-0.6b-Q8_0.gguf",
    n_bytes=640_000_000,
)
OTHER = ModelUpdate(id="llama-3.3-70b-Q4_K_M", path="/l.gguf", repo="org/llama", reason="Its hash is not on record.")


@pytest.mark.slow
async def test_the_hub_is_asked_for_newer_revisions_by_a_key_and_the_download_is_offered(open_app):
    client = client_with_models()
    client.library.model_updates = (NEWER, replace(NEWER, id="same", path="/s", state="current"), OTHER)
    async with open_app(client, size=(140, 30)) as user:
        await user.presses("f6")
        await user.sees("qwen3-0.6b-Q8_0")
        assert "↑" not in user.screen_text  # nobody asked
        await user.presses("o")
        await user.sees("Newer revisions", "qwen3-0.6b-Q8_0, 640 MB", "Not now", "Up to date: 1 of 3")
        await user.presses("enter")
        await user.no_longer_sees("Newer revisions")
        assert client.started == []
        await user.sees("qwen3-0.6b-Q8_0 ↑")
        await _chosen(user, "qwen3-0.6b-Q8_0", among="qwen3-0.6b")
        await user.sees("The hub has a newer revision, 640 MB: o offers it.")
        await user.presses("o")
        await user.sees("Not now")
        await user.presses("down", "enter")
        await user.sees("Downloading qwen3-0.6b-Q8_0 in the background")
        assert client.started == [("pull", {"reference": NEWER.reference})]
        (job,) = await client.jobs()
        client.change(replace(job, state="done", ended_s=2e9))
        await user.no_longer_sees("↑")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ((replace(NEWER, state="current"),), "Up to date: 1 of 1 model of the hub."),
        (
            (replace(NEWER, state="current"), OTHER),
            "Not comparable: 1. llama-3.3-70b-Q4_K_M: Its hash is not on record.",
        ),
        ((), "No model here is from the hub"),
    ],
)
async def test_without_a_newer_revision_the_answer_is_one_line(open_app, updates, words):
    client = client_with_models()
    client.library.model_updates = updates
    async with open_app(client, size=(160, 30)) as user:
        await user.presses("f6")
        await user.sees("qwen3-0.6b-Q8_0")
        await user.presses("o")
        await user.sees(words)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["o", "O"])  # with Shift or Caps Lock
async def test_a_hub_that_cannot_be_asked_is_reported(open_app, key):
    client = client_with_models()
    client.library.hub_error = UserError("The hub cannot be reached.", "Everything else works offline.")
    async with open_app(client, size=(140, 30)) as user:
        await user.presses("f6")
        await user.sees("qwen3-0.6b-Q8_0")
        await user.presses(key)
        await user.sees("The hub cannot be reached. Everything else works offline.")


@pytest.mark.slow
async def test_the_plan_of_the_selected_model_is_one_key_away(open_app):
    async with open_app(client_with_models(), size=(100, 30)) as user:
        await user.presses("f6")
        await _chosen(user, "qwen3-0.6b-Q8_0", among="qwen3-0.6b")
        await user.presses("p")
        await user.until(lambda: user.app.current_mode == "plan", "not there")


@pytest.mark.slow
async def test_a_model_is_copied_to_a_folder_and_never_over_a_file(open_app, tmp_path):
    client = client_with_models()
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" * 1000)
    client.library.here.append(LocalModel(id="mine", where="library", path=str(path), n_bytes=4000))
    async with open_app(client, size=(100, 30)) as user:
        await user.presses("f6")
        await _chosen(user, "mine", among="mine")
        await user.sends_at_once("e", "ctrl+u")
        await user.pastes(str(tmp_path / "copies"))
        await user.presses("enter")
        await user.sees("Copied to")
        assert (tmp_path / "copies" / "a.gguf").read_bytes() == path.read_bytes()
        await user.sends_at_once("e", "ctrl+u")
        await user.pastes(str(tmp_path / "copies"))
        await user.presses("enter")
        await user.sees("exists.", "Name another folder.")
