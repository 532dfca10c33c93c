from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from app.chat.conversation import (
    Attachment,
    Chat,
    ChatSettings,
    MediaFile,
    Message,
    MessageContent,
    MessageState,
    Transcript,
)
from app.chat.files import EXPORTS, export_of, export_to, import_file, read_chats
from app.chat.formats.documents import closed, markdown
from app.chat.formats.json_reader import ImportedChat
from app.chat.store.chat_store import ChatStore
from app.protocol.chat import Source, ToolCall
from app.tools.tool import FileChange, ToolOutcome, ToolResult
from quantizer.system.errors import StorageError, UsageError
from tests.app.chat.attachments.files import picture_of, wav_of

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![x](https://evil.example/pixel.png)",
    "[x](javascript:alert(1))",
    "[x](data:text/html,<script>)",
    "<https://evil.example/><iframe src=//evil.example>",
    '"><svg onload=alert(1)>',
    "```html\n</code></pre><script>\n```",
    "</article></body><link rel=stylesheet href=//evil.example/x.css>",
    "</details><style>@import url(//evil.example)</style>",
]


CONTENTS = {hashlib.sha256(data).hexdigest(): data for data in (picture_of(), picture_of((3, 2)), wav_of(0.1))}
PICTURE, PAGE, SOUND = (
    MediaFile(sha256, mime_type, len(data))
    for (sha256, data), mime_type in zip(CONTENTS.items(), ("image/png", "image/png", "audio/wav"), strict=True)
)


def _with_media(name: str) -> Transcript:
    """Return a chat with a picture, pages of a document and a sound, each called `name`."""
    attachments = (
        Attachment(name, "", "image/png", "64 × 48, 1 kB", (PICTURE,)),
        Attachment(name, "[Page 1]", "application/pdf", "2 pages", (PICTURE, PAGE)),
        Attachment(name, "", "audio/wav", "0:00", (SOUND,)),
    )
    question = Message(id=1, parent_id=None, role="user", content="What?", attachments=attachments)
    return Transcript(Chat(id=1, title="t", created_ms=1, updated_ms=2, leaf_id=1), (question,))


def _transcript(text: str) -> Transcript:
    settings = ChatSettings(text)
    chat = Chat(id=1, title=text, created_ms=1, updated_ms=2, model="m", settings=settings, leaf_id=2)
    question = Message(id=1, parent_id=None, role="user", content=text, attachments=(Attachment(text, text),))
    answer = Message(
        id=2, parent_id=1, role="assistant", content=text, reasoning=text, model=text, state=MessageState.PARTIAL
    )
    other = Message(id=3, parent_id=1, role="assistant", content="another branch")
    return Transcript(chat, (question, answer, other))


def _with_tools(text: str) -> Transcript:
    """Return a chat with a call, its result and a summary, full of `text`."""
    result = ToolResult(
        call_id=text,
        tool=text,
        server=text,
        title=text,
        outcome=ToolOutcome.FAILED,
        detail=text,
        n_bytes=12,
        diff=text,
        duration_s=0.5,
        changes=(FileChange(text, "", "0" * 64),),
        is_undone=True,
    )
    messages = (
        Message(id=1, parent_id=None, role="user", content=text),
        Message(id=2, parent_id=1, role="assistant", content=text, calls=(ToolCall(text, text, text),)),
        Message(id=3, parent_id=2, role="tool", content=text, result=result),
        Message(id=4, parent_id=3, role="summary", content=text, n_kept=2),
    )
    return Transcript(Chat(id=1, title=text, created_ms=1, updated_ms=2, leaf_id=4), messages)


