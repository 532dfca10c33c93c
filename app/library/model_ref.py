"""A model of this machine as people and programs name it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ModelRef"]


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model of this machine: the id that people use and its first or only file. `repo` is publisher/name or empty.

    `place` is the program whose file it is, empty for our own. `served_as` is what the service calls it, see `ids`.
    """

    id: str
    path: Path
    repo: str = ""
    place: str = ""
    served_as: str = field(default="", compare=False)  # worked out from the others
