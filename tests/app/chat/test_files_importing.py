"""Files of other apps: valid chats are imported, the rest is reported, and nothing in them does harm."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.chat import files as importing
from app.chat.files import read_chats
from app.chat.formats.json_reader import ImportedChat, SkippedItem
from app.chat.store.chat_store import ChatStore
from app.tools.approval import ApprovalRule
from app.tools.tool import ToolOutcome
from quantizer.system.errors import UserError
from tests.app.chat.attachments.files import picture_of


def _file(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "chats.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def _only(tmp_path: Path, content: object) -> ImportedChat:
    (item,) = read_chats(_file(tmp_path, content))
    assert isinstance(item, ImportedChat), item
    return item


def _said(reading: ImportedChat) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in reading.transcript.branch]


def _node(parent: str | None, role: str = "", content: Any = None, **metadata: object) -> dict[str, Any]:
    message = {"author": {"role": role}, "create_time": 1_700_000_000.5, "content": content, "metadata": metadata}
    return {"parent": parent, "children": [], "message": message if role else None}


def _text(*parts: object) -> dict[str, object]:
    return {"content_type": "text", "parts": list(parts)}


def _chatgpt(**changes: object) -> dict[str, Any]:
    mapping = {
        "root": _node(None),
        "hidden": _node("root", "system", _text("You are ChatGPT.")),
        "q": _node("hidden", "user", _text("How long do eggs boil?")),
        "think": _node("q", "assistant", {"content_type": "thoughts", "thoughts": [{"content": "Eggs."}]}),
        "a1": _node("think", "assistant", _text("Six minutes."), model_slug="gpt-4o"),
        "a2": _node("q", "assistant", _text("Ten."), model_slug="gpt-4o"),
    }
    return {"title": "Eggs", "create_time": 1_700_000_000.5, "mapping": mapping, "current_node": "a1", **changes}


def test_a_chat_of_chatgpt_comes_with_its_branches_thoughts_and_times(tmp_path: Path) -> None:
    found = _only(tmp_path, [_chatgpt()])
    chat, messages = found.transcript.chat, found.transcript.messages
    assert _said(found) == [("user", "How long do eggs boil?"), ("assistant", "Six minutes.")]
    assert sorted(message.content for message in messages) == ["How long do eggs boil?", "Six minutes.", "Ten."]
    assert next(message for message in messages if message.content == "Six minutes.").reasoning == "Eggs.\n\n"
    assert (chat.title, chat.model, chat.created_ms) == ("Eggs", "gpt-4o", 1_700_000_000_500)
    assert found.skipped == ()


def test_code_output_and_speech_of_chatgpt_are_imported_and_pictures_reported(tmp_path: Path) -> None:
    mapping = {
        "q": _node(
            None, "user", {"content_type": "multimodal_text", "parts": [{"asset_pointer": "file://x"}, "What?"]}
        ),
        "c": _node("q", "assistant", {"content_type": "code", "language": "python", "text": "print(1)"}),
        "o": _node("c", "tool", {"content_type": "execution_output", "text": "1"}),
        "s": _node("o", "user", _text({"content_type": "audio_transcription", "text": "thanks"})),
    }
    found = _only(tmp_path, [_chatgpt(mapping=mapping, current_node="s")])
    assert _said(found) == [
        ("user", "What?"),
        ("assistant", "```python\nprint(1)\n```"),
        ("tool", "1"),
        ("user", "thanks"),
    ]
    assert [fault.place for fault in found.skipped] == ["chat 0.mapping.q.message.content.parts[0]"]


def _open_webui() -> dict[str, Any]:
    thought = (
        '<details type="reasoning" done="true">\n<summary>Thought</summary>\n&gt; 2 &lt; 3\n&gt; so\n</details>\nYes.'
    )
    messages = {
        "u": {"id": "u", "parentId": None, "role": "user", "content": "Is 2 < 3?", "timestamp": 1_700_000_000},
        "a": {"id": "a", "parentId": "u", "role": "assistant", "content": thought, "model": "qwen3:8b"},
    }
    inner = {
        "models": ["qwen3:8b"],
        "params": {"system": "Be exact."},
        "history": {"messages": messages, "currentId": "a"},
    }
    return {"title": "Sums", "chat": inner, "created_at": 1_700_000_000, "pinned": True, "archived": False}


def test_a_chat_of_open_webui_comes_with_its_system_prompt_and_thought(tmp_path: Path) -> None:
    found = _only(tmp_path, [_open_webui()])
    assert _said(found) == [("user", "Is 2 < 3?"), ("assistant", "Yes.")]
    assert found.transcript.messages[1].reasoning == "2 < 3\nso"
    assert found.transcript.chat.settings.system == "Be exact."
    assert (found.transcript.chat.title, found.transcript.chat.model) == ("Sums", "qwen3:8b")
    assert found.transcript.chat.is_pinned


def _open_webui_call(call_id: str, name: str, arguments: object, result: object) -> str:
    given, returned = (html.escape(json.dumps(value)) for value in (arguments, result))
    values = f'id="{call_id}" name="{name}" arguments="{given}" result="{returned}" files=""'
    return f'<details type="tool_calls" done="true" {values}>\n<summary>Tool Executed</summary>\n</details>\n'


def test_calls_within_an_answer_of_open_webui_are_messages_of_their_own(tmp_path: Path) -> None:
    first = _open_webui_call("a", "read", '{"path": "<x>"}', "text > text")
    second = _open_webui_call("b", "list", {}, {"files": []})
    reasoning = '<details type="reasoning" done="true">\n<summary>Thought</summary>\n> Hm.\n</details>\n'
    content = f"{reasoning}Let me see.\n{first}{second}Then.\n{_open_webui_call('c', 'read', {}, 'x')}Done."
    messages = {
        "q": {"role": "user", "content": "Read.", "parentId": None},
        "a": {"role": "assistant", "content": content, "parentId": "q", "model": "m"},
        "n": {"role": "user", "content": "Thanks.", "parentId": "a"},
    }
    branch = _only(tmp_path, {"history": {"messages": messages, "currentId": "n"}}).transcript.branch
    assert [(message.role, message.content) for message in branch] == [
        ("user", "Read."),
        ("assistant", "Let me see."),
        ("tool", "text > text"),
        ("tool", '{"files": []}'),
        ("assistant", "Then."),
        ("tool", "x"),
        ("assistant", "Done."),
        ("user", "Thanks."),
    ]
    assert [(call.name, call.arguments) for call in branch[1].calls] == [("read", '{"path": "<x>"}'), ("list", "{}")]
    assert (branch[1].reasoning, branch[1].model) == ("Hm.", "m")
    assert [message.result.call_id for message in branch if message.result] == ["a", "b", "c"]


def test_an_answer_of_open_webui_that_ends_with_a_call_ends_with_its_result(tmp_path: Path) -> None:
    messages = {"a": {"role": "assistant", "content": _open_webui_call("a", "read", {}, "x"), "parentId": None}}
    transcript = _only(tmp_path, {"history": {"messages": messages, "currentId": "a"}}).transcript
    assert [message.role for message in transcript.branch] == ["assistant", "tool"]


def test_a_list_of_messages_as_ollama_takes_it_is_one_branch(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url"}]},
        {"role": "assistant", "content": "Hello", "thinking": "greet"},
    ]
    found = _only(tmp_path, {"model": "llama3.2", "messages": messages})
    assert _said(found) == [("user", "Hi"), ("assistant", "Hello")]
    assert found.transcript.messages[1].reasoning == "greet"
    assert (found.transcript.chat.settings.system, found.transcript.chat.title) == ("Be kind.", "Hi")
    assert [fault.place for fault in found.skipped] == ["chat 0.messages[1].content[1]"]


def test_a_file_may_hold_one_chat_a_line(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(_chatgpt(title=str(number))) for number in range(3))
    titles = [
        item.transcript.chat.title for item in read_chats(_file(tmp_path, lines)) if isinstance(item, ImportedChat)
    ]
    assert titles == ["0", "1", "2"]


def test_good_chats_of_a_file_are_imported_and_bad_ones_reported(tmp_path: Path) -> None:
    bad = _chatgpt(title=["no text"])
    items = list(read_chats(_file(tmp_path, [_chatgpt(), bad, {"x": 1}, 7, _chatgpt(mapping={}), _chatgpt()])))
    assert [item.place for item in items if isinstance(item, SkippedItem)] == [
        "chat 1.title",
        "chat 2",
        "chat 3",
        "chat 4",
    ]
    assert sum(isinstance(item, ImportedChat) for item in items) == 2


def test_of_a_file_that_breaks_off_what_came_before_is_taken(tmp_path: Path) -> None:
    whole = json.dumps([_chatgpt(), _chatgpt()])
    first, second = read_chats(_file(tmp_path, whole[:-30]))
    assert isinstance(first, ImportedChat)
    assert isinstance(second, SkippedItem)
    assert "not JSON from character" in second.why


def test_a_cycle_of_nodes_is_reported_and_the_rest_imported(tmp_path: Path) -> None:
    chat = _chatgpt()
    chat["mapping"]["x"] = _node("y", "user", _text("round"))
    chat["mapping"]["y"] = _node("x", "user", _text("and round"))
    found = _only(tmp_path, [chat])
    assert len(found.transcript.messages) == 3
    assert [fault.why for fault in found.skipped] == ["belongs to no branch"] * 2


@pytest.mark.slow
def test_a_very_long_conversation_is_read_without_going_deep(tmp_path: Path, store: ChatStore) -> None:
    mapping = {str(number): _node(str(number - 1), "user", _text("turn")) for number in range(20_000)}
    found = _only(tmp_path, [_chatgpt(mapping=mapping, current_node="19999")])
    chat = store.transcripts.insert(found.transcript)
    assert len(store.transcripts.read(chat.id).branch) == 20_000


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("", "contains no readable chat"),
        ("[]", "contains no readable chat"),
        ("[{}]", "chat 0 is not a chat of localllm, ChatGPT"),
        ("{", "not JSON from character"),
        ("[" * 100_000, "not JSON from character"),
        ('[{"format": "localllm-chat", "version": 6}]', "update localllm"),
        ('{"messages": [{"role": "user", "content": NaN}]}', "not JSON"),
        ('{"messages": [{"role": "wizard", "content": ""}]}', "must be one of assistant"),
    ],
)
def test_a_file_without_a_chat_is_refused_with_the_reason(tmp_path: Path, content: str, cause: str) -> None:
    with pytest.raises(UserError) as refused:
        list(read_chats(_file(tmp_path, content)))
    assert cause in refused.value.cause


def test_files_that_are_no_text_are_refused_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "export"
    for data, cause in ((b"PK\x03\x04", "ZIP"), (b"[\xff]", "byte 1 is invalid")):
        path.write_bytes(data)
        with pytest.raises(UserError, match=cause):
            list(read_chats(path))
    monkeypatch.setattr(importing, "MAX_FILE_BYTES", 2)
    with pytest.raises(UserError, match="larger"):
        list(read_chats(path))
    with pytest.raises(UserError, match="cannot be read"):
        list(read_chats(tmp_path / "none"))


OPENAI_CALLS = [
    {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"path": "x"}'}},
    {"id": "b", "type": "function", "function": {"name": "list", "arguments": "{}"}},
]
OPENAI_MESSAGES = [
    {"role": "user", "content": "Read."},
    {"role": "assistant", "content": None, "tool_calls": OPENAI_CALLS},
    {"role": "tool", "tool_call_id": "b", "content": "files"},
    {"role": "tool", "tool_call_id": "a", "content": "text"},
    {"role": "assistant", "content": "Done."},
]
OLLAMA_MESSAGES = [
    {"role": "user", "content": "Read."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"function": {"name": "read", "arguments": {"path": "x"}}},
            {"function": {"name": "list", "arguments": {}}},
        ],
    },
    {"role": "tool", "tool_name": "list", "content": "files"},
    {"role": "tool", "tool_name": "read", "content": "text"},
    {"role": "assistant", "content": "Done."},
]


@pytest.mark.parametrize("messages", [OPENAI_MESSAGES, OLLAMA_MESSAGES], ids=["OpenAI", "Ollama"])
def test_calls_and_results_of_plain_messages_are_imported(tmp_path: Path, messages: list[dict[str, Any]]) -> None:
    branch = _only(tmp_path, {"messages": messages}).transcript.branch
    assert [message.role for message in branch] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [(call.name, json.loads(call.arguments)) for call in branch[1].calls] == [
        ("read", {"path": "x"}),
        ("list", {}),
    ]
    results = [message.result for message in branch[2:4]]
    assert [(result.tool, result.call_id) for result in results if result] == [
        ("list", branch[1].calls[1].call_id),
        ("read", branch[1].calls[0].call_id),
    ]


def test_a_result_that_no_call_waits_for_is_a_message_without_one(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "z", "content": "text"}]
    branch = _only(tmp_path, {"messages": messages}).transcript.branch
    assert (branch[1].content, branch[1].result) == ("text", None)


def _seeds() -> list[Any]:
    own = {"format": "localllm-chat", "version": 1, "messages": [{"id": 1, "role": "user", "content": "x"}]}
    return [_chatgpt(), _open_webui(), own, _with_tools(), {"messages": OPENAI_MESSAGES}, {"messages": OLLAMA_MESSAGES}]


def _with_tools() -> dict[str, Any]:
    """A chat of localllm whose file would allow every command, and have a file of the person's undone."""
    call = {"call_id": "c", "name": "run_command", "arguments": "{}"}
    change = {"path": "/home/me/.profile", "before": "", "after": "0" * 64}
    result = {"call_id": "c", "tool": "run_command", "outcome": "done", "changes": [change], "is_undone": False}
    allowed = {"scope": "command", "server": "commands", "tool": "run_command", "argv_prefix": ["sh"]}
    denied = {"scope": "server", "server": "web", "is_denied": True}
    tools = {"enabled": ["commands"], "folders": ["/"], "rules": [allowed, denied], "max_rounds": 10**6}
    messages = [
        {"id": 1, "role": "user", "content": "x"},
        {"id": 2, "parent_id": 1, "role": "assistant", "content": "", "calls": [call]},
        {"id": 3, "parent_id": 2, "role": "tool", "content": "", "result": result},
    ]
    return {"format": "localllm-chat", "version": 3, "settings": {"tools": tools}, "messages": messages, "leaf_id": 3}