def _with_sources(text: str) -> Transcript:
    """Return a chat whose question was sent with a passage, and whose second answer has one by a call."""
    asked = Source(f"/papers/{text}", text, 3, 9, 2, text)
    result = ToolResult(call_id="c", tool="search_knowledge", sources=(Source("/papers/b.md", text),))
    messages = (
        Message(id=1, parent_id=None, role="user", content=text, sources=(asked,)),
        Message(id=2, parent_id=1, role="assistant", content="One [1]."),
        Message(id=3, parent_id=2, role="user", content=text),
        Message(id=4, parent_id=3, role="assistant", content="", calls=(ToolCall("c", "search_knowledge"),)),
        Message(id=5, parent_id=4, role="tool", content=text, result=result),
        Message(id=6, parent_id=5, role="assistant", content="Two."),
    )
    return Transcript(Chat(id=1, title="t", created_ms=1, updated_ms=2, leaf_id=6), messages)


def _export(name: str, *transcripts: Transcript) -> str:
    return "".join(EXPORTS[name](transcripts, lambda file: CONTENTS[file.sha256]))


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("chat_of", [_transcript, _with_media, _with_tools])
def test_a_page_runs_nothing_and_loads_nothing(chat_of: Callable[[str], Transcript], text: str) -> None:
    found = _Tags()
    found.feed(_export("html", chat_of(text)))
    assert not {"script", "svg", "iframe", "link", "object", "embed", "form"} & found.tags
    assert ("img" in found.tags) is (chat_of is _with_media)
    assert not {name for name, _ in found.attributes if name.startswith("on") or name in ("style", "srcset")}
    assert all(value.startswith("data:") for name, value in found.attributes if name == "src")
    assert all(re.match("https?:", value) for name, value in found.attributes if name == "href")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"
    assert ("content", policy) in found.attributes


def test_a_page_shows_messages_verbatim() -> None:
    page = html.unescape(_export("html", _transcript("a < b & **c**")))
    assert "<h1>a < b & **c**</h1>" in page
    assert "a < b & <strong>c</strong>" in page
    assert "another branch" not in page


def test_markdown_has_the_branch_that_is_shown() -> None:
    document = _export("markdown", _transcript("Hello\nthere"))
    assert document.startswith("# Hello there\n")
    assert "## You\n\nHello\nthere\n" in document
    assert "> Hello\n> there\n" in document
    assert "*(unfinished)*" in document
    assert "another branch" not in document


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("```py\nx = 1", "\n```"),
        ("~~~~\na\n~~~", "\n~~~~"),
        ("```\na\n```", ""),
        ("no code", ""),
        ("```\n```x", "\n```"),
    ],
)
def test_a_code_block_left_open_is_closed(text: str, end: str) -> None:
    assert closed(text) == text + end


_TEXT = st.text(st.characters(exclude_categories=("Cs",)))
_SCALARS = st.dictionaries(
    _TEXT, _TEXT | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
)


_ATTACHMENTS = st.builds(Attachment, _TEXT, _TEXT, _TEXT, is_searched=st.booleans())


@st.composite
def utterances(draw: st.DrawFn) -> MessageContent:
    return MessageContent(
        role=draw(st.sampled_from(["user", "assistant", "system", "tool"])),
        content=draw(_TEXT),
        reasoning=draw(_TEXT),
        attachments=tuple(draw(st.lists(_ATTACHMENTS, max_size=2))),
        model=draw(_TEXT),
        stats=draw(_SCALARS),
        state=draw(st.sampled_from(MessageState)),
        created_ms=draw(st.integers(10**11, 10**13)),
    )


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(st.tuples(utterances(), st.integers(0, 5)), min_size=1, max_size=6), _TEXT, _SCALARS)
def test_what_localllm_exports_it_reads_again_without_loss(
    store: ChatStore, tmp_path: Path, said: list[tuple[MessageContent, int]], system: str, options: dict[str, str]
) -> None:
    chat = store.chats.create(title="a title", model="m", settings=ChatSettings(system, options))
    ids: list[int | None] = [None]
    for utterance, parent in said:
        ids.append(store.messages.add(chat.id, ids[parent % len(ids)], utterance).id)
    original = store.transcripts.read(chat.id)
    path = tmp_path / "own.json"
    path.unlink(missing_ok=True)
    export_to(path, EXPORTS["json"]([original], store.files.read))
    (reading,) = read_chats(path)
    assert isinstance(reading, ImportedChat)
    copy = store.transcripts.read(store.transcripts.insert(reading.transcript).id)
    assert replace(copy.chat, id=0, leaf_id=0) == replace(original.chat, id=0, leaf_id=0)
    assert [_said(message) for message in copy.branch] == [_said(message) for message in original.branch]
    assert sorted(map(repr, map(_said, copy.messages))) == sorted(map(repr, map(_said, original.messages)))


