"""localllm's own format, which imports without loss: a JSON object with format and version.

Owns its keys. Every branch, statistic and setting is kept, pictures and sounds in Base64; newer versions are rejected.
A file switches no tool on, names no folder and allows no call; only refusals and the limit of rounds are imported, and
no changes of files, so that nobody undoes what was never done here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from app.chat.conversation import (
    ROLES,
    Attachment,
    Chat,
    ChatSettings,
    Message,
    MessageContent,
    MessageState,
    Scalar,
    Transcript,
    searched_texts,
)
from app.chat.formats.json_reader import (
    ContentOf,
    FormatError,
    ImportedChat,
    ImportedMedia,
    JsonField,
    SkippedItem,
    TreeNode,
    import_tree,
)
from app.protocol.chat import Source, ToolCall
from app.protocol.codec import encode
from app.tools.approval import DEFAULT_MAX_ROUNDS, MAX_ROUNDS, NO_TOOL_SETTINGS, ApprovalRule, ToolSettings
from app.tools.tool import ToolOutcome, ToolResult

_OUTCOMES = tuple(each.value for each in ToolOutcome)
_FORMAT = "localllm-chat"
_VERSION = 1
_VERSION_WITH_MEDIA = 2  # one that knows no media must not lose them silently
_VERSION_WITH_TOOLS = 3  # the same of calls, results, summaries and settings of tools
_VERSION_WITH_SOURCES = 4  # and of the passages that answers cite
_VERSION_WITH_SEARCHED_TEXTS = 5  # and that a text is searched, not sent
_VERSIONS = range(_VERSION, _VERSION_WITH_SEARCHED_TEXTS + 1)


def localllm_json(transcripts: Iterable[Transcript], content_of: ContentOf) -> Iterator[str]:
    """Yield, in pieces, a JSON list of whole chats, one per line; ASCII, so that it is safe in a terminal."""
    separator = "[\n"
    for transcript in transcripts:
        yield separator
        yield from _exported(transcript, content_of)
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def is_localllm(chat: JsonField) -> bool:
    return chat.at("format").value == _FORMAT


def read_localllm(chat: JsonField) -> ImportedChat:
    """Return the chat. Raises FormatError for a newer version or an invalid value."""
    if chat.at("version").value not in _VERSIONS:
        raise FormatError(chat.at("version").place, "is not supported: update localllm")
    media = ImportedMedia()
    settings = chat.at("settings")
    nodes = {_key(message.at("id")): _node(message, media) for message in chat.at("messages").items()}
    header = Chat(
        id=1,
        title=chat.at("title").text(),
        model=chat.at("model").text(),
        created_ms=chat.at("created_ms").moment_ms(),
        updated_ms=chat.at("updated_ms").moment_ms(),
        is_pinned=chat.at("is_pinned").flag(),
        is_archived=chat.at("is_archived").flag(),
        settings=ChatSettings(
            settings.at("system").text(),
            _scalars(settings.at("options")),
            _tool_settings(settings.at("tools"), media.skipped),
        ),
    )
    transcript, unreached = import_tree(header, nodes, _key(chat.at("leaf_id")), chat.place)
    unread = [SkippedItem(f"{chat.place}, message {key}", "belongs to no branch") for key in unreached]
    return ImportedChat(transcript, (*media.skipped, *unread), media.contents)


def _exported(transcript: Transcript, content_of: ContentOf) -> Iterator[str]:
    """Yield a chat as one JSON object, a message at a time: its media are not all in memory at once."""
    chat = asdict(transcript.chat)
    if transcript.chat.settings.tools == NO_TOOL_SETTINGS:
        del chat["settings"]["tools"]
    head = json.dumps({"format": _FORMAT, "version": _version(transcript), **chat, "messages": []})
    yield head.removesuffix("]}")
    for number, message in enumerate(transcript.messages):
        yield f"{', ' if number else ''}{json.dumps(_exported_message(message, content_of))}"
    yield "]}"


def _version(transcript: Transcript) -> int:
    """Return the version that a reader must know so as to lose nothing."""
    messages = transcript.messages
    if searched_texts(messages):
        return _VERSION_WITH_SEARCHED_TEXTS
    if any(each.sources or (each.result and each.result.sources) for each in messages):
        return _VERSION_WITH_SOURCES
    has_tools = transcript.chat.settings.tools != NO_TOOL_SETTINGS
    if has_tools or any(each.calls or each.result or each.role == "summary" for each in messages):
        return _VERSION_WITH_TOOLS
    has_media = any(attachment.media for message in messages for attachment in message.attachments)
    return _VERSION_WITH_MEDIA if has_media else _VERSION


def _exported_message(message: Message, content_of: ContentOf) -> dict[str, object]:
    attachments = []
    for each in message.attachments:
        media = [{**asdict(file), "base64": base64.b64encode(content_of(file)).decode()} for file in each.media]
        fields = {**asdict(each), "media": media}
        if not each.is_searched:
            del fields["is_searched"]
        attachments.append(fields)
    exported = {**encode(message), "attachments": attachments}
    unused = [name for name in ("calls", "result", "n_kept", "sources") if not exported[name]]
    return {name: value for name, value in exported.items() if name not in unused}


def _key(number: JsonField) -> str:
    """Return an id as a node's key; empty if not given."""
    if isinstance(number.value, int | None):
        return "" if number.value is None else str(number.value)
    raise FormatError(number.place, "is not an id")


