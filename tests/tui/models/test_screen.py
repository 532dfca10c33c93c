"""The models screen, acted on through keys."""

from __future__ import annotations

from dataclasses import replace

from app.client.fake import ScriptedClient
from quantizer.errors import UserError
from tests.tui.model_scenes import client_with_models


async def _chosen(person, name, among="Recommended for this machine"):
    """Go down to the row of which the lines below the list say that it is `name`."""
    await person.sees(among)
    for _ in range(30):
        if f"\n {name} ·" in person.screen_text:
            return
        await person.presses("down")
    raise AssertionError(f"{name} was never chosen:\n{person.screen_text}")


async def test_models_are_told_with_size_fit_and_speed(sitting):
    async with sitting(client_with_models(), size=(100, 30)) as person:
        await person.presses("f6")
        await person.sees("● guide", "812 tok/s", "won't run", "tight", "Elsewhere on this disk", "llama3.2:3b")
        await person.sees("damaged: It ends too early.", "Recommended for this machine", "Qwen3 4B Instruct")


async def test_enter_talks_with_the_chosen_model(sitting):
    client = client_with_models()
    async with sitting(client) as person:
        await person.presses("f6")
        await _chosen(person, "qwen3-0.6b-Q8_0")
        await person.presses("enter")
        await person.sees("Type a question")
    assert client.loads[-1] == "/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"


async def test_a_damaged_model_says_why_it_cannot_run(sitting):
    client = client_with_models()
    async with sitting(client) as person:
        await person.presses("f6")
        await _chosen(person, "cut-short")
        await person.presses("enter")
        await person.sees("cut-short cannot run")


async def test_words_search_here_and_on_the_hub_and_enter_fetches_a_quant(sitting):
    client = client_with_models()
    async with sitting(client) as person:
        await person.presses("f6", "slash")
        await person.types("tiny")
        await person.sees("someone/Tiny-Coder-GGUF", "1,234 downloads", "Nothing here has that name.")
        await person.no_longer_sees("qwen3-0.6b")
        await person.presses("enter")
        await _chosen(person, "someone/Tiny-Coder-GGUF:Q4_K_M", among="1,234 downloads")
        await person.presses("enter")
        await person.sees("waiting for its turn")
        job = (await client.jobs())[0]
        client.change(replace(job, state="running", fraction=0.43, bytes_per_s=12.3e6, remaining_s=119))
        await person.sees("43%, 12.3 MB/s, 2 min left")
        await person.presses("x")
        await person.sees("What came is kept")
    assert client.started == [("pull", {"reference": "someone/Tiny-Coder-GGUF:Q4_K_M"})]
    assert client.library.searched == ["tiny"]


async def test_a_checkpoint_is_fetched_to_be_quantized(sitting):
    client = client_with_models()
    async with sitting(client) as person:
        await person.presses("f6", "slash")
        await person.types("tiny")
        await person.sees("maker/Tiny-Coder")
        await person.presses("enter")
        await _chosen(person, "maker/Tiny-Coder", among="99 downloads")
        await person.presses("enter")
        await person.sees("waiting for its turn")
    assert client.started == [("pull", {"reference": "maker/Tiny-Coder", "quantize": "Q6_K"})]


async def test_what_was_fetched_is_told_everywhere_and_one_key_talks_with_it(sitting):
    client = client_with_models()
    async with sitting(client, size=(100, 30)) as person:
        await person.presses("f6")
        await _chosen(person, "org/Qwen3-4B-GGUF:Q4_K_M")
        await person.presses("enter")
        await person.sees("waiting for its turn")
        await person.presses("escape")
        job = (await client.jobs())[0]
        client.change(replace(job, state="done", result={"path": "/data/models/new.gguf"}))
        await person.sees("Ctrl+T talks with the new model")
        await person.presses("ctrl+t")
        await person.sees("ready")
    assert client.loads[-1] == "/data/models/new.gguf"


