"""A chat in the scrollback, over a scripted service."""

from __future__ import annotations

import asyncio
import base64
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from app.chat.conversation import Attachment, ChatSettings, Message, MessageContent, MessageState
from app.chat.presets import Presets
from app.chat.repository import ChatRepository, InMemoryChatRepository, SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.connection import ServiceConnection
from app.protocol.chat import GenerationOptions, MediaPart
from app.protocol.errors import NoTemplateError, RequestError
from app.settings.settings import Settings
from quantizer.system.errors import EngineError
from tests.app.chat.attachments.files import pdf_of, picture_of
from tests.app.client.scripted_client import COMPLETED, ScriptedClient, ScriptedReply
from tests.app.sound.fake_device_child import put_device
from tests.tui.model_scenes import client_with_models
from tui.chat.session import ChatSession
from tui.inline.chat import COMMANDS, InlineChat, help_text, needs_full_screen, parse_command
from tui.inline.scrollback import Scrollback

PICTURE = base64.b64encode(picture_of()).decode()
Opened = Callable[..., AbstractAsyncContextManager[InlineChat]]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Open a chat with the given scripted client, kept in the test's folder unless `is_saved` is False."""

    @asynccontextmanager
    async def opened(
        client: ScriptedClient, *, is_saved: bool = True, shows_stats: bool = False
    ) -> AsyncIterator[InlineChat]:
        async with SqliteChatRepository(tmp_path) as kept, ServiceConnection(client.opened, "guide") as connection:
            repository: ChatRepository = kept if is_saved else InMemoryChatRepository()
            session = ChatSession(connection, repository, lambda: 0.0, lambda: None)
            folder = tmp_path / "work"
            chat = InlineChat(
                session, tmp_path, Scrollback(), is_saved=is_saved, shows_stats=shows_stats, folder=folder
            )
            await connection.client()
            yield chat
            await chat.close()

    return opened


def _stored(data_dir: Path) -> list[Message]:
    with ChatStore(data_dir) as store:
        chat = store.chats.latest()
        return list(store.messages.of(chat.id)) if chat else []


async def test_an_answer_is_printed_and_saved(opened, tmp_path, capsys):
    async with opened(ScriptedClient(ScriptedReply(deltas=("Hel", "lo.")))) as chat:
        await chat.submit("Who are you?")
    assert capsys.readouterr() == ("Hello.\n", "")
    assert [(message.role, message.content) for message in _stored(tmp_path)] == [
        ("user", "Who are you?"),
        ("assistant", "Hello."),
    ]


async def test_without_keeping_nothing_reaches_the_disk_and_the_conversation_goes_on(opened, tmp_path):
    client = ScriptedClient()
    async with opened(client, is_saved=False) as chat:
        await chat.submit("one")
        await chat.submit("two")
    assert [message.content for message in client.requests[1]] == ["one", "Hello.", "two"]
    assert not (tmp_path / "chats.db").exists()


async def test_the_cost_of_an_answer_is_printed_if_requested(opened, capsys):
    async with opened(ScriptedClient(), shows_stats=True) as chat:
        await chat.submit("hi")
    assert "decode 48.0 tok/s" in capsys.readouterr().err


async def test_nothing_a_model_writes_is_obeyed_by_the_terminal(opened, capsys):
    hostile = ("a\x1b", "]52;c;evil\x07", "\x9b31mb\u202e\r")
    async with opened(ScriptedClient(ScriptedReply(thoughts=hostile, deltas=hostile))) as chat:
        await chat.submit("hi")
    printed = capsys.readouterr()
    assert printed.out == "a]52;c;evil31mb\n"
    assert "\x1b]" not in printed.err
    assert "\x07" not in printed.err


async def test_a_stopped_answer_is_marked_and_keeps_its_text(opened, tmp_path, capsys):
    half = ScriptedReply(deltas=("Half", " never"), pause_after=1)
    client = ScriptedClient(half, ScriptedReply(deltas=(" a loaf",)))
    async with opened(client) as chat:
        answering = asyncio.create_task(chat.submit("go"))
        while "Half" not in capsys.readouterr().out:  # noqa: ASYNC110 - what is printed tells nobody
            await asyncio.sleep(0.01)
        answering.cancel()
        await asyncio.wait({answering})
        assert "[stopped]" in capsys.readouterr().err
        assert [(message.content, message.state) for message in _stored(tmp_path)][1:] == [
            ("Half", MessageState.PARTIAL)
        ]
        await chat.submit("/continue")
        assert capsys.readouterr().out == " a loaf\n"
    assert [message.content for message in _stored(tmp_path)][1:] == ["Half a loaf"]
    assert client.n_aborted == 1


