"""Reading a folder: which files are new, changed or gone, their text by the readers of attachments, and storing their
passages as they come.

Owns what is left out because of its content, and when a file counts as unchanged: by size and time of change, else by
its hash. Files are read in threads, documents by child processes with limits; one thread stores.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import deque
from collections.abc import Collection, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from app.chat.attachments.kinds import Form
from app.chat.attachments.parser_process import KeptParsers, ReadBudget
from app.chat.attachments.reader import read_contents, read_data
from app.knowledge.passages import passages_of
from app.knowledge.scan import FoundFile, scan
from app.knowledge.store import READER_VERSION, FileRecord, Folder, KnowledgeStore, KnownFile
from quantizer.system.errors import EngineError, StorageError, UsageError
from quantizer.system.files import explained

_MOST_READERS = 4
_MOST_READS = 3  # of a file that changes meanwhile
_FLUSH_S, _FLUSH_FILES, _FLUSH_PASSAGES = 1.0, 256, 2_000  # of what is stored in one transaction
_RACY_NS = 2_000_000_000  # a file may be written again within the tick of its clock; FAT's has two seconds
_NO_TIME = 0  # of a file that is to be looked at again, whatever its time of change
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+(?:[\w-]+: [^\n]*\s+)*[A-Za-z0-9+/=]{40}|^PuTTY-User-Key-File-[0-9]: ",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """How far reading a folder is: files that were looked at, of them read anew, left out and as they were before, the
    passages of those that were read, and files that are gone."""

    n_seen: int = 0
    n_read: int = 0
    n_left_out: int = 0
    n_unchanged: int = 0
    n_passages: int = 0
    n_gone: int = 0


def read_folder(
    store: KnowledgeStore, folder: Folder, excluded: Collection[Path] = ()
) -> Generator[ReadProgress, None, None]:
    """Read what is new or changed in a folder, remove what is gone, and yield how far it is, last the whole. The
    folders `excluded` stay out. Ending the iteration early, Ctrl-C and errors keep what was read. Raises StorageError
    where the folder is not there, or the disk takes no more; EngineError where no child process can be started."""
    reading = _Reading(store, folder)
    try:
        with explained(
            f"{folder.path} cannot be read", f"Bring it back, or forget it: localllm knowledge rm {folder.path}"
        ):
            for found in scan(folder.path, excluded):
                reading.take(found)
                yield reading.progress
        while reading.finish_one():
            yield reading.progress
        reading.end()
        yield reading.progress
    except (KeyboardInterrupt, GeneratorExit, EngineError):
        reading.flush()
        raise
    finally:
        reading.stop()


class _Reading:
    """One reading of a folder: what is known of it, what readers have in hand, and what waits to be stored."""

    def __init__(self, store: KnowledgeStore, folder: Folder) -> None:
        self.progress = ReadProgress()
        self._store = store
        self._folder = folder
        self._known = store.known_files(folder)
        self._unread_folders: list[bytes] = []  # that cannot be read now: what was read in them before stays
        self._n_readers = max(1, min(_MOST_READERS, os.cpu_count() or 1))
        self._pool = ThreadPoolExecutor(self._n_readers, thread_name_prefix="knowledge")
        self._parsers = KeptParsers()
        self._in_hand: deque[tuple[Future[FileRecord | None], ReadBudget]] = deque()
        self._records: list[FileRecord] = []
        self._n_waiting_passages = 0
        self._written_s = time.monotonic()

    def take(self, found: FoundFile) -> None:
        """Leave out what was found, take it as it was before, or give it to a reader; wait for one where all have
        enough."""
        path = found.path + b"/" if found.is_folder else found.path
        before = self._known.pop(path, None)
        if found.is_unreadable:
            self._unread_folders.append(path)
        self._count(n_seen=1)
        if found.reason:
            self._count(n_left_out=1)
            if before is None or before.reason != found.reason:
                self._add(FileRecord(path, found.n_bytes, found.mtime_ns, reason=found.reason))
        elif before and _is_as_it_was(before, found):
            self._count(**{"n_left_out" if before.reason else "n_unchanged": 1})
        else:
            budget = ReadBudget()
            self._in_hand.append(
                (self._pool.submit(_read, self._folder.path, found, before, budget, self._parsers), budget)
            )
            if len(self._in_hand) >= 2 * self._n_readers:
                self.finish_one()

    def finish_one(self) -> bool:
        """Wait for the file that a reader has had for longest; return False where none has any."""
        if not self._in_hand:
            return False
        record = self._in_hand[0][0].result()
        self._in_hand.popleft()
        if record is not None:  # else it was removed meanwhile
            kind = "n_left_out" if record.reason else "n_unchanged" if record.passages is None else "n_read"
            self._count(**{kind: 1}, n_passages=len(record.passages or ()))
            self._add(record)
        return True

    def end(self) -> None:
        """Store the rest, and remove what was not found any more."""
        self.flush()
        kept = tuple(self._unread_folders)
        gone = [file.id for path, file in self._known.items() if not path.startswith(kept)]
        if gone:
            self._store.put(self._folder, (), gone)
        self._count(n_gone=len(gone))
        self._store.mark_updated(self._folder)

    def flush(self) -> None:
        if self._records:
            self._store.put(self._folder, self._records)
        self._records, self._n_waiting_passages, self._written_s = [], 0, time.monotonic()

    def stop(self) -> None:
        for future, budget in self._in_hand:
            future.cancel()
            budget.stop()
        self._pool.shutdown(cancel_futures=True)
        self._parsers.close()

    def _add(self, record: FileRecord) -> None:
        self._records.append(record)
        self._n_waiting_passages += len(record.passages or ())
        is_due = time.monotonic() - self._written_s >= _FLUSH_S
        if is_due or len(self._records) >= _FLUSH_FILES or self._n_waiting_passages >= _FLUSH_PASSAGES:
            self.flush()

    def _count(self, **more: int) -> None:
        self.progress = replace(self.progress, **{name: getattr(self.progress, name) + n for name, n in more.items()})


def _is_as_it_was(before: KnownFile, found: FoundFile) -> bool:
    is_same = (before.n_bytes, before.mtime_ns, before.reader) == (found.n_bytes, found.mtime_ns, READER_VERSION)
    return is_same and before.mtime_ns != _NO_TIME


def _read(
    top: Path, found: FoundFile, before: KnownFile | None, budget: ReadBudget, parsers: KeptParsers
) -> FileRecord | None:
    """Return a file as it is to be stored, with its passages or why it has none; None for one that is gone. Of what
    cannot be read now, what was read before stays. Raises EngineError."""
    path = top / os.fsdecode(found.path)
    left_out = FileRecord(found.path, found.n_bytes, found.mtime_ns)
    unreadable = replace(left_out, mtime_ns=_NO_TIME, passages=None)
    try:
        for _ in range(_MOST_READS):
            begun = path.lstat()
            data = read_contents(path, path.name, is_resolved=True, forms=(Form.TEXT, Form.DOCUMENT))
            ended = path.lstat()
            if (begun.st_ino, begun.st_size, begun.st_mtime_ns) == (ended.st_ino, ended.st_size, ended.st_mtime_ns):
                break
        else:
            return replace(unreadable, reason="it was changing while it was read")
        is_racy = time.time_ns() - ended.st_mtime_ns < _RACY_NS
        sha256 = hashlib.sha256(data).hexdigest()
        record = FileRecord(
            found.path, ended.st_size, _NO_TIME if is_racy else ended.st_mtime_ns, sha256, passages=None
        )
        if before and (before.sha256, before.reader) == (sha256, READER_VERSION):
            return replace(record, reason=before.reason)
        left_out = replace(record, passages=())
        attachment = read_data(data, path.name, budget=budget, kept=parsers).attachment
    except FileNotFoundError:
        return None
    except OSError as error:
        return replace(unreadable, reason=f"it cannot be read: {error.strerror}")
    except StorageError as error:  # such as rights, which change without a sign on the file
        return replace(unreadable, reason=_reason(error, path.name))
    except UsageError as error:
        return replace(left_out, reason=_reason(error, path.name))
    if _PRIVATE_KEY.search(attachment.content):
        return replace(left_out, reason="it contains a private key")
    passages = tuple(passages_of(attachment))
    return replace(record, passages=passages, reason="" if passages else "it has no text")


def _reason(error: UsageError | StorageError, name: str) -> str:
    """Return the cause of an error about a file as the end of a sentence that has named it."""
    return f"it {error.cause.removeprefix(name).strip().rstrip('.')}" if error.cause.startswith(name) else error.cause
