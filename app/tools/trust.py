"""The folders whose skills and AGENTS.md the person trusts: `trusted.json` beside the settings file.

What is in a folder may be somebody else's text, such as a checkout's, and what a model is told it follows. So it is
used once the person has said so, for that folder and no other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from app.settings.settings import settings_file
from quantizer.system.errors import UsageError
from quantizer.system.files import PRIVATE_FILE, changing_alone, explained, read_regular, write_atomically

TRUST_FILE = "trusted.json"
_FOLDERS = "folders"
_MAX_BYTES = 1 << 20
_LOCK_TIMEOUT_S = 5.0


class TrustedFolders:
    """The folders that the file at `path` lists, by their resolved paths; none where there is no file. Methods raise
    UsageError for a file that is damaged, StorageError where it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, folder: Path) -> bool:
        return os.path.realpath(folder) in self._read()

    def trust(self, folder: Path) -> None:
        self._change(folder, is_trusted=True)

    def distrust(self, folder: Path) -> None:
        """Take a folder back. Raises UsageError for one that is not trusted."""
        if not self.has(folder):
            raise UsageError(f"{folder} is not trusted.", "/tools trust FOLDER does it.")
        self._change(folder, is_trusted=False)

    def _change(self, folder: Path, *, is_trusted: bool) -> None:
        with explained(f"{self.path} cannot be changed"), changing_alone(self.path, _LOCK_TIMEOUT_S):
            resolved = os.path.realpath(folder)
            others = [each for each in self._read() if each != resolved]
            text = json.dumps({_FOLDERS: [*others, resolved] if is_trusted else others}, indent=2)
            write_atomically(self.path.resolve(), f"{text}\n", sync=True, mode=PRIVATE_FILE)

    def _read(self) -> list[str]:
        try:
            with explained(f"{self.path} cannot be read", "Correct its permissions."):
                data = json.loads(read_regular(self.path, _MAX_BYTES)) if self.path.exists() else {_FOLDERS: []}
            folders = data[_FOLDERS]
        except (ValueError, KeyError, TypeError, RecursionError):
            folders = None
        if not isinstance(folders, list) or not all(isinstance(each, str) for each in folders):
            raise UsageError(f"{self.path} is damaged.", "Remove it, and trust folders anew with /tools trust FOLDER.")
        return folders


def trusted_folders(environment: Mapping[str, str] = os.environ) -> TrustedFolders:
    return TrustedFolders(settings_file(environment).with_name(TRUST_FILE))
