"""What the disk of a simulated world keeps when its machine loses power: what was synced, and of the rest some.

A file keeps what it held when it was last synced; of what was written since, a part may be there, or zeros in its
place. A folder keeps the names of its last sync. Each name that was added, removed or given to another file since then
is as before or as after; a file that was moved is at one of its places. File systems with a journal keep more, in
order; POSIX promises no more, and some keep no more.

SQLite writes by itself, and is trusted: a commit with synchronous=FULL stays. With NORMAL the journal may end anywhere
behind what was copied into the database already, which SQLite syncs before it copies (source: sqlite.org/wal.html; a
new header of the journal is synced too, `sqlite3WalFrames`). What the world itself does to files is not looked at.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Power"]

_SECTOR_BYTES = 512
_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_N_COPIED = 128  # where the index of a journal says how many of its frames are copied (source: WalCkptInfo in wal.c)
_DATABASES = (".db", ".db-wal", ".db-shm")


@dataclass(slots=True, eq=False)
class _Node:
    """A file with the content that it surely keeps, or a folder, which has none."""

    synced: bytes | None


class Power:
    """The power of the machine whose disk is below `root`. `chance` draws what is left when it fails. `forgetful` are
    the databases whose last commits may be lost."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.forgetful: set[Path] = set()
        self._root, self._chance = root, chance
        self._nodes: dict[int, _Node] = {}  # by their numbers in the file system
        self._names: dict[Path, dict[Path, _Node]] = {}  # what folders surely keep
        self._remember()

    def created(self, path: Path) -> None:
        """Note that a file or a folder was made, which nothing was synced of."""
        is_folder = path.is_dir() and not path.is_symlink()
        self._nodes[path.lstat().st_ino] = _Node(None if is_folder else b"")
        if is_folder:
            self._names[path] = {}

    def synced(self, path: Path, number: int) -> None:
        """Note that the file or folder with that number, opened at `path`, is on the disk as it is now."""
        if not os.path.lexists(path) or path.lstat().st_ino != number:  # it was moved or removed meanwhile
            return
        if path.is_dir():
            self._names[path] = self._listed(path)
        else:
            self._node(path).synced = path.read_bytes()

    def lose(self) -> int:
        """Leave on the disk what a failure of the power does; return how many files and names are not as they were.
        Nobody may use the disk meanwhile."""
        before = {path: node for folder in self._folders() for path, node in self._listed(folder).items()}
        sure = {path: node for names in self._names.values() for path, node in names.items()}
        changed = sorted(path for path in before.keys() | sure.keys() if before.get(path) is not sure.get(path))
        after, n_changed = dict(before), 0
        for together in _moved_together(changed, before, sure):
            if self._chance.random() < 0.5:
                n_changed += len(together)
                for path in together:
                    if path in sure:
                        after[path] = sure[path]
                    else:
                        del after[path]
        now_at = {id(node): path for path, node in before.items()}
        left: dict[Path, bytes | None] = {}
        for path, node in sorted(after.items(), key=lambda item: item[0]):  # a folder before what is in it
            if path.parent != self._root and left.get(path.parent, b"") is not None:  # its folder is not there
                continue
            if node.synced is None:
                left[path] = None
            else:
                written = _content(now_at[id(node)]) if id(node) in now_at else node.synced
                left[path] = self._part_of(written or b"", node.synced)
        n_changed += sum(content is not None and _content(path) != content for path, content in left.items())
        self._write(before, left)
        self._fail_databases()
        self._remember()
        return n_changed

    def _part_of(self, written: bytes, synced: bytes) -> bytes:
        """Return what a file holds of what was `written` to it after it was `synced`."""
        chance = self._chance
        if written == synced or chance.random() < 0.4:  # the system wrote it by itself
            return written
        if written.startswith(synced):
            tail = written[len(synced) : chance.randint(len(synced), len(written))]
            return synced + (tail if chance.random() < 0.5 else bytes(len(tail)))
        n_bytes = chance.choice((len(written), len(synced)))
        kept, share = bytearray(synced.ljust(n_bytes, b"\0")[:n_bytes]), chance.choice((0.0, 0.5, 1.0))
        for begin in range(0, n_bytes, _SECTOR_BYTES):
            if chance.random() < share:
                sector = written[begin : min(begin + _SECTOR_BYTES, n_bytes)]
                kept[begin : begin + len(sector)] = sector
        return bytes(kept)

    def _write(self, before: dict[Path, _Node], left: dict[Path, bytes | None]) -> None:
        for path in sorted(before.keys() - left.keys(), reverse=True):  # what is in a folder before it
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for path, content in sorted(left.items(), key=lambda item: item[0]):
            if content is None:
                path.mkdir(mode=0o700, exist_ok=True)
            elif _content(path) != content:
                is_new = not path.exists()
                path.write_bytes(content)
                if is_new:
                    path.chmod(0o600)  # what is private is refused where others may read it

    def _fail_databases(self) -> None:
        for journal in sorted(self._root.rglob("*.db-wal")):
            if journal.with_name(journal.name.removesuffix("-wal")) in self.forgetful:
                self._cut(journal)
        for index in self._root.rglob("*.db-shm"):  # it is in memory, and made again
            index.unlink()

    def _cut(self, journal: Path) -> None:
        """Let a journal end somewhere behind the frames that were copied into the database."""
        index = journal.with_name(journal.name.replace("-wal", "-shm"))
        data = journal.read_bytes()
        if len(data) < _WAL_HEADER_BYTES or not index.exists():
            return
        (page_bytes,) = struct.unpack(">I", data[8:12])
        (n_copied,) = struct.unpack("=I", index.read_bytes()[_N_COPIED : _N_COPIED + 4])
        least = min(_WAL_HEADER_BYTES + n_copied * (_FRAME_HEADER_BYTES + page_bytes), len(data))
        n_bytes = self._chance.randint(least, len(data))
        rest = bytes(len(data) - n_bytes) if self._chance.random() < 0.5 else b""
        journal.write_bytes(data[:n_bytes] + rest)

    # What is there

    def _remember(self) -> None:
        """Take all that is there for synced."""
        self._nodes = {}
        self._names = {folder: self._listed(folder) for folder in self._folders()}

    def _folders(self) -> list[Path]:
        return sorted(Path(folder) for folder, _, _ in os.walk(self._root))

    def _listed(self, folder: Path) -> dict[Path, _Node]:
        paths = (path for path in sorted(folder.iterdir()) if not path.name.endswith(_DATABASES))
        return {path: self._node(path) for path in paths}

    def _node(self, path: Path) -> _Node:
        """Return the file or folder at `path`; one that nobody is known to have made is taken for synced."""
        number = path.lstat().st_ino
        if number not in self._nodes:
            self._nodes[number] = _Node(_content(path))
        return self._nodes[number]


def _content(path: Path) -> bytes | None:
    """Return what a file holds, None for a folder or nothing."""
    return path.read_bytes() if path.is_file() else None


def _moved_together(changed: list[Path], before: dict[Path, _Node], sure: dict[Path, _Node]) -> Iterator[list[Path]]:
    """Yield the places that changed in groups: those that a file was moved between, or that it took from another one,
    change together."""
    by_node: dict[int, list[Path]] = defaultdict(list)
    for path in changed:
        for names in (before, sure):
            if path in names:
                by_node[id(names[path])].append(path)
    seen = set[Path]()
    for first in changed:
        together, waiting = list[Path](), [first]
        while waiting:
            path = waiting.pop()
            if path not in seen:
                seen.add(path)
                together.append(path)
                waiting += [other for names in (before, sure) if path in names for other in by_node[id(names[path])]]
        if together:
            yield sorted(together)