async def test_an_answer_that_was_cut_is_written_on(opened, capsys):
    cut = replace(COMPLETED, finish_reason="length")
    client = ScriptedClient(ScriptedReply(deltas=("One, ",), ending=cut), ScriptedReply(deltas=("two.",)))
    async with opened(client) as chat:
        await chat.submit("count")
        assert "/continue resumes" in capsys.readouterr().err
        await chat.submit("/continue")
        assert capsys.readouterr().out == "two.\n"
        await chat.submit("/continue")
        assert "no unfinished answer" in capsys.readouterr().err
    assert [message.content for message in client.requests[1]] == ["count", "One, "]


async def test_a_failure_is_a_sentence_and_retry_asks_again(opened, capsys):
    failed = ScriptedReply(deltas=("Hal",), ending=EngineError("The engine died.", "Try again."))
    client = ScriptedClient(failed, ScriptedReply(deltas=("Hello.",)))
    async with opened(client) as chat:
        await chat.submit("hi")
        assert capsys.readouterr() == ("Hal\n", "Error: The engine died. Try again.\n")
        await chat.submit("/retry")
        assert capsys.readouterr().out == "Hello.\n"
        assert chat.error is None
    assert client.requests[0] == client.requests[1]


async def test_an_edited_question_becomes_a_version_of_the_former(opened, tmp_path, capsys):
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit("/edit")
        assert "no question" in capsys.readouterr().err
        await chat.submit("soup?")
        await chat.submit("/edit")
        assert chat.edited is not None
        assert chat.edited.content == "soup?"
        await chat.submit("bread?")
    assert [message.content for message in client.requests[1]] == ["bread?"]
    questions = [message for message in _stored(tmp_path) if message.role == "user"]
    assert [message.parent_id for message in questions] == [None, None]


async def test_thoughts_are_paler_and_can_be_one_line(opened, capsys, monkeypatch):
    thinking = ScriptedReply(thoughts=("Hm, ", "so."), deltas=("Yes.",))
    async with opened(ScriptedClient(thinking)) as chat:
        await chat.submit("so?")
        assert capsys.readouterr() == ("Yes.\n", "Hm, so.\n\n")  # no terminal: no colours
        await chat.submit("/thoughts")
        capsys.readouterr()
        await chat.submit("so?")
        assert capsys.readouterr() == ("Yes.\n", "▸ thought for 0.0 s, 2 tokens\n")
        await chat.submit("/thoughts")
        assert capsys.readouterr().err == "Thoughts are now shown.\nHm, so.\n"


async def test_how_much_to_think_goes_with_the_next_question(opened, capsys):
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit("/think off")
        assert "Thinking: off." in capsys.readouterr().err
        await chat.submit("so?")
        await chat.submit("/think auto")
        await chat.submit("so?")
    assert [options.think for options in client.options] == ["off", None]


async def test_system_prompt_and_options_go_with_the_next_question(opened, tmp_path, capsys):
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.open(None, is_new=False, answered=ChatSettings("Be kind.", {"top_k": 40}))
        await chat.submit("/options temperature=0")
        await chat.submit("/options warmth=1")
        assert "warmth=1 is not an option." in capsys.readouterr().err
        await chat.submit("hi")
        await chat.submit("/new")
        await chat.submit("/system Be brief.")
        await chat.submit("ho")
    assert client.options[0] == GenerationOptions(temperature=0.0, top_k=40)
    assert [message.content for message in client.requests[0]] == ["Be kind.", "hi"]
    assert [message.content for message in client.requests[1]] == ["Be brief.", "ho"]
    with ChatStore(tmp_path) as store:
        assert [chat.settings.system for chat in store.chats.page()] == ["Be brief.", "Be kind."]


async def test_a_preset_is_used_and_presets_are_listed(opened, tmp_path, capsys):
    Presets(tmp_path).save("short", ChatSettings("", {"max_tokens": 9}))
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit("/preset")
        assert "short: max_tokens 9" in capsys.readouterr().err
        await chat.submit("/preset long")
        assert "There is no preset long." in capsys.readouterr().err
        await chat.submit("/preset short")
        await chat.submit("hi")
    assert client.options == [GenerationOptions(max_tokens=9)]


