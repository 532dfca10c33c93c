"""The pictures and sounds of a turn: which of them its model reads, and the markers that stand for them in its prompt.

Owns markers, the checks of what a client sends (Base64, data URLs, addresses), and how many bytes a prompt may have.
A marker is made of a random number that no other turn has, so no text of a user, a tool or a file can contain one.
Independent of dialects, templates and file formats.
"""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import unquote

from app.common.media_formats import MediaKind, format_of
from app.engine.request import MAX_MEDIA, MediaInput, Request
from app.protocol.errors import RequestError
from app.service.generation.documents import Document, ReadDocuments
from app.service.generation.unreadable_content import UnreadableError, note_of_refused, note_of_unreadable
from app.service.models.model_file import TEXT_ONLY, Senses

MAX_MEDIA_BYTES = 96 << 20  # Base64 of one prompt: it has to pass the worker's pipe in one message
_ADDRESSES = ("http://", "https://")
_BASE64 = ";base64"
_NONCE_BYTES = 16
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
        return self.source[:8].lower().startswith(_ADDRESSES)

    def base64(self) -> str:
        """Return the file in Base64. Raises RequestError for anything else, and for an empty file."""
        text = self._encoded() if self.source[:5].lower() == "data:" else self._without_scheme()
        if any(character in text for character in " \r\n\t"):
            text = "".join(text.split())
        try:
            is_empty = not b64decode(text, validate=True)
        except ValueError:
            raise RequestError(f"A {self.kind} is not valid Base64.", "Send its file in Base64.") from None
        if is_empty:
            raise RequestError(f"A {self.kind} has no content.", "Send its file in Base64.")
        return text

    def _without_scheme(self) -> str:
        scheme, separator, _ = self.source[:64].partition("://")
        if separator:
            cause = f"The address of a {self.kind} begins with {scheme[:20]}://, which is not read."
            raise RequestError(cause, "Send the file itself, as a data URL in Base64.")
        return self.source

    def _encoded(self) -> str:
        """Return what a data URL has in Base64."""
        head, comma, data = self.source.partition(",")
        mime_type = head[len("data:") :].partition(";")[0].lower()
        wanted = _MIME_TYPES[self.kind]
        if not comma or not head.lower().endswith(_BASE64):
            cause = f"The data URL of a {self.kind} has no Base64."
            raise RequestError(cause, f"Write data:{wanted}/TYPE;base64,DATA.")
        if not (mime_type.startswith(f"{wanted}/") or mime_type in _ANY_TYPES):
            raise RequestError(f"A data URL of the type {mime_type[:40]!r} is no {self.kind}.", f"Send a {self.kind}.")
        return unquote(data) if "%" in data else data


@dataclass(frozen=True, slots=True)
class ContentText:
    """A part of a message's text: a text, or the marker of a picture or sound."""

    text: str
    is_marker: bool = False


class MediaFetcher(Protocol):
    """Fetches pictures and sounds from the web; see `app.service.generation.media_fetching`."""

    async def fetch(self, address: str) -> bytes:
        """Return the file at `address`. Raises RequestError for one that may not be read, or cannot."""
        ...


