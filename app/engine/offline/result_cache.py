"""Results of tasks, kept in a file: a damaged or older file is measured again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from app.protocol import codec
from quantizer.system.files import private_folder, write_atomically

_Result = TypeVar("_Result")


def cached_results(
    path: Path, result_type: type[_Result], measure: Callable[[], Sequence[_Result]]
) -> Sequence[_Result]:
    """Return the content of the file at `path`; if it cannot be read, `measure` and write it."""
    try:
        return [codec.decode(result_type, entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError):
        measured = measure()
    private_folder(path.parent)
    write_atomically(path, json.dumps(codec.encode(list(measured))), sync=False)
    return measured
