"""What an editor sends as a prompt → a question with attachments: texts, mentioned files, pictures and sounds.

A mentioned file is read as its editor shows it, where that tells; everything else goes through `app.chat.attachments`,
which bounds it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from acp.schema import (
    AudioContentBlock,
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
)

from app.acp.editor import EditorBuffers
from app.chat.attachments.kinds import MAX_TEXT_BYTES
from app.chat.attachments.reader import ReadAttachment, read_data, read_file
from app.chat.conversation import Attachment, MessageContent
from app.common.terminal import printable_line, printable_paste
from quantizer.system.errors import UsageError

Block: TypeAlias = (
    TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
)


async def read_prompt(blocks: Sequence[Block], buffers: EditorBuffers) -> tuple[MessageContent, Mapping[str, bytes]]:
    """Return the question of `blocks`, and the contents of its pictures and sounds by SHA-256. A file that is mentioned
    stands in the text as @NAME. Raises UserError for what cannot be attached."""
    text, attachments, contents = "", list[Attachment](), dict[str, bytes]()
    for block in blocks:
        if isinstance(block, TextContentBlock):
            text += block.text
            continue
        if isinstance(block, ResourceContentBlock):
            mention, read = await _linked(block, buffers)
        elif isinstance(block, EmbeddedResourceContentBlock):
            mention, read = await _embedded(block)
        else:
            word = "picture" if isinstance(block, ImageContentBlock) else "sound"
            name = _free(word, attachments)
            mention, read = "", await asyncio.to_thread(read_data, _decoded(block.data, name), name)
        text += mention
        if read is not None:
            attachments.append(read.attachment)
            contents |= read.contents
    if len(text) > MAX_TEXT_BYTES:
        raise UsageError(f"The prompt is a text of more than {MAX_TEXT_BYTES >> 20} MiB.", "Ask about a part of it.")
    # Each file once, however often it is mentioned.
    question = MessageContent(
        role="user", content=printable_paste(text).strip(), attachments=tuple(dict.fromkeys(attachments))
    )
    if question.is_empty:
        raise UsageError("The prompt is empty.", "Write a question.")
    return question, contents


async def _linked(link: ResourceContentBlock, buffers: EditorBuffers) -> tuple[str, ReadAttachment | None]:
    """Return the mention of a link, and what it leads to: a file of this machine; of anything else the link alone."""
    path = _path_of(link.uri)
    if path is None:
        return printable_line(link.uri), None
    if await asyncio.to_thread(path.is_dir):
        return printable_line(str(path)), None
    name = _name(link.uri) or printable_line(link.name)
    text = await buffers.read(path)
    if text is not None:
        return f"@{name}", _text_attachment(name, text)
    return f"@{name}", await asyncio.to_thread(read_file, path, name)


async def _embedded(block: EmbeddedResourceContentBlock) -> tuple[str, ReadAttachment]:
    resource = block.resource
    name = _name(resource.uri) or "resource"
    if isinstance(resource, BlobResourceContents):
        return f"@{name}", await asyncio.to_thread(read_data, _decoded(resource.blob, name), name)
    return f"@{name}", _text_attachment(name, resource.text)


def _text_attachment(name: str, text: str) -> ReadAttachment:
    if len(text) > MAX_TEXT_BYTES:
        raise UsageError(f"{name} is a text of more than {MAX_TEXT_BYTES >> 20} MiB.", "Attach a smaller part of it.")
    return ReadAttachment(Attachment(name, printable_paste(text)))


def _decoded(data: str, name: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{name} is not valid base64.", "Send it again.") from None


def _path_of(uri: str) -> Path | None:
    """Return the path of a file on this machine, None for any other address."""
    try:
        parts = urlsplit(uri)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            return None
        path = Path(url2pathname(parts.path))
    except ValueError:
        return None
    return path if path.is_absolute() and "\0" not in str(path) else None


def _name(uri: str) -> str:
    """Return the name of the file in an address, with the lines that it chooses: "main.py#L5:10"."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ""
    name = unquote(parts.path).rstrip("/").rpartition("/")[2]
    return printable_line(f"{name}#{parts.fragment}" if name and parts.fragment else name)


def _free(word: str, attachments: Sequence[Attachment]) -> str:
    taken = {each.name for each in attachments}
    return next(name for number in range(1, len(taken) + 2) if (name := f"{word} {number}") not in taken)
