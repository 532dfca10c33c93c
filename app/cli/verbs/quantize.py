"""Types of weights: `localllm quantize` writes or lists them, `eval` measures their loss, `imatrix` what matters."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.calibration import (
    AUTO,
    RUNNABLE,
    MixTarget,
    Runnable,
    cached_imatrix,
    compute_imatrix,
    find_mix,
    mix_json,
    print_layers,
    print_mix,
    prune_layers,
    pruning_json,
)
from app.cli.options import complete_model, option, options, options_of
from app.cli.output.format import print_json, print_lines, print_result, print_table
from app.cli.output.progress import with_progress
from app.cli.resources import read_text, requested_planning_context, resolve_model, shipped, window_size
from app.common.terminal import format_bytes, printable
from app.engine.load.load_check import LOAD_CHECK
from app.library.local.model_sampling import read_generation_config, write_generation_config
from app.library.local.resolve import guide_folder, guide_source
from app.options.jobs import EvalOptions, QuantizeOptions, TextOptions, given, job_rows
from app.settings.settings import load_settings
from quantizer.figures import format_figure, format_speed
from quantizer.gguf.file_names import unsplit_name
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import DEFAULT_FILE_TYPE, DRAFT_COPY_TYPE, file_type_name, file_type_named, is_lossy
from quantizer.system.errors import StorageError, UsageError
from quantizer.write.events import Event, JobPlanned, JobResumed, JobWarning, OutputDone

if TYPE_CHECKING:
    from app.engine.offline.evaluation import Estimate, EvalResult, ModelFigures
    from quantizer.write.job import JobRequest


_NEEDS_MATRIX = "* "


def _list_types(source: Path, options: QuantizeOptions, *, wants_json: bool) -> None:
    """Print the table of all types for the model at `source`, and its projector. Raises UserError as planning does."""
    from rich.table import Table

    from app.library.machine_fit.planning import type_rows
    from offload.devices.bandwidth import measure_read_bandwidth
    from quantizer.write.quantize_plan import plan_projector

    beside = plan_projector(source, source / "model.gguf", options.projector)
    bandwidth = measure_read_bandwidth(options.threads or os.cpu_count() or 1)
    here = requested_planning_context(load_settings({"threads": options.threads or None}), (), None)
    rows = list(type_rows(source, bandwidth.bytes_per_s, here.fit, Path(options.base) if options.base else None))
    if wants_json:
        measured = {"read_bytes_per_s": round(bandwidth.bytes_per_s), "threads": bandwidth.n_threads}
        seen = {"projector": beside and {"type": beside.file_type.name, "bytes": beside.n_bytes}}
        print_json({"source": str(source), **measured, "types": rows, **seen})
        return
    table = Table(box=None)
    table.add_column("type")
    for heading in ("bits", "bytes", "loss", "reads", "writes"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        loss = "" if row.perplexity_loss is None else f"+{row.perplexity_loss:.4f}"
        reads, writes = ("" if tps is None else format_speed(tps) for tps in (row.reads_tps, row.writes_tps))
        figures = (f"{row.bits_per_weight:.2f}", f"{row.bytes:,}", loss, reads, writes)
        table.add_row(row.type, *figures, printable(f"{_NEEDS_MATRIX if row.needs_imatrix else ''}{row.description}"))
    print_table(table)
    click.echo(
        "bits: per weight. loss: how much a type adds, measured by llama.cpp, to the\n"
        "perplexity of Llama-3-8B, 6.23.\n"
        "reads, writes: tokens a second of prompts and of answers here, as planned."
    )
    if not any(row.reads_tps for row in rows):
        click.echo("How fast each type reads was not measured here yet: `localllm tune --types` does it.")
    today = file_type_name(read_header(source).integer("general.file_type")) if source.is_file() else ""
    if is_lossy(today):
        click.echo(
            f"* This file has lost what {today} loses: each type adds its loss to that, and a larger\n"
            "* one only takes more space. From the original (F16, BF16) the same type loses less."
        )
    if beside:
        click.echo(f"The projector, a separate file, adds {beside.n_bytes:,} bytes in {beside.file_type.name}.")
    if any(row.needs_imatrix for row in rows):
        click.echo(f"{_NEEDS_MATRIX}needs an importance matrix: --imatrix auto computes it.")


def _list_architectures(*, wants_json: bool) -> None:
    """Print which classes of checkpoints convert and with which settings only, and which do not convert, and why."""
    from rich.table import Table

    from quantizer.architectures.listing import listed_architectures, refused_classes

    found, refused = listed_architectures(), refused_classes()
    if wants_json:
        print_json({"architectures": found, "refused": refused})
        return
    table = Table(box=None)
    for heading in ("class", "llama.cpp's name", "converts only with"):
        table.add_column(heading)
    for each in found:
        conditions = [f"{name} = {json.dumps(value)}" for name, value in each.required.items()]
        if each.derived:
            conditions.append(f"as other settings have it: {', '.join(each.derived)}")
        if each.refused_scalings:
            conditions.append(f"no rope scaling {', '.join(each.refused_scalings)}")
        table.add_row("\n".join(each.classes), each.architecture, "\n".join(conditions))
    print_table(table)
    reasons: dict[str, list[str]] = {}
    for row in refused:
        reasons.setdefault(row.reason, []).append(row.hf_class)
    click.echo("\nThese classes do not convert:")
    print_lines(f"- {', '.join(classes)}: {reason}." for reason, classes in reasons.items())


_GUIDE = "guide"
_KEPT_IN_NAMES = "-_.+"


@click.command(epilog="Example: localllm quantize CHECKPOINT Q4_K_M -o model.gguf --imatrix auto")
@options_of(QuantizeOptions, optional=("source",))
@click.option("--list", "wants_list", is_flag=True, help="List the size and loss of each type; write nothing.")
@click.option(
    "--list-architectures", "wants_architectures", is_flag=True, help="List what converts and what is refused; no SRC."
)
@options("is_dry_run", "wants_json")
def quantize(
    options: QuantizeOptions, *, wants_list: bool, wants_architectures: bool, is_dry_run: bool, wants_json: bool
) -> None:
    """Convert and quantize SRC (a checkpoint folder, a GGUF, or guide) to TYPE, Q4_K_M by default.

    --size, --kld and --speed replace TYPE: they measure the sensitivity of each tensor, once per model, and choose a
    type for each tensor to meet the target. --speed weighs what each type takes on this machine, which `localllm tune
    --types` measures. They compute an importance matrix first. --prune-layers measures, once per model,
    which layers change their input least on the calibration text, and leaves these out.

    A vision/audio model gets its projector next to it, as mmproj-<name>-F16.gguf. The folder of a LoRA adapter becomes
    a GGUF adapter of TYPE F16, BF16 or F32; that of a draft head (EAGLE-3, DFlash, DFlash 2, DSpark) a file for
    --draft, with the vocabulary of --base.

    --as-draft makes a low-bit copy of a model in the library (or at a path) that drafts for it: see `localllm help
    models`. Types below 3 bits other than Q2_K need --imatrix auto.

    A killed run resumes when you run it again; Ctrl-C deletes its output.
    """
    if wants_architectures:
        _list_architectures(wants_json=wants_json)
        return
    if options.as_draft:
        result = _draft_copy(options, is_dry_run=is_dry_run, wants_list=wants_list)
        print_result(result, [_summary(result)], wants_json=wants_json)
        return
    from quantizer.write.job import JobRequest
    from quantizer.write.plan_options import PlanOptions

    source, n_removed, n_threads = options.source, options.prune_layers, options.threads
    path = _source_path(source)
    target = _target(options, wants_list=wants_list)
    if n_removed and (target or wants_list):
        raise UsageError(
            "--prune-layers works with a TYPE only.", "Prune to F16 first, then list or search types of the result."
        )
    if wants_list:
        _list_types(path, options, wants_json=wants_json)
        return
    chosen = file_type_named(options.file_type or DEFAULT_FILE_TYPE)
    ending = target.label if target else f"pruned{n_removed}-{chosen.name}" if n_removed else chosen.name
    output = options.output or str(Path.cwd() / f"{_model_name(source, path)}-{ending}.gguf")
    rows = job_rows("quantize")
    request = JobRequest(
        str(path),
        chosen.name,
        output,
        n_threads or os.cpu_count() or 1,
        is_overwriting=options.overwrite,
        allow_nan=options.allow_nan,
        load_check=LOAD_CHECK,
        # what the plan has by the same name
        **{item.name: getattr(options, item.name) for item in fields(PlanOptions) if item.name in rows},
    )
    found: dict[str, object] = {}
    if target:
        mixed = find_mix(request, target, n_threads)
        request, found = mixed.request, {"type": "mix", "mix": mix_json(mixed)}
        if not wants_json:
            print_mix(mixed)
    else:
        if n_removed:
            pruned = prune_layers(request, n_removed, n_threads)
            request, found = pruned.request, {"pruned": pruning_json(pruned)}
            if not wants_json:
                print_layers(pruned)
        matrix = _imatrix(options.imatrix, path, n_threads, is_computing=not is_dry_run)
        request = replace(request, imatrix=matrix)
    result = {**(_planned(request) if is_dry_run else _written(request)), **found}
    if not is_dry_run and path.is_file() and (config := read_generation_config(path)):
        write_generation_config(Path(output), config)  # that of a checkpoint is in the file itself
    print_result(result, [_summary(result)], wants_json=wants_json)


def _draft_copy(options: QuantizeOptions, *, is_dry_run: bool, wants_list: bool) -> dict[str, object]:
    """Write the low-bit copy that drafts for SRC into the cache, and return its figures; a sound one that is there
    stays. Raises UsageError for other options, ModelFileError where SRC changed or went meanwhile."""
    from app.engine.load.draft_copy import CopyRecords, copy_metadata, copy_path, read_copy
    from app.library.local.model_files import parts_of
    from app.library.local.resolve import resolve
    from quantizer.gguf.gguf_reader import ModelFileError
    from quantizer.gguf.validation import check_answers, validate_gguf
    from quantizer.system.files import explained, make_folder
    from quantizer.write.job import JobRequest, planned_event

    others = sorted(given(options).keys() - {"as_draft", "source", "file_type", "imatrix", "overwrite", "threads"})
    if others or wants_list or not options.source:
        named = f" {', '.join(others)} cannot be combined with it." if others else ""
        raise UsageError(f"--as-draft takes a SRC, a TYPE and --imatrix only.{named}", "Omit the other options.")
    settings = load_settings({"threads": options.threads or None})
    model = resolve(options.source, settings).path
    if not model.is_file():
        raise UsageError(f"{printable(options.source)} is no GGUF.", "Convert it first, then copy the result.")
    check_answers(validate_gguf(model), needs_tokenizer=True)
    kind, n_threads = file_type_named(options.file_type or DRAFT_COPY_TYPE), options.threads or os.cpu_count() or 1
    with explained(f"{model.name} cannot be read", "Keep the model where it is.", ModelFileError):
        before = [path.stat().st_mtime_ns for path in parts_of(model)]
        metadata, output = copy_metadata(model), copy_path(model, kind.name, settings.cache_dir)
    request = JobRequest(
        str(model),
        kind.name,
        str(output),
        n_threads,
        is_overwriting=options.overwrite,
        load_check=LOAD_CHECK,
        imatrix=_imatrix(options.imatrix, model, n_threads, is_computing=not is_dry_run),
        metadata=metadata,
    )
    if is_dry_run:
        return _planned(request)
    with explained(f"{output.parent} cannot be made", "Check its disk and its rights."):
        make_folder(output.parent)
    if output.exists() and not options.overwrite:
        try:
            read_copy(output, model)
        except ModelFileError as error:
            _warn(f"{error.cause} It is made again.")
            output.unlink()
        else:
            return _figures(planned_event(request.plan())) | {"dry_run": False, "elapsed_s": 0.0}
    result = _written(request)
    try:
        after = [path.stat().st_mtime_ns for path in parts_of(model)]
        is_same = after == before and copy_path(model, kind.name, settings.cache_dir) == output
    except OSError:
        is_same = False
    if not is_same:
        output.unlink(missing_ok=True)
        raise ModelFileError(f"{model.name} changed or went while it was copied.", "Copy it again.")
    CopyRecords.of(settings.cache_dir).forget(output)  # so that a copy made again is tried again
    return result


def _source_path(source: str) -> Path:
    """Return the path of SRC. Raises UsageError without one, StorageError where nothing is there."""
    remedy = "Name a checkpoint folder or a .gguf file."
    if not source:
        raise UsageError("quantize needs a SRC.", remedy)
    path = Path(source)
    if source == _GUIDE and not path.exists():
        path = guide_source(guide_folder())
    if not path.exists():
        raise StorageError(f"There is no {printable(source)}.", remedy)
    return path


def _target(options: QuantizeOptions, *, wants_list: bool) -> MixTarget | None:
    """Return the target of a mix, None without --size, --kld and --speed. Raises UsageError for more than one."""
    kld, tps = options.kld, options.speed
    targets = {
        "TYPE": options.file_type,
        "--size": options.n_bytes,
        "--kld": kld is not None,
        "--speed": tps is not None,
        "--list": wants_list,
    }
    chosen = [name for name, is_set in targets.items() if is_set]
    if len(chosen) > 1 and set(chosen) & {"--size", "--kld", "--speed"}:
        raise UsageError(f"{' and '.join(chosen)} exclude each other.", "Give one of them.")
    return MixTarget(options.n_bytes, kld or 0.0, tps or 0.0) if options.n_bytes or kld or tps else None


def _imatrix(name: str, source: Path, n_threads: int, *, is_computing: bool) -> str:
    """Return the path of the importance matrix `name`, empty for none."""
    if name != AUTO:
        return name
    if not is_computing:
        raise UsageError("A dry run computes no importance matrix.", "Name one from `localllm imatrix`.")
    with Runnable(source, RUNNABLE, n_threads) as running:
        return str(cached_imatrix(source, running, n_threads))


def _model_name(source: str, path: Path) -> str:
    """Return the output's name: the folder's or file's, without characters that file systems forbid."""
    file_stem = unsplit_name(path.name).removesuffix(".gguf")
    name = source if source == _GUIDE else file_stem if path.is_file() else path.resolve().name
    return "".join(char for char in name if char.isalnum() or char in _KEPT_IN_NAMES) or "model"


