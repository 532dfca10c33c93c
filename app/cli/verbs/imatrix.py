"""`localllm imatrix`: gather what quantization should be careful with, and merge what was run_imatrix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.eval_options import ctx_option, read_text, resolve_model, shipped, window_size
from app.cli.options import complete_model
from app.cli.output.progress import with_progress
from app.terminal import printable
from quantizer.errors import UsageError

if TYPE_CHECKING:
    from quantizer.mix.imatrix import ImportanceMatrix

__all__ = ["CALIBRATION", "compute_imatrix", "imatrix"]

CALIBRATION = shipped("calibration.txt")


@click.command(epilog="Example: localllm imatrix model-F16.gguf -o model.imatrix.gguf")
@click.argument("model", required=False, shell_complete=complete_model)
@click.option("--text", type=click.Path(path_type=Path), help="A UTF-8 text.  [default: one that ships with localllm]")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write.  [default: <name>.imatrix.gguf]")
@click.option(
    "--in", "inputs", type=click.Path(path_type=Path), multiple=True, help="A matrix to add, again and again."
)
@ctx_option
@click.option("--chunks", type=click.IntRange(min=0), default=0, help="Windows to read; 0 takes the whole text.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads; 0 takes the physical cores.")
@click.option("--parse-special", is_flag=True, help="Take special tokens in the text for what they say.")
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
def imatrix(
    model: str | None,
    text: Path | None,
    output: Path | None,
    inputs: tuple[Path, ...],
    ctx: int,
    chunks: int,
    threads: int,
    parse_special: bool,
    wants_json: bool,
) -> None:
    """Run MODEL over a text and keep how strongly each column of its weights is excited, in llama.cpp's format.

    `localllm quantize --imatrix FILE` takes it. Matrices of one model add up: give earlier ones with --in, with or
    without a MODEL.
    """
    from quantizer.mix.imatrix import merge, read_imatrix, save_imatrix
    from quantizer.write.partial_output import check_output

    if model is None and not inputs:
        raise UsageError("There is no MODEL.", "Name one, or matrices to merge with --in.")
    path = None if model is None else resolve_model(model)[0]
    if output is None:
        if path is None:
            raise UsageError("There is no name for what is merged.", "Give one with -o.")
        output = Path.cwd() / f"{path.stem}.imatrix.gguf"
    check_output(output, (), [source for source in (path, text) if source and source.exists()])
    matrices = [read_imatrix(each) for each in inputs]
    if path is not None:
        matrices.append(compute_imatrix(path, text, ctx, chunks, threads, parses_special=parse_special))
    merged = merge(matrices)
    save_imatrix(merged, output)
    _print(merged, output, wants_json=wants_json)


def compute_imatrix(
    path: Path, text: Path | None, ctx: int = 0, chunks: int = 0, threads: int = 0, *, parses_special: bool = False
) -> ImportanceMatrix:
    """Run the model at `path` over `text`, or over what ships, with a bar on the terminal. Raises UserError."""
    from app.engine.offline.imatrix import ImatrixRequest, run_imatrix
    from quantizer.gguf.validation import validate_gguf

    n_ctx = window_size(validate_gguf(path), ctx)
    source = text or CALIBRATION
    request = ImatrixRequest(str(path), read_text(source), source.name, n_ctx, chunks, threads, parses_special)
    return run_imatrix(request, lambda steps: with_progress("Gathering", steps))


def _print(matrix: ImportanceMatrix, output: Path, *, wants_json: bool) -> None:
    said = {
        "output": str(output),
        "entries": len(matrix.entries),
        "chunks": matrix.n_chunks,
        "chunk_size": matrix.chunk_size,
        "datasets": matrix.datasets,
    }
    if wants_json:
        click.echo(json.dumps(said))
        return
    click.echo(
        f"{printable(str(output))} has {len(matrix.entries)} weights, over {matrix.n_chunks} windows of "
        f"{matrix.chunk_size} tokens."
    )