def test_a_file_switches_no_tool_on_allows_no_call_and_has_nothing_to_undo(tmp_path: Path) -> None:
    read = _only(tmp_path, [_with_tools()])
    tools = read.transcript.chat.settings.tools
    assert (tools.enabled, tools.folders, tools.max_rounds) == ((), (), 1000)
    assert tools.rules == (ApprovalRule("server", "web", is_denied=True),)
    result = read.transcript.messages[2].result
    assert result is not None
    assert (result.tool, result.outcome, result.changes) == ("run_command", ToolOutcome.DONE, ())
    assert len(read.skipped) == 2


_JUNK = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_JUNK |= (
    st.text(st.characters(exclude_categories=()), max_size=5)
    | st.builds(list)
    | st.builds(dict)
    | st.builds(lambda: [{}])
)


@st.composite
def mutants(draw: st.DrawFn) -> Any:
    """A chat of a known format with something else in a few of its places."""
    chat = json.loads(json.dumps(draw(st.sampled_from(_seeds()))))
    for _ in range(draw(st.integers(1, 4))):
        place = chat
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or draw(st.integers(0, 3)) == 0:
                place[key] = draw(_JUNK)
                break
            place = place[key]
    return chat


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(mutants())
def test_any_content_is_imported_or_reported(tmp_path: Path, store: ChatStore, chat: Any) -> None:
    try:
        items = list(read_chats(_file(tmp_path, [chat])))
    except UserError:
        return
    for item in items:
        if isinstance(item, ImportedChat):
            kept = store.transcripts.read(store.transcripts.insert(item.transcript).id)
            assert len(kept.messages) == len(item.transcript.messages)
            assert [message.role for message in kept.branch] == [role for role, _ in _said(item)]


