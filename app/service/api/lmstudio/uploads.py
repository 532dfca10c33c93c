"""The pictures that clients of LM Studio's SDK upload before they send a message that names them.

Owns their names, which nobody can guess, and how many are held: in memory, the latest.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Protocol

MAX_CHARACTERS = 64 << 20  # of Base64


class Uploads(Protocol):
    """What was uploaded."""

    def get(self, identifier: str) -> str:
        """Return a file in Base64, "" for one that is not held any more."""
        ...


class UploadedFiles:
    """The latest files in Base64, by identifier."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, str] = OrderedDict()

    def add(self, base64: str) -> str:
        """Hold a file and return its identifier; the oldest ones leave."""
        identifier = secrets.token_hex(16)
        self._files[identifier] = base64
        while len(self._files) > 1 and sum(map(len, self._files.values())) > MAX_CHARACTERS:
            self._files.popitem(last=False)
        return identifier

    def get(self, identifier: str) -> str:
        return self._files.get(identifier, "")


NO_FILES: Uploads = UploadedFiles()  # nothing is ever added to it