class PromptMedia:
    """The pictures and sounds of one turn, for a model with `senses`; those at addresses are read by `fetcher`, if any.
    Of documents it has the texts, where these are read at all: who finds some `unread` reads them for another turn.

    What the model does not read, or nobody could, becomes a note in the text, but for what has just been asked about:
    `fault` says why, and who makes the turn refuses it.
    """

    def __init__(
        self,
        senses: Senses = TEXT_ONLY,
        fetcher: MediaFetcher | None = None,
        documents: ReadDocuments | None = None,
    ) -> None:
        self.senses = senses
        self.unread: list[Document] = []
        self._documents = documents
        self._fetcher = fetcher
        self._nonce = secrets.token_hex(_NONCE_BYTES)
        self._markers: dict[Medium, str] = {}
        self._files: dict[Medium, str] = {}
        self._faults: dict[Medium, RequestError | None] = {}

    def fault(self, medium: Medium) -> RequestError | None:
        """Return why `medium` cannot be read, None where it can."""
        if not self._reads(medium.kind):
            return UnreadableError(_MIME_TYPES[medium.kind], self.senses)
        if medium not in self._faults:
            self._faults[medium] = self._found_fault(medium)
        return self._faults[medium]

    def leave_out(self, medium: Medium) -> None:
        """Let `medium` be a note: the engine has refused it before."""
        self._faults[medium] = RequestError(f"A {medium.kind} could not be read before.", "Send another file.")

    def part_of(self, medium: Medium) -> ContentText:
        """Return what stands for `medium` in the text of its message: its marker, or a note."""
        if self.fault(medium) is None:
            marker = f"__media_{self._nonce}_{len(self._markers)}__"
            return ContentText(self._markers.setdefault(medium, marker), is_marker=True)
        name = _MIME_TYPES[medium.kind]
        is_read = self._reads(medium.kind)
        note = note_of_refused(name) if is_read else note_of_unreadable(name, senses=self.senses)
        return ContentText(note)

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
        """Return the text of `document`, or the note in its place."""
        found = self._found(document)
        return ContentText(found if isinstance(found, str) else note_of_refused("document", document.shown_name))

    @property
    def markers(self) -> tuple[str, ...]:
        """The marker of each picture and sound, in the order in which they came."""
        return tuple(self._markers.values())

    async def inputs(self, prompt: str) -> tuple[MediaInput, ...]:
        """Return those whose markers `prompt` has: templates may leave out earlier turns.

        Raises RequestError for more than MAX_MEDIA or MAX_MEDIA_BYTES, and where one cannot be fetched.
        """
        found = [(medium, marker) for medium, marker in self._markers.items() if marker in prompt]
        if len(found) > MAX_MEDIA:
            cause = f"The conversation has {len(found)} pictures and sounds."
            raise RequestError(cause, f"Send at most {MAX_MEDIA}: leave out the oldest.")
        addresses = [medium for medium, _ in found if medium not in self._files]
        await asyncio.gather(*(self._fetch(medium) for medium in addresses))
        n_bytes = sum(len(self._files[medium]) for medium, _ in found)
        if n_bytes > MAX_MEDIA_BYTES:
            cause = f"The pictures and sounds of the conversation are {n_bytes >> 20} MiB in Base64."
            raise RequestError(cause, f"Send at most {MAX_MEDIA_BYTES >> 20} MiB: smaller files, or fewer.")
        return tuple(MediaInput(marker, self._files[medium]) for medium, marker in found)

    async def in_request(self, request: Request) -> Request:
        """Return `request` with those that stand in its prompt. Raises RequestError as `inputs`."""
        media = await self.inputs(request.prompt) if isinstance(request.prompt, str) else ()
        return replace(request, media=media) if media else request

    def with_public_markers(self, prompt: str, public_marker: str) -> str:
        """Return `prompt` as it is shown, with `public_marker` in place of those of this turn."""
        for marker in self._markers.values():
            prompt = prompt.replace(marker, public_marker)
        return prompt

    def _found(self, document: Document) -> str | RequestError | None:
        """Return what is known of a document; one of which nothing is known is `unread`."""
        known = self._documents or {}
        if document not in known and document not in self.unread:
            self.unread.append(document)
        return known.get(document)

    def _reads(self, kind: MediaKind) -> bool:
        return self.senses.sees if kind is MediaKind.PICTURE else self.senses.hears

    def _found_fault(self, medium: Medium) -> RequestError | None:
        if medium.is_address:
            return None if self._fetcher else _unfetched(medium)
        try:
            self._files[medium] = medium.base64()
        except RequestError as error:
            return error
        return None

    async def _fetch(self, medium: Medium) -> None:
        assert self._fetcher is not None, "an address has a marker only where it may be read"
        data = await self._fetcher.fetch(medium.source)
        self._files[medium] = b64encode(data).decode()


NO_MEDIA = PromptMedia()  # of turns of text alone: nothing is ever added to it


def joined_content(parts: Iterable[ContentText], separator: str) -> str:
    """Return the parts of a message as its text, with `separator` between two texts but none around a marker.

    Source: llama-server's `concat_content_parts`, so that a prompt is the same as there.
    """
    text, follows_text = "", False
    for part in parts:
        if part.text:
            text += separator + part.text if follows_text and not part.is_marker else part.text
            follows_text = not part.is_marker
    return text


def _unfetched(medium: Medium) -> RequestError:
    cause = f"The {medium.kind} is an address on the web, and localllm fetches none."
    remedy = "Send the file itself, as a data URL in Base64, or allow it: fetch_media_urls = true in the settings."
    return RequestError(cause, remedy)