_PNG = base64.b64encode(picture_of()).decode()
_SHA256 = hashlib.sha256(picture_of()).hexdigest()


@pytest.mark.parametrize(
    "message",
    [
        {"content": "What?", "images": [_PNG]},
        {"content": [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": _PNG}}]},
        {"content": [{"type": "image_url", "image_url": f"data:image/gif;base64,{_PNG}"}, {"text": "What?"}]},
        {"content": [{"type": "input_audio", "input_audio": {"data": _PNG, "format": "wav"}}, {"text": "What?"}]},
    ],
)
def test_pictures_of_messages_are_imported_as_what_they_are(tmp_path: Path, message: dict[str, Any]) -> None:
    imported = _only(tmp_path, {"messages": [{"role": "user", **message}]})
    (question,) = imported.transcript.messages
    (attachment,) = question.attachments
    assert (question.content, attachment.name, attachment.media_type) == ("What?", "picture 1", "image/png")
    assert (attachment.media[0].sha256, imported.contents) == (_SHA256, {_SHA256: picture_of()})
    assert imported.skipped == ()


def test_pictures_of_open_webui_are_imported_and_its_other_files_reported(tmp_path: Path) -> None:
    files = [
        {"type": "image", "url": f"data:image/png;base64,{_PNG}"},
        {"type": "image", "url": "/api/v1/files/1"},
        {"type": "file", "name": "notes.md"},
    ]
    node = {"id": "a", "parentId": None, "role": "user", "content": "What?", "files": files}
    imported = _only(tmp_path, {"chat": {"history": {"messages": {"a": node}, "currentId": "a"}}})
    assert [attachment.name for attachment in imported.transcript.messages[0].attachments] == ["picture 1"]
    assert [item.why for item in imported.skipped] == ["is a file, which is not imported"] * 2


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("https://evil.example/pixel.png", "is a link to a picture or file, which is not fetched"),
        ("file:///etc/passwd", "is a link to a picture or file, which is not fetched"),
        ("bm8=", "is no picture or sound in Base64"),
        ("data:image/png;base64,!!", "is no picture or sound in Base64"),
        ("", "is no picture or sound in Base64"),
        (base64.b64encode(b"%PDF-1.7").decode(), "is no picture or sound in Base64"),
    ],
)
def test_what_is_no_picture_is_reported_and_never_fetched(tmp_path: Path, data: str, why: str) -> None:
    imported = _only(tmp_path, {"messages": [{"role": "user", "content": "What?", "images": [data]}]})
    assert [item.why for item in imported.skipped] == [why]
    assert imported.transcript.messages[0].attachments == ()


