"""What was measured: named samples with a unit, their medians, and the file they are kept in.

How near decode comes to what memory allows: bytes read per pass × passes a second, against the bandwidth.

A pass gives one token, or several where a draft was taken. Pure. Knows nothing of how either was measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import TypeAlias

from offload.devices.bandwidth import ReadBandwidth
from quantizer.errors import UsageError

__all__ = [
    "Figure",
    "Measurement",
    "Results",
    "Roofline",
    "Unmeasured",
    "percentile",
    "roofline_of",
    "shallowest_decode",
]

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


_GB = 1e9
_BEYOND_MEMORY = 1.05


@dataclass(frozen=True, slots=True)
class Roofline:
    """Decode at `case`, the shallowest depth, where hardly anything but the weights is read in each pass."""

    label: str
    case: str
    weight_bytes_per_pass: int
    passes_per_s: float
    bandwidth: ReadBandwidth

    @property
    def bytes_per_s(self) -> float:
        return self.weight_bytes_per_pass * self.passes_per_s

    @property
    def share(self) -> float:
        """Bytes read a second over what memory was measured to give."""
        return self.bytes_per_s / self.bandwidth.bytes_per_s

    def __str__(self) -> str:
        limit = self.bandwidth
        beyond = " Weights that small stay in caches, or lie on a GPU." if self.share > _BEYOND_MEMORY else ""
        return (
            f"{self.label}, decode at {self.case}: {self.weight_bytes_per_pass / _GB:.3g} GB of weights"
            f" × {self.passes_per_s:.4g} passes/s = {self.bytes_per_s / _GB:.3g} GB/s, {self.share:.0%}"
            f" of the {limit.bytes_per_s / _GB:.3g} GB/s that {limit.n_threads} threads read here with numpy"
            f" (best of {limit.n_passes} passes over {limit.n_bytes / _GB:.2g} GB).{beyond}"
        )


def shallowest_decode(results: Results) -> Measurement | None:
    """Return decode at the least depth it was measured at, None where it was not."""
    return next((item for item in results.measurements if item.work == "decode"), None)


def roofline_of(label: str, decode: Measurement, weight_bytes_per_pass: int, bandwidth: ReadBandwidth) -> Roofline:
    """Return where `decode` of the server called `label` stands."""
    passes_per_s = decode.value / decode.tokens_per_pass
    return Roofline(label, decode.case, weight_bytes_per_pass, passes_per_s, bandwidth)
