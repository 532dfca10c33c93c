"""The texts of a project on disk in which drafts are looked up: files that were attached or read in its chats.

A corpus is a folder `<cache>/corpus/<name>`, and its name that of the project and of whoever filled it: no caller
finds the texts of another. A text is a file, named after its own content and after the conversation that it came from,
with which it is removed (`app.engine.cache_file`). So several processes may share a corpus: what two of them write at
once is whole and there once, and a damaged file is known by its name. Imports no numpy, since the service writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.engine.cache_file import conversation_of, file_name, remove_file, whole_files
from quantizer.system.files import last_use_s, read_regular, write_cache

MAX_TEXT_BYTES = 256 << 10  # of one text, its beginning; so that one log file does not replace a project
MAX_CORPUS_BYTES = 1 << 20  # of one project: 16,000 lines of code
MAX_ALL_BYTES = 64 << 20  # of all projects

_KIND = b"localllm-text-1\n\0"


@dataclass(frozen=True, slots=True)
class CorpusTexts:
    """The texts of a corpus by their digests, the least recently kept first, and how many files were damaged."""

    texts: dict[str, str]
    n_damaged: int = 0


def corpus_name(owner: str, project: str) -> str:
    """Return the name of the corpus of a `project`, as its client calls it, that `owner` fills and reads."""
    return hashlib.blake2b(json.dumps([owner, project]).encode(), digest_size=16).hexdigest()


def keep_texts(corpora: Path, name: str, conversation: str, texts: Sequence[str]) -> int:
    """Add `texts` of a conversation to a corpus, and return how many of them are there now; fewer where the cache
    cannot be written. Of the texts that are too much, of the corpus and of all, those go that were kept longest ago.
    What was returned is there after a kill at any moment."""
    folder, n_kept = corpora / name, 0
    for text in texts:
        data = _beginning(text.encode("utf-8", "replace"))
        # Written anew where it is there already: so it is the newest, and whole whatever became of the file.
        n_kept += write_cache(folder / file_name(_digest(data), conversation), (_KIND, data))
    _drop_oldest([folder], MAX_CORPUS_BYTES)
    _drop_oldest(_folders(corpora), MAX_ALL_BYTES)
    return n_kept


def text_digests(corpora: Path, name: str) -> frozenset[str]:
    """Return the digests of the texts of a corpus, as their files are named; it reads none."""
    return frozenset(map(_digest_of, whole_files(corpora / name)))


def read_texts(corpora: Path, name: str) -> CorpusTexts:
    """Return the texts of a corpus. A file that is not what its name says is removed; one that is gone meanwhile, or
    cannot be read, is left out."""
    texts: dict[str, str] = {}
    n_damaged = 0
    for path in whole_files(corpora / name):
        try:
            data = read_regular(path, len(_KIND) + MAX_TEXT_BYTES)
        except FileNotFoundError:
            continue
        except OSError:  # as something else than a file of that size
            data = b""
        digest, content = _digest_of(path), data[len(_KIND) :]
        if not (data.startswith(_KIND) and conversation_of(path.name) and _digest(content) == digest):
            n_damaged += 1
            remove_file(path)
            continue
        texts.pop(digest, None)  # of two conversations the later one counts
        texts[digest] = content.decode("utf-8")
    return CorpusTexts(texts, n_damaged)


def corpora_bytes(corpora: Path) -> int:
    """Return the bytes of all corpora on disk."""
    return sum(n_bytes for _, n_bytes in _sized(_folders(corpora)))


def _digest_of(path: Path) -> str:
    return path.name.partition("-")[0]


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _beginning(data: bytes) -> bytes:
    """Return as much of a text in UTF-8 as is kept, whole characters."""
    return data if len(data) <= MAX_TEXT_BYTES else data[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()


def _folders(corpora: Path) -> list[Path]:
    try:
        return [path for path in corpora.iterdir() if path.is_dir()]
    except OSError:  # there is none yet, or it cannot be read
        return []


def _sized(folders: Collection[Path]) -> Iterator[tuple[Path, int]]:
    for folder in folders:
        for path in whole_files(folder):
            try:
                yield path, path.lstat().st_size
            except OSError:  # removed meanwhile
                continue


def _drop_oldest(folders: Collection[Path], max_bytes: int) -> None:
    """Remove the oldest files of `folders` until the rest has at most `max_bytes`."""
    n_bytes = 0
    for path, size in sorted(_sized(folders), key=lambda item: last_use_s(item[0]), reverse=True):
        n_bytes += size
        if n_bytes > max_bytes:
            remove_file(path)
