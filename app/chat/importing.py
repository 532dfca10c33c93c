"""A file of chats, from localllm or another app -> transcripts, one after the other, and into the store.

Owns how much of a file is read, which format a chat is of, and what is told of chats that do not fit. Nothing in the
file is trusted: what fits is taken in, and what does not is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from app.chat.formats.chatgpt import is_chatgpt, read_chatgpt
from app.chat.formats.json_reader import FormatError, ImportedChat, JsonField, SkippedItem
from app.chat.formats.localllm import is_localllm, read_localllm
from app.chat.formats.open_webui import is_open_webui, read_open_webui
from app.chat.formats.plain_messages import is_plain_messages, read_plain_messages
from app.chat.store import ChatStore
from quantizer.errors import UserError

__all__ = ["MAX_FILE_BYTES", "ImportResult", "import_file", "read_chats"]

MAX_FILE_BYTES = 512 << 20
_KNOWN = "localllm, ChatGPT (conversations.json), Open WebUI, or Ollama's messages"
_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class _Format:
    recognizes: Callable[[JsonField], bool]
    read: Callable[[JsonField], ImportedChat]


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What came of a file: the ids of the chats that are kept now, and what was left out."""

    ids: tuple[int, ...]
    left_out: tuple[SkippedItem, ...]


_FORMATS = (
    _Format(is_localllm, read_localllm),
    _Format(is_chatgpt, read_chatgpt),
    _Format(is_open_webui, read_open_webui),
    _Format(is_plain_messages, read_plain_messages),
)


def import_file(path: Path, store: ChatStore) -> ImportResult:
    """Keep the chats of a file, each as it is read. Raises what `read_chats` and the store do."""
    ids: list[int] = []
    left_out: list[SkippedItem] = []
    for item in read_chats(path):
        if isinstance(item, SkippedItem):
            left_out.append(item)
        else:
            ids.append(store.transcripts.insert(item.transcript).id)
            left_out += item.left_out
    return ImportResult(tuple(ids), tuple(left_out))


def read_chats(path: Path) -> Iterator[ImportedChat | SkippedItem]:
    """Yield each chat of a file as it is read, and what could not be read.

    Where the file breaks off, the chats before that place were yielded. Raises UserError for a file that cannot be
    read or holds no chat at all.
    """
    faults: list[SkippedItem] = []
    has_chats = False
    for value in _values(_read(path)):
        item = _chat(value) if isinstance(value, JsonField) else value
        if isinstance(item, SkippedItem):
            faults.append(item)
        has_chats = has_chats or isinstance(item, ImportedChat)
        yield item
    if not has_chats:
        first = f": {faults[0].place} {faults[0].why}" if faults else ""
        raise UserError(f"{path.name} holds no chat that could be read{first}.", f"Give a JSON file of {_KNOWN}.")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.", "Check the path.") from error
    if len(data) > MAX_FILE_BYTES:
        raise UserError(f"{path.name} is larger than {MAX_FILE_BYTES >> 20} MiB.", "Split it.")
    if data.startswith(b"PK\x03\x04"):
        raise UserError(f"{path.name} is a ZIP file.", "Unpack it and give the conversations.json in it.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path.name} is no UTF-8 text: byte {error.start:,} is wrong.", "Save it as UTF-8.") from error


def _values(text: str) -> Iterator[JsonField | SkippedItem]:
    """Yield the items of the list that `text` is, or the values in it one after the other, up to where it breaks."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    position, index = _after(text, 0, _SPACE), 0
    if text.startswith("[", position):
        position += 1
    while (position := _after(text, position, _SPACE + ",")) < len(text) and text[position] != "]":
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            at = getattr(error, "pos", position)
            yield SkippedItem(f"chat {index}", f"and what follows is not JSON from character {at:,} on")
            return
        yield JsonField(value, f"chat {index}")
        index += 1


def _after(text: str, position: int, skipped: str) -> int:
    """The next position whose character is none of `skipped`."""
    while position < len(text) and text[position] in skipped:
        position += 1
    return position


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _chat(value: JsonField) -> ImportedChat | SkippedItem:
    for known in _FORMATS:
        if known.recognizes(value):
            try:
                return known.read(value)
            except FormatError as error:
                return SkippedItem(error.place, error.fault)
    return SkippedItem(value.place, f"is no chat of {_KNOWN}")