def _planned(request: JobRequest) -> dict[str, object]:
    from quantizer.write.job import planned_event
    from quantizer.write.load_check import check_load

    plan = request.plan()
    check_load(plan, request.load_check, _warn)
    for text in plan.warnings:
        _warn(text)
    if plan.missing_imatrix:
        _warn(f"{request.file_type} needs an importance matrix and will be refused without one.")
    return {**_figures(planned_event(plan)), "dry_run": True, "warnings": list(plan.warnings)}


def _written(request: JobRequest) -> dict[str, object]:
    """Run the job with a progress bar, and return its result. Raises UserError as `run_job` does."""
    from app.cli.output.progress import JobProgress
    from quantizer.write.job import run_job

    result: dict[str, object] = {}
    with JobProgress() as progress:
        for event in run_job(request):
            progress.show(event)
            note(event, result)
            if isinstance(event, JobPlanned):
                _tell(f"Needs {format_bytes(event.n_bytes)} of free space in {Path(event.output).parent}.")
    return result


def note(event: Event, result: dict[str, object]) -> None:
    """Add the figures of `event` to `result`, and print its message, if any."""
    match event:
        case JobPlanned():
            result |= {**_figures(event), "dry_run": False}
        case JobResumed():
            result["resumed_tensors"] = event.n_tensors
            _tell(f"Resuming after {event.n_tensors} tensors that a killed run wrote.")
        case JobWarning():
            _warn(event.text)
        case OutputDone():
            result["elapsed_s"] = round(event.elapsed_s, 2)