async def test_a_base_model_says_how_to_talk_with_it_and_then_continues_the_text(opened, capsys):
    refused = ScriptedReply(ending=NoTemplateError("base has no chat template.", "Use /v1/completions with it."))
    client = ScriptedClient(refused, ScriptedReply(deltas=(" a time.",)))
    async with opened(client) as chat:
        await chat.submit("Once upon")
        printed = capsys.readouterr().err
        assert "base has no chat template." in printed
        assert "/template completion" in printed
        assert "/v1/completions" not in printed
        await chat.submit("/template")
        assert "• model: the model's own template" in capsys.readouterr().err
        await chat.submit("/template completion")
        assert capsys.readouterr().out.endswith(" a time.\n")
    assert client.prompts == ["Once upon"]


async def test_a_placeholder_that_is_not_filled_in_is_sent_only_when_entered_again(opened, tmp_path, capsys):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "review.md").write_text("Review {{file}}.\n")
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit("/prompt review")
        await chat.submit(chat.begun)
        assert (client.requests, chat.begun) == ([], "Review {{file}}.")
        await chat.submit(chat.begun)
    assert [message.content for message in client.requests[0]] == ["Review {{file}}."]
    assert "{{file}} is not filled in. Enter again sends it so." in capsys.readouterr().err


async def test_a_prompt_of_the_library_begins_the_next_question(opened, tmp_path, capsys):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "code review.md").write_text("Review {{file}}.\n")
    async with opened(ScriptedClient()) as chat:
        await chat.submit("/prompt")
        assert "code review" in capsys.readouterr().err
        assert chat.arguments_of("prompt")[:2] == ["code review", "commit-message"]
        await chat.submit("/prompt code review")
        assert chat.begun == "Review {{file}}."
        await chat.submit("/prompt nowhere")
        assert "There is no prompt nowhere." in capsys.readouterr().err
        assert chat.begun == ""


async def test_a_schema_that_the_service_refuses_changes_nothing(opened, capsys):
    client = ScriptedClient()
    client.schema_error = RequestError("The schema's type is 'thing'.", "Known: object, array.")
    async with opened(client) as chat:
        await chat.submit('/options json_schema={"type": "thing"} temperature=0')
        assert "The schema's type is 'thing'." in capsys.readouterr().err
        await chat.submit("hi")
    assert client.options == [GenerationOptions()]


async def test_a_new_chat_begins_with_the_defaults_of_the_settings_below_the_command_line(opened, tmp_path, capsys):
    Presets(tmp_path).save("short", ChatSettings("", {"max_tokens": 9, "seed": 1}))
    client = ScriptedClient()
    settings = Settings(system="Be brief.", preset="short")
    async with opened(client) as chat:
        await chat.open(None, is_new=True, answered=ChatSettings("", {"seed": 2}), settings=settings)
        await chat.submit("hi")
        gone = Settings(system="Be brief.", preset="gone")
        await chat.new_chat()
        await chat.open(None, is_new=True, answered=ChatSettings(), settings=gone)
        assert "There is no preset gone." in capsys.readouterr().err
    assert [message.content for message in client.requests[0]] == ["Be brief.", "hi"]
    assert client.options == [GenerationOptions(max_tokens=9, seed=2)]


async def test_the_last_chat_is_continued_with_the_options_of_the_command_line(opened, tmp_path):
    async with opened(ScriptedClient()) as chat:
        await chat.open(None, is_new=False, answered=ChatSettings("Be kind.", {"top_k": 40, "seed": 1}))
        await chat.submit("one")
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.open(None, is_new=False, answered=ChatSettings("", {"seed": 2}))
        await chat.submit("two")
    assert [message.content for message in client.requests[0]] == ["Be kind.", "one", "Hello.", "two"]
    assert client.options == [GenerationOptions(top_k=40, seed=2)]
    async with opened(client) as chat:
        await chat.open(None, is_new=True, answered=ChatSettings())
        await chat.submit("three")
    assert [message.content for message in client.requests[1]] == ["three"]


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("/frobnicate", "Unknown command /frobnicate. /help lists the commands."),
        ("/hlep", "Unknown command /hlep. Did you mean /help?"),
        ("?", "/continue"),
        ("/model nosuch", "There is no local model nosuch."),
        ("/models", "needs the full screen: localllm chat. /help"),
        ("/part", "localllm chat. `localllm run --search-files` searches a long text"),
        ("/record", "localllm chat. `localllm transcribe` writes down"),
        ("/speak", "There is nothing to read aloud."),
        ("/retry", "There is no question yet."),
        ("/copy", "no answer to copy"),
        ("/system", "No system prompt is set."),
        ("/help", "/continue"),
    ],
)
async def test_impossible_actions_are_reported(opened, capsys, text, printed):
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit(text)
    assert printed in capsys.readouterr().err
    assert client.requests == []


