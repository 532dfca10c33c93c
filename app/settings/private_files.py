"""What holds or derives from what was said: which files of the data and cache folders, their rights, their removal.

Owns the names of all that localllm keeps there, so that a folder with other files is not taken for its own. Only the
owner reads what is private: files 0600 in folders 0700, where the system has such modes (`quantizer.system.files`).
What the user wrote elsewhere (exports, importance matrices) is created so and stays the user's. Knows no contents.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from app.settings.settings import Settings
from quantizer.system.files import (
    explained,
    is_folder,
    make_private,
    open_regular,
    private_folder,
    sorted_glob,
    sync_folder,
)
from quantizer.system.process import is_process_alive, process_start

CHATS = "chats, drafts and prompt history"
ATTACHED = "pictures and sounds of chats"
REPLACED = "former contents of files that tools changed"
KNOWLEDGE = "folders of knowledge"
CORPORA = "corpus"  # the folder of the texts that drafts are looked up in
# Of the cache: a folder for each model or project in it, and in that files named after conversations.
CONVERSATION_FOLDERS = ("prefix", "media", CORPORA)
_DATA, _CACHE = "data_dir", "cache_dir"
_IN_USE = "in-use-"
_MOST_START_BYTES = 100
# What derives from chats: what it is, the folder, and the names in it.
_FROM_CHATS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (CHATS, _DATA, ("chats.db", "chats.db-wal", "chats.db-shm")),
    (ATTACHED, _DATA, ("attachments/*/*",)),
    (REPLACED, _DATA, ("file-history/??/*",)),
    ("stored responses", _DATA, ("responses.db", "responses.db-wal", "responses.db-shm")),
    ("batches and their files", _DATA, ("batches/batch_*", "batches/files/*")),
    (KNOWLEDGE, _DATA, ("knowledge.db", "knowledge.db-wal", "knowledge.db-shm")),
    ("saved prefixes", _CACHE, ("prefix/*/*",)),
    ("encoded pictures and sounds", _CACHE, ("media/*/*",)),
    ("texts of files for drafts", _CACHE, (f"{CORPORA}/*/*",)),
    ("logs", _CACHE, ("service.log",)),
    ("logs of jobs", _DATA, ("jobs/*.log",)),
    ("crash reports", _CACHE, ("crash-*.txt",)),
)
# What is private too, and stays: keys have a rule of their own (`app.common.keys`).
_OTHERS_PRIVATE = (
    ("presets", _DATA, ("presets.toml",)),
    ("folders of attachments", _DATA, ("attachments", "attachments/*")),
    ("folders of former contents", _DATA, ("file-history", "file-history/*")),
    ("jobs", _DATA, ("jobs", "jobs/*.json")),
    ("folders of batches", _DATA, ("batches", "batches/files")),
    ("folders of prefixes", _CACHE, ("prefix", "prefix/*")),
    ("folders of encoded pictures", _CACHE, ("media", "media/*")),
    ("folders of texts for drafts", _CACHE, (CORPORA, f"{CORPORA}/*")),
    ("importance matrices", _CACHE, ("imatrix", "imatrix/*.gguf")),
)
# All names in the two folders, which may be one.
_OURS = (
    *(
        "chats.db*",
        "responses.db*",
        "knowledge.db*",
        "knowledge.lock",
        "presets.toml",
        "prompts",
        "keys.json",
        "keys.lock",
        "service.key",
        "service-*.json",
        "jobs",
        "batches",
        "windows",
        "models",
    ),
    *("attachments", "file-history", "checkpoints", "welcome-seen", "config.toml"),
    *CONVERSATION_FOLDERS,
    *("service.log", "service-*.lock", "crash-*.txt", "imatrix", "sensitivity", "layers", "run"),
    *(
        "index.db*",
        "first_prompts.json",
        "tune.*",
        "selftest.*",
        "loads.*",
        "bandwidth.*",
        "devices.*",
        "projectors.*",
        "drafts",
        "drafts.*",
        "runs.*",
        f"{_IN_USE}*",
        ".*.tmp",
        "Cache",
    ),
)


@dataclass(frozen=True, slots=True)
class PrivateFiles:
    """Files of one kind, `what` they are, and their bytes."""

    what: str
    paths: tuple[Path, ...]
    n_bytes: int


def find_private_files(settings: Settings) -> tuple[PrivateFiles, ...]:
    """Return all files that hold or derive from what was said, by kind. Raises StorageError for a folder that cannot be
    listed: "nothing" would be a guess."""
    for folder in (settings.data_dir, settings.cache_dir):
        missing = (FileNotFoundError, NotADirectoryError)
        with explained(f"{folder} cannot be listed", "Correct its rights."), contextlib.suppress(*missing):
            os.scandir(folder).close()
    kinds = [(what, tuple(_found(getattr(settings, folder), names))) for what, folder, names in _FROM_CHATS]
    return tuple(PrivateFiles(what, paths, sum(map(_n_bytes, paths))) for what, paths in kinds if paths)


def remove_files(files: PrivateFiles) -> None:
    """Remove the files, and the folders of prefixes, embeddings, texts, attachments and contents that become empty. No
    failure of the power brings them back. Raises StorageError."""
    for path in files.paths:
        with explained(f"{path} cannot be removed", "Check its permissions, and that no program uses it."):
            path.unlink(missing_ok=True)
    for folder in {path.parent for path in files.paths}:
        with explained(f"{folder} cannot be written", "Check its disk."), contextlib.suppress(FileNotFoundError):
            sync_folder(folder)
        if folder.parent.name in (*CONVERSATION_FOLDERS, "attachments", "file-history"):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


def conversation_name(key: str) -> str:
    """Return what a conversation is called in the names of its prefixes, embeddings and texts; `key` is what a client
    calls it."""
    return hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=16).hexdigest()


def remove_prefixes(cache_dir: Path, keys: Iterable[str]) -> PrivateFiles:
    """Remove the saved prefixes of the conversations `keys` of all models, with the embeddings of their pictures and
    sounds and the texts of their files, and return what was removed. Those of former versions go with the first: they
    do not say whose they are. Raises StorageError."""
    names = {conversation_name(key) for key in keys}
    found = tuple(_found(cache_dir, tuple(f"{name}/*/*" for name in CONVERSATION_FOLDERS))) if names else ()
    is_theirs = {path: path.name.partition("-")[2] in {"", *names} and path.suffix != ".tmp" for path in found}
    paths = tuple(path for path in found if is_theirs[path])
    files = PrivateFiles("saved prefixes", paths, sum(map(_n_bytes, paths)))
    remove_files(files)
    return files


def keep_private(settings: Settings) -> list[str]:
    """Take the rights of others from all that is private, and return a sentence about each kind that they could read. A
    folder of data or caches that holds other files as well keeps its rights."""
    sentences = []
    for root in dict.fromkeys((settings.data_dir, settings.cache_dir)):
        if not is_folder(root):  # missing, or not ours to enter
            continue
        foreign = foreign_name(root)
        if not foreign:
            sentences += _make_private(f"enter {root}", (root,))
        elif os.name != "nt" and root.stat().st_mode & 0o077:
            sentences.append(
                f"Others may enter {root}: it holds other files, such as {foreign}. Chats in it are private."
            )
    for what, folder, names in (*_FROM_CHATS, *_OTHERS_PRIVATE):
        sentences += _make_private(f"read {what}", _found(getattr(settings, folder), names))
    return sentences


@contextlib.contextmanager
def mark_in_use(settings: Settings) -> Iterator[None]:
    """Mark the files as in use inside the context, by a file in the caches that is named after this process."""
    mark = settings.cache_dir / f"{_IN_USE}{os.getpid()}"
    with contextlib.suppress(OSError):  # nothing can be stored there either
        private_folder(mark.parent)
        mark.write_text(process_start(os.getpid()))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)


def users_of(settings: Settings) -> list[str]:
    """Return the numbers of the processes that use the files; remove the marks of those that were killed."""
    users = []
    for mark in _found(settings.cache_dir, (f"{_IN_USE}*",)):
        process = mark.name.removeprefix(_IN_USE)
        if is_process_alive(process, started=_start_in(mark)):
            users.append(process)
        else:
            with contextlib.suppress(OSError):  # a folder that can only be read
                mark.unlink(missing_ok=True)
    return users


def _start_in(mark: Path) -> str:
    """Return what the mark says of its process' start, "" for one of a former version."""
    try:
        with open_regular(mark) as file:
            return file.read(_MOST_START_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


def _found(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files in `folder` with these names. Raises OSError for one that cannot be listed, when iterated."""
    for name in names:
        yield from sorted_glob(folder, name)


def foreign_name(root: Path) -> str:
    """Return the name of a file in the folder that is not of localllm, "" for none and for a missing folder."""
    try:
        names = sorted(entry.name for entry in os.scandir(root))
    except OSError:
        return ""
    return next((name for name in names if not is_own_name(name)), "")


def is_own_name(name: str) -> bool:
    """Return whether localllm calls something so in its folders of data and caches."""
    return any(fnmatch(name, pattern) for pattern in _OURS)


def _make_private(what: str, paths: Iterable[Path]) -> list[str]:
    try:
        n_changed = sum(map(make_private, paths))
    except OSError as error:
        return [f"Others may {what}, which cannot be changed: {error.strerror}."]
    return [f"Others could {what} ({n_changed} made private)."] if n_changed else []


def _n_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