def _mapped(nodes: dict[str, Any]) -> dict[str, Any]:
    return {"title": "t", "current_node": "", "mapping": nodes}


def _thought(parent: str | None, text: str) -> dict[str, Any]:
    content = {"content_type": "thoughts", "thoughts": [{"content": text}]}
    return {"parent": parent, "message": {"author": {"role": "assistant"}, "content": content}}


def _answer(parent: str, text: str) -> dict[str, Any]:
    content = {"content_type": "text", "parts": [text]}
    return {"parent": parent, "message": {"author": {"role": "assistant"}, "content": content}}


def test_thoughts_before_several_answers_are_the_first_ones(tmp_path: Path) -> None:
    nodes = {"a": _thought(None, "one"), "b": _thought("a", "two"), "c": _answer("b", "c"), "d": _answer("b", "d")}
    messages = _only(tmp_path, _mapped({**nodes, "e": _answer("c", "e")})).transcript.messages
    assert [(message.content, message.reasoning.split()) for message in messages] == [
        ("c", ["one", "two"]),
        ("e", []),
        ("d", []),
    ]


def test_a_chat_does_not_grow_by_thoughts_that_many_answers_follow(tmp_path: Path) -> None:
    nodes: dict[str, Any] = {}
    for number in range(2_000):
        nodes[f"t{number}"] = _thought(f"t{number - 1}" if number else None, "x" * 1_000)
        nodes[f"a{number}"] = _answer(f"t{number}", "y")
    messages = _only(tmp_path, _mapped(nodes)).transcript.messages
    assert len(messages) == 2_000
    assert sum(len(message.reasoning) for message in messages) < 2_100_000


def test_attributes_of_a_call_that_are_one_long_word_are_read_at_once(tmp_path: Path) -> None:
    """From each letter of the word on it was looked for, 10,000,000,000 steps."""
    content = f'<details type="tool_calls" {"a" * 200_000} name="look" id="1" arguments="{{}}"></details>x'
    messages = {"1": {"parentId": None, "role": "assistant", "content": content}}
    chat = {"chat": {"history": {"currentId": "1", "messages": messages}}}
    assert [call.name for message in _only(tmp_path, chat).transcript.messages for call in message.calls] == ["look"]
