"""What to tell of tensors whose shape ruled out the type that they should get: which, how many, and what they got."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from quantizer.mix import Assignment

__all__ = ["fallback_warnings"]


def fallback_warnings(verdicts: Mapping[str, Assignment]) -> Iterator[str]:
    """A sentence for each pair of wanted and given type; the same tensor of several layers is named once."""
    by_types: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, verdict in verdicts.items():
        if verdict.target != verdict.wanted:
            by_types[verdict.wanted.name, verdict.target.name].append(name)
    for (wanted, target), names in by_types.items():
        distinct = dict.fromkeys(re.sub(r"^blk\.\d+\.", "blk.*.", name) for name in names)
        yield (
            f"{len(names)} of {len(verdicts)} tensors have rows that are no whole blocks of {wanted}"
            f" and become {target}: {', '.join(distinct)}."
        )