@pytest.mark.slow
async def test_the_last_answer_is_read_aloud_and_a_device_that_fails_is_reported(opened, capsys, monkeypatch):
    client = ScriptedClient(ScriptedReply(deltas=("Hello **there**.",)))
    async with opened(client) as chat:
        await chat.submit("Who are you?")
        put_device(monkeypatch, "mute")
        await chat.submit("/speak qwen3-tts")
        await chat.submit("/speak")
        put_device(monkeypatch, "absent")
        await chat.submit("/speak")
    assert client.spoken == [("Hello there.", "qwen3-tts")] * 2
    printed = capsys.readouterr().err
    assert printed.count("Reading aloud; Ctrl+C stops it.") == 3
    assert "The loudspeaker cannot be opened. Connect one." in printed


@pytest.mark.parametrize("word", ["/quit", "/bye", "/exit"])
async def test_quit_leaves(opened, word):
    async with opened(ScriptedClient()) as chat:
        await chat.submit(word)
        assert chat.is_quitting


async def test_another_model_is_chosen_by_a_part_of_its_name(opened, capsys):
    client = client_with_models()
    async with opened(client) as chat:
        await chat.submit("/model")
        assert "* guide\n  qwen3-0.6b-Q8_0\n" in capsys.readouterr().err
        await chat.submit("/model QWEN")
        assert "answers from now on" in capsys.readouterr().err
    assert client.loads[-1] == "/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"


async def test_a_question_is_written_in_the_users_editor_and_waits_at_the_prompt(opened, tmp_path, monkeypatch, capsys):
    script = tmp_path / "editor.py"
    script.write_text(
        "import pathlib, sys\nf = pathlib.Path(sys.argv[1])\nf.write_text(f.read_text() + 'and pepper\\n')"
    )
    monkeypatch.setenv("VISUAL", shlex.join([sys.executable, str(script)]))
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit("/editor salt")
        assert (client.requests, chat.begun) == ([], "salt\nand pepper")
        monkeypatch.setenv("VISUAL", "no-such-editor")
        await chat.submit("/editor")
        assert "The editor no-such-editor, from VISUAL, was not found." in capsys.readouterr().err


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    notes = tmp_path / "work" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("The word is banana.")
    return notes


@pytest.mark.usefixtures("notes")
async def test_a_file_that_a_question_mentions_is_attached_and_saved(opened, tmp_path, capsys):
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit("Which word is in @notes.txt?")
    (asked,) = client.requests[0]
    assert "The word is banana." in asked.content
    assert asked.content.endswith("Which word is in @notes.txt?")
    assert [each.name for each in _stored(tmp_path)[0].attachments] == ["notes.txt"]
    assert "Attached notes.txt, 19 characters." in capsys.readouterr().err


async def test_a_file_that_cannot_be_attached_is_reported_and_nothing_is_sent(opened, notes, capsys):
    notes.write_bytes(b"\xff\x00")
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit("Which word is in @notes.txt?")
    assert client.requests == []
    assert "notes.txt is not UTF-8 text." in capsys.readouterr().err


@pytest.mark.usefixtures("notes")
async def test_a_misspelt_file_is_reported_and_its_question_sent_when_entered_again(opened, capsys):
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit("Which word is in @note.txt?")
        assert (client.requests, chat.begun) == ([], "Which word is in @note.txt?")
        await chat.submit(chat.begun)
        assert chat.begun == ""
    assert [message.content for message in client.requests[0]] == ["Which word is in @note.txt?"]
    assert "No such file: note.txt. Enter again sends" in capsys.readouterr().err


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    photo = tmp_path / "work" / "my photo.png"
    photo.parent.mkdir(exist_ok=True)
    photo.write_bytes(picture_of())
    return photo


async def test_a_mentioned_picture_goes_with_its_question_and_is_there_after_a_restart(opened, photo, tmp_path, capsys):
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit('What is @"my photo.png"?')
    (asked,) = client.requests[0]
    assert (asked.content, asked.media) == ('What is @"my photo.png"?', (MediaPart("image/png", PICTURE),))
    assert "Attached my photo.png, 64 × 48, " in capsys.readouterr().err
    async with opened(client) as chat:
        await chat.open(None, is_new=False, answered=ChatSettings())
        await chat.submit("And its color?")
    assert [message.media for message in client.requests[1]] == [asked.media, (), ()]


