"""Passages for a question of texts that are attached to a chat: the search of the folders, over an index in memory.

Nothing of it is stored: a private chat leaves nothing behind, and a deleted one neither.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from app.chat.conversation import Attachment
from app.knowledge.passages import Passage, passages_of
from app.knowledge.search import MAX_QUERY_CHARACTERS, find_hits
from app.knowledge.store import FileRecord, KnowledgeStore
from app.protocol.chat import Source


class TextIndex:
    """The passages of `texts`. Methods take a while: call them in a thread, one at a time."""

    def __init__(self, texts: Sequence[Attachment]) -> None:
        self.texts = tuple(texts)
        self._store: KnowledgeStore | None = None  # made when it is first searched

    def search(self, question: str, limit: int) -> tuple[Source, ...]:
        """Return up to `limit` passages for `question`, best first, by its words. Raises StorageError."""
        hits = find_hits(self._filled(), question[:MAX_QUERY_CHARACTERS], b"", limit)
        # Each text is a folder of its own, named by its place, so that two may have one name.
        return tuple(_source(self.texts[int(hit.passage.folder.name)], hit.passage.passage) for hit in hits)

    def beginning(self, limit: int) -> tuple[Source, ...]:
        """Return the first passages, in all up to `limit`: where a text says what it is."""
        n_each = max(1, limit // len(self.texts))
        return tuple(_source(text, passage) for text in self.texts for passage in islice(passages_of(text), n_each))[
            :limit
        ]

    def _filled(self) -> KnowledgeStore:
        if self._store is None:
            opened = ExitStack()
            store = opened.enter_context(KnowledgeStore(None))
            # Closed with the last use: a chat goes on with another index while a thread still searches this one.
            weakref.finalize(self, opened.close)
            for number, text in enumerate(self.texts):
                passages = tuple(passages_of(text))
                name = text.name.encode("utf-8", "replace")  # of an imported chat, whatever it is
                record = FileRecord(name, len(text.content), 0, passages=passages)
                store.put(store.add_folder(Path(f"/{number}")), [record])
            self._store = store
        return self._store


def _source(text: Attachment, passage: Passage) -> Source:
    return Source(text.name, passage.text, passage.begin, passage.end, passage.page, passage.heading)
