"""What was measured: named samples with a unit, their medians, and the file they are kept in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import TypeAlias

from quantizer.errors import UsageError

__all__ = ["Figure", "Measurement", "Results", "Unmeasured", "percentile"]

_RATES = ("tok/s",)  # of all other units less is better


@dataclass(frozen=True, slots=True)
class Measurement:
    """`samples` of one figure, one for each run; `note` says what else is worth knowing.

    `tokens_per_pass` is above 1 where drafts were taken: they come of one pass over the weights. `predicted` is what
    the planner said before, of answers without drafts; None where it says nothing.
    """

    work: str
    case: str
    unit: str
    samples: tuple[float, ...]
    note: str = ""
    tokens_per_pass: float = 1.0
    predicted: float | None = None

    @property
    def value(self) -> float:
        """The median of the samples."""
        return median(self.samples)

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.work, self.case, self.unit)

    def gain_over(self, other: Measurement) -> float:
        """How many times better this is than `other`: above 1 it is faster, or smaller."""
        if self.unit in _RATES:
            return self.value / other.value
        return other.value / self.value


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """Work, or one case of it, that a server could not be measured by."""

    work: str
    case: str
    reason: str


Figure: TypeAlias = Measurement | Unmeasured


@dataclass(frozen=True, slots=True)
class Results:
    """All that was measured of one server, called `label`, in one run."""

    label: str
    model: str
    measurements: tuple[Measurement, ...]
    unmeasured: tuple[Unmeasured, ...] = ()

    @classmethod
    def of(cls, label: str, model: str, figures: Iterable[Figure]) -> Results:
        """Sort `figures` into what was measured and what was not."""
        found = list(figures)
        measured = tuple(figure for figure in found if isinstance(figure, Measurement))
        return cls(label, model, measured, tuple(figure for figure in found if isinstance(figure, Unmeasured)))

    def beside(self, predicted: Mapping[tuple[str, str], float]) -> Results:
        """Return the same with what was predicted, by work and case."""
        told = (replace(item, predicted=predicted.get((item.work, item.case))) for item in self.measurements)
        return replace(self, measurements=tuple(told))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what `save` wrote. Raises UsageError when it is not that."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            found = [Measurement(**item | {"samples": tuple(item["samples"])}) for item in data["measurements"]]
            missing = [Unmeasured(**item) for item in data.get("unmeasured", ())]
            return cls(data["label"], data["model"], tuple(found), tuple(missing))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} holds no results: {error}", "Name a file that the driver wrote.") from error


def percentile(samples: Iterable[float], percent: int) -> float:
    """Return the `percent`-th percentile (1 to 99), between the samples nearest to it."""
    values = list(samples)
    return values[0] if len(values) == 1 else quantiles(values, n=100, method="inclusive")[percent - 1]