async def test_a_chat_that_leaves_no_trace_sends_pictures_and_keeps_none(opened, photo, tmp_path):
    client = ScriptedClient()
    async with opened(client, is_saved=False) as chat:
        await chat.submit('What is @"my photo.png"?')
        await chat.submit("And its color?")
    assert [len(message.media) for message in client.requests[1]] == [1, 0, 0]
    assert not (tmp_path / "attachments").exists()


@pytest.mark.parametrize("form", ["{}", "'{}'", "file://{}"])
@pytest.mark.skipif(sys.platform == "win32", reason="paths have other forms there")
async def test_a_dropped_path_is_attached_to_the_next_question(opened, photo, capsys, form):
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit(form.format(quote(str(photo)) if form.startswith("file") else photo))
        assert client.requests == []
        await chat.submit("What is this?")
        await chat.submit("And now?")
    assert [len(message.media) for message in client.requests[1]] == [1, 0, 0]
    assert ": it goes with your next question." in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="paths have other forms there")
async def test_a_dropped_file_that_no_model_takes_is_reported_and_a_new_chat_drops_the_others(opened, photo, capsys):
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit(str(photo))
        photo.write_bytes(b"GGUF\x03\0")
        await chat.submit(str(photo))
        assert [attachment.name for attachment in chat.dropped] == ["my photo.png"]
        await chat.submit("/new")
        await chat.submit("What is this?")
    assert [message.media for message in client.requests[0]] == [()]
    assert "is a model file, which cannot be attached" in capsys.readouterr().err


async def test_pages_of_a_document_can_be_mentioned(opened, photo, capsys):
    photo.with_name("paper.pdf").write_bytes(pdf_of(["Soup", "Salt"]))
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit("What does @paper.pdf#2 say?")
    assert "[Page 2]\n\nSalt" in client.requests[0][0].content
    assert "Soup" not in client.requests[0][0].content
    assert "page 2 of 2." in capsys.readouterr().err


async def test_an_edited_question_keeps_its_attachments_unless_their_mention_is_removed(opened, notes, tmp_path):
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.ask("Which word?", (Attachment("pasted 1", "apple"),))
        chat.edit()
        await chat.submit("Which word, and in @notes.txt?")
        assert [each.name for each in chat.branch[0].attachments] == ["pasted 1", "notes.txt"]
        chat.edit()
        await chat.submit("Which word after all?")
        assert [each.name for each in chat.branch[0].attachments] == ["pasted 1"]


@pytest.mark.usefixtures("notes")
async def test_what_may_be_pasted_takes_no_file_from_elsewhere(opened, tmp_path, capsys):
    (tmp_path / "secret.txt").write_text("sesame")
    client = ScriptedClient()
    async with opened(client) as chat:
        await chat.submit("@../secret.txt\n@app.route('/')\n@notes.txt")
        assert "../secret.txt is outside this folder" in capsys.readouterr().err
        await chat.submit(chat.begun)
    assert "sesame" not in client.requests[0][0].content
    assert "banana" in client.requests[0][0].content
    assert "No such file" not in capsys.readouterr().err


async def test_another_model_answers_the_last_question_and_the_figures_of_both_are_printed(opened, tmp_path, capsys):
    client = client_with_models()
    async with opened(client) as chat:
        await chat.submit("/compare qwen")
        await chat.submit("Who are you?")
        await chat.submit("/compare qwen")
    out, err = capsys.readouterr()
    assert out == "Hello.\nHello.\n"
    assert "/compare MODEL answers the last question" in err
    assert err.count("48 tokens a second · first word after 0.2 s · 12 tokens · 40 read") == 2
    question, first, second = _stored(tmp_path)
    assert first.parent_id == second.parent_id == question.id


async def test_figures_are_printed_from_now_on_when_asked_for(opened, capsys):
    async with opened(ScriptedClient()) as chat:
        await chat.submit("/figures")
        await chat.submit("one")
    err = capsys.readouterr().err
    assert "Figures are now shown." in err
    assert "decode 48.0 tok/s" in err


async def test_an_answer_without_text_says_so(opened, capsys):
    async with opened(ScriptedClient(ScriptedReply(deltas=()))) as chat:
        await chat.submit("one")
    assert "The model wrote nothing." in capsys.readouterr().err


