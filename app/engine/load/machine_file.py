"""A JSON file of measurements, by machine (build, processor) and then by name; and the keys of models and files.

Owns reading and writing it. A file that cannot be read counts as empty, and one that cannot be written keeps nothing:
everything in it can be measured again. `app.settings.folders` says so to the user.
Independent of what the entries mean.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from app.engine.library_files import library_files, library_folders
from offload.devices.host import cpu_name
from quantizer.system.files import open_regular, read_regular, write_cache

_N_SAMPLES, _SAMPLE_BYTES = 64, 4096


def this_build() -> str:
    """Return the name of this build of llama.cpp on this processor. A version can be built in many ways (for a GPU, by
    another compiler, for another processor), which have speeds, buffers and faults of their own, so the name has a hash
    of the libraries."""
    files = library_files(library_folders())
    library = _library_id(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files))
    return f"llama-cpp-python {metadata.version('llama-cpp-python')} {library} on {cpu_name()}"


@lru_cache(maxsize=4)
def _library_id(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Return a hash of the names and samples of `files`, not of their times: copying an environment builds nothing."""
    digest = hashlib.blake2b(digest_size=6)
    for path, _, _ in files:
        digest.update(f"{path.name} {fingerprint(path)}\n".encode())
    return digest.hexdigest()


def fingerprint(path: Path, *parts: object) -> str:
    """Return a hash of the file's weights (its size and 64 samples of 4 KiB) and of `parts`. States are valid only for
    the same weights and layout; `parts` are the other values that decide this."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=12)
    n_bytes = path.stat().st_size
    digest.update(n_bytes.to_bytes(8, "little"))
    with open_regular(path) as file:
        for index in range(_N_SAMPLES):
            file.seek(n_bytes * index // _N_SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def model_key(path: Path) -> str:
    """Return the key of measurements of the model at `path`: its weights and the build of llama.cpp."""
    return fingerprint(path, metadata.version("llama-cpp-python"))


class MachineFile:
    """The entries of one machine in the file at `path`, each an object."""

    def __init__(self, path: Path, machine: str) -> None:
        self._path = path
        self._machine = machine

    def entries(self) -> Mapping[str, dict[str, Any]]:
        with suppress(OSError):
            return self._read().get(self._machine, {})
        return {}

    def entry(self, name: str) -> dict[str, Any]:
        """Return the entry called `name`, empty if there is none."""
        return self.entries().get(name, {})

    def update(self, name: str, change: Mapping[str, Any]) -> None:
        """Replace the fields in `change` of the entry called `name`, if the file can be written."""
        try:
            data = self._read()
        except OSError:  # what other entries say must not be lost to an error that passes
            return
        data.setdefault(self._machine, {}).setdefault(name, {}).update(change)
        write_cache(self._path, json.dumps(data, indent=1))

    def _read(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the entries by machine; what is none is left out. Raises OSError for a file that is there and cannot
        be read."""
        try:
            data = json.loads(read_regular(self._path))
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return {
            machine: {name: entry for name, entry in entries.items() if isinstance(entry, dict)}
            for machine, entries in (data.items() if isinstance(data, dict) else ())
            if isinstance(entries, dict)
        }