def _said(message: Message) -> MessageContent:
    return MessageContent(**{name: getattr(message, name) for name in MessageContent.__dataclass_fields__})


def test_no_chat_at_all_is_an_empty_list() -> None:
    assert _export("json") == "[]\n"


def test_a_file_in_the_way_stays_and_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chats.md"
    export_to(path, ["one"])
    with pytest.raises(StorageError, match="exists already"):
        export_to(path, ["two"])
    assert path.read_text() == "one"
    with pytest.raises(StorageError, match="could not be written"):
        export_to(tmp_path / "none" / "chats.md", ["one"])

    def breaking() -> object:
        yield "half"
        raise KeyError

    with pytest.raises(KeyError):
        export_to(tmp_path / "half.md", breaking())
    assert [file.name for file in tmp_path.iterdir()] == ["chats.md"]


@pytest.mark.parametrize(("name", "export"), [("a.md", "markdown"), ("a.b.JSON", "json"), ("a.html", "html")])
def test_the_extension_selects_the_format(name: str, export: str) -> None:
    assert export_of(Path(name)) is EXPORTS[export]


@pytest.mark.parametrize("name", ["notes", "notes.docx", ".md"])
def test_a_name_with_another_ending_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(UsageError, match=r"\.md, \.json, \.html"):
        export_of(Path(name))


def test_pictures_and_sounds_survive_an_export_and_an_import(tmp_path: Path, store: ChatStore) -> None:
    store.files.keep(CONTENTS)
    chat = store.transcripts.insert(_with_media("photo.png"))
    transcript = store.transcripts.read(chat.id)
    export_to(tmp_path / "chats.json", EXPORTS["json"]([transcript], store.files.read))
    with ChatStore(tmp_path / "other") as other:
        result = import_file(tmp_path / "chats.json", other)
        assert result.skipped == ()
        (message,) = other.messages.of(result.ids[0])
        assert message.attachments == transcript.messages[0].attachments
        for file in (PICTURE, PAGE, SOUND):
            assert other.files.read(file) == CONTENTS[file.sha256]


def test_only_chats_with_media_or_tools_have_a_version_that_others_do_not_read() -> None:
    plain = _transcript("t")
    book = replace(plain.messages[0], attachments=(Attachment("book.md", "Soup.", is_searched=True),))
    searched = replace(plain, messages=(book, *plain.messages[1:]))
    chats = (plain, _with_media("n"), _with_tools("t"), _with_sources("t"), searched)
    versions = [json.loads(_export("json", chat))[0]["version"] for chat in chats]
    assert versions == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("text", ["leeks", "\x1b[31m", "日本 🏞", *HOSTILE])
def test_the_sources_of_answers_are_imported_as_they_were(text: str, tmp_path: Path, store: ChatStore) -> None:
    (tmp_path / "chats.json").write_text(_export("json", _with_sources(text)), encoding="utf-8")
    (imported_id,) = import_file(tmp_path / "chats.json", store).ids
    found = store.messages.of(imported_id)
    original = _with_sources(text).messages
    assert [message.sources for message in found] == [message.sources for message in original]
    assert found[4].result == original[4].result


def test_documents_list_the_sources_below_each_answer() -> None:
    text = _export("markdown", _with_sources("soup.pdf"))
    assert "One [1].\n\nSources:\n\n1. /papers/soup.pdf, page 2 (soup.pdf)\n" in text
    assert "Two.\n\nSources:\n\n1. /papers/b.md\n" in text
    assert text.count("Sources:") == 2
    page = _export("html", _with_sources("<b>"))
    assert "<ol><li>/papers/&lt;b&gt;, page 2 (&lt;b&gt;)</li></ol>" in page


