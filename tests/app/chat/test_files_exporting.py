from __future__ import annotations

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.chat.conversation import Attachment, Chat, ChatSettings, Message, MessageContent, MessageState, Transcript
from app.chat.files import EXPORTS, export_of, export_to, read_chats
from app.chat.formats.json_reader import ImportedChat
from app.chat.formats.markdown import closed
from app.chat.store import ChatStore
from quantizer.errors import StorageError, UsageError

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


def _transcript(text: str) -> Transcript:
    settings = ChatSettings(text)
    chat = Chat(id=1, title=text, created_ms=1, updated_ms=2, model="m", settings=settings, leaf_id=2)
    question = Message(id=1, parent_id=None, role="user", content=text, attachments=(Attachment(text, text),))
    answer = Message(
        id=2, parent_id=1, role="assistant", content=text, reasoning=text, model=text, state=MessageState.PARTIAL
    )
    other = Message(id=3, parent_id=1, role="assistant", content="another branch")
    return Transcript(chat, (question, answer, other))


def _export(name: str, *transcripts: Transcript) -> str:
    return "".join(EXPORTS[name](transcripts))


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_page_runs_nothing_and_loads_nothing(text: str) -> None:
    found = _Tags()
    found.feed(_export("html", _transcript(text)))
    assert not {"script", "img", "svg", "iframe", "link", "object", "embed", "form"} & found.tags
    names = {name for name, _ in found.attributes}
    assert not {name for name in names if name.startswith("on")} | ({"src", "style", "srcset"} & names)
    links = {value for name, value in found.attributes if name == "href"}
    assert all(re.match("https?:", link) for link in links)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in found.attributes


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


@st.composite
def utterances(draw: st.DrawFn) -> MessageContent:
    return MessageContent(
        role=draw(st.sampled_from(["user", "assistant", "system", "tool"])),
        content=draw(_TEXT),
        reasoning=draw(_TEXT),
        attachments=tuple(draw(st.lists(st.builds(Attachment, _TEXT, _TEXT, _TEXT), max_size=2))),
        model=draw(_TEXT),
        stats=draw(_SCALARS),
        state=draw(st.sampled_from(MessageState)),
        created_ms=draw(st.integers(10**11, 10**13)),
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
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
    export_to(path, EXPORTS["json"]([original]))
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
