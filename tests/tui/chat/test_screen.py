"""The chat screen."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from textual.widgets import Input, TextArea

from app.connection import ServiceConnection
from app.protocol.errors import ContextOverflowError, ServiceError
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import EngineError, ErrorInfo
from tests.app.client.scripted_client import COMPLETED, LOADING, READY, ScriptedClient, ScriptedReply
from tui.app import LocalllmApp
from tui.chat.commands import EXAMPLES
from tui.chat.composer.prompt_input import PromptInput
from tui.chat.screen import ChatScreen


@pytest.mark.slow
async def test_question_is_answered_and_its_figures_shown(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("Quite ", "**well**.")))
    async with open_app(client) as user:
        await user.asks("How are you?")
        await user.sees(
            "How are you?", "Quite well.", "48 tokens a second", "first word after 0.2 s", "52 of 2k", "ready"
        )
    assert [message.content for message in client.requests[0]] == ["How are you?"]


@pytest.mark.slow
async def test_second_question_carries_the_conversation(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("One.",)), ScriptedReply(deltas=("Two.",)))
    async with open_app(client) as user:
        await user.asks("first")
        await user.sees("One.")
        await user.asks("second")
        await user.sees("Two.")
    assert [(message.role, message.content) for message in client.requests[1]] == [
        ("user", "first"),
        ("assistant", "One."),
        ("user", "second"),
    ]


async def test_escape_stops_the_answer_and_keeps_its_text(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("Kept ", "half ", "never"), pause_after=2))
    async with open_app(client) as user:
        await user.asks("go")
        await user.sees("Kept half", "answering")
        await user.presses("escape")
        await user.sees("Kept half", "stopped", "ready")
        assert "never" not in user.screen_text
    assert client.n_aborted == 1


@pytest.mark.slow
async def test_a_stopped_answer_does_not_show_the_figures_of_the_one_before(open_app):
    slow = ScriptedReply(deltas=("Half ", "never"), pause_after=1)
    client = ScriptedClient(ScriptedReply(deltas=("Whole.",)), slow)
    async with open_app(client) as user:
        await user.asks("first")
        await user.sees("Whole.", "48 tokens a second", "52 of 2k")
        await user.asks("next")
        await user.sees("Half", "answering")
        await user.presses("escape")
        await user.sees("stopped", "ready")
        assert user.screen_text.count("48 tokens a second") == 1


@pytest.mark.slow
async def test_the_context_in_use_grows_with_the_answer(open_app):
    whole = ScriptedReply(deltas=("Whole.",))
    client = ScriptedClient(whole, ScriptedReply(deltas=("one ", "two ", "three"), pause_after=3))
    async with open_app(client) as user:
        await user.asks("first")
        await user.sees("52 of 2k")
        await user.asks("next")
        await user.sees("two three", "answering", "≈56 of 2k")
        await user.presses("escape")
        await user.sees("ready", "≈56 of 2k")


async def test_what_one_model_counted_is_an_estimate_for_another(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.asks("first")
        await user.sees("Hello.", "48 tokens a second")
        client.model = replace(READY, id="llama")
        await user.app.app_context.connection.use_model("llama")
        await user.sees("llama  ● ready", "≈52 of 2k")


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (ScriptedReply(deltas=()), "The model wrote nothing."),
        (ScriptedReply(deltas=(), thoughts=("Hm.",)), "The model wrote nothing after its thoughts."),
        (
            ScriptedReply(deltas=(), ending=replace(COMPLETED, finish_reason="length")),
            "The model wrote nothing before the token limit.",
        ),
    ],
)
async def test_an_answer_without_text_shows_a_sentence(open_app, reply, sentence):
    async with open_app(ScriptedClient(reply)) as user:
        await user.asks("go")
        await user.sees(sentence, "ready")


async def test_question_typed_while_the_model_loads_is_answered_when_ready(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("At last.",)), model=replace(LOADING, progress=0.4))
    async with open_app(client) as user:
        await user.sees("loading ▰▰▰▰▱▱▱▱▱▱ 40%")
        await user.asks("early?")
        await user.sees("early?", "esc stop")
        await user.types("a draft")
        await user.sees("a draft")
        client.model = READY
        await user.sees("At last.", "a draft", "ready")


async def test_question_that_waits_for_loading_can_be_stopped(open_app):
    client = ScriptedClient(model=LOADING)
    async with open_app(client) as user:
        await user.asks("early")
        await user.sees("esc stop")
        await user.presses("escape")
        await user.sees("stopped")
    assert client.requests == []


@pytest.mark.slow
async def test_service_that_dies_mid_answer_is_reported_and_found_again(open_app):
    gone = ServiceError("No localllm service answers.", "Start it again.")
    client = ScriptedClient(ScriptedReply(deltas=("Half ",), ending=gone), ScriptedReply(deltas=("Whole.",)))
    async with open_app(client) as user:
        await user.asks("go")
        await user.sees("Half", "incomplete", "No localllm service answers.", "opened again by itself", "Ctrl+R")
        await user.sees("Connected again.", "ready")
        await user.presses("ctrl+r")
        await user.sees("Whole.", "ready")
        await user.no_longer_sees("No localllm service answers.")
    assert client.n_opened == 2
    assert client.n_closed == 2


@pytest.mark.slow
async def test_worker_that_dies_is_loaded_again_by_the_same_service(open_app):
    died = EngineError("The engine died: GGML_ASSERT failed.", "Ask again.")
    client = ScriptedClient(ScriptedReply(ending=died), ScriptedReply(deltas=("Back.",)))
    async with open_app(client) as user:
        await user.asks("go")
        await user.sees("GGML_ASSERT", "ready")
        await user.asks("and now")
        await user.sees("Back.")
    assert client.n_opened == 1


@pytest.mark.slow
async def test_overflow_shows_the_numbers_and_a_new_chat_is_one_key_away(open_app):
    client = ScriptedClient(ScriptedReply(ending=ContextOverflowError(3000, 2048)), ScriptedReply(deltas=("Fresh.",)))
    async with open_app(client) as user:
        await user.asks("too long")
        await user.sees("3000", "2048", "Ctrl+N starts a new chat.")
        await user.presses("ctrl+n")
        await user.no_longer_sees("3000")
        await user.sees(EXAMPLES[0])
        await user.asks("short")
        await user.sees("Fresh.")
    assert [message.content for message in client.requests[1]] == ["short"]


async def test_model_that_cannot_be_loaded_is_an_error_and_ctrl_r_tries_again(open_app):
    broken = ModelFileError("The file is cut short.", "Download it again.")
    client = ScriptedClient(model=replace(READY, state="failed", error=ErrorInfo.of(broken)))
    async with open_app(client) as user:
        await user.sees("The file is cut short.", "Download it again.", "not available")
        client.model = READY
        await user.presses("ctrl+r")
        await user.sees("ready")
    assert client.n_opened == 1  # the service stays, whatever becomes of a model


@pytest.mark.slow
async def test_question_that_waited_for_a_load_that_failed_is_answered_after_ctrl_r(open_app):
    client = ScriptedClient(model=LOADING)
    async with open_app(client) as user:
        await user.asks("early")
        await user.sees("esc stop")
        client.model = replace(READY, state="failed", error=ErrorInfo.of(EngineError("The self-test cannot run.")))
        await user.sees("The self-test cannot run.", "not available")
        assert user.screen_text.count("The self-test cannot run.") == 1
        client.model = READY
        await user.presses("ctrl+r")
        await user.sees("Hello.", "ready")
        await user.no_longer_sees("The self-test cannot run.")


async def test_answer_at_the_token_limit_is_marked(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("and then",), ending=replace(COMPLETED, finish_reason="length")))
    async with open_app(client) as user:
        await user.asks("tell")
        await user.sees("and then", "token limit reached")


async def test_ctrl_r_answers_the_last_question_again(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("First try.",)), ScriptedReply(deltas=("Second try.",)))
    async with open_app(client) as user:
        await user.asks("again?")
        await user.sees("First try.")
        await user.presses("ctrl+r")
        await user.sees("Second try.")
        await user.no_longer_sees("First try.")
    assert client.requests[0] == client.requests[1]


@pytest.mark.parametrize(("key", "question"), zip(("f2", "f3", "f4"), EXAMPLES, strict=True))
async def test_one_key_sends_an_example(open_app, key, question):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees(question)
        await user.presses(key)
        await user.sees("Hello.")
    assert client.requests[0][0].content == question


async def test_click_on_an_example_sends_it(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees(EXAMPLES[1])
        row = next(n for n, line in enumerate(user.screen_text.splitlines()) if EXAMPLES[1] in line)
        await user.pilot.click(offset=(12, row))
        await user.sees("Hello.")
    assert client.requests[0][0].content == EXAMPLES[1]


@pytest.mark.slow
async def test_engine_notices_are_shown_once(open_app):
    client = ScriptedClient(
        ScriptedReply(ending=EngineError("It died.")),
        ScriptedReply(deltas=("Fine.",)),
        model=replace(READY, notices=("A slower path is used.",)),
    )
    async with open_app(client) as user:
        await user.sees("A slower path is used.")
        await user.asks("die")
        await user.sees("It died.", "ready")
        await user.asks("live")
        await user.sees("Fine.")
        assert user.screen_text.count("A slower path is used.") == 1


async def test_markup_html_and_escape_sequences_of_the_model_are_inert(open_app):
    hostile = ("[bold red]plain[/] <think>seen</think> ", "\x1b", "[31mred \x9b2J ", "\x1b]52;c;QUJD\x07", "\u202edone")
    client = ScriptedClient(ScriptedReply(deltas=hostile))
    async with open_app(client) as user:
        await user.asks("[link=x]me[/link]")
        await user.sees("[link=x]me[/link]", "[bold red]plain[/] <think>seen</think>", "[31mred", "]52;c;QUJD", "done")
        assert not {"\x1b", "\x9b", "\x07", "\u202e"} & set(user.screen_text)


async def test_error_with_markup_and_escape_sequences_is_inert(open_app):
    client = ScriptedClient(ScriptedReply(ending=EngineError("[red]bad[/] \x1b[2J", "[/nothing] opens it")))
    async with open_app(client) as user:
        await user.asks("go")
        await user.sees("[red]bad[/] [2J", "[/nothing] opens it")


async def test_ctrl_y_copies_the_last_answer(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("Take ", "this.")))
    async with open_app(client) as user:
        await user.presses("ctrl+y")
        await user.sees("no answer to copy")
        await user.asks("go")
        await user.sees("Take this.", "ready")
        await user.presses("ctrl+y")
        await user.sees("Copied 10 characters.")
        assert user.app.clipboard == "Take this."


@pytest.mark.slow
async def test_system_prompt_is_sent_first_and_shown_on_request(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.asks("/system")
        await user.sees("No system prompt is set.")
        await user.asks("/system Be brief.")
        await user.sees("System prompt: Be brief.")
        await user.asks("hi")
        await user.sees("Hello.")
    assert [(message.role, message.content) for message in client.requests[0]] == [
        ("system", "Be brief."),
        ("user", "hi"),
    ]


@pytest.mark.slow
async def test_system_prompt_can_be_cleared_and_says_how(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.asks("/system Be brief.")
        await user.sees("System prompt: Be brief.", "/system clear removes it.")
        await user.asks("/system clear")
        await user.sees("The system prompt is removed.")
        await user.asks("hi")
        await user.sees("Hello.")
    assert [message.role for message in client.requests[0]] == ["user"]


async def test_unknown_command_is_refused_and_stays_in_the_prompt(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.asks("/nosuch thing")
        await user.sees("! Unknown command /nosuch", "/nosuch thing")  # ! is shown for as long as a warning
    assert client.requests == []


REFUSED = {
    "/tools on nosuch": "nosuch",
    "/tools upon files": "/tools upon files is not known.",
    "/tools folder /no/such/folder": "There is no folder /no/such/folder.",
    "/model nosuch": "local model",
    "/compare nosuch": "There is no answer to compare.",
    "/preset nosuch": "There is no preset nosuch.",
    "/prompt nosuch": "There is no prompt nosuch.",
    "/template nosuch": "template is nosuch.",
    "/options temperature=hot": "temperature",
    "/options nosuch=1": "nosuch",
    "/think sideways": "sideways",
    "/theme nosuch": "nosuch",
    "/help nosuch": "nosuch",
    "/rename Another title": "This chat is not stored yet.",
    "/export nosuch.xyz": "This chat is not stored yet.",
    "/attach nosuch.txt": "nosuch.txt",
    "/new words to keep": "Nothing may follow /new. Remove “words to keep”.",
    "/quit now": "Nothing may follow /quit.",
}


@pytest.mark.parametrize("line", REFUSED)
async def test_a_refused_command_says_why_and_stays_in_the_prompt(open_app, line: str):
    client = ScriptedClient()
    async with open_app(client, size=(120, 30)) as user:
        await user.sees("ready")
        await user.asks(line)
        await user.sees(REFUSED[line])
        await user.until(lambda: user.app.screen.query_one(PromptInput).text == line, "the line is lost")
        await user.presses("end", "x")
        assert user.app.screen.query_one(PromptInput).text == f"{line}x"
    assert not client.requests


async def test_quit_during_an_answer_aborts_it_and_closes_the_service(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("Going on",), pause_after=1))
    async with open_app(client) as user:
        await user.asks("go")
        await user.sees("Going on")
        await user.presses("ctrl+q")
        await asyncio.sleep(0)
    assert client.n_aborted == 1
    assert client.n_closed == client.n_opened == 1


@pytest.mark.slow
async def test_text_selected_with_the_mouse_is_copied_verbatim(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("*One* `two`\n\n", "- three\n- four")))
    async with open_app(client) as user:
        await user.asks("count")
        await user.sees("four", "48 tokens a second")  # it moves up once more when it is over
        rows = [n for n, line in enumerate(user.screen_text.splitlines()) if "One" in line or "four" in line]
        await user.pilot.mouse_down(offset=(3, rows[0]))
        await user.pilot.hover(offset=(7, rows[1]))
        await user.pilot.mouse_up(offset=(7, rows[1]))
        assert user.app.screen.get_selected_text() == "One two\n\n • three\n • f"
        assert "R again" not in user.screen_text
        await user.presses("escape")
        await user.pilot.click(offset=(7, rows[1]))
        await user.sees("R again")


@pytest.mark.slow
async def test_page_up_leaves_the_end_while_text_streams_and_page_down_returns(open_app):
    lines = tuple(f"- line {number}\n" for number in range(25))
    client = ScriptedClient(ScriptedReply(deltas=(*lines, "- more\n"), pause_after=25))
    async with open_app(client) as user:
        await user.asks("count")
        await user.sees("line 24")
        await user.presses("pageup", "pageup")
        await user.no_longer_sees("line 24")
        client.resume()
        await user.sees("ready")
        assert "more" not in user.screen_text
        await user.presses("pagedown", "pagedown", "pagedown")
        await user.sees("more")


@pytest.mark.slow
async def test_link_of_the_model_is_shown_and_not_opened(open_app, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    client = ScriptedClient(ScriptedReply(deltas=("[safe.example](http://evil.example/x)",)))
    async with open_app(client) as user:
        monkeypatch.setattr(user.app, "open_url", lambda url, **_: opened.append(url))
        await user.asks("link")
        await user.sees("safe.example", "48 tokens a second")
        row = next(n for n, line in enumerate(user.screen_text.splitlines()) if "safe.example" in line)
        await user.pilot.click(offset=(8, row))
        await user.sees("Link copied, not opened", "http://evil.example/x")
    assert opened == []


@pytest.mark.slow
@pytest.mark.parametrize("key", ["escape", "ctrl+p", "f5 slash"])
async def test_no_cursor_blinks_in_any_field(open_app, key: str):
    async with open_app(ScriptedClient()) as user:
        await user.presses(*key.split())
        await user.until(
            lambda: isinstance(user.app.focused, Input | TextArea) and not user.app.focused.cursor_blink, ""
        )


@pytest.mark.slow
async def test_palette_runs_a_command(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.presses("ctrl+p")
        await user.types("system")
        await user.sees("Set the system prompt")
        await user.presses("enter")
        await user.sees("No system prompt is set.")


@pytest.mark.slow
async def test_a_model_that_the_service_unloaded_is_said_to_be_and_loads_with_the_next_question(user_of):
    client = ScriptedClient(ScriptedReply(deltas=("Here again.",)))
    async with ServiceConnection(client.opened, "guide", check_s=0.0) as connection:
        app = LocalllmApp(connection)
        async with app.run_test(size=(80, 24)) as pilot:
            user = user_of(pilot)
            await user.sees("guide  ● ready")
            client.model = replace(READY, state="unloaded")
            await user.sees("guide  ○ unloaded")

            async def load(_model, _when_unfit):
                client.model = replace(LOADING, progress=0.5)
                return "guide"

            client.load = load
            await user.asks("Are you there?")
            await user.sees("loading ▰▰▰▰▰")
            client.model = READY
            await user.sees("Here again.", "guide  ● ready")


async def test_an_error_after_a_part_of_an_answer_says_that_the_answer_is_incomplete(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("A beginning",), ending=EngineError("The worker died.", "Again.")))
    async with open_app(client) as user:
        await user.asks("go")
        await user.sees("A beginning", "─ The answer is incomplete ─", "The worker died.")
        assert "No answer" not in user.screen_text


@pytest.mark.slow
async def test_the_events_of_an_answer_pass_through_no_messages(open_app, monkeypatch: pytest.MonkeyPatch):
    async with open_app(
        ScriptedClient(ScriptedReply(deltas=("Paris.",)), ScriptedReply(deltas=("Bern ", "it is.")))
    ) as user:
        await user.asks("The capital of France?")
        await user.sees("Paris.")
        asked: list[object] = []
        query = ChatScreen.query
        monkeypatch.setattr(ChatScreen, "query", lambda screen, *kinds: asked.append(kinds) or query(screen, *kinds))
        await user.asks("And of Switzerland?")
        await user.sees("Bern it is.", "ready")
        assert asked == []  # a query of the screen's few parts visits every widget of every message
