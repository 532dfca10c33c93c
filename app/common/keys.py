"""The API keys of the service: `<data>/keys.json`, which only its owner can read.

Owns the file, the scopes of a key, and comparing keys in constant time. Independent of HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import string
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any

from app.settings.parsing import is_loopback
from app.settings.settings import Settings
from quantizer.system.errors import StorageError, UsageError
from quantizer.system.files import (
    PRIVATE_FILE,
    changing_alone,
    explained,
    read_regular,
    write_atomically,
)

_PREFIX = "llm-"  # marks a leaked key as one of ours
_N_BYTES = 32
_TOKEN_PREFIX = "sk-lm-"  # noqa: S105
_TOKEN_ALPHABET = string.ascii_letters + string.digits
_N_TOKEN_CHARACTERS = 28  # 8 name the client and 20 are its password, 119 bits
_OTHERS = 0o077
_LOCK_TIMEOUT_S = 5.0


class KeyScope(StrEnum):
    """The permissions of a key: use models, or also load, change and remove them."""

    INFER = "infer"
    MANAGE = "manage"


ALL_SCOPES = frozenset(KeyScope)


@dataclass(frozen=True, slots=True)
class Key:
    """A named key. `made_s` is its creation time, in seconds since 1970."""

    name: str
    secret: str
    scopes: frozenset[KeyScope]
    made_s: int


def lmstudio_token(secret: str) -> str:
    """Return the key `secret` in the form of LM Studio's tokens, the only one that its newer SDKs send. It is made from
    the secret, so no more than that is stored (source: lmstudio-js 2.0.0, `lmstudioAPITokenRegex`)."""
    number = int.from_bytes(hashlib.sha512(b"lmstudio:" + secret.encode()).digest(), "big")
    characters = []
    for _ in range(_N_TOKEN_CHARACTERS):
        number, index = divmod(number, len(_TOKEN_ALPHABET))
        characters.append(_TOKEN_ALPHABET[index])
    text = "".join(characters)
    return f"{_TOKEN_PREFIX}{text[:8]}:{text[8:]}"


def owner_of(given: str) -> str:
    """Return a name of who holds the key `given`, the same in both of its forms, from which nobody learns it."""
    token = given if given.startswith(_TOKEN_PREFIX) else lmstudio_token(given)
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def is_secret(given: str, secret: str) -> bool:
    """Return whether `given` is the key `secret`, in its own form or in LM Studio's, in constant time."""
    wanted = lmstudio_token(secret) if given.startswith(_TOKEN_PREFIX) else secret
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


class KeyFile:
    """The keys in the file at `path`, read again whenever it changed; none while there is no file. Every method raises
    StorageError for a file that is damaged, readable by others, or not accessible."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: tuple[int, ...] = ()
        self._keys: tuple[Key, ...] = ()

    def known(self) -> tuple[Key, ...]:
        """Return every key, the oldest first."""
        with _using(self._path):
            try:
                status = self._path.stat()
            except FileNotFoundError:
                self._state, self._keys = (), ()
                return ()
        state = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
        if state != self._state:
            if sys.platform != "win32" and status.st_mode & _OTHERS:
                remedy = f"Run `chmod 600 {self._path}`, or create new keys."
                raise StorageError(f"Others can read {self._path}.", remedy)
            try:
                with _using(self._path):
                    data = json.loads(read_regular(self._path))
                self._keys, self._state = tuple(_parsed(item) for item in data["keys"]), state
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise StorageError(f"{self._path} is damaged.", "Remove it and create new keys.") from error
        return self._keys

    def scopes_of(self, secret: str) -> frozenset[KeyScope]:
        """Return the scopes of the key `secret`, none for an unknown one, in constant time."""
        scopes: frozenset[KeyScope] = frozenset()
        for key in self.known():
            if is_secret(secret, key.secret):
                scopes = key.scopes
        return scopes

    def add(self, name: str, scopes: Iterable[KeyScope]) -> Key:
        """Create a key called `name`. Raises UsageError where the name is taken."""
        with self._changing() as keys:
            if any(other.name == name for other in keys):
                raise UsageError(f"There is a key {name!r} already.", "Give another name, or remove it first.")
            keys.append(_new_key(name, scopes))
            return keys[-1]

    def remove(self, name: str) -> None:
        """Revoke the key called `name`. Raises UsageError that lists the names where there is none."""
        with self._changing() as keys:
            names = [key.name for key in keys]
            if name not in names:
                known = f"Existing keys: {', '.join(names)}." if names else "There are none."
                raise UsageError(f"There is no key {name!r}.", known)
            keys[:] = [key for key in keys if key.name != name]

    def first(self, name: str) -> Key:
        """Return the oldest key with all scopes, creating one called `name` where there is none."""
        if not _complete(self.known()):
            with self._changing() as keys:
                if not _complete(keys):  # another process may have created one meanwhile
                    names = {key.name for key in keys}
                    free = next(other for number in count() if (other := name + "+" * number) not in names)
                    keys.append(_new_key(free, ALL_SCOPES))
        return _complete(self.known())[0]

    @contextmanager
    def _changing(self) -> Iterator[list[Key]]:
        """Yield the keys under a lock, and store the list as the block leaves it."""
        busy = "Another process is changing the keys."
        with _using(self._path), changing_alone(self._path, _LOCK_TIMEOUT_S, busy):
            keys = list(self.known())
            yield keys
            stored = [
                {"name": key.name, "key": key.secret, "scopes": sorted(key.scopes), "made_s": key.made_s}
                for key in keys
            ]
            text = json.dumps({"keys": stored}, indent=1)
            write_atomically(self._path, text, sync=True, mode=PRIVATE_FILE)


def key_file(settings: Settings) -> KeyFile:
    return KeyFile(settings.data_dir / "keys.json")


def own_key(settings: Settings) -> str:
    """Return the key that a client on this machine sends to the service at `settings.url`, "" where none is needed.
    Raises StorageError as `KeyFile` does."""
    if settings.api_key or is_loopback(settings.host):
        return settings.api_key
    return next((key.secret for key in _complete(key_file(settings).known())), "")


def _new_key(name: str, scopes: Iterable[KeyScope]) -> Key:
    return Key(name, _PREFIX + secrets.token_urlsafe(_N_BYTES), frozenset(scopes), int(time.time()))


def _complete(keys: Iterable[Key]) -> list[Key]:
    """Return the keys with all scopes."""
    return [key for key in keys if key.scopes == ALL_SCOPES]


def _parsed(item: dict[str, Any]) -> Key:
    name, secret = item["name"], item["key"]
    if not (isinstance(name, str) and isinstance(secret, str) and secret):
        raise ValueError(item)
    return Key(name, secret, frozenset(map(KeyScope, item["scopes"])), int(item["made_s"]))


def _using(path: Path) -> AbstractContextManager[None]:
    return explained(f"{path} cannot be used", "Check its permissions, or set LOCALLLM_DATA_DIR.")
