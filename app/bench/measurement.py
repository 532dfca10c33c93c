"""What was measured: named samples with a unit, their medians, and the file they are kept in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

from client import BenchError

__all__ = ["Measurement", "Results", "percentile"]

_RATES = ("tok/s",)  # of all other units less is better


@dataclass(frozen=True, slots=True)
class Measurement:
    """`samples` of one figure, one for each run; `note` says what else is worth knowing."""

    work: str
    case: str
    unit: str
    samples: tuple[float, ...]
    note: str = ""

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
class Results:
    """All that one run of the driver measured of one server, called `label`."""

    label: str
    model: str
    measurements: tuple[Measurement, ...]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what `save` wrote. Raises BenchError when it is not that."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            found = [Measurement(**item | {"samples": tuple(item["samples"])}) for item in data["measurements"]]
            return cls(data["label"], data["model"], tuple(found))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{path} holds no results: {error}") from error


def percentile(samples: Iterable[float], percent: int) -> float:
    """Return the `percent`-th percentile (1 to 99), between the samples nearest to it."""
    values = list(samples)
    return values[0] if len(values) == 1 else quantiles(values, n=100, method="inclusive")[percent - 1]