def test_a_chat_without_tools_is_exported_as_before_there_were_any() -> None:
    exported = json.loads(_export("json", _transcript("t")))[0]
    assert list(exported["settings"]) == ["system", "options"]
    assert list(exported["messages"][0]) == [
        *("role", "content", "reasoning", "attachments", "model", "stats", "state", "created_ms", "id", "parent_id")
    ]


@pytest.mark.parametrize("text", ["leeks", "\x1b[31m", "日本 🏞", *HOSTILE])
def test_calls_and_results_are_imported_as_they_were(text: str, tmp_path: Path, store: ChatStore) -> None:
    (tmp_path / "chats.json").write_text(_export("json", _with_tools(text)), encoding="utf-8")
    (imported_id,) = import_file(tmp_path / "chats.json", store).ids
    original = _with_tools(text).messages
    for found, wanted in zip(store.messages.of(imported_id), original, strict=True):
        assert (found.calls, found.n_kept, found.role) == (wanted.calls, wanted.n_kept, wanted.role)
        assert found.result == (wanted.result and replace(wanted.result, changes=()))


def test_an_export_that_lacks_a_content_is_imported_without_it(tmp_path: Path, store: ChatStore) -> None:
    (chat,) = json.loads(_export("json", _with_media("photo.png")))
    for attachment in chat["messages"][0]["attachments"]:
        attachment["media"][0]["base64"] = "bm8="
    (tmp_path / "chats.json").write_text(json.dumps([chat]))
    result = import_file(tmp_path / "chats.json", store)
    assert [item.why for item in result.skipped] == ["is no picture or sound in Base64"] * 3
    (message,) = store.messages.of(result.ids[0])
    assert message.attachments == (Attachment("photo.png", "[Page 1]", "application/pdf", "2 pages", (PAGE,)),)


def test_a_page_has_its_pictures_and_sounds_in_it() -> None:
    tags = _Tags()
    tags.feed(_export("html", _with_media("photo.png")))
    sources = [value for name, value in tags.attributes if name == "src"]
    assert {"img", "audio"} <= tags.tags
    assert sorted(source.partition(";")[0] for source in sources) == [
        "data:audio/wav",
        "data:image/png",
        "data:image/png",
    ]


def test_a_document_refers_to_its_pictures_and_has_them_at_its_end() -> None:
    text = _export("markdown", _with_media("my [photo].png"))
    name = f"media-{PICTURE.sha256[:16]}"
    assert f"![my \\[photo\\].png][{name}]\n" in text
    assert text.count(f"\n[{name}]: data:image/png;base64,") == 1
    assert "![my \\[photo\\].png, 2]" in text


def test_a_text_for_a_terminal_only_names_them() -> None:
    text = "".join(markdown([_with_media("photo.png")]))
    assert "### photo.png, 64 × 48, 1 kB\n" in text
    assert "base64" not in text


@pytest.mark.parametrize("text", [*HOSTILE, "```\nend\n````", "a\n## Heading"])
def test_calls_and_results_are_code_in_markdown_that_they_cannot_leave(text: str) -> None:
    parsed = MarkdownIt("commonmark").parse(_export("markdown", _with_tools(text)))
    code = [token.content.rstrip() for token in parsed if token.type == "fence"]
    assert text.rstrip() in code
    assert f"{text}\n{text}".rstrip() in code


def test_a_result_is_headed_by_what_the_call_did_and_how_it_ended() -> None:
    result = ToolResult(
        call_id="c", tool="read_file", title="read a_b.txt", outcome=ToolOutcome.TIMED_OUT, is_undone=True
    )
    messages = (Message(id=1, parent_id=None, role="tool", content="x", result=result),)
    transcript = Transcript(Chat(id=1, title="t", leaf_id=1), messages)
    assert "## Tool: read a\\_b.txt, timed out, undone\n\n```\nx\n```" in _export("markdown", transcript)
