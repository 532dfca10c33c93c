"""The pictures, sounds and documents of a turn: which its model reads, and what stands for them in its prompt.

A picture or sound is a marker made of a random number that no other turn has, so no text of a user, a tool or a file
can contain one; a document is its text; what the model does not read, or nobody could, is a note. Documents are
remembered: clients send the whole conversation each time.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import unquote

from app.common.media_formats import MediaKind, format_of
from app.engine.request import MAX_MEDIA, MediaInput, Request
from app.protocol.chat import Message
from app.protocol.errors import RequestError
from app.service.fair_places import FairPlaces
from app.service.models.model_file import TEXT_ONLY, Senses
from app.service.threads import in_thread
from quantizer.system.errors import UserError

if TYPE_CHECKING:
    from app.chat.attachments.parser_process import ReadBudget

MAX_REMEMBERED_CHARACTERS = 16 << 20
MAX_AT_ONCE = 2
_REMEDY = "Send its text."


@dataclass(frozen=True, slots=True)
class Document:
    """A file as a client sends it: `source` is its content in Base64 or a data URL, `name` that of the file."""

    name: str
    source: str

    @property
    def shown_name(self) -> str:
        return self.name[:_MOST_SHOWN]

    def data(self) -> bytes:
        """Return the content. Raises RequestError for invalid Base64."""
        text = self.source.partition(",")[2] if self.source[:5].lower() == "data:" else self.source
        try:
            return b64decode("".join(text.split()), validate=True)
        except ValueError:
            raise RequestError(f"{self.shown_name} is not valid Base64.", "Send the file in Base64.") from None


ReadDocuments: TypeAlias = Mapping[Document, str | RequestError]  # the text of each, or why it cannot be read


class DocumentReader:
    """Reads documents, and remembers the latest. The clients take turns; what those of one request take is bounded in
    all."""

    def __init__(self, total_s: float | None = None) -> None:
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._places = FairPlaces(MAX_AT_ONCE)
        self._total_s = total_s

    async def read(self, documents: Iterable[Document], client: str = "") -> ReadDocuments:
        """Return the text of each of the documents of one request. Cancelling this ends the process that reads."""
        from app.chat.attachments.parser_process import TOTAL_S, ReadBudget  # documents are rare

        budget = ReadBudget(TOTAL_S if self._total_s is None else self._total_s)
        try:
            return {document: await self._read(document, client, budget) for document in documents}
        except asyncio.CancelledError:
            budget.stop()
            raise

    async def _read(self, document: Document, client: str, budget: ReadBudget) -> str | RequestError:
        try:
            data = document.data()
        except RequestError as error:
            return error
        digest = hashlib.sha256(document.name.encode("utf-8", "replace") + b"\0" + data).digest()
        if digest not in self._texts:
            try:
                async with self._places.place_of(client):
                    self._texts[digest] = await _text_of(data, document.shown_name, budget)
            except UserError as error:
                return RequestError(error.cause, error.remedy)
        self._texts.move_to_end(digest)
        text = self._texts[digest]
        while len(self._texts) > 1 and sum(map(len, self._texts.values())) > MAX_REMEMBERED_CHARACTERS:
            self._texts.popitem(last=False)
        return text


@in_thread
def _text_of(data: bytes, name: str, budget: ReadBudget) -> str:
    from app.chat.attachments.parsing import ALL_PAGES
    from app.chat.attachments.prompt import compose_prompt  # documents are rare, and the service starts without them
    from app.chat.attachments.reader import read_data

    attachment = read_data(data, name, ALL_PAGES, budget).attachment
    if not attachment.content.strip():
        raise RequestError(f"{name} has no text that could be read.", _REMEDY)
    return compose_prompt("", [attachment])


# What a type of content is called in the note that replaces it; others by their type.
_KINDS = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("audio", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
    "document": "document",
    **dict.fromkeys(("file", "input_file"), "file"),
}
_ASKED = {"image": "a picture", "audio": "a sound", "video": "a video", "document": "a document", "file": "a file"}
_MOST_SHOWN = 100
_UNREAD, _REFUSED = ": not readable for this model, which reads ", ": left out, it could not be read]"
_NOTE = re.compile(f"{re.escape(_UNREAD)}|{re.escape(_REFUSED)}")


class UnreadableError(RequestError):
    """The user has just sent content of a type that the model, which has `senses`, does not read."""

    def __init__(self, content_type: str, senses: Senses = TEXT_ONLY, remedy: str = "Ask again in words.") -> None:
        kind = _KINDS.get(content_type, content_type)
        what = _ASKED.get(kind, f"content of type {content_type[:40]!r}")
        super().__init__(f"The question has {what}, but this model reads {senses.described}.", remedy)
        self.content_type = content_type
        self.senses = senses

    @property
    def kind(self) -> str:
        return _KINDS.get(self.content_type, self.content_type)


def note_of_unreadable(content_type: str, name: str = "", senses: Senses = TEXT_ONLY) -> str:
    return f"[{_called(content_type, name)}{_UNREAD}{senses.described}]"


def note_of_refused(content_type: str, name: str = "") -> str:
    """Return the text that stands in a conversation for content that is damaged, or that may not be fetched."""
    return f"[{_called(content_type, name)}{_REFUSED}"


def _called(content_type: str, name: str) -> str:
    kind = _KINDS.get(content_type, content_type[:_MOST_SHOWN])
    return f"{kind} {name[:_MOST_SHOWN]}" if name else kind


def notice_of_notes(messages: Sequence[Message], senses: Senses = TEXT_ONLY) -> str:
    """Return what the client is told of the notes in `messages`, "" where there are none."""
    n_notes = sum(len(_NOTE.findall(message.content)) for message in messages)
    if not n_notes:
        return ""
    what = "A picture or file of the conversation is" if n_notes == 1 else f"{n_notes} pictures or files are"
    reads = "text" if senses == TEXT_ONLY else senses.described
    return f"{what} only named to the model, which reads {reads}."


MAX_MEDIA_BYTES = 96 << 20  # Base64 of one prompt: it has to pass the worker's pipe in one message
_ANY_TYPES = ("", "application/octet-stream", "text/plain")  # text/plain is what a data URL without a type has

_N_BEGIN = 1024  # characters of Base64 by which a file's kind is told
_MIME_TYPES: Mapping[MediaKind, str] = {MediaKind.PICTURE: "image", MediaKind.SOUND: "audio"}


@dataclass(frozen=True, slots=True)
class Medium:
    """A picture or sound as a client sends it: `source` is its file in Base64, a data URL, or an address."""

    kind: MediaKind
    source: str

    @classmethod
    def of(cls, base64: str) -> Medium:
        """Return the medium of a file of which a client does not say what it is: its first bytes do."""
        try:
            return cls(format_of(b64decode(base64[:_N_BEGIN])).kind, base64)
        except (ValueError, RequestError):  # whoever reads it says what is wrong
            return cls(MediaKind.PICTURE, base64)

    @property
    def is_address(self) -> bool:
        return self.source[:8].lower().startswith(("http://", "https://"))

    def base64(self) -> str:
        """Return the file in Base64. Raises RequestError for anything else, and for an empty file."""
        is_data_url = self.source[:5].lower() == "data:"
        scheme, separator, _ = self.source[:64].partition("://")
        if separator and not is_data_url:
            cause = f"The address of a {self.kind} begins with {scheme[:20]}://, which is not read."
            raise RequestError(cause, "Send the file itself, as a data URL in Base64.")
        text = self.source
        if is_data_url:
            head, comma, data = text.partition(",")
            mime_type = head[len("data:") :].partition(";")[0].lower()
            wanted = _MIME_TYPES[self.kind]
            if not comma or not head.lower().endswith(";base64"):
                cause = f"The data URL of a {self.kind} has no Base64."
                raise RequestError(cause, f"Write data:{wanted}/TYPE;base64,DATA.")
            if not (mime_type.startswith(f"{wanted}/") or mime_type in _ANY_TYPES):
                cause = f"A data URL of the type {mime_type[:40]!r} is no {self.kind}."
                raise RequestError(cause, f"Send a {self.kind}.")
            text = unquote(data) if "%" in data else data
        if any(character in text for character in " \r\n\t"):
            text = "".join(text.split())
        try:
            is_empty = not b64decode(text, validate=True)
        except ValueError:
            raise RequestError(f"A {self.kind} is not valid Base64.", "Send its file in Base64.") from None
        if is_empty:
            raise RequestError(f"A {self.kind} has no content.", "Send its file in Base64.")
        return text


@dataclass(frozen=True, slots=True)
class ContentText:
    """A part of a message's text: a text, or the marker of a picture or sound. One that `continues` goes on with the
    text before it, without a separator."""

    text: str
    is_marker: bool = False
    continues: bool = False


class MediaFetcher(Protocol):
    """Fetches pictures and sounds from the web; see `app.service.generation.media`."""

    async def fetch(self, address: str) -> bytes:
        """Return the file at `address`. Raises RequestError for one that may not be read, or cannot."""


class PromptMedia:
    """The pictures and sounds of one turn, for a model with `senses`; those at addresses are read by `fetcher`, if any.
    Of documents it has the texts, where these are read at all: who finds some `unread` reads them for another turn.

    What the model does not read, or nobody could, becomes a note in the text, but for what has just been asked about:
    `fault` says why, and who makes the turn refuses it.
    """

    def __init__(
        self, senses: Senses = TEXT_ONLY, fetcher: MediaFetcher | None = None, documents: ReadDocuments | None = None
    ) -> None:
        self.senses = senses
        self.unread: list[Document] = []
        self._documents = documents
        self._fetcher = fetcher
        self._nonce = secrets.token_hex(16)
        self._markers: dict[Medium, str] = {}
        self._files: dict[Medium, str] = {}
        self._faults: dict[Medium, RequestError | None] = {}

    def fault(self, medium: Medium) -> RequestError | None:
        """Return why `medium` cannot be read, None where it can."""
        if not self._reads(medium.kind):
            return UnreadableError(_MIME_TYPES[medium.kind], self.senses)
        if medium in self._faults:
            return self._faults[medium]
        fault: RequestError | None = None
        if not medium.is_address:
            try:
                self._files[medium] = medium.base64()
            except RequestError as error:
                fault = error
        elif not self._fetcher:
            cause = f"The {medium.kind} is an address on the web, and localllm fetches none."
            allow = "or allow it: fetch_media_urls = true in the settings."
            fault = RequestError(cause, f"Send the file itself, as a data URL in Base64, {allow}")
        self._faults[medium] = fault
        return fault

    def leave_out(self, medium: Medium) -> None:
        """Let `medium` be a note: the engine has refused it before."""
        self._faults[medium] = RequestError(f"A {medium.kind} could not be read before.", "Send another file.")

    def part_of(self, medium: Medium) -> ContentText:
        """Return what stands for `medium` in the text of its message: its marker, or a note."""
        if self.fault(medium) is None:
            marker = f"__media_{self._nonce}_{len(self._markers)}__"
            return ContentText(self._markers.setdefault(medium, marker), is_marker=True)
        name, is_read = _MIME_TYPES[medium.kind], self._reads(medium.kind)
        return ContentText(note_of_refused(name) if is_read else note_of_unreadable(name, senses=self.senses))

    @property
    def reads_documents(self) -> bool:
        return self._documents is not None

    def document_fault(self, document: Document) -> RequestError | None:
        """Return why `document` cannot be read, None where it can, or is not read yet."""
        if self._documents is None:
            return UnreadableError("document", self.senses, "Send its text.")
        found = self._found(document)
        return found if isinstance(found, RequestError) else None

    def document_part(self, document: Document) -> ContentText:
        found = self._found(document)
        return ContentText(found if isinstance(found, str) else note_of_refused("document", document.shown_name))

    @property
    def markers(self) -> tuple[str, ...]:
        """The marker of each picture and sound, in the order in which they came."""
        return tuple(self._markers.values())

    async def inputs(self, prompt: str) -> tuple[MediaInput, ...]:
        """Return those whose markers `prompt` has: templates may leave out earlier turns. Raises RequestError for more
        than MAX_MEDIA or MAX_MEDIA_BYTES, and where one cannot be fetched."""
        found = [(medium, marker) for medium, marker in self._markers.items() if marker in prompt]
        if len(found) > MAX_MEDIA:
            cause = f"The conversation has {len(found)} pictures and sounds."
            raise RequestError(cause, f"Send at most {MAX_MEDIA}: leave out the oldest.")
        await asyncio.gather(*(self._fetch(medium) for medium, _ in found if medium not in self._files))
        n_bytes = sum(len(self._files[medium]) for medium, _ in found)
        if n_bytes > MAX_MEDIA_BYTES:
            cause = f"The pictures and sounds of the conversation are {n_bytes >> 20} MiB in Base64."
            raise RequestError(cause, f"Send at most {MAX_MEDIA_BYTES >> 20} MiB: smaller files, or fewer.")
        return tuple(MediaInput(marker, self._files[medium]) for medium, marker in found)

    async def in_request(self, request: Request) -> Request:
        media = await self.inputs(request.prompt) if isinstance(request.prompt, str) else ()
        return replace(request, media=media) if media else request

    def with_public_markers(self, prompt: str, public_marker: str) -> str:
        """Return `prompt` as it is shown, with `public_marker` in place of those of this turn."""
        for marker in self._markers.values():
            prompt = prompt.replace(marker, public_marker)
        return prompt

    def _found(self, document: Document) -> str | RequestError | None:
        known = self._documents or {}
        if document not in known and document not in self.unread:
            self.unread.append(document)
        return known.get(document)

    def _reads(self, kind: MediaKind) -> bool:
        return self.senses.sees if kind is MediaKind.PICTURE else self.senses.hears

    async def _fetch(self, medium: Medium) -> None:
        assert self._fetcher is not None, "an address has a marker only where it may be read"
        data = await self._fetcher.fetch(medium.source)
        self._files[medium] = b64encode(data).decode()


NO_MEDIA = PromptMedia()  # of turns of text alone: nothing is ever added to it


def joined_parts(parts: Iterable[ContentText], separator: str) -> tuple[str, tuple[int, ...]]:
    """Return the parts of a message as its text, with `separator` between two texts but none around a marker, as
    llama-server's `concat_content_parts` does, and its `part_ends`: who asks about the same documents or pictures
    again sends the same parts before another question."""
    text, follows_text = "", False
    ends: list[int] = []
    for part in parts:
        if part.text:
            if follows_text and not (part.is_marker or part.continues):
                text += separator
            if text:
                ends.append(len(text))
            text += part.text
            follows_text = not part.is_marker
    return text, tuple(ends)
