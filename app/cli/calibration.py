"""What `quantize` measures before it writes: an importance matrix, the mix of types for a target, layers to leave out.

A checkpoint is converted to a temporary GGUF first, to run it. Measurements are cached by the model's weights and the
calibration text.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.output.format import print_table
from app.cli.output.progress import JobProgress, with_progress
from app.cli.resources import read_text, shipped, window_size
from app.common.terminal import format_bytes, printable
from app.engine.load.load_check import LOAD_CHECK
from app.options.jobs import TextOptions
from app.settings.settings import load_settings
from quantizer.figures import format_figure, format_number, format_speed
from quantizer.gguf.file_names import NO_PROJECTOR
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.system.errors import UsageError
from quantizer.system.files import private_folder, read_regular, why_unwritable
from quantizer.system.temporary_folder import temporary_folder
from quantizer.write.events import JobPlanned

if TYPE_CHECKING:
    from app.engine.offline.layer_importance import LayerDistance
    from quantizer.mix.imatrix import ImportanceMatrix
    from quantizer.mix.search import Mix, MixSearch, Sensitivity
    from quantizer.write.job import JobRequest


AUTO = "auto"  # the value of --imatrix
CALIBRATION = shipped("calibration.txt")
RUNNABLE = "Q8_0"  # the type a checkpoint is run in: half of F16, and no weight is beyond its range


def compute_imatrix(path: Path, reading: TextOptions, *, parses_special: bool = False) -> ImportanceMatrix:
    """Compute the importance matrix of the model at `path` on a text, by default the calibration text. Raises
    UserError."""
    from app.engine.offline.imatrix import ImatrixRequest, run_imatrix
    from quantizer.gguf.validation import validate_gguf

    n_ctx = window_size(validate_gguf(path), reading.ctx)
    source = Path(reading.text) if reading.text else CALIBRATION
    request = ImatrixRequest(
        str(path), read_text(source), source.name, n_ctx, reading.chunks, reading.threads, parses_special
    )
    return run_imatrix(request, lambda steps: with_progress("Computing", steps))


def cached_imatrix(source: Path, running: Runnable, n_threads: int) -> Path:
    """Return the matrix of the model at `source` on the calibration text, computed now unless it is cached. `n_threads`
    0 takes the default. Raises UserError."""
    from quantizer.mix.imatrix import save_imatrix

    cached = load_settings().cache_dir / "imatrix" / f"{calibration_key(source)}.gguf"
    if not cached.is_file():
        matrix = compute_imatrix(running.path, TextOptions(threads=n_threads))
        if why_unwritable(cached.parent):
            cached = running.enter_context(temporary_folder("imatrix")) / cached.name
        private_folder(cached.parent)
        save_imatrix(matrix, cached)
    return cached


def calibration_key(source: Path, *parts: object) -> str:
    """Return a name for the weights of `source`, the text that they read, and `parts`."""
    from app.engine.load.machine_file import fingerprint
    from quantizer.write.quantize_plan import open_source

    first, *others = open_source(source).inputs
    text = hashlib.sha256(CALIBRATION.read_bytes()).hexdigest()
    return fingerprint(first, text, *map(fingerprint, others), *parts)


class Runnable(ExitStack):
    """A context manager around a model that can run; a checkpoint is converted to `file_type` when `path` is read.
    `n_threads` 0 takes the default."""

    def __init__(self, source: Path, file_type: str, n_threads: int) -> None:
        super().__init__()
        self._source = source
        self._file_type = file_type
        self._n_threads = n_threads or os.cpu_count() or 1

    @cached_property
    def path(self) -> Path:
        """Where it is. Raises UserError where it cannot be converted."""
        if not self._source.is_dir():
            return self._source
        from quantizer.write.job import JobRequest

        request = JobRequest(
            str(self._source), self._file_type, "", self._n_threads, is_overwriting=False, load_check=LOAD_CHECK
        )
        return write_temporary_model(request, f"to run the checkpoint in {self._file_type}", self)


def write_temporary_model(request: JobRequest, purpose: str, owned: ExitStack) -> Path:
    """Run `request` into a cache folder that is removed with `owned`, or in one of the system, and return the path.
    Prints the free space that it needs, and its `purpose`, on stderr. Raises UserError."""
    from quantizer.write.job import run_job

    folder = load_settings().cache_dir / "run"
    folder = Path(tempfile.gettempdir()) if why_unwritable(folder) else private_folder(folder)
    output = Path(owned.enter_context(tempfile.TemporaryDirectory(dir=folder))) / "model.gguf"
    with JobProgress() as progress:
        for event in run_job(replace(request, output=str(output), projector=NO_PROJECTOR)):
            progress.show(event)
            if isinstance(event, JobPlanned):
                # not click.echo: that writes past the bar, into its line
                print(f"Needs {format_bytes(event.n_bytes)} of free space in {folder} {purpose}.", file=sys.stderr)
    return output


# Versions of the two measurements: a new number discards what is cached.
_SENSITIVITY_METHOD = 2
_LAYER_METHOD = 1

_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


@dataclass(frozen=True, slots=True)
class MixTarget:
    """At most `n_bytes` of all files together, or at most `kld` nats a token, or answers of at least `tps` tokens a
    second here; 0 for no limit."""

    n_bytes: int = 0
    kld: float = 0.0
    tps: float = 0.0

    @property
    def label(self) -> str:
        """What an output is called after: 4.2GB, kld0.02, 30tps."""
        if self.tps:
            return f"{format_number(self.tps)}tps"
        if self.kld:
            return f"kld{format_number(self.kld)}"
        unit, n_unit = next((unit for unit in _UNITS if self.n_bytes >= unit[1]), ("B", 1))
        return f"{format_figure(self.n_bytes / n_unit, 4, has_commas=False)}{unit}"


@dataclass(frozen=True, slots=True)
class MixResult:
    """A mix, the search that it comes from, and the request that writes it; `kld` where it was measured."""

    mix: Mix
    search: MixSearch
    request: JobRequest
    kld: float | None


def find_mix(request: JobRequest, target: MixTarget, n_threads: int) -> MixResult:
    """Return the mix that `request` should write to meet `target`. `n_threads` 0 takes the default. Raises UserError,
    UsageError with the range that can be had where the target is beyond it."""
    from app.library.machine_fit.mix_speeds import mix_speeds
    from app.library.machine_fit.planning import local_planning_context
    from offload.footprint.model import PlannedModel
    from quantizer.mix.search import MixSearch, check_reachable, check_unquantized, mix_for_kld
    from quantizer.write.partial_output import check_output
    from quantizer.write.quantize_plan import open_source

    source = Path(request.source)
    model = open_source(source)
    check_unquantized(model)
    check_output(Path(request.output), [], model.inputs)  # not only after measuring
    here = local_planning_context(load_settings({"threads": n_threads or None}))
    if target.tps and not here.rates.tables:
        cause = "How fast each type of weights is on this machine was not measured yet."
        raise UsageError(cause, "Run `localllm tune --types` on a quiet machine, which takes 20 seconds.")
    if target.n_bytes:
        check_reachable(model, request, target.n_bytes)
    lossless = "BF16" if any(tensor.stored.name == "BF16" for tensor in model.tensors) else "F16"
    with Runnable(source, lossless, n_threads) as running:  # a checkpoint runs in the type in which it is as it was
        speeds = mix_speeds(PlannedModel.read(running.path), here)
        if target.tps and speeds is None:
            raise UsageError("The model lies on several devices here.", "Give --size, or set gpu to false.")
        is_named = request.imatrix not in ("", AUTO)
        imatrix = Path(request.imatrix) if is_named else cached_imatrix(source, running, n_threads)
        request = replace(request, imatrix=str(imatrix))
        search = MixSearch(model, request, _sensitivities(source, running, imatrix, n_threads), speeds)
        if target.tps:
            mix, kld = search.within_speed(target.tps), None
        elif target.n_bytes:
            mix, kld = search.within_bytes(target.n_bytes), None
        else:
            trials = _Trials(request, running, n_threads)
            measured = mix_for_kld(search, target.kld, trials.measure)
            mix, kld = measured.mix, measured.kld
    return MixResult(mix, search, _with_mix(request, mix), kld)


class _Trials:
    """Mixes that are written, evaluated on a text that ships, and removed."""

    def __init__(self, request: JobRequest, running: Runnable, n_threads: int) -> None:
        self._request = replace(request, source=str(running.path), max_shard_bytes=0, keep_split=False)
        self._reference = running.path
        self._n_threads = n_threads
        self._n_done = 0

    def measure(self, mix: Mix) -> float:
        """Return how far `mix` diverges from the original. Raises UserError."""
        from app.engine.offline.evaluation import EvalRequest, run_eval
        from quantizer.gguf.validation import validate_gguf

        self._n_done += 1
        with ExitStack() as owned:
            written = write_temporary_model(_with_mix(self._request, mix), f"for trial {self._n_done}", owned)
            models = (str(written), str(self._reference))
            n_ctx = window_size(validate_gguf(written), 0)
            request = EvalRequest(models, read_text(shipped("evaluation.txt")), n_ctx, 0, self._n_threads)
            verdict = run_eval(request, lambda steps: with_progress(f"Judging trial {self._n_done}", steps))
        assert verdict.statistics.comparison is not None
        kld = verdict.statistics.comparison.mean_kld.value
        click.echo(f"Trial {self._n_done}: {mix.n_bytes:,} bytes diverge by {format_figure(kld, 3)}.", err=True)
        return kld


def _with_mix(request: JobRequest, mix: Mix) -> JobRequest:
    return replace(request, file_type=mix.file_type.name, mix=mix.types)


def _sensitivities(source: Path, running: Runnable, imatrix: Path, n_threads: int) -> dict[str, Sensitivity]:
    """Return the sensitivity of each tensor, measured now unless cached."""
    from app.engine.offline.sensitivity import SensitivityRequest, cached_sensitivities, measure_sensitivities
    from quantizer.gguf.validation import validate_gguf

    def measure() -> dict[str, Sensitivity]:
        n_ctx = window_size(validate_gguf(running.path), 0)
        request = SensitivityRequest(str(running.path), str(imatrix), read_text(CALIBRATION), n_ctx, n_threads)
        return measure_sensitivities(request, lambda steps: with_progress("Measuring tensors", steps))

    key = calibration_key(source, _SENSITIVITY_METHOD, hashlib.sha256(read_regular(imatrix)).hexdigest())
    return cached_sensitivities(load_settings().cache_dir / "sensitivity" / f"{key}.json", measure)


_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class _Row:
    """The tensors of one kind: how many have which type, and what they are expected to add to the divergence.
    `kld_per_million` is what was measured with each alone in four bits, for a million of its weights: the larger, the
    more bits they deserve."""

    tensors: str
    types: dict[str, int]
    bytes: int
    bits_per_weight: float
    kld: float
    kld_per_million: float


def mix_json(found: MixResult) -> dict[str, object]:
    """Return what was found as JSON has it: the type of every tensor, and the rows of the table."""
    plain = found.search.nearest_plain(found.mix)
    one = next(iter(found.search.sensitivities.values()))
    return {
        "windows": one.n_windows,
        "window_tokens": one.n_ctx,
        "expected_kld": found.mix.kld,
        "measured_kld": found.kld,
        "writes_tps": round(1 / found.mix.answer_s, 2) if found.mix.answer_s else None,
        "reads_tps": round(1 / found.mix.prompt_s, 2) if found.mix.prompt_s else None,
        "groups": [asdict(row) for row in _rows(found)],
        "nearest_plain": plain and {"type": plain.file_type.name, "bytes": plain.n_bytes, "expected_kld": plain.kld},
        "tensors": dict(found.mix.types),
    }


def print_mix(found: MixResult) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("tensors")
    table.add_column("types")
    for heading in ("bytes", "bits/weight", "expected KLD", "per M weights"):
        table.add_column(heading, justify="right")
    for row in _rows(found):
        types = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in row.types.items())
        figures = (
            f"{row.bytes:,}",
            f"{row.bits_per_weight:.2f}",
            format_figure(row.kld, 2),
            format_figure(row.kld_per_million, 2),
        )
        table.add_row(printable(row.tensors), types, *figures)
    print_table(table)
    one = next(iter(found.search.sensitivities.values()))
    click.echo(
        "Last column: the divergence with each tensor alone in four bits, for a million weights,"
        f" measured on {one.n_windows} windows of {one.n_ctx} tokens."
    )
    measured = "" if found.kld is None else f"; on another text it does by {format_figure(found.kld, 3)}"
    click.echo(f"The mix should diverge from the original by {format_figure(found.mix.kld, 3)} nats a token{measured}.")
    if found.mix.answer_s:
        click.echo(f"Here it {_speeds(found.mix)}.")
    if plain := found.search.nearest_plain(found.mix):
        speeds = f" and {_speeds(plain)}" if plain.answer_s else ""
        loss = format_figure(plain.kld, 3)
        click.echo(f"{plain.file_type.name}, of {plain.n_bytes:,} bytes, should diverge by {loss}{speeds}.")


def _speeds(mix: Mix) -> str:
    return f"reads {format_speed(1 / mix.prompt_s)}, writes {format_speed(1 / mix.answer_s)} tokens a second"


def _rows(found: MixResult) -> list[_Row]:
    """Return a row for each kind of tensor, those that deserve most bits first."""
    kinds, search = found.mix.types, found.search
    groups: dict[str, list[str]] = defaultdict(list)
    for name in search.free:
        groups[re.sub(r"^blk\.\d+\.", "blk.*.", name).removesuffix(".weight")].append(name)
    rows = []
    for group, names in groups.items():
        n_weights = sum(math.prod(search.free[name]) for name in names)
        n_bytes = sum(tensor_type_named(kinds[name]).tensor_bytes(search.free[name]) for name in names)
        types = dict(Counter(kinds[name] for name in names).most_common())
        kld = sum(search.sensitivities[name].loss(kinds[name]) for name in names)
        kld_per_million = sum(search.sensitivities[name].kld for name in names) * _MILLION / n_weights
        rows.append(_Row(group, types, n_bytes, round(8 * n_bytes / n_weights, 3), kld, kld_per_million))
    return sorted(rows, key=lambda row: row.kld_per_million, reverse=True)


@dataclass(frozen=True, slots=True)
class PrunedRequest:
    """The request that leaves layers out, and the distance of every layer of the source."""

    request: JobRequest
    distances: Sequence[LayerDistance]


def prune_layers(request: JobRequest, n_removed: int, n_threads: int) -> PrunedRequest:
    """Return `request` without the `n_removed` layers that change their input least. `n_threads` 0 takes the default.
    Raises UserError, UsageError before anything is measured where that many cannot be left out."""
    from quantizer.convert.layer_removal import check_removable, layers_to_remove
    from quantizer.write.partial_output import check_output
    from quantizer.write.quantize_plan import open_source

    source = Path(request.source)
    model = open_source(source)
    check_removable(model, n_removed)
    check_output(Path(request.output), [], model.inputs)
    distances = _distances(source, n_threads)
    removed = layers_to_remove(model, [layer.distance for layer in distances], n_removed)
    return PrunedRequest(replace(request, removed_layers=removed), distances)


def _distances(source: Path, n_threads: int) -> Sequence[LayerDistance]:
    """Return the distance of each layer, measured now unless cached."""
    from app.engine.offline.layer_importance import LayerDistance, LayerRequest, measure_layers
    from app.engine.offline.scoring_model import cached_results
    from quantizer.gguf.validation import validate_gguf

    def measure() -> Sequence[LayerDistance]:
        with Runnable(source, RUNNABLE, n_threads) as running:
            n_ctx = window_size(validate_gguf(running.path), 0)
            request = LayerRequest(str(running.path), read_text(CALIBRATION), n_ctx, n_threads)
            return measure_layers(request, lambda steps: with_progress("Measuring layers", steps))

    key = calibration_key(source, _LAYER_METHOD)
    return cached_results(load_settings().cache_dir / "layers" / f"{key}.json", LayerDistance, measure)


def pruning_json(found: PrunedRequest) -> dict[str, object]:
    return {"removed": list(found.request.removed_layers), "layers": [asdict(layer) for layer in found.distances]}


def print_layers(found: PrunedRequest) -> None:
    from rich.table import Table

    removed = found.request.removed_layers
    table = Table(box=None, pad_edge=False)
    for heading in ("layer", "distance"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for layer in sorted(found.distances, key=lambda layer: layer.distance):
        mark = "left out" if layer.layer in removed else ""
        table.add_row(str(layer.layer), f"{layer.distance:.4f}", mark)
    print_table(table)
    click.echo("distance: the cosine distance between the input and the output of the layer, on the calibration text.")
    # some stay although a layer of greater distance is left out
    most_removed = max((layer.distance for layer in found.distances if layer.layer in removed), default=0.0)
    if any(layer.distance < most_removed for layer in found.distances if layer.layer not in removed):
        click.echo("The last attention, state, window or dense layer stays, whatever its distance.")