async def test_a_hub_that_cannot_be_reached_is_said_and_the_rest_works(sitting):
    client = client_with_models()
    client.library.hub_error = UserError("huggingface.co cannot be reached.", "Check the network.")
    async with sitting(client) as person:
        await person.presses("f6", "slash")
        await person.types("qwen")
        await person.sees("cannot be reached", "Check the network.", "qwen3-0.6b-Q8_0", "Qwen3 4B Instruct")


async def test_a_card_is_shown_and_goes_away(sitting):
    async with sitting(client_with_models()) as person:
        await person.presses("f6")
        await _chosen(person, "qwen3-0.6b-Q8_0")
        await person.presses("c")
        await person.sees("architecture  qwen3")
        await person.presses("escape")
        await person.no_longer_sees("architecture  qwen3")


async def test_quantizing_says_size_loss_and_speed_before_it_begins(sitting):
    client = client_with_models()
    async with sitting(client) as person:
        await person.presses("f6")
        await _chosen(person, "qwen3-0.6b-Q8_0")
        await person.presses("q")
        await person.sees("397 MB", "+0.1754", "62 tok/s", "the usual balance")
        await person.presses("down")
        await person.sees("an importance matrix is gathered first")
        await person.presses("up", "enter")
        await person.sees("under way")
    source = "/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"
    assert client.started == [("quantize", {"source": source, "file_type": "Q4_K_M"})]


async def test_a_model_is_quantized_to_a_size(sitting):
    client = client_with_models()
    async with sitting(client) as person:
        await person.presses("f6")
        await _chosen(person, "qwen3-0.6b-Q8_0")
        await person.presses("q")
        await person.sees("397 MB")
        await person.presses("tab")
        await person.types("nonsense")
        await person.presses("enter")
        await person.sees("nonsense")
        await person.presses(*["backspace"] * 8)
        await person.pastes("300MB")
        await person.presses("enter")
        await person.sees("under way")
    assert client.started[0][1]["n_bytes"] == 300_000_000


async def test_what_goes_is_named_before_it_is_removed(sitting):
    client = client_with_models()
    async with sitting(client) as person:
        await person.presses("f6")
        await _chosen(person, "qwen3-0.6b-Q8_0")
        await person.presses("d")
        await person.sees("That frees 639 MB.", "qwen3-0.6b-Q8_0.gguf")
        await person.presses("enter")
        await person.no_longer_sees("That frees")
        assert client.library.removed == []
        await person.presses("d")
        await person.sees("That frees 639 MB.")
        await person.presses("down", "enter")
        await person.sees("is removed")
    assert client.library.removed == ["/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"]


async def test_another_programs_model_is_taken_in(sitting):
    client = client_with_models()
    async with sitting(client) as person:
        await person.presses("f6")
        await _chosen(person, "llama3.2:3b")
        await person.presses("i")
        await person.sees("is in the library")
    assert client.library.taken_in == ["/ollama/blobs/sha256-1"]


async def test_a_loaded_model_is_kept_for_a_while_and_unloaded(sitting):
    client = client_with_models()
    async with sitting(client) as person:
        await person.presses("f6")
        await person.sees("● guide")
        await person.presses("k")
        await person.sees("after ten idle minutes")
        await person.presses("u")
        await person.sees("guide is unloaded")
        await person.no_longer_sees("● guide")
    assert client.library.kept == [("guide", "10m")]


async def test_an_engine_that_is_no_localllm_says_that_it_only_chats(sitting):
    client = ScriptedClient()
    del client.library
    async with sitting(client) as person:
        for place in ("f6", "f7", "f8", "f9"):
            await person.presses(place)
            await person.sees("only chats")


async def test_names_from_elsewhere_reach_the_terminal_clean(sitting):
    client = client_with_models()
    hostile = "evil\x1b]52;c;aGk=\x07[red]name"
    client.library.here.append(replace(client.library.here[1], id=hostile, path="/x.gguf"))
    async with sitting(client, size=(100, 30)) as person:
        await person.presses("f6")
        await person.sees("evil]52;c;aGk=[red]name")
        assert "\x1b" not in person.screen_text
        assert "\x07" not in person.screen_text
