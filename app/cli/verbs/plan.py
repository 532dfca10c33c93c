"""What this machine can do: `localllm plan` and `doctor` say what runs and how fast, `tune` measures the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.options import complete_model, options, options_of, setting_options
from app.cli.output.format import print_json, print_lines, print_result
from app.cli.output.progress import with_progress
from app.cli.resources import announced_rpc_endpoints, requested_planning_context
from app.common.terminal import printable
from app.engine.tuning.tune_results import (
    AS_FAST,
    DEFAULT_WORKLOAD,
    N_BATCHED,
    SpeedMeasurement,
    TuneFile,
    TuneRequest,
    fastest,
    known_step_cost,
    tune_key,
    unasked,
)
from app.options.jobs import TuneOptions
from app.protocol.codec import encode
from app.protocol.library import MachineReport
from app.settings.settings import COPY_DRAFT, NO_DRAFT, Settings, load_settings
from quantizer.figures import format_number
from quantizer.gguf.file_names import NO_PROJECTOR
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import DRAFT_COPY_TYPE
from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from app.bench.target import TurnTiming
    from app.library.local.model_files import ModelRef
    from app.library.machine_fit.planning import PlanningContext
    from offload.advice.doctor import Bottleneck
    from offload.devices.machine import Machine
    from offload.footprint.model import PlannedModel
    from offload.plan import PlacementPlan


@click.command(epilog="Example: localllm plan unsloth/gemma-3-4b-it-GGUF:Q4_K_M --vram 'RTX 3060=12GiB'")
@click.argument("model", shell_complete=complete_model)
@setting_options("ctx", "kv_type")
@options("vram", "ram")
@setting_options("rpc", "draft", "projector", "lora")
@click.option("--kv-table", "wants_table", is_flag=True, help="Print only the KV cache size by context and type.")
@click.option("--speculation", "wants_gains", is_flag=True, help="Print the speculative speed-up by acceptance rate.")
@click.option("--plot", is_flag=True, help="Plot speed against layers on the GPU.")
@options("wants_json")
def plan(
    model: str,
    ctx: int | None,
    kv_type: str | None,
    vram: tuple[str, ...],
    ram: str | None,
    rpc: str | None,
    draft: str | None,
    projector: str | None,
    lora: tuple[str, ...] | None,
    wants_table: bool,
    wants_gains: bool,
    wants_json: bool,
    plot: bool,
) -> None:
    """Show whether MODEL (guide, a path to a GGUF, or a name in the library) fits this machine, and how fast it runs.

    No weights are loaded: only the header is read, and llama.cpp computes its buffer sizes. For a model that isn't
    downloaded (org/repo, org/repo:Q4_K_M, org/repo/file.gguf, a URL, or a name from the catalogue) only the header is
    fetched, and buffers are estimated.
    """
    from app.cli.output.plan import gains_json, gains_lines, kv_table_json, kv_table_lines, plan_lines
    from app.engine.load.run_history import runs_of
    from app.engine.speculative.cost_model import StepCost, draft_gains
    from app.library.hub.selection import find_model
    from app.library.local.projectors import general_choice
    from app.library.local.resolve import resolve
    from app.library.machine_fit.planning import plan_of_absent
    from app.protocol.plan import describe_plan
    from app.settings.parsing import parse_byte_size
    from offload.footprint.auxiliary_models import NO_AUXILIARY_MODELS
    from offload.footprint.model import kv_table

    settings = load_settings({"ctx": ctx, "kv_type": kv_type, "rpc": rpc})
    max_bytes = parse_byte_size(settings.max_memory) if settings.max_memory else 0
    wanted = cache(lambda: requested_planning_context(settings, vram, ram))
    candidate, notice = find_model(model, settings, wanted)
    data: object
    if wants_table:
        rows = kv_table(candidate, settings.parallel)
        data, lines = kv_table_json(rows), kv_table_lines(rows)
    elif wants_gains:
        # without the measured cost of this model's steps, typical ones
        cost = None if notice else known_step_cost(candidate.header, settings.cache_dir)
        gains, is_measured = draft_gains(cost or StepCost()), cost is not None
        data, lines = gains_json(gains, is_measured=is_measured), gains_lines(gains, is_measured=is_measured)
    elif notice:
        if projector == NO_PROJECTOR:
            candidate = replace(candidate, auxiliary=NO_AUXILIARY_MODELS)
        found = plan_of_absent(candidate, notice, wanted())
        data = describe_plan(found, max_bytes)
        lines = plan_lines(found, with_curve=plot, max_bytes=max_bytes)
    else:
        is_default = model == settings.model
        settings = replace(
            settings,
            draft=draft if draft is not None else settings.draft if is_default or settings.draft == NO_DRAFT else "",
            projector=projector or (settings.projector if is_default else general_choice(settings.projector)),
            lora=tuple(lora or ()) or (settings.lora if is_default else ()),
            control_vector=(),
        )
        ref = resolve(model, settings)
        is_here = not vram and ram is None
        found = _plan_with_auxiliary(candidate, ref, settings, wanted(), is_here=is_here)
        runs = runs_of(ref.path, wanted().machine, settings.cache_dir) if is_here else ()
        data = encode(describe_plan(found, max_bytes)) | {"measured": encode(runs)}
        lines = plan_lines(found, runs, with_curve=plot, max_bytes=max_bytes)
    print_result(data, lines, wants_json=wants_json)


def _plan_with_auxiliary(
    model: PlannedModel, ref: ModelRef, settings: Settings, context: PlanningContext, *, is_here: bool
) -> PlacementPlan:
    """Return the plan of `model` with its adapters in Ollama and what `settings` attach to it, else with the draft head
    and the projector that are kept with it. Raises UserError for files of another kind."""
    from app.engine.load.auxiliary_models import best_fit, read_auxiliary_models
    from app.engine.load.head_file import find_head
    from app.library.local.projectors import choose_projector
    from app.library.machine_fit.planning import plan_of
    from app.protocol.plan import describe_draft
    from app.service.models.model_file import read_attachments
    from offload.advice.drafts import planned_copy

    attached = read_attachments(settings, ref)
    head, notices = find_head(model.header) if settings.draft in ("", COPY_DRAFT) else (None, ())
    seeing = choose_projector(model.header, settings.projector)
    notices = (*notices, *seeing.passed_over)

    def planned(draft_path: str, projector: str, is_on_host: bool) -> PlacementPlan:
        auxiliary = read_auxiliary_models(
            model.header,
            draft_path=draft_path,
            adapters=[Path(path) for path, _ in attached.lora],
            projector=Path(projector) if projector else None,
            is_projector_on_host=is_on_host,
        )
        if copy is not None:
            auxiliary = replace(auxiliary, draft=copy)
        return plan_of(replace(model, auxiliary=auxiliary), settings, context, is_here=is_here)

    copy = None

    found, left_out = best_fit(
        planned,
        lambda plan: plan,
        str(head or attached.draft_path),
        seeing.path,
        has_gpu=bool(context.machine.gpus),
        is_draft_chosen=head is None,
        is_projector_chosen=seeing.is_chosen,
    )
    notices = (*notices, *left_out)
    offer = next((each for each in found.drafts if each.file_type == DRAFT_COPY_TYPE), None)
    if attached.uses_copy and offer is not None and offer.pays:
        notices += (f"With {offer.what} as its draft: {describe_draft(offer).gain_text}.",)
        copy = planned_copy(model)
        found = replace(planned("", seeing.path, False), drafts=found.drafts)
    return replace(found, warnings=(*found.warnings, *notices))


@click.command(epilog="Example: localllm doctor guide")
@click.argument("model", required=False, shell_complete=complete_model)
@setting_options("rpc")
@options("wants_json")
def doctor(model: str | None, rpc: str | None, wants_json: bool) -> None:
    """Check processor, memory, GPUs, disk and the build of llama.cpp, in a few seconds.

    With MODEL (guide, a path to a GGUF, or a name in the library) also measure one answer and report its bottleneck:
    memory capacity, memory bandwidth, prefill compute, or the queue.
    """
    from app.engine.load.machine import survey
    from app.library.machine_fit.diagnostics import collect_findings, describe_machine

    settings = load_settings({"rpc": rpc})
    surveyed = survey(announced_rpc_endpoints(settings), settings.cache_dir, "now")  # it may have been mended since
    findings = collect_findings(settings, surveyed, model)
    report = describe_machine(findings)
    diagnosis = _diagnose(model, settings, findings.machine) if model else None
    if wants_json:
        figures = {name: value for part in diagnosis or () for name, value in asdict(part).items()}
        print_json(encode(report) | ({"model": figures} if diagnosis else {}))
        return
    print_lines(_lines(report))
    if model and diagnosis:
        from quantizer.figures import format_speed

        turn, found = diagnosis
        decode, prefill = format_speed(turn.decode_tps), format_speed(turn.prefill_tps)
        click.echo()
        print_lines(
            (
                f"{model}: answers {decode} tok/s, prompts {prefill} tok/s.",
                f"Bottleneck: {found.constraint}. {found.reason}",
                f"First: {found.first_step}",
            )
        )


def _diagnose(model: str, settings: Settings, machine: Machine) -> tuple[TurnTiming, Bottleneck]:
    """Measure one turn of `model`, and return it with the bottleneck. Raises UserError."""
    from app.bench.target import measure_turn
    from app.cli.output.answer import LoadingLine
    from app.library.local.resolve import resolve
    from app.library.machine_fit.planning import local_planning_context
    from offload.advice.doctor import Symptoms, bottleneck
    from offload.footprint.model import PlannedModel
    from offload.plan import faster_quantization

    path = resolve(model, settings).path
    candidate, here = PlannedModel.read(path), local_planning_context(settings, machine)
    planned = here.plan(candidate)
    smaller = faster_quantization(candidate, here.requested, here.machine, here.rates)
    work = TuneFile(settings.cache_dir).work(tune_key(candidate.header))
    click.echo(printable(f"Measuring {path.name} …"), err=True)
    turn = asyncio.run(measure_turn(model, settings, LoadingLine().show))
    symptoms = Symptoms(
        verdict=planned.assessment.verdict,
        queue_s=turn.queue_s,
        n_ahead=turn.n_ahead,
        prefill_tps=turn.prefill_tps,
        decode_tps=turn.decode_tps,
        n_prefill=work.n_prefill,
        n_decode=work.n_decode,
        read_bytes=sum(share.read_bytes for share in planned.assessment.shares),
        predicted_tps=planned.assessment.decode_tps,
        remedy=planned.remedies[0].what if planned.remedies else None,
        smaller=smaller,
    )
    return turn, bottleneck(symptoms)


def _lines(report: MachineReport) -> Iterator[str]:
    for label, text in (*report.rows, *report.paths):
        yield f"{label:<10} {text}"
    yield ""
    if not report.problems:
        yield "No problems found."
    for problem in report.problems:
        yield f"! {problem.what}"
        yield f"  {problem.next_step}"


_LOOKS_FOR_S = 0.5
_MOST_PERCENT = 15.0  # of all processors: a desktop at rest has less, one busy program of two processors 50
_MARK = "* "
_VERIFIED = 16  # a step's size that every measurement has


def warn_if_busy() -> None:
    """Measure the CPU load for half a second, and print a warning where it would spoil measurements."""
    import psutil

    busy_percent = psutil.cpu_percent(_LOOKS_FOR_S)
    if busy_percent > _MOST_PERCENT:
        taken = f"Warning: Other programs use {busy_percent:.0f} % of this machine's processors"
        spoiled = "measurements are too slow now, and the wrong setting may win"
        click.echo(f"{taken}: {spoiled}. Measure again when it is idle.", err=True)


@click.command(epilog="Example: localllm tune model.gguf")
@options_of(TuneOptions, optional=("model",))
@click.option("--types", is_flag=True, help="Measure what each type of weights takes on this machine; no MODEL.")
@click.option("--show", is_flag=True, help="Print earlier measurements of MODEL, or of all models; measure nothing.")
@options("wants_json")
def tune(options: TuneOptions, *, types: bool, show: bool, wants_json: bool) -> None:
    """Measure the speed of MODEL (guide, a path to a GGUF, or a name in the library) with each setting of the engine.

    The fastest setting for the way you use the model applies from the next load on. Smaller KV cache types are
    measured too, but never chosen for you: pass --kv-type to `serve` or `run`.

    With --types measure instead, in about 20 seconds, how fast each type of weights is multiplied here. Plans, and the
    choice of a file to download, use it; the service does so by itself in idle moments.
    """
    from app.engine.model_task import TaskProgress, run_task
    from app.library.local.resolve import resolve
    from app.service.models.model_file import read_model_file

    settings, model = load_settings(), options.model
    if types:
        if model:
            raise UsageError("--types measures this machine, not a model.", f"Leave out {model}, or --types.")
        _tune_types(settings, options.threads, show=show, wants_json=wants_json)
        return
    if show:
        known = TuneFile(settings.cache_dir)
        wanted = tune_key(read_header(resolve(model, settings).path)) if model else None
        names = {key: name for key, name in known.names().items() if wanted in (None, key)}
        if not names:
            raise UsageError("There are no measurements yet.", "Run `localllm tune MODEL`.")
        for key, name in names.items():
            _print_measured(name, known.measured(key), wants_json=wants_json)
        return
    if not model:
        raise UsageError("There is no MODEL.", "Name one, or pass --show.")
    path = resolve(model, settings).path
    read_model_file(path)  # the gate
    warn_if_busy()
    # in a child process, which ends with the iteration
    request, track = TuneRequest(str(path), options.threads), partial(with_progress, "Measuring")
    measured = run_task("app.engine.tuning.tuner", request, TaskProgress, SpeedMeasurement, track)
    _print_measured(path.name, measured, wants_json=wants_json)


def _tune_types(settings: Settings, n_threads: int, *, show: bool, wants_json: bool) -> None:
    """Measure the types of weights on each device, unless only `show`, and print them."""
    from app.cli.output.types import print_type_tables
    from app.engine.load.type_tables import TypeTables, host_key
    from app.engine.model_task import TaskProgress, run_task
    from app.engine.tuning.type_tuner import MeasuredKind, TypeTuneRequest
    from offload.devices.host import default_threads
    from offload.devices.machine import HOST_NAME
    from offload.speed.type_costs import TypeTable

    n_threads = n_threads or default_threads()
    if show:
        tables = {HOST_NAME: TypeTables(settings.cache_dir).read(host_key(n_threads))}
        if not tables[HOST_NAME].types:
            raise UsageError("No types were measured yet.", "Run `localllm tune --types`.")
    else:
        warn_if_busy()
        track = partial(with_progress, "Measuring")
        found = run_task("app.engine.tuning.type_tuner", TypeTuneRequest(n_threads), TaskProgress, MeasuredKind, track)
        tables = {
            device: TypeTable({each.kind: each.cost for each in found if each.device == device and each.cost})
            for device in dict.fromkeys(each.device for each in found)
        }
    print_type_tables(tables, n_threads, wants_json=wants_json)


def _print_measured(name: str, measured: Sequence[SpeedMeasurement], *, wants_json: bool) -> None:
    best = fastest(unasked(measured) or measured, DEFAULT_WORKLOAD)
    if wants_json:
        print_json({"model": name, "best": best.setting, "measured": measured})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=printable(name), box=None, pad_edge=False, collapse_padding=True)
    depths = [depth for depth, _ in best.decode]
    headings = ("attention", "weights", "threads", "batch", "cache", "prefill", *(f"at {depth}" for depth in depths))
    for heading in (*headings, f"by {N_BATCHED}", f"of {_VERIFIED}"):
        table.add_column(heading, justify="right")
    for item in measured:
        setting, decode, verify = item.setting, dict(item.decode), dict(item.step_ratios).get(_VERIFIED)
        # the mark is there where bold is not: in a file, with NO_COLOR
        mark, style = (_MARK, "bold") if item is best else ("", None)
        table.add_row(
            f"{mark}{'fused' if setting.flash_attention else 'plain'}",
            f"{setting.weights}+" if setting.copies else setting.weights,
            str(setting.n_threads),
            str(setting.n_ubatch),
            setting.kv_type,
            f"{item.prefill:.1f}",
            *(f"{decode[depth]:.1f}" if depth in decode else "" for depth in depths),
            f"{item.batched_decode:.1f}" if item.batched_decode else "",
            f"{verify:.2f}" if verify else "",
            style=style,
        )
    Console().print(table)
    click.echo(
        f"Tokens per second: prefill, decode at that many tokens of context, and {N_BATCHED} answers at once, in total."
    )
    click.echo(f"of {_VERIFIED}: the time of a step of {_VERIFIED} tokens divided by that of one token.")
    click.echo("Weights: as in the file (plain), repacked for the processor, or both, for large and small steps;")
    click.echo("+: with a copy for prompts in a type that reads faster here.")
    among = f"of those within {format_number(100 * AS_FAST)} %, for {N_BATCHED} answers"
    click.echo(f"{_MARK.strip()} is fastest for 512 tokens of prompt and 256 of answer; {among}.")
