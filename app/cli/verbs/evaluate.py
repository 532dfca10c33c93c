"""What a model makes of a text: `localllm eval` (perplexity, KL divergence) and `localllm imatrix`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.calibration import compute_imatrix
from app.cli.options import complete_model, option, options, options_of
from app.cli.output.format import print_json
from app.cli.output.progress import with_progress
from app.cli.resources import read_text, resolve_model, shipped, window_size
from app.common.terminal import printable
from app.options.jobs import EvalOptions, TextOptions
from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from app.engine.offline.evaluation import Estimate, EvalResult, ModelFigures


@click.command("eval", epilog="Example: localllm eval model-Q4_K_M.gguf --against model-F16.gguf")
@options_of(EvalOptions)
@options("wants_json")
def evaluate(options: EvalOptions, *, wants_json: bool) -> None:
    """Measure the perplexity of MODEL (guide, a path to a GGUF, or a name in the library) on a text.

    The second half of each window is scored. With --against both models read the text, and the KL divergence between
    their predictions is shown. Compare figures only for the same text, window size and vocabulary.
    """
    from app.engine.offline.evaluation import EvalRequest, run_eval

    path, header = resolve_model(options.model)
    paths = [path, resolve_model(options.against)[0]] if options.against else [path]
    content = read_text(Path(options.text) if options.text else shipped("evaluation.txt"))
    models = tuple(str(path) for path in paths)
    request = EvalRequest(models, content, window_size(header, options.ctx), options.chunks, options.threads)
    verdict = run_eval(request, lambda steps: with_progress("Evaluating", steps))
    _print([path.name for path in paths], verdict, wants_json=wants_json)


def _print(names: list[str], verdict: EvalResult, *, wants_json: bool) -> None:
    if wants_json:
        sizes = [asdict(size) | {"bits_per_weight": size.bits_per_weight} for size in verdict.sizes]
        print_json({"models": names, **asdict(verdict), "sizes": sizes})
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False)
    table.add_column("")
    for name in names:
        table.add_column(Text(printable(name)), justify="right", no_wrap=True)
    for label, *cells in _rows(verdict):
        table.add_row(label, *cells)
    Console().print(table)
    click.echo(f"{verdict.statistics.n_tokens:,} tokens of {verdict.n_windows} windows; brackets span 95 %.")


def _rows(verdict: EvalResult) -> list[list[str]]:
    """Return the lines of the table: label, the model's cell, the reference's where there is one."""
    statistics, comparison = verdict.statistics, verdict.statistics.comparison
    perplexities = [statistics.perplexity] + ([comparison.reference_perplexity] if comparison else [])
    rows = [["perplexity", *(_estimate(perplexity) for perplexity in perplexities)]]
    if comparison:
        rows += [
            ["perplexity ratio", _estimate(comparison.ratio)],
            ["KL divergence, mean", _estimate(comparison.mean_kld)],
            ["KL divergence, median", _estimate(comparison.median_kld)],
            ["KL divergence, 99 %", _estimate(comparison.p99_kld)],
            ["same likeliest token", _estimate(comparison.same_top)],
        ]
    return rows + [[label, *(show(size) for size in verdict.sizes)] for label, show in _SIZE_ROWS.items()]


_SIZE_ROWS: dict[str, Callable[[ModelFigures], str]] = {
    "size": lambda size: f"{size.n_bytes / 1e6:,.1f} MB",
    "bits per weight": lambda size: f"{size.bits_per_weight:.2f}",
    "reading, tok/s": lambda size: f"{size.prefill:.1f}",
    "answering, tok/s": lambda size: f"{size.decode:.1f}",
}


def _estimate(estimate: Estimate) -> str:
    return f"{estimate.value:#.5g} [{estimate.low:#.4g}, {estimate.high:#.4g}]"


@click.command(epilog="Example: localllm imatrix model-F16.gguf -o model.imatrix.gguf")
@click.argument("model", required=False, shell_complete=complete_model)
@option("output", default_text="<name>.imatrix.gguf")
@click.option(
    "--in", "inputs", type=click.Path(path_type=Path), multiple=True, help="Importance matrix to merge; repeatable."
)
@click.option("--parse-special", is_flag=True, help="Parse special tokens in the text.")
@options_of(TextOptions)
@options("wants_json")
def imatrix(
    reading: TextOptions,
    *,
    model: str | None,
    output: str | None,
    inputs: tuple[Path, ...],
    parse_special: bool,
    wants_json: bool,
) -> None:
    """Compute the importance matrix of MODEL on a text, in llama.cpp's format, for `localllm quantize --imatrix`.

    --in merges earlier matrices of the same model; without a MODEL nothing is computed.
    """
    from quantizer.mix.imatrix import merge_imatrices, read_imatrix, save_imatrix
    from quantizer.write.partial_output import check_output

    if model is None and not inputs:
        raise UsageError("There is no MODEL.", "Name one, or matrices to merge with --in.")
    path = None if model is None else resolve_model(model)[0]
    if output is None:
        if path is None:
            raise UsageError("There is no output name.", "Give one with -o.")
        output = str(Path.cwd() / f"{path.stem}.imatrix.gguf")
    written = Path(output)
    check_output(written, (), [source for source in (path, Path(reading.text)) if source and source.is_file()])
    matrices = [read_imatrix(each) for each in inputs]
    if path is not None:
        matrices.append(compute_imatrix(path, reading, parses_special=parse_special))
    merged = merge_imatrices(matrices)
    save_imatrix(merged, written)
    if wants_json:
        figures = {"entries": len(merged.entries), "chunks": merged.n_chunks, "chunk_size": merged.chunk_size}
        print_json({"output": str(written), **figures, "datasets": merged.datasets})
        return
    windows = f"{merged.n_chunks} windows of {merged.chunk_size} tokens"
    click.echo(f"{printable(str(written))} has {len(merged.entries)} weights, over {windows}.")
