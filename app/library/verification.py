"""Whether the bytes of a model are still those that it came with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from app.library.folder import parts_of
from app.library.hashes import expected_sha256, sha256_of
from app.library.index import Index
from app.library.model_ref import ModelRef
from quantizer.errors import UserError

__all__ = ["Verdict", "verify"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of reading a model: `sound` against what was known, `recorded` where nothing was, or `damaged`.

    `sha256` is of each file, empty where none was read. `reason` is empty unless it is damaged.
    """

    ref: ModelRef
    state: Literal["sound", "recorded", "damaged"]
    sha256: tuple[str, ...]
    reason: str = ""


def verify(ref: ModelRef, index: Index, on_bytes: Callable[[int], object], *, is_recording: bool = False) -> Verdict:
    """Read a model through the gate and then whole, hold it against its recorded hash, and record one where none was.

    `is_recording` takes the bytes for right as they are. Raises StorageError when `index` cannot be written.
    """
    from quantizer.gate import admit

    found: list[str] = []
    is_known = True
    try:
        admit(ref.path)
        for part in parts_of(ref.path):
            expected = "" if is_recording else expected_sha256(part, index)
            found.append(sha256_of(part, on_bytes))
            is_known = is_known and bool(expected)
            if expected not in ("", found[-1]):
                reason = f"{part.name} has the SHA-256 {found[-1]} and should have {expected}."
                return Verdict(ref, "damaged", tuple(found), reason)
    except UserError as error:
        return Verdict(ref, "damaged", tuple(found), str(error))
    for part, sha256 in zip(parts_of(ref.path), found, strict=True):
        index.record(part, sha256)
    return Verdict(ref, "sound" if is_known else "recorded", tuple(found))
