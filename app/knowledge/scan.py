"""What is in a folder and below, and what of it stays out of knowledge, by its name and kind. Reads no file.

No link is followed, so that nothing leads out of the folder or in a circle. Hidden names stay out, and names that
usually hold secrets.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.tools.file_access import open_folder
from quantizer.system.errors import StorageError

_MAX_DEPTH = 60
_WITHOUT_KNOWLEDGE = frozenset({"__pycache__", "node_modules", "lost+found", "System Volume Information"})
_SECRET_NAMES = re.compile(
    r"\.env(\..*)?|.*\.env|id_(rsa|dsa|ecdsa|ed25519)(_sk)?([.-].*)?|.*\.(pem|key|p12|pfx|p8|jks|keystore|kdbx?|ppk|gpg|age)"
    r"|\.netrc|_netrc|\.pgpass|\.npmrc|\.pypirc|\.htpasswd|\.git-credentials|\.?credentials"
    r"|(credentials|secrets?)\.(json|ya?ml|toml|ini|cfg|conf)"
    r"|service[-_]account.*\.json|client_secret.*\.json|wallet\.dat",
    re.IGNORECASE,
)
SECRET = "it may hold secrets, by its name"  # noqa: S105 - a reason
_HIDDEN = "hidden"
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file, or what stays out of knowledge: its path from the folder in the bytes of the system with slashes, size
    and time of change. `reason` says why it stays out, "" for what is to be read. `is_folder` tells what `reason` is
    about: all below a folder stays out with it. What `is_unreadable` may still be as it was."""

    path: bytes
    n_bytes: int = 0
    mtime_ns: int = 0
    reason: str = ""
    is_folder: bool = False
    is_unreadable: bool = False


def scan(top: Path, excluded: Collection[Path] = ()) -> Iterator[FoundFile]:
    """Yield what is in `top`, a resolved path, and below, folder by folder; the folders `excluded` stay out. Raises
    OSError and StorageError where `top` itself cannot be listed, or is reached by a link."""
    waiting = [b""]
    while waiting:
        below = waiting.pop()
        try:
            with open_folder(top / os.fsdecode(below)) as opened:
                listed = []
                for entry in opened.entries():
                    with suppress(FileNotFoundError):  # it was removed meanwhile
                        listed.append((os.fsencode(entry.name), entry.stat(follow_symlinks=False)))
        except FileNotFoundError:
            if not below:
                raise
            continue  # it was removed meanwhile
        except (OSError, StorageError) as error:
            if not below:
                raise
            why = getattr(error, "strerror", None) or "it cannot be listed"
            yield FoundFile(below, reason=f"a folder that cannot be read: {why}", is_folder=True, is_unreadable=True)
            continue
        folders = []
        for name, status in listed:
            path = below + b"/" + name if below else name
            if not stat.S_ISDIR(status.st_mode):
                yield FoundFile(path, status.st_size, status.st_mtime_ns, _why_not(name, status.st_mode))
            elif reason := _why_not_folder(top, path, excluded):
                yield FoundFile(path, reason=reason, is_folder=True)
            else:
                folders.append(path)
        waiting += reversed(folders)


def _why_not(name: bytes, mode: int) -> str:
    """Return why something that is no folder stays out, "" where its content decides."""
    text = os.fsdecode(name)
    if _SECRET_NAMES.fullmatch(text):
        return SECRET
    if text.startswith("."):
        return _HIDDEN
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _why_not_folder(top: Path, path: bytes, excluded: Collection[Path]) -> str:
    name = os.fsdecode(path.rpartition(b"/")[2])
    if name.startswith("."):
        return f"a {_HIDDEN} folder"
    if name in _WITHOUT_KNOWLEDGE:
        return "a folder of programs"
    if top / os.fsdecode(path) in excluded:
        return "localllm's own folder"
    return "a folder nested too deep" if path.count(b"/") >= _MAX_DEPTH else ""
