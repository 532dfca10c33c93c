"""Whose a service is: the secret by which the processes of one user and one data folder recognise each other.

Owns `service.key`, which only its owner can read, the proofs made from it, and the record of the port of a service that
runs on another one than the settings name. Independent of HTTP.

Any program of any user can listen on a port of this machine. So before a client sends a prompt, the service proves that
it can read the key: by an HMAC of the client's challenge, the data folder, and the address at which it accepted the
connection. The last keeps another program from passing on the proof of the real service; the folder, a copied data
folder from passing for the first. The key itself is never sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import platform
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from app.settings.settings import Settings
from quantizer.system.errors import StorageError
from quantizer.system.faults import UnsuitableFileError, remedy_for, system_fault
from quantizer.system.files import PRIVATE_FILE, open_regular, private_folder, write_atomically

IDENTITY_PATH, STOP_PATH = "/api/localllm/identity", "/api/localllm/stop"
CHALLENGE_CHARACTERS = 64  # hexadecimal
_KEY_NAME = "service.key"
_KEY_BYTES = 32
_OTHERS = 0o077
_MAX_RECORD_BYTES = 4096

Address: TypeAlias = tuple[str, int]
_ANYWHERE: Address = ("", 0)
Statement: TypeAlias = Literal["this is the service", "end the service"]


def new_challenge() -> str:
    return secrets.token_hex(CHALLENGE_CHARACTERS // 2)


class ServiceIdentity:
    """The identity of the services and clients of this user and the data folder of `settings`.

    The key is in the data folder, or in the cache folder where the first cannot keep one: it is read-only, or a file
    system without modes shows it to everybody. It is read at each use, so that all processes go on with the same one
    when somebody removes it. Where neither folder can keep a key, `secret` is one that the service made for itself.
    """

    def __init__(self, settings: Settings, secret: bytes = b"") -> None:
        self._paths = tuple(dict.fromkeys(folder / _KEY_NAME for folder in (settings.data_dir, settings.cache_dir)))
        self._data_folder = os.fsencode(os.path.realpath(settings.data_dir))
        self._wanted_port = settings.port
        self.secret = secret

    @classmethod
    def create(cls, settings: Settings) -> ServiceIdentity:
        """Return the identity, and store a key where there is none."""
        identity = cls(settings)
        if not identity._key() and not any(map(_store_key, identity._paths)):
            identity.secret = secrets.token_bytes(_KEY_BYTES)
        return identity

    def proof(self, statement: Statement, challenge: str, address: Address = _ANYWHERE) -> str:
        """Return the proof of `statement` by who can read the key, "" without one. `address` is the service's end of
        the connection; a client, which sends its proof to a proved service only, needs none."""
        key = self._key()
        if not key:
            return ""
        host, port = address
        parts = (statement, challenge, host.removeprefix("::ffff:"), str(port))
        return hmac.new(key, "\n".join((*parts, "")).encode() + self._data_folder, hashlib.sha256).hexdigest()

    def is_proof(self, given: object, statement: Statement, challenge: str, address: Address = _ANYWHERE) -> bool:
        wanted = self.proof(statement, challenge, address)
        return isinstance(given, str) and bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())

    def recorded_port(self) -> int:
        """Return the port where a service runs, or once ran, in place of the one of the settings; 0 for none. Whatever
        listens there has to prove itself like any other."""
        for path in self._record_paths():
            with (
                contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError),
                open_regular(path) as file,
            ):
                port = json.loads(file.read(_MAX_RECORD_BYTES))["port"]
                if isinstance(port, int) and 0 < port < 1 << 16:
                    return port
        return 0

    @contextlib.contextmanager
    def recording(self, port: int) -> Iterator[str]:
        """Record during this context that a service for the settings' port runs at `port`, unless that is the same.
        Yield a sentence for the user where no folder can be written, else ""."""
        if self._wanted_port not in (0, port):
            for path in self._record_paths():
                with contextlib.suppress(OSError):
                    text = json.dumps({"port": port})
                    write_atomically(private_folder(path.parent) / path.name, text, sync=False, mode=PRIVATE_FILE)
                    break
        try:
            yield self.why_not_found(port)
        finally:
            if self._wanted_port not in (0, port) and self.recorded_port() == port:
                for path in self._record_paths():
                    with contextlib.suppress(OSError):
                        path.unlink(missing_ok=True)

    def why_not_found(self, port: int) -> str:
        """Return a sentence for the user where other commands will not find a service at `port`, else ""."""
        if self._wanted_port in (0, port) or self.recorded_port() == port:
            return ""
        folders = " nor in ".join(str(path.parent) for path in self._paths)
        return (
            f"Other commands will not find the service at port {port}, which can be noted neither in {folders}. "
            f"Free some space there and start it again, or set LOCALLLM_PORT={port} for them."
        )

    def _key(self) -> bytes:
        return self.secret or next(filter(None, map(_read_key, self._paths)), b"")

    def _record_paths(self) -> list[Path]:
        # A home on a network is of several machines, each with ports of its own.
        machine = hashlib.sha256(platform.node().encode("utf-8", "replace")).hexdigest()[:8]
        return [path.with_name(f"service-{machine}-{self._wanted_port}.json") for path in self._paths]


def _read_key(path: Path) -> bytes:
    """Return the key in a file of ours that nobody else can read, b"" for any other file. Raises StorageError where the
    system refuses to read it."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            key = file.read(_KEY_BYTES + 1)
    except UnsuitableFileError:
        return b""
    except OSError as error:
        if system_fault("command", error):  # as if there were none, a service of ours would be called another user's
            raise StorageError(f"{path} cannot be read: {error.strerror}.", remedy_for(error, "")) from error
        return b""
    is_private = sys.platform == "win32" or (status.st_uid == os.geteuid() and not status.st_mode & _OTHERS)
    return key if is_private and len(key) == _KEY_BYTES else b""


def _store_key(path: Path) -> bool:
    """Store a new key at `path`; return whether it is private there. One that others could read is replaced; a file of
    another user, whose folder this process may be able to write all the same, is not."""
    try:
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or (sys.platform != "win32" and status.st_uid != os.geteuid()):
                return False
        private_folder(path.parent)
        write_atomically(path, secrets.token_bytes(_KEY_BYTES), sync=True, mode=PRIVATE_FILE)
        if _read_key(path):
            return True
        path.unlink()
    except (OSError, StorageError):
        pass
    return False
