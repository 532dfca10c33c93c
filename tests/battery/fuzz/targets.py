"""The table of targets."""

from __future__ import annotations

from collections.abc import Mapping

from tests.battery.fuzz.readers import documents, files, grammars, models, streams
from tests.battery.fuzz.target import Target

__all__ = ["TARGETS"]

TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (*models.TARGETS, *documents.TARGETS, *grammars.TARGETS, *streams.TARGETS, *files.TARGETS)
}
