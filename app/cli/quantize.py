"""`localllm quantize`: a checkpoint or a GGUF in, a smaller GGUF out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import click

from app.terminal import printable
from quantizer.errors import StorageError
from quantizer.file_types import DEFAULT_FILE_TYPE, FileType, file_type_named

__all__ = ["quantize"]

_GUIDE = "guide"
_KEPT_IN_NAMES = "-_.+"


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("file_type", metavar="[TYPE]", default=DEFAULT_FILE_TYPE)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write.  [default: <name>-<TYPE>.gguf]")
@click.option("--dry-run", is_flag=True, help="Say what would be written, to the byte, and write nothing.")
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all]")
@click.option("--overwrite", is_flag=True, help="Replace the output when it exists.")
def quantize(
    source: str,
    file_type: str,
    output: Path | None,
    dry_run: bool,
    wants_json: bool,
    threads: int | None,
    overwrite: bool,
) -> None:
    """Quantize SRC (a checkpoint folder, a GGUF, or `guide`) to TYPE."""
    chosen = file_type_named(file_type)
    path = _source_path(source)
    target = output or Path.cwd() / f"{_model_name(source, path)}-{chosen.name}.gguf"
    if dry_run:
        result = _planned(path, chosen, target)
    else:
        result = _written(path, chosen, target, threads or os.cpu_count() or 1, overwrite)
    click.echo(json.dumps(result) if wants_json else _summary(result))


def _source_path(source: str) -> Path:
    path = Path(source)
    if source == _GUIDE and not path.exists():
        path = Path(str(files("assets") / "guide"))
    if not path.exists():
        raise StorageError(f"There is no {printable(source)}.", "Name a checkpoint folder or a .gguf file.")
    return path


def _model_name(source: str, path: Path) -> str:
    """The name an output goes by: the folder's or file's, with nothing a file system would mind."""
    name = source if source == _GUIDE else path.stem if path.is_file() else path.resolve().name
    return "".join(char for char in name if char.isalnum() or char in _KEPT_IN_NAMES) or "model"


def _planned(source: Path, file_type: FileType, output: Path) -> dict[str, object]:
    from quantizer.quantize import plan

    planned = plan(source, file_type, output)
    for text in planned.warnings:
        _warn(text)
    if planned.missing_imatrix:
        _warn(f"{file_type.name} needs an importance matrix; without one it will be refused.")
    return _result(output, file_type.name, planned.n_bytes, planned.n_parameters, len(planned.tensors), dry_run=True)


def _written(source: Path, file_type: FileType, output: Path, n_threads: int, overwrite: bool) -> dict[str, object]:
    from app.cli.progress import JobProgress
    from quantizer.events import Done, Event, Planned, Warned
    from quantizer.job import JobRequest
    from quantizer.runner import run_job

    request = JobRequest(str(source), file_type.name, str(output), n_threads, overwrite)
    events: Iterator[Event] = run_job(request)
    result: dict[str, object] = {}
    with JobProgress() as progress:
        for event in events:
            progress.show(event)
            if isinstance(event, Planned):
                result = _result(output, file_type.name, event.n_bytes, event.n_parameters, event.n_tensors)
            elif isinstance(event, Warned):
                _warn(event.text)
            elif isinstance(event, Done):
                result["elapsed_s"] = round(event.elapsed_s, 2)
    return result


def _result(
    output: Path, file_type: str, n_bytes: int, n_parameters: int, n_tensors: int, dry_run: bool = False
) -> dict[str, object]:
    return {
        "output": str(output),
        "type": file_type,
        "bytes": n_bytes,
        "parameters": n_parameters,
        "tensors": n_tensors,
        "bits_per_weight": round(8 * n_bytes / n_parameters, 3),
        "dry_run": dry_run,
    }


def _summary(result: dict[str, object]) -> str:
    verb = "would take" if result["dry_run"] else "takes"
    time = f" Written in {result['elapsed_s']} s." if "elapsed_s" in result else ""
    return (
        f"{printable(str(result['output']))} {verb} {result['bytes']:,} bytes "
        f"({result['type']}, {result['bits_per_weight']} bits per weight).{time}"
    )


def _warn(text: str) -> None:
    print(f"Warning: {printable(text)}", file=sys.stderr)
