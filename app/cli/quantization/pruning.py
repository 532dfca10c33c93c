"""The layers that `quantize --prune-layers` leaves out: measuring them, choosing them, and their report.

Measurements are cached. Independent of types.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.output.format import print_table
from app.cli.output.progress import with_progress
from app.cli.quantization.calibration import CALIBRATION, RUNNABLE, Runnable, calibration_key
from app.cli.resources import read_text, window_size
from app.settings.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.engine.offline.layer_importance import LayerDistance
    from quantizer.write.job import JobRequest


_METHOD = 1  # of measuring layers: a new number discards cached distances


@dataclass(frozen=True, slots=True)
class PrunedRequest:
    """The request that leaves layers out, and the distance of every layer of the source."""

    request: JobRequest
    distances: Sequence[LayerDistance]


def prune_layers(request: JobRequest, n_removed: int, n_threads: int) -> PrunedRequest:
    """Return `request` without the `n_removed` layers that change their input least. `n_threads` 0 takes the default.

    Raises UserError, UsageError before anything is measured where that many cannot be left out.
    """
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

    key = calibration_key(source, _METHOD)
    return cached_results(load_settings().cache_dir / "layers" / f"{key}.json", LayerDistance, measure)


def pruning_json(found: PrunedRequest) -> dict[str, object]:
    """Return what was measured and chosen as JSON has it."""
    return {"removed": list(found.request.removed_layers), "layers": [asdict(layer) for layer in found.distances]}


def print_layers(found: PrunedRequest) -> None:
    """Print the table of layers, those that matter least first."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("layer", "distance"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for layer in sorted(found.distances, key=lambda layer: layer.distance):
        mark = "left out" if layer.layer in found.request.removed_layers else ""
        table.add_row(str(layer.layer), f"{layer.distance:.4f}", mark)
    print_table(table)
    click.echo("distance: the cosine distance between the input and the output of the layer, on the calibration text.")
    if _last_of_a_kind(found):
        click.echo("The last attention, state, window or dense layer stays, whatever its distance.")


def _last_of_a_kind(found: PrunedRequest) -> list[int]:
    """Return the layers that stay although one of greater distance is left out."""
    removed = [layer.distance for layer in found.distances if layer.layer in found.request.removed_layers]
    kept = [layer for layer in found.distances if layer.layer not in found.request.removed_layers]
    return [layer.layer for layer in kept if layer.distance < max(removed, default=0.0)]
