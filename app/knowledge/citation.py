"""A passage that an answer cites: what stands around it in its document, and whether that is still as it was read.

Only what was stored of added folders is shown, and texts of the chat itself: a chat of somebody else may cite any path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.chat.conversation import Attachment
from app.knowledge.passages import Passage
from app.knowledge.store import KnowledgeStore
from app.protocol.chat import Source

SHOWN_CHARACTERS = 4_000  # of what is before a passage, and of what is after it
_GONE = "The folders have this passage no longer: the document changed, or was removed. It is as the answer had it."
_NOT_HERE = "The attached text that this is from is not part of this branch of the chat. It is as the answer had it."
_WEB = "From the web, as it was found then."
_CHANGED = "The document has changed since it was read."


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The text before and after a passage, not yet safe for a terminal, and a sentence where it is not as it was."""

    before: str = ""
    after: str = ""
    note: str = ""


def surroundings(data_dir: Path, source: Source) -> Surroundings:
    """Return what the knowledge in `data_dir` has around `source`. Raises StorageError."""
    if source.is_web:
        return Surroundings(note=_WEB)
    if not Path(source.path).is_absolute():  # the name of an attached text, which `surroundings_in` has not found
        return Surroundings(note=_NOT_HERE)
    begin, end = max(0, source.begin - SHOWN_CHARACTERS), source.end + SHOWN_CHARACTERS
    with KnowledgeStore(data_dir) as store:
        file = store.file_at(Path(source.path))
        passages = store.passages_between(file, begin, end) if file is not None else ()
    cited = next((each for each in passages if (each.begin, each.end) == (source.begin, source.end)), None)
    # A tool cleans what it returns, so that letters and digits alone are sure to be as the document has them.
    if file is None or cited is None or _letters(cited.text) != _letters(source.text):
        return Surroundings(note=_GONE)
    is_as_read = not has_changed(Path(source.path), file.n_bytes, file.mtime_ns)
    return Surroundings(
        _between(passages, begin, source.begin),
        _between(passages, source.end, end),
        "" if is_as_read else _CHANGED,
    )


def surroundings_in(texts: Sequence[Attachment], source: Source) -> Surroundings | None:
    """Return what stands around `source` in the text that it is of, None where it is of none of them."""
    for text in texts:
        if text.name == source.path and text.content[source.begin : source.end] == source.text:
            begin = max(0, source.begin - SHOWN_CHARACTERS)
            after = text.content[source.end : source.end + SHOWN_CHARACTERS]
            return Surroundings(text.content[begin : source.begin], after)
    return None


def has_changed(path: Path, n_bytes: int, mtime_ns: int) -> bool:
    """Return whether a file is gone or no longer as it was read; an `mtime_ns` of 0 is not compared."""
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return True
    return status.st_size != n_bytes or mtime_ns not in (0, status.st_mtime_ns)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def _between(passages: Sequence[Passage], begin: int, end: int) -> str:
    """Return the text from `begin` to `end`: passages overlap where a paragraph was cut, and have gaps at blank lines
    and page marks."""
    text, reached = "", begin
    for passage in passages:
        piece = passage.text[max(0, reached - passage.begin) : max(0, end - passage.begin)]
        if piece:
            text += ("\n\n" if text and passage.begin > reached else "") + piece
            reached = min(passage.end, end)
    return text
