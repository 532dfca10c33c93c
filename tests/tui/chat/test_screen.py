"""The chat, as a person goes through it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from app.client.fake import COMPLETED, LOADING, READY, ScriptedClient, ScriptedReply
from quantizer.errors import ContextOverflowError, EngineError, ErrorInfo, ModelFileError, ServiceError
from tui.chat.commands import EXAMPLES


async def test_question_is_answered_and_its_figures_shown(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("Quite ", "**well**.")))
    async with sitting(client) as person:
        await person.asks("How are you?")
        await person.sees("How are you?", "Quite well.", "48.0 tok/s", "first token 0.25 s", "context 52/2048", "ready")
    assert [message.content for message in client.requests[0]] == ["How are you?"]


async def test_second_question_carries_the_conversation(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("One.",)), ScriptedReply(deltas=("Two.",)))
    async with sitting(client) as person:
        await person.asks("first")
        await person.sees("One.")
        await person.asks("second")
        await person.sees("Two.")
    assert [(message.role, message.content) for message in client.requests[1]] == [
        ("user", "first"),
        ("assistant", "One."),
        ("user", "second"),
    ]


async def test_escape_stops_the_answer_and_keeps_its_text(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("Kept ", "half ", "never"), pause_after=2))
    async with sitting(client) as person:
        await person.asks("go")
        await person.sees("Kept half", "answering")
        await person.presses("escape")
        await person.sees("Kept half", "stopped", "ready")
        assert "never" not in person.screen_text
    assert client.n_aborted == 1


async def test_person_types_while_the_model_loads_and_is_answered_when_ready(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("At last.",)), model=replace(LOADING, progress=0.4))
    async with sitting(client) as person:
        await person.sees("loading ████░░░░░░ 40%")
        await person.asks("early?")
        await person.sees("early?", "waiting for the answer")
        await person.types("a draft")
        await person.sees("a draft")
        client.model = READY
        await person.sees("At last.", "a draft", "ready")


async def test_question_that_waits_for_loading_can_be_stopped(sitting):
    client = ScriptedClient(model=LOADING)
    async with sitting(client) as person:
        await person.asks("early")
        await person.sees("waiting for the answer")
        await person.presses("escape")
        await person.sees("stopped")
    assert client.requests == []


async def test_question_sent_during_an_answer_goes_back_to_the_prompt(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("slow",), pause_after=1))
    async with sitting(client) as person:
        await person.asks("first")
        await person.sees("slow")
        await person.asks("second")
        await person.sees("An answer is under way", "second")
        client.resume()
        await person.sees("ready")
    assert len(client.requests) == 1


async def test_service_that_dies_mid_answer_is_reported_and_found_again(sitting):
    gone = ServiceError("No localllm service answers.", "Start it again.")
    client = ScriptedClient(ScriptedReply(deltas=("Half ",), ending=gone), ScriptedReply(deltas=("Whole.",)))
    async with sitting(client) as person:
        await person.asks("go")
        await person.sees("Half", "not complete", "No localllm service answers.", "Start it again.", "Ctrl+R")
        await person.sees("Lost the service:", "ready")
        await person.presses("ctrl+r")
        await person.sees("Whole.", "ready")
        await person.no_longer_sees("No localllm service answers.")
    assert client.n_opened == 2
    assert client.n_closed == 2


async def test_worker_that_dies_is_loaded_again_by_the_same_service(sitting):
    died = EngineError("The engine died: GGML_ASSERT failed.", "Ask again.")
    client = ScriptedClient(ScriptedReply(ending=died), ScriptedReply(deltas=("Back.",)))
    async with sitting(client) as person:
        await person.asks("go")
        await person.sees("GGML_ASSERT", "ready")
        await person.asks("and now")
        await person.sees("Back.")
    assert client.n_opened == 1


async def test_overflow_shows_the_numbers_and_a_new_chat_is_one_key_away(sitting):
    client = ScriptedClient(ScriptedReply(ending=ContextOverflowError(3000, 2048)), ScriptedReply(deltas=("Fresh.",)))
    async with sitting(client) as person:
        await person.asks("too long")
        await person.sees("3000", "2048", "Ctrl+N starts a new chat.")
        await person.presses("ctrl+n")
        await person.no_longer_sees("3000")
        await person.sees(EXAMPLES[0])
        await person.asks("short")
        await person.sees("Fresh.")
    assert [message.content for message in client.requests[1]] == ["short"]


async def test_model_that_cannot_be_loaded_is_an_error_and_ctrl_r_tries_again(sitting):
    broken = ModelFileError("The file is cut short.", "Download it again.")
    client = ScriptedClient(model=replace(READY, state="failed", error=ErrorInfo.of(broken)))
    async with sitting(client) as person:
        await person.sees("The file is cut short.", "Download it again.", "not available")
        client.model = READY
        await person.presses("ctrl+r")
        await person.sees("ready")
    assert client.n_opened == 1  # the service stays, whatever becomes of a model


async def test_question_that_waited_for_a_load_that_failed_is_answered_after_ctrl_r(sitting):
    client = ScriptedClient(model=LOADING)
    async with sitting(client) as person:
        await person.asks("early")
        await person.sees("waiting for the answer")
        client.model = replace(READY, state="failed", error=ErrorInfo.of(EngineError("The self-test cannot run.")))
        await person.sees("The self-test cannot run.", "not available")
        assert person.screen_text.count("The self-test cannot run.") == 1
        client.model = READY
        await person.presses("ctrl+r")
        await person.sees("Hello.", "ready")
        await person.no_longer_sees("The self-test cannot run.")


async def test_answer_at_the_token_limit_says_that_it_was_cut(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("and then",), ending=replace(COMPLETED, finish_reason="length")))
    async with sitting(client) as person:
        await person.asks("tell")
        await person.sees("and then", "cut at the limit of tokens")


async def test_ctrl_r_answers_the_last_question_again(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("First try.",)), ScriptedReply(deltas=("Second try.",)))
    async with sitting(client) as person:
        await person.asks("again?")
        await person.sees("First try.")
        await person.presses("ctrl+r")
        await person.sees("Second try.")
        await person.no_longer_sees("First try.")
    assert client.requests[0] == client.requests[1]


@pytest.mark.parametrize(("key", "question"), zip(("f2", "f3", "f4"), EXAMPLES, strict=True))
async def test_one_key_sends_an_example(sitting, key, question):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.sees(question)
        await person.presses(key)
        await person.sees("Hello.")
    assert client.requests[0][0].content == question


async def test_click_on_an_example_sends_it(sitting):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.sees(EXAMPLES[1])
        row = next(n for n, line in enumerate(person.screen_text.splitlines()) if EXAMPLES[1] in line)
        await person.pilot.click(offset=(12, row))
        await person.sees("Hello.")
    assert client.requests[0][0].content == EXAMPLES[1]


async def test_engine_notices_are_shown_once(sitting):
    client = ScriptedClient(
        ScriptedReply(ending=EngineError("It died.")),
        ScriptedReply(deltas=("Fine.",)),
        model=replace(READY, notices=("A slower path is used.",)),
    )
    async with sitting(client) as person:
        await person.sees("A slower path is used.")
        await person.asks("die")
        await person.sees("It died.", "ready")
        await person.asks("live")
        await person.sees("Fine.")
        assert person.screen_text.count("A slower path is used.") == 1


async def test_markup_html_and_escape_sequences_of_the_model_are_inert(sitting):
    hostile = ("[bold red]plain[/] <think>seen</think> ", "\x1b", "[31mred \x9b2J ", "\x1b]52;c;QUJD\x07", "\u202edone")
    client = ScriptedClient(ScriptedReply(deltas=hostile))
    async with sitting(client) as person:
        await person.asks("[link=x]me[/link]")
        await person.sees(
            "[link=x]me[/link]", "[bold red]plain[/] <think>seen</think>", "[31mred", "]52;c;QUJD", "done"
        )
        assert not {"\x1b", "\x9b", "\x07", "\u202e"} & set(person.screen_text)


async def test_error_with_markup_and_escape_sequences_is_inert(sitting):
    client = ScriptedClient(ScriptedReply(ending=EngineError("[red]bad[/] \x1b[2J", "[/nothing] opens it")))
    async with sitting(client) as person:
        await person.asks("go")
        await person.sees("[red]bad[/] [2J", "[/nothing] opens it")


async def test_ctrl_y_copies_the_last_answer(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("Take ", "this.")))
    async with sitting(client) as person:
        await person.presses("ctrl+y")
        await person.sees("no answer to copy")
        await person.asks("go")
        await person.sees("Take this.", "ready")
        await person.presses("ctrl+y")
        await person.sees("Copied 10 characters.")
        assert person.app.clipboard == "Take this."


async def test_system_prompt_is_sent_first_and_shown_on_request(sitting):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.asks("/system")
        await person.sees("No system prompt is set.")
        await person.asks("/system Be brief.")
        await person.sees("System prompt: Be brief.")
        await person.asks("hi")
        await person.sees("Hello.")
    assert [(message.role, message.content) for message in client.requests[0]] == [
        ("system", "Be brief."),
        ("user", "hi"),
    ]


async def test_unknown_command_is_refused_and_stays_in_the_prompt(sitting):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.asks("/nosuch thing")
        await person.sees("There is no command /nosuch", "/nosuch thing")
    assert client.requests == []


async def test_new_chat_during_an_answer_stops_it(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("Going on",), pause_after=1))
    async with sitting(client) as person:
        await person.asks("go")
        await person.sees("Going on")
        await person.asks("/new")
        await person.sees(EXAMPLES[0])
        await person.no_longer_sees("Going on")
    assert client.n_aborted == 1


async def test_quit_during_an_answer_aborts_it_and_closes_the_service(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("Going on",), pause_after=1))
    async with sitting(client) as person:
        await person.asks("go")
        await person.sees("Going on")
        await person.presses("ctrl+q")
        await asyncio.sleep(0)
    assert client.n_aborted == 1
    assert client.n_closed == client.n_opened == 1


async def test_text_that_is_selected_with_the_mouse_is_copied_as_it_stands(sitting):
    client = ScriptedClient(ScriptedReply(deltas=("*One* `two`\n\n", "- three\n- four")))
    async with sitting(client) as person:
        await person.asks("count")
        await person.sees("four", "ready · 48.0 tok/s")  # it moves up once more when it is over
        rows = [n for n, line in enumerate(person.screen_text.splitlines()) if "One" in line or "four" in line]
        await person.pilot.mouse_down(offset=(3, rows[0]))
        await person.pilot.hover(offset=(7, rows[1]))
        await person.pilot.mouse_up(offset=(7, rows[1]))
        assert person.app.screen.get_selected_text() == "One two\n\n • three\n • f"
        assert "R again" not in person.screen_text
        await person.presses("escape")
        await person.pilot.click(offset=(7, rows[1]))
        await person.sees("R again")


async def test_page_up_leaves_the_end_while_text_streams_and_page_down_returns(sitting):
    lines = tuple(f"- line {number}\n" for number in range(25))
    client = ScriptedClient(ScriptedReply(deltas=(*lines, "- more\n"), pause_after=25))
    async with sitting(client) as person:
        await person.asks("count")
        await person.sees("line 24")
        await person.presses("pageup", "pageup")
        await person.no_longer_sees("line 24")
        client.resume()
        await person.sees("ready")
        assert "more" not in person.screen_text
        await person.presses("pagedown", "pagedown", "pagedown")
        await person.sees("more")


async def test_link_of_the_model_is_shown_and_not_opened(sitting, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    client = ScriptedClient(ScriptedReply(deltas=("[safe.example](http://evil.example/x)",)))
    async with sitting(client) as person:
        monkeypatch.setattr(person.app, "open_url", lambda url, **_: opened.append(url))
        await person.asks("link")
        await person.sees("safe.example", "48.0 tok/s")
        row = next(n for n, line in enumerate(person.screen_text.splitlines()) if "safe.example" in line)
        await person.pilot.click(offset=(8, row))
        await person.sees("Copied, not opened", "http://evil.example/x")
    assert opened == []


async def test_palette_runs_a_command(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.presses("ctrl+p")
        await person.types("system")
        await person.sees("Tell the model how to behave")
        await person.presses("enter")
        await person.sees("No system prompt is set.")
