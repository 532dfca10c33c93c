"""Measurements: named samples with a unit and their medians, results files and tables, and the roofline of decode.

The roofline compares bytes read per pass × passes a second with the memory bandwidth; a pass yields one token, or
several with accepted drafts. Owns the tables of results, for one server or two side by side; text from servers is
escaped for the terminal. Prints nothing, and is pure except for the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.table import Table

from app.common.terminal import printable
from app.protocol.codec import decode_checked, encode
from quantizer.figures import format_figure
from quantizer.system.errors import UsageError
from quantizer.system.files import read_regular

if TYPE_CHECKING:
    from offload.devices.bandwidth import ReadBandwidth

_RATES = ("tok/s",)  # in all other units less is better


@dataclass(frozen=True, slots=True)
class Measurement:
    """The `samples` of one figure, one per run; `note` has further details. `tokens_per_pass` is above 1 where drafts
    were accepted: several tokens per pass over the weights. `predicted` is the planner's prediction for answers without
    drafts; None without one."""

    work: str
    case: str
    unit: str
    samples: tuple[float, ...]
    note: str = ""
    tokens_per_pass: float = 1.0
    predicted: float | None = None

    @property
    def value(self) -> float:
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
        items = (replace(item, predicted=predicted.get((item.work, item.case))) for item in self.measurements)
        return replace(self, measurements=tuple(items))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(encode(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file of `save`. Raises UsageError for another file."""
        try:
            return decode_checked(cls, json.loads(read_regular(path)))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{path} contains no results: {error}", "Name a file that the driver wrote.") from error


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
        weights, rate = format_figure(self.weight_bytes_per_pass / _GB, 3), format_figure(self.bytes_per_s / _GB, 3)
        return (
            f"{self.label}, decode at {self.case}: {weights} GB of weights"
            f" × {format_figure(self.passes_per_s, 4)} passes/s = {rate} GB/s, {self.share:.0%} of the"
            f" {format_figure(limit.bytes_per_s / _GB, 3)} GB/s that {limit.n_threads} threads read here with numpy"
            f" (best of {limit.n_passes} passes over {format_figure(limit.n_bytes / _GB, 2)} GB).{beyond}"
        )


def shallowest_decode(results: Results) -> Measurement | None:
    """Return decode at the smallest measured depth, None if it was not measured."""
    return next((item for item in results.measurements if item.work == "decode"), None)


def roofline_of(label: str, decode: Measurement, weight_bytes_per_pass: int, bandwidth: ReadBandwidth) -> Roofline:
    passes_per_s = decode.value / decode.tokens_per_pass
    return Roofline(label, decode.case, weight_bytes_per_pass, passes_per_s, bandwidth)


def table(results: Results) -> Table:
    """Return the medians of one server, with the lowest and highest sample and the prediction."""
    made = _columns(results.label, "lowest–highest", "predicted", "")
    for item in results.measurements:
        made.add_row(item.work, item.case, _figure(item), _spread(item), _predicted(item), item.note)
    return made


def comparison(before: Results, after: Results) -> Table:
    """Return the medians of two servers for all cases of both, and how many times better `after` is."""
    made = _columns(before.label, "lowest–highest", after.label, "lowest–highest", "×", "")
    others = {item.key: item for item in after.measurements}
    for item in before.measurements:
        if other := others.get(item.key):
            gain = f"{other.gain_over(item):.2f}"
            made.add_row(
                item.work, item.case, _figure(item), _spread(item), _figure(other), _spread(other), gain, other.note
            )
    return made


def line(figure: Figure) -> str:
    """Return one figure on one line, for progress."""
    name = f"{figure.work} {figure.case}".rstrip()
    text = _figure(figure) if isinstance(figure, Measurement) else f"not measured. {figure.reason}"
    return printable(f"{name}: {text}").replace("\n", " ")


def reasons(results: Results) -> list[str]:
    """Return a line for each figure of a server that could not be measured."""
    return [f"{printable(results.label)}: {line(item)}" for item in results.unmeasured]


def as_json(measured: Sequence[Results], rooflines: Sequence[Roofline], seed: int) -> dict[str, Any]:
    """Return everything as one JSON object: samples with their medians, and the gain over the first server. A `gain`
    above 1 is better: faster, or smaller."""
    return {
        "seed": seed,
        "results": [_results(results, measured[0]) for results in measured],
        "rooflines": [asdict(roofline) | {"share": roofline.share} for roofline in rooflines],
    }


def _results(results: Results, first: Results) -> dict[str, Any]:
    compared = {item.key: item for item in first.measurements} if results is not first else {}
    rows = []
    for item in results.measurements:
        gain = {"gain": item.gain_over(compared[item.key])} if item.key in compared else {}
        rows.append({**asdict(item), "median": item.value, **gain})
    return {**asdict(results), "measurements": rows}


def _columns(*names: str) -> Table:
    made = Table("work", "case", box=None, pad_edge=False)
    for name in names[:-1]:
        made.add_column(printable(name), justify="right", no_wrap=True)
    made.add_column(names[-1])
    return made


def _figure(item: Measurement) -> str:
    return f"{format_figure(item.value, 4)} {item.unit}"


def _predicted(item: Measurement) -> str:
    return (
        "" if item.predicted is None else f"{format_figure(item.predicted, 4)} ({item.predicted / item.value - 1:+.0%})"
    )


def _spread(item: Measurement) -> str:
    ends = (min(item.samples), max(item.samples)) if len(item.samples) > 1 else ()
    return "–".join(format_figure(end, 4) for end in ends)
