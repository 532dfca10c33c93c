"""The models of this machine with what is known of each: from the index where the file is as it was, else read anew.

Owns the agreement between folder and index. Knows nothing of screens.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from app.library.facts import Facts, read_facts
from app.library.folder import OnDisk, look_at
from app.library.index import Index, Known, index_key
from app.library.model_ref import ModelRef
from quantizer.errors import ModelFileError

__all__ = ["Entry", "forget_vanished", "read", "survey"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A model: what the disk says, and its facts or the `fault` for which the gate refused it; neither before it was
    read."""

    ref: ModelRef
    disk: OnDisk
    facts: Facts | None = None
    fault: str = ""

    @property
    def is_read(self) -> bool:
        return self.facts is not None or bool(self.fault)


def survey(refs: Iterable[ModelRef], index: Index) -> list[Entry]:
    """Return an entry for each of `refs` from the disk and `index`, reading no model file. Raises StorageError."""
    known = index.known()
    entries = []
    for ref in refs:
        disk, what = look_at(ref.path), known.get(index_key(ref.path))
        is_current = what is not None and what.stamp == disk.stamp
        entries.append(Entry(ref, disk, what.facts, what.fault) if what and is_current else Entry(ref, disk))
    return entries


def read(entry: Entry, index: Index) -> Entry:
    """Return `entry` as its file is now, and keep what was learnt in `index`. Raises StorageError."""
    disk = look_at(entry.ref.path)  # before it is read: a change in between is seen next time
    try:
        found = replace(entry, disk=disk, facts=read_facts(entry.ref.path), fault="")
    except ModelFileError as error:
        found = replace(entry, disk=disk, facts=None, fault=str(error))
    index.keep(entry.ref.path, Known(disk.stamp, found.facts, found.fault))
    return found


def forget_vanished(models_dir: Path, index: Index) -> int:
    """Drop from `index` the files that are gone, and return how many those were. Raises StorageError.

    While there is no `models_dir`, what lay in it stays known: its disk may be away.
    """
    root = index_key(models_dir / "_")[:-1]
    is_away = not models_dir.is_dir()
    gone = [path for path in index.paths() if not (os.path.lexists(path) or (is_away and path.startswith(root)))]
    index.forget(gone)
    return len(gone)