def _figures(planned: JobPlanned) -> dict[str, object]:
    return {
        "output": planned.output,
        "projector": planned.projector or None,
        "files": planned.n_files,
        "type": planned.file_type,
        "bytes": planned.n_bytes,
        "peak_disk_bytes": planned.n_bytes,
        "parameters": planned.n_parameters,
        "tensors": planned.n_tensors,
        "bits_per_weight": round(8 * planned.n_bytes / planned.n_parameters, 3),
    }


def _summary(result: dict[str, object]) -> str:
    verb = "would take" if result["dry_run"] else "takes"
    beside = f" with {printable(Path(str(result['projector'])).name)}" if result["projector"] else ""
    files = f" in {result['files']} files" if result["files"] != 1 else ""
    time = f" Written in {result['elapsed_s']} s." if "elapsed_s" in result else ""
    return (
        f"{printable(str(result['output']))}{beside} {verb} {result['bytes']:,} bytes{files} "
        f"({result['type']}, {result['bits_per_weight']} bits per weight).{time}"
    )


def _warn(text: str) -> None:
    _tell(f"Warning: {text}")


def _tell(text: str) -> None:
    print(printable(text), file=sys.stderr)


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
    value, low, high = (
        format_figure(number, n_digits, keeps_zeros=True)
        for number, n_digits in ((estimate.value, 5), (estimate.low, 4), (estimate.high, 4))
    )
    return f"{value} [{low}, {high}]"


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