LONG = replace(COMPLETED, n_prompt_tokens=60, n_output_tokens=1560)


async def test_compact_prints_the_summary_and_what_it_saves(opened, tmp_path, capsys):
    client = ScriptedClient(ScriptedReply(deltas=("One.",), ending=LONG), ScriptedReply(deltas=("In short.",)))
    async with opened(client) as chat:
        await chat.submit("/compact")
        await chat.submit("Tell me all.")
        await chat.submit("/compact the recipe")
    printed = capsys.readouterr()
    assert printed.out == "One.\n"
    assert printed.err.startswith("There is nothing to compact yet.\n")
    assert "In short." in printed.err
    assert "Compacted 2 messages: 1,620 → " in printed.err
    assert [message.role for message in _stored(tmp_path)] == ["user", "assistant", "summary"]


async def test_a_question_that_waited_for_a_summary_is_held_back_when_that_is_stopped(opened, tmp_path):
    client = ScriptedClient(
        ScriptedReply(deltas=("One.",), ending=LONG), ScriptedReply(deltas=("In", " short."), pause_after=1)
    )
    async with opened(client) as chat:
        await chat.submit("Tell me all.")
        asking = asyncio.create_task(chat.submit("And then? " + "word " * 80))
        while len(client.requests) < 2:  # noqa: ASYNC110 - the fake sets no event
            await asyncio.sleep(0.01)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        assert chat.begun.startswith("And then?")
    assert [message.role for message in _stored(tmp_path)] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("text", "command", "argument"),
    [
        ("/retry", "retry", ""),
        ("/system Be brief.", "system", "Be brief."),
        ("/SYSTEM  Be brief. ", "system", "Be brief."),
        ("/?", "help", ""),
        ("/bye", "quit", ""),
        ("/clear", "new", ""),
    ],
)
def test_a_word_after_a_slash_is_a_command_of_the_app(text, command, argument):
    line = parse_command(text)
    assert line is not None
    assert line[0] is not None
    assert (line[0].id, line[2]) == (command, argument)


@pytest.mark.parametrize("text", ["retry", "/etc/hosts is what?", "a\n/retry", "? /retry", "/1"])
def test_all_else_is_a_question(text):
    assert parse_command(text) is None


def test_a_word_that_means_nothing_here_may_mean_something_in_the_full_screen():
    assert parse_command("/models") == (None, "models", "")
    assert needs_full_screen("models")
    assert not needs_full_screen("frobnicate")


def test_help_lists_every_command_and_promises_no_saving_for_an_unsaved_chat():
    kept, forgotten = (help_text(is_saved=is_saved, breaks_lines=is_saved) for is_saved in (True, False))
    for command in COMMANDS:
        assert f"/{command.slash}" in kept
    assert "this one stays" in kept
    assert "this one stays" not in forgotten
    assert "Alt+Enter" in kept
    assert "Alt+Enter" not in forgotten


async def test_an_answer_of_another_window_is_printed_on_and_a_question_waits_for_it(opened, tmp_path, capsys):
    client = ScriptedClient(ScriptedReply(deltas=("Mine.",)))
    with ChatStore(tmp_path) as window:
        stored = window.chats.create(title="Soup")
        asked = window.messages.add(stored.id, None, MessageContent(content="how?"), window.writers.window)
        begun = MessageContent(role="assistant", content="Boil", state=MessageState.PARTIAL)
        message = window.messages.add(stored.id, asked.id, begun, window.writers.window)
        async with opened(client) as chat:
            await chat.open(stored.id, is_new=False, answered=ChatSettings())
            assert chat.is_answered_elsewhere
            await chat.submit("/continue")
            assert "its answer goes on by itself" in capsys.readouterr().err
            asking = asyncio.create_task(chat.submit("mine"))
            await _printed(capsys, "waits until it has ended")
            window.messages.write(message.id, "Boil it")
            await _printed(capsys, " it")
            assert client.requests == []
            window.messages.finish(message.id, replace(message, content="Boil it well.", state=MessageState.FINISHED))
            window.writers.mark(stored.id, None)
            await asking
    assert capsys.readouterr().out == " well.\nMine.\n"
    assert [message.content for message in client.requests[0]] == ["how?", "Boil it well.", "mine"]


async def _printed(capsys, text: str) -> None:
    seen = ""
    while text not in seen:
        await asyncio.sleep(0.02)
        seen += "".join(capsys.readouterr())
