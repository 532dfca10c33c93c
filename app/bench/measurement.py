"""Measurements: named samples with a unit and their medians, results files, and the roofline of decode.

The roofline compares bytes read per pass × passes a second with the memory bandwidth; a pass yields one token, or
several with accepted drafts. Pure, except for the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, TypeAlias

from app.protocol.codec import decode, encode
from quantizer.errors import UsageError

if TYPE_CHECKING:
    from offload.devices.bandwidth import ReadBandwidth

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

_RATES = ("tok/s",)  # in all other units less is better


@dataclass(frozen=True, slots=True)
class Measurement:
    """The `samples` of one figure, one per run; `note` has further details.

    `tokens_per_pass` is above 1 where drafts were accepted: several tokens per pass over the weights. `predicted` is
    the planner's prediction for answers without drafts; None without one.
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
        """Return how many times better this is than `other`: above 1 it is faster, or smaller."""
        if self.unit in _RATES:
            return self.value / other.value
        return other.value / self.value


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A workload, or one case of it, that could not be measured."""

    work: str
    case: str
    reason: str


Figure: TypeAlias = Measurement | Unmeasured


@dataclass(frozen=True, slots=True)
class Results:
    """All figures of one server, called `label`, in one run."""

    label: str
    model: str
    measurements: tuple[Measurement, ...]
    unmeasured: tuple[Unmeasured, ...] = ()

    @classmethod
    def of(cls, label: str, model: str, figures: Iterable[Figure]) -> Results:
        """Sort `figures` into measured and unmeasured ones."""
        found = list(figures)
        measured = tuple(figure for figure in found if isinstance(figure, Measurement))
        return cls(label, model, measured, tuple(figure for figure in found if isinstance(figure, Unmeasured)))

    def with_predictions(self, predicted: Mapping[tuple[str, str], float]) -> Results:
        """Return the results with predictions by work and case."""
        items = (replace(item, predicted=predicted.get((item.work, item.case))) for item in self.measurements)
        return replace(self, measurements=tuple(items))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(encode(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file of `save`. Raises UsageError for another file."""
        try:
            return decode(cls, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} contains no results: {error}", "Name a file that the driver wrote.") from error


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
        """Bytes read a second as a fraction of the measured memory bandwidth."""
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
    """Return decode at the smallest measured depth, None if it was not measured."""
    return next((item for item in results.measurements if item.work == "decode"), None)


def roofline_of(label: str, decode: Measurement, weight_bytes_per_pass: int, bandwidth: ReadBandwidth) -> Roofline:
    """Return the roofline of `decode` for the server called `label`."""
    passes_per_s = decode.value / decode.tokens_per_pass
    return Roofline(label, decode.case, weight_bytes_per_pass, passes_per_s, bandwidth)
