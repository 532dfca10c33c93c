"""`localllm imatrix`: compute an importance matrix, and merge several."""

from __future__ import annotations

from pathlib import Path

import click

from app.cli.options import complete_model, option, options, options_of
from app.cli.output.format import print_json
from app.cli.quantization.calibration import compute_imatrix
from app.cli.resources import resolve_model
from app.common.terminal import printable
from app.options.jobs import TextOptions
from quantizer.system.errors import UsageError


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
    """Compute the importance matrix of MODEL on a text, in llama.cpp's format.

    `localllm quantize --imatrix FILE` uses it. Matrices of one model add up: merge earlier ones with --in, with or
    without a MODEL.
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
