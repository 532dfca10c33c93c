"""Files on the command line → attachments of a question, and the message with them.

Nothing is stored: the contents go with the one request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from app.chat.conversation import Attachment
from app.protocol.chat import Message

if TYPE_CHECKING:
    from app.chat.attachments.page_choice import PageChoice


_PIPED = "piped file"


@dataclass(frozen=True, slots=True)
class AttachedFiles:
    """Attachments, and the contents of their pictures and sounds by SHA-256."""

    attachments: tuple[Attachment, ...] = ()
    contents: Mapping[str, bytes] = field(default_factory=dict)

    def message(self, question: str) -> Message:
        """Return `question` with the files, as a model gets it."""
        from app.chat.attachment_files import encode_media
        from app.chat.attachments.prompt import compose_prompt, media_of

        media = tuple(encode_media(file, self.contents[file.sha256]) for file in media_of(self.attachments))
        return Message("user", compose_prompt(question, self.attachments), media)


def read_attached(names: Sequence[str], piped: bytes = b"") -> AttachedFiles:
    """Read the files `names`, which may choose pages (paper.pdf#3-5), and a piped one.

    Raises StorageError and UsageError for what cannot be attached.
    """
    if not names and not piped:
        return AttachedFiles()
    from app.chat.attachments.reader import read_data, read_file

    read = [read_file(path, name, pages) for path, name, pages in map(_chosen, names)]
    read += [read_data(piped, _PIPED)] if piped else []
    contents = {sha256: content for each in read for sha256, content in each.contents.items()}
    return AttachedFiles(tuple(each.attachment for each in read), contents)


def _chosen(name: str) -> tuple[Path, str, PageChoice]:
    """Return the path of a file, its name and the pages chosen of it; a file may have a number sign in its name."""
    from app.chat.attachments.page_choice import ALL_PAGES, split_page_choice

    if Path(name).exists():
        return Path(name), Path(name).name, ALL_PAGES
    file_name, pages = split_page_choice(name)
    return Path(file_name), Path(file_name).name, pages


def complete_file(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Let the shell offer files."""
    return [CompletionItem(begun, type="file")]
