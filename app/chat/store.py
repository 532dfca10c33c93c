"""Everything that is kept of chats, in one place: what a thread holds.

Owns how the parts share one database, and the sweeping of what was deleted.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from app.chat.chats import SWEPT_AFTER_MS, Chats, now_ms
from app.chat.database import Database
from app.chat.drafts import Drafts
from app.chat.messages import Messages
from app.chat.search import Search
from app.chat.transcripts import Transcripts

__all__ = ["ChatStore"]

FILE_NAME = "chats.db"


class ChatStore:
    """A context manager over the chats of one data folder, for one thread. The file is opened at its first use.

    Any number of windows and processes may hold one each. Every method of its parts raises StorageError when the file
    cannot be used.
    """

    def __init__(self, data_dir: Path) -> None:
        self._database = Database(data_dir / FILE_NAME)
        self.chats = Chats(self._database)
        self.messages = Messages(self._database)
        self.transcripts = Transcripts(self._database, self.chats, self.messages)
        self.search = Search(self._database)
        self.drafts = Drafts(self._database)

    def __enter__(self) -> ChatStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def sweep(self) -> int:
        """Forget for good what was deleted a week ago or earlier; return how many chats."""
        return self.chats.sweep(now_ms() - SWEPT_AFTER_MS)

    def close(self) -> None:
        """Close the file."""
        self._database.close()
