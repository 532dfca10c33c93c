"""Which shards of a checkpoint may lie on the disk at once while it is converted as it comes. Pure.

Owns the rule: one shard is fetched ahead of those that are being converted, and none before its turn. A shard goes once
the last tensor that is made of it is written. Knows nothing of files or of who fetches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Read", "ShardWindow"]


@dataclass(frozen=True, slots=True)
class Read:
    """A shard of `n_bytes` that the tensors from number `first` to `last` are made of, not all of them."""

    name: str
    first: int
    last: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ShardWindow:
    """The shards that a conversion reads, by first use."""

    reads: tuple[Read, ...]

    @classmethod
    def of(cls, reads: Iterable[tuple[str, int, int]], n_bytes: Mapping[str, int]) -> ShardWindow:
        """Make it of what a job says that it reads."""
        return cls(tuple(Read(name, first, last, n_bytes[name]) for name, first, last in reads))

    def may_come(self, n_written: int) -> set[str]:
        """The shards whose turn it is once `n_written` tensors stand.

        Of those that are over when a shard is needed, all but the one right before it must be done with.
        """
        return {
            read.name
            for index, read in enumerate(self.reads)
            if all(other.last < n_written for other in self.reads[: max(index - 1, 0)] if other.last < read.first)
        }

    def done_with(self, n_written: int) -> set[str]:
        """The shards of which nothing is read any more once `n_written` tensors stand."""
        return {read.name for read in self.reads if read.last < n_written}

    def peak_bytes(self, here: Collection[str]) -> int:
        """The most that lies on the disk at once, where the shards in `here` lie there from the beginning."""
        peaks = [sum(read.n_bytes for read in self.reads if read.name in here)]
        for index, read in enumerate(self.reads):
            before, later = self.reads[: max(index - 1, 0)], self.reads[index + 1 :]
            beside = [other for other in before if other.last >= read.first] + [it for it in later if it.name in here]
            peaks.append(sum(it.n_bytes for it in (*beside, *self.reads[max(index - 1, 0) : index + 1])))
        return max(peaks)
