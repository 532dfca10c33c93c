"""Import of chats from a file of localllm or another app, and their export to one.

Owns the tables of formats, the limit on a file's size, the recognition of formats, and the report of what was skipped.
Files are untrusted: valid chats are imported, the rest is reported. An exported file appears only when it is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from app.chat.conversation import Message, Transcript
from app.chat.formats.documents import markdown, page
from app.chat.formats.json_reader import ContentOf, FormatError, ImportedChat, JsonField, SkippedItem
from app.chat.formats.localllm import is_localllm, localllm_json, read_localllm
from app.chat.formats.other_apps import (
    is_chatgpt,
    is_open_webui,
    is_plain_messages,
    read_chatgpt,
    read_open_webui,
    read_plain_messages,
)
from app.chat.store.chat_store import ChatStore
from quantizer.system.errors import StorageError, UsageError, UserError
from quantizer.system.files import PRIVATE_FILE, explained, open_regular, read_at_most, write_atomically

MAX_FILE_BYTES = 512 << 20
_KNOWN = "localllm, ChatGPT (conversations.json), Open WebUI, or Ollama's messages"
_SPACE = " \t\r\n"
_AROUND_A_MESSAGE = 100  # characters


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The ids of the imported chats, and what was skipped."""

    ids: tuple[int, ...]
    skipped: tuple[SkippedItem, ...]


_FORMATS: tuple[tuple[Callable[[JsonField], bool], Callable[[JsonField], ImportedChat]], ...] = (
    (is_localllm, read_localllm),
    (is_chatgpt, read_chatgpt),
    (is_open_webui, read_open_webui),
    (is_plain_messages, read_plain_messages),
)


def import_file(path: Path, store: ChatStore) -> ImportResult:
    """Store the chats of a file, each as it is read. Raises as `read_chats` and the store do."""
    ids: list[int] = []
    skipped: list[SkippedItem] = []
    for item in read_chats(path):
        if isinstance(item, SkippedItem):
            skipped.append(item)
        else:
            store.files.keep(item.contents)
            ids.append(store.transcripts.insert(item.transcript).id)
            skipped += item.skipped
    return ImportResult(tuple(ids), tuple(skipped))


def read_chats(path: Path) -> Iterator[ImportedChat | SkippedItem]:
    """Yield each chat of a file as it is read, and each item that could not be read. The chats before an invalid place
    are yielded. Raises UserError for a file that cannot be read or has no chat."""
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
        raise UserError(f"{path.name} contains no readable chat{first}.", f"Give a JSON file of {_KNOWN}.")


def _read(path: Path) -> str:
    with explained(f"{path} cannot be read", "Check the path.", UserError), open_regular(path) as file:
        data = read_at_most(file, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UserError(f"{path.name} is larger than {MAX_FILE_BYTES >> 20} MiB.", "Split it.")
    if data.startswith(b"PK\x03\x04"):
        raise UserError(f"{path.name} is a ZIP file.", "Unpack it and give the conversations.json in it.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path.name} is not UTF-8: byte {error.start:,} is invalid.", "Save it as UTF-8.") from error


def _values(text: str) -> Iterator[JsonField | SkippedItem]:
    """Yield the items of the JSON list `text`, or its concatenated values, up to the first invalid one."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    position, index = _after(text, 0, _SPACE), 0
    if text.startswith("[", position):
        position += 1
    while (position := _after(text, position, _SPACE + ",")) < len(text) and text[position] != "]":
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            at = getattr(error, "pos", position)
            yield SkippedItem(f"chat {index}", f"and the rest are not JSON from character {at:,} on")
            return
        yield JsonField(value, f"chat {index}")
        index += 1


def _after(text: str, position: int, skipped: str) -> int:
    """Return the next position whose character is not in `skipped`."""
    while position < len(text) and text[position] in skipped:
        position += 1
    return position


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _chat(value: JsonField) -> ImportedChat | SkippedItem:
    for recognizes, read in _FORMATS:
        if recognizes(value):
            try:
                return read(value)
            except FormatError as error:
                return SkippedItem(error.place, error.fault)
    return SkippedItem(value.place, f"is not a chat of {_KNOWN}")


Export = Callable[[Iterable[Transcript], ContentOf], Iterator[str]]
EXPORTS: Mapping[str, Export] = {"markdown": markdown, "json": localllm_json, "html": page}
_ENDINGS = {".md": "markdown", ".json": "json", ".html": "html"}


def export_of(path: Path) -> Export:
    """Return the format for a file name's extension. Raises UsageError for an unknown one."""
    if name := _ENDINGS.get(path.suffix.lower()):
        return EXPORTS[name]
    raise UsageError(f"{path.name} has no known extension.", f"End it with {', '.join(_ENDINGS)}.")


class ExportStoppedError(UserError):
    """The person stopped an export."""


class ExportProgress:
    """How far the export of a chat is, and whether it is to stop: asked and told from another thread."""

    def __init__(self, transcript: Transcript) -> None:
        self._n_expected = sum(map(_expected_characters, transcript.messages)) or 1
        self._n_written = 0
        self.is_stopped = False

    @property
    def share(self) -> float:
        """The part that is written, an estimate below 1: formats take different room."""
        return min(self._n_written / self._n_expected, 0.99)

    def watch(self, pieces: Iterable[str]) -> Iterator[str]:
        """Yield the pieces of a document. Raises ExportStoppedError before the next one once it is to stop."""
        for piece in pieces:
            if self.is_stopped:
                raise ExportStoppedError("The export was stopped.", "No file was written.")
            yield piece
            self._n_written += len(piece)


def _expected_characters(message: Message) -> int:
    """Return about how long a message is in a document, with its media in base64."""
    n_media = sum(file.n_bytes * 4 // 3 for each in message.attachments for file in each.media)
    texts = (message.content, message.reasoning, *(each.content for each in message.attachments))
    return n_media + sum(map(len, texts)) + _AROUND_A_MESSAGE


def export_to(path: Path, pieces: Iterable[str]) -> None:
    """Write `pieces` to `path`, for its owner only. Raises StorageError if it exists already, or the disk fails, and
    what iterating over the pieces raises; then there is no file."""
    if os.path.lexists(path):
        raise StorageError(f"{path} exists already.", "Name another file.")
    with explained(f"{path} could not be written", "Name another file."):
        write_atomically(path, pieces, sync=True, mode=PRIVATE_FILE)