def _node(message: JsonField, media: ImportedMedia) -> TreeNode:
    role, state = message.at("role").text(), message.at("state").text()
    if role not in ROLES:
        raise FormatError(message.at("role").place, f"must be one of {', '.join(sorted(ROLES))}")
    content = MessageContent(
        role=role,  # type: ignore[arg-type]  # one of ROLES
        content=message.at("content").text(),
        reasoning=message.at("reasoning").text(),
        attachments=tuple(
            read for attachment in message.at("attachments").items() for read in _attachments(attachment, media)
        ),
        model=message.at("model").text(),
        stats=_scalars(message.at("stats")),
        state=MessageState.PARTIAL if state == MessageState.PARTIAL.value else MessageState.FINISHED,
        created_ms=message.at("created_ms").moment_ms(),
        calls=tuple(
            ToolCall(call.at("call_id").text(), call.at("name").text(), call.at("arguments").text())
            for call in message.at("calls").items()
        ),
        result=_result(message.at("result"), media.skipped),
        n_kept=int(message.at("n_kept").number()),
        sources=_sources(message.at("sources")),
    )
    return TreeNode(_key(message.at("parent_id")) or None, content)


def _attachments(attachment: JsonField, media: ImportedMedia) -> tuple[Attachment, ...]:
    """Return the attachment, none if it was nothing but media that could not be read."""
    read = [media.file(file.at("base64")) for file in attachment.at("media").items()]
    content = attachment.at("content").text()
    if read and not content and not any(read):
        return ()
    return (
        Attachment(
            attachment.at("name").text(),
            content,
            attachment.at("media_type").text(),
            attachment.at("detail").text(),
            tuple(file for file in read if file is not None),
            attachment.at("is_searched").flag(),
        ),
    )


def _result(result: JsonField, skipped: list[SkippedItem]) -> ToolResult | None:
    """Return the result of a call, None if not given; what it changed is added to `skipped`."""
    if not result.is_given:
        return None
    outcome, changes = result.at("outcome"), result.at("changes")
    if outcome.text() not in _OUTCOMES:
        raise FormatError(outcome.place, f"must be one of {', '.join(_OUTCOMES)}")
    if any(changes.items()):
        skipped.append(SkippedItem(changes.place, "is about files, which cannot be undone from an imported chat"))
    return ToolResult(
        call_id=result.at("call_id").text(),
        tool=result.at("tool").text(),
        server=result.at("server").text(),
        title=result.at("title").text(),
        outcome=ToolOutcome(outcome.text()),
        detail=result.at("detail").text(),
        n_bytes=int(result.at("n_bytes").number()),
        duration_s=result.at("duration_s").number(),
        diff=result.at("diff").text(),
        is_undone=result.at("is_undone").flag(),
        sources=_sources(result.at("sources")),
    )


def _sources(sources: JsonField) -> tuple[Source, ...]:
    return tuple(
        Source(
            source.at("path").text(),
            source.at("text").text(),
            int(source.at("begin").number()),
            int(source.at("end").number()),
            int(source.at("page").number()) if source.at("page").is_given else None,
            source.at("heading").text(),
        )
        for source in sources.items()
    )


def _tool_settings(tools: JsonField, skipped: list[SkippedItem]) -> ToolSettings:
    """Return the tools of a chat without what only a person may decide, which is added to `skipped`."""
    if not tools.is_given:
        return NO_TOOL_SETTINGS
    rules = [_rule(rule) for rule in tools.at("rules").items()]
    denials = tuple(rule for rule in rules if rule.is_denied)
    if any((*tools.at("enabled").items(), *tools.at("folders").items())) or len(denials) < len(rules):
        skipped.append(SkippedItem(tools.place, "switches tools on or allows calls, which only you do: see /tools"))
    n_rounds = int(tools.at("max_rounds").number()) or DEFAULT_MAX_ROUNDS
    return ToolSettings(rules=denials, max_rounds=min(n_rounds, MAX_ROUNDS))


def _rule(rule: JsonField) -> ApprovalRule:
    scope = rule.at("scope")
    if scope.text() not in ("tool", "server", "command"):
        raise FormatError(scope.place, "must be one of command, server, tool")
    return ApprovalRule(
        scope.text(),  # type: ignore[arg-type]  # one of these
        rule.at("server").text(),
        rule.at("tool").text(),
        is_denied=rule.at("is_denied").flag(),
        argv_prefix=tuple(argument.text() for argument in rule.at("argv_prefix").items()),
    )


def _scalars(fields: JsonField) -> dict[str, Scalar]:
    scalars: dict[str, Scalar] = {}
    for name, field in fields.entries():
        if not isinstance(field.value, Scalar):
            raise FormatError(field.place, "is neither text, number nor boolean")
        scalars[name] = field.value
    return scalars
