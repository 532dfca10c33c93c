"""Pictures and sounds in files of chats: written as Base64, and read from it. Pure.

What a file calls them does not count: their first bytes do. Owns which are skipped, and their names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from typing import TypeAlias

from app.chat.attachments.kinds import Form, kind_of
from app.chat.conversation import Attachment, MediaFile
from app.chat.formats.json_reader import JsonField, SkippedItem
from quantizer.system.errors import UserError

ContentOf: TypeAlias = Callable[[MediaFile], bytes]
"""Returns the content of a picture or sound; raises StorageError if it is missing."""

_DATA_URL = re.compile(r"data:[\w.+-]{1,40}/[\w.+-]{1,80}(?:;[\w=.+-]{1,80})*;base64,", re.ASCII)


def data_url(file: MediaFile, content: bytes) -> str:
    """Return a URL that holds the content itself."""
    return f"data:{file.mime_type};base64,{base64.b64encode(content).decode()}"


class ImportedMedia:
    """The pictures and sounds of one imported chat: `contents` by SHA-256, and what was `skipped`."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.skipped: list[SkippedItem] = []

    def attachment(self, field: JsonField, name: str = "") -> tuple[Attachment, ...]:
        """Return the attachment whose content is `field`, a data URL or Base64; none, and note why, for anything else.

        Without a `name` it is numbered. Raises FormatError for a value of another type.
        """
        file = self.file(field)
        if file is None:
            return ()
        word = "sound" if file.is_sound else "picture"
        name = name or f"{word} {len(self.contents)}"
        return (Attachment(name, "", file.mime_type, f"{max(1, file.n_bytes // 1000):,} kB", (file,)),)

    def file(self, field: JsonField) -> MediaFile | None:
        """Return the picture or sound whose content is `field`; None, and note why, for anything else."""
        text = field.text()
        if text.startswith(("http://", "https://", "file:")):
            self.skipped.append(SkippedItem(field.place, "is a link to a picture or file, which is not fetched"))
            return None
        found = _DATA_URL.match(text)
        try:
            content = base64.b64decode(text[found.end() :] if found else text, validate=True)
        except (binascii.Error, ValueError):
            content = b""
        try:
            kind = kind_of(content, "it")
        except UserError:
            kind = None
        if not content or kind is None or kind.form not in (Form.PICTURE, Form.SOUND):
            self.skipped.append(SkippedItem(field.place, "is no picture or sound in Base64"))
            return None
        file = MediaFile(hashlib.sha256(content).hexdigest(), kind.mime_type, len(content))
        self.contents[file.sha256] = content
        return file
