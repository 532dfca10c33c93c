"""Any file that a person points at → an attachment, and the contents of its pictures and sounds.

Owns opening the file (never a pipe or a device, never more than its kind may have) and the sentence for one that cannot
be read. Plain text is read here; everything else goes to `app.chat.attachments.parser_process`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.chat.attachments.kinds import MAX_FILE_BYTES, FileKind, Form, kind_of
from app.chat.attachments.parser_process import KeptParsers, ReadBudget, parse
from app.chat.attachments.parsing import ALL_PAGES, PageChoice
from app.chat.conversation import Attachment, MediaFile
from app.protocol.chat import MediaPart
from app.tools.file_access import is_as_named
from app.tools.tool import media_names
from quantizer.system.errors import StorageError, UsageError, UserError
from quantizer.system.files import open_regular, read_at_most

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True, slots=True)
class ReadAttachment:
    """A file as read: the attachment, and the content of each of its media by its SHA-256, for a store to keep."""

    attachment: Attachment
    contents: Mapping[str, bytes] = field(default_factory=dict)


def read_file(
    path: Path,
    name: str,
    pages: PageChoice = ALL_PAGES,
    budget: ReadBudget | None = None,
    *,
    is_resolved: bool = False,
) -> ReadAttachment:
    """Return the file at `path` as an attachment called `name`. Raises as `read_contents` and `read_data`."""
    return read_data(read_contents(path, name, is_resolved=is_resolved), name, pages, budget)


def read_contents(path: Path, name: str, *, is_resolved: bool = False, forms: Collection[Form] = tuple(Form)) -> bytes:
    """Return the bytes of the file at `path`, if it is of a kind that can be attached and becomes one of `forms`; with
    `is_resolved` no link on the way is followed. Never waits for a pipe or a device. Raises StorageError if it cannot
    be read or a link is there, UsageError if it is no regular file, too large, or of another kind."""
    try:
        _check_regular(path.stat().st_mode, name)
        with open_regular(path) as file:
            # Compared once it is open: a link that was put there before leads elsewhere now, and to another file.
            if is_resolved and not (is_as_named(path) and os.path.samestat(os.fstat(file.fileno()), path.lstat())):
                raise StorageError(f"{name} was replaced by a link.", "Look at it, and name it again.")
            status = os.fstat(file.fileno())
            begin = file.read(512) or b""
            kind = kind_of(begin, name)
            if kind.form not in forms:
                raise UsageError(f"{name} is {kind.words}, which has no text.", "Choose a document.")
            _check_size(max(status.st_size, len(begin)), kind, name)
            return begin + read_at_most(file, kind.max_bytes + 1 - len(begin))
    except OSError as error:
        raise StorageError(
            f"{name} cannot be read: {error.strerror}.", "Check its name and its permissions."
        ) from error


def read_data(
    data: bytes,
    name: str,
    pages: PageChoice = ALL_PAGES,
    budget: ReadBudget | None = None,
    kept: KeptParsers | None = None,
) -> ReadAttachment:
    """Return bytes that come from no file, such as a picture in the clipboard, as an attachment called `name`; reading
    them takes what `budget` has left, and ends when that is stopped. Who reads many files gives the children `kept` of
    all of them. Raises UsageError if they are too large, damaged, protected by a password, or of a kind that no model
    takes."""
    kind = kind_of(data, name)
    _check_size(len(data), kind, name)
    if pages != ALL_PAGES and kind.parser != "pdf":
        raise UsageError(f"{name} is {kind.words}: it has no pages to choose.", "Attach it without #.")
    if kind.form is Form.TEXT:
        return ReadAttachment(Attachment(name, _text(data, name)))
    parsed = parse(data, kind, name, pages, budget, kept)
    if kind.form is Form.DOCUMENT:
        files = [(_media_file(picture, "image/png"), picture) for picture in parsed.pictures]
        attachment = Attachment(name, parsed.text, kind.mime_type, parsed.detail, tuple(file for file, _ in files))
        return ReadAttachment(attachment, {file.sha256: picture for file, picture in files})
    file = _media_file(data, kind.mime_type)
    detail = ", ".join(filter(None, (parsed.detail, _size(len(data)) if kind.form is Form.PICTURE else "")))
    return ReadAttachment(Attachment(name, "", kind.mime_type, detail, (file,)), {file.sha256: data})


def read_result_media(
    media: Sequence[MediaPart], budget: ReadBudget | None = None
) -> tuple[tuple[ReadAttachment, ...], tuple[str, ...]]:
    """Return the pictures and sounds of a tool's result that can be read, each as an attachment called as the text of
    the result calls it, and a sentence for each of the others. What they are, their first bytes say."""
    read: list[ReadAttachment] = []
    faults: list[str] = []
    for part, name in zip(media, media_names(media), strict=True):
        wanted = Form.SOUND if part.is_sound else Form.PICTURE
        try:
            data = base64.b64decode("".join(part.base64.split()), validate=True)
            if (kind := kind_of(data, name)).form is not wanted:
                raise UsageError(f"{name} is {kind.words}.", "")
            read.append(read_data(data, name, budget=budget))
        except ValueError:
            faults.append(f"{name} is not Base64.")
        except UserError as error:
            faults.append(error.cause)
    return tuple(read), tuple(faults)


def _media_file(data: bytes, mime_type: str) -> MediaFile:
    return MediaFile(hashlib.sha256(data).hexdigest(), mime_type, len(data))


def _text(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{name} is not UTF-8 text.", "Save it as UTF-8, or as PDF.")
    return text


def _check_size(n_bytes: int, kind: FileKind, name: str) -> None:
    if n_bytes > min(kind.max_bytes, MAX_FILE_BYTES):
        cause = f"{name} is {kind.words} of more than {kind.max_bytes >> 20} MiB."
        raise UsageError(cause, "Attach a smaller part of it.")


def _check_regular(mode: int, name: str) -> None:
    if not stat.S_ISREG(mode):
        kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "no regular file")
        raise UsageError(f"{name} is {kind}.", "Only files can be attached.")


def _size(n_bytes: int) -> str:
    """Return a size in decimal units: "120 kB", "2.4 MB"."""
    if n_bytes < 1000:
        return f"{n_bytes} B"
    if n_bytes < 999_500:
        return f"{n_bytes / 1000:.0f} kB"
    return f"{n_bytes / 1_000_000:.1f} MB"
