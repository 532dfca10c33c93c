"""Documents that clients send whole, such as PDFs, as the text in them.

Owns what is sent, and the memory of what was read: clients send the whole conversation each time. How a file is read,
in a child process with limits, is `app.chat.attachments`' to know.
"""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from app.protocol.errors import RequestError
from app.service.threads import in_thread
from quantizer.system.errors import UserError

MAX_REMEMBERED_CHARACTERS = 16 << 20
MAX_AT_ONCE = 2
_MOST_SHOWN = 100
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
    """Reads documents, and remembers the latest."""

    def __init__(self) -> None:
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._running = asyncio.Semaphore(MAX_AT_ONCE)

    async def read(self, documents: Iterable[Document]) -> ReadDocuments:
        """Return the texts of `documents`."""
        return {document: await self._read(document) for document in documents}

    async def _read(self, document: Document) -> str | RequestError:
        try:
            data = document.data()
        except RequestError as error:
            return error
        digest = hashlib.sha256(document.name.encode("utf-8", "replace") + b"\0" + data).digest()
        if digest not in self._texts:
            try:
                async with self._running:
                    self._texts[digest] = await _text_of(data, document.shown_name)
            except UserError as error:
                return RequestError(error.cause, error.remedy)
        self._texts.move_to_end(digest)
        text = self._texts[digest]
        while len(self._texts) > 1 and sum(map(len, self._texts.values())) > MAX_REMEMBERED_CHARACTERS:
            self._texts.popitem(last=False)
        return text


@in_thread
def _text_of(data: bytes, name: str) -> str:
    """Return the text of a document, fenced and with its name. Raises UserError for one without text."""
    from app.chat.attachments.prompt import compose_prompt  # documents are rare, and the service starts without them
    from app.chat.attachments.reader import read_data

    attachment = read_data(data, name).attachment
    if not attachment.content.strip():
        raise RequestError(f"{name} has no text that could be read.", _REMEDY)
    return compose_prompt("", [attachment])
