"""`localllm plan`: the fit and speed of a model before it is loaded."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.options import complete_model, options, setting_options
from app.cli.output.format import print_json, print_lines
from app.cli.resources import requested_planning_context
from app.settings.settings import NO_DRAFT, Settings, load_settings
from quantizer.gguf.file_names import NO_PROJECTOR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.library.machine_fit.planning import PlanningContext
    from offload.footprint.model import PlannedModel
    from offload.plan import PlacementPlan
    from quantizer.gguf.header import Header


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
    from app.cli.output.plan import kv_table_json, kv_table_lines, plan_lines
    from app.library.hub.selection import find_model
    from app.library.local.projectors import general_choice
    from app.library.machine_fit.planning import plan_of_absent
    from app.protocol.plan import describe_plan
    from offload.footprint.auxiliary_models import NO_AUXILIARY_MODELS
    from offload.footprint.model import kv_table

    settings = load_settings({"ctx": ctx, "kv_type": kv_type, "rpc": rpc})
    wanted = cache(lambda: requested_planning_context(settings, vram, ram))
    candidate, notice = find_model(model, settings, wanted)
    data: object
    if wants_table:
        rows = kv_table(candidate, settings.parallel)
        data, lines = kv_table_json(rows), kv_table_lines(rows)
    elif wants_gains:
        data, lines = _gains(None if notice else candidate.header, settings)
    elif notice:
        if projector == NO_PROJECTOR:
            candidate = replace(candidate, auxiliary=NO_AUXILIARY_MODELS)
        found = plan_of_absent(candidate, notice, wanted())
        data, lines = describe_plan(found), plan_lines(found, with_curve=plot)
    else:
        is_default = model == settings.model
        settings = replace(
            settings,
            draft=draft if draft is not None else settings.draft if is_default or settings.draft == NO_DRAFT else "",
            projector=projector or (settings.projector if is_default else general_choice(settings.projector)),
            lora=tuple(lora or ()) or (settings.lora if is_default else ()),
            control_vector=(),
        )
        found = _plan_with_auxiliary(candidate, settings, wanted(), is_here=not vram and ram is None)
        data, lines = describe_plan(found), plan_lines(found, with_curve=plot)
    if wants_json:
        print_json(data)
    else:
        print_lines(lines)


def _gains(header: Header | None, settings: Settings) -> tuple[dict[str, Any], Iterator[str]]:
    """Return the speed-up by drafts, with the measured step costs of the model of `header`; typical ones without it."""
    from app.cli.output.plan import gains_json, gains_lines
    from app.engine.speculative.cost_model import StepCost, draft_gains
    from app.engine.tuning.tune_results import measured_step_cost

    cost = measured_step_cost(header, settings.cache_dir) if header else None
    gains = draft_gains(cost or StepCost())
    return gains_json(gains, is_measured=cost is not None), gains_lines(gains, is_measured=cost is not None)


def _plan_with_auxiliary(
    model: PlannedModel, settings: Settings, context: PlanningContext, *, is_here: bool
) -> PlacementPlan:
    """Return the plan of `model` with what `settings` attach to it, else with the draft head and the projector that are
    kept with it.

    Raises UserError for files of another kind.
    """
    from app.engine.load.auxiliary_models import best_fit, read_auxiliary_models
    from app.engine.load.head_file import find_head
    from app.library.local.projectors import choose_projector
    from app.library.machine_fit.planning import plan_of
    from app.service.models.model_file import read_attachments

    attached = read_attachments(settings, model.header.path)
    head, notices = (None, ()) if settings.draft else find_head(model.header)
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
        return plan_of(replace(model, auxiliary=auxiliary), settings, context, is_here=is_here)

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
    return replace(found, warnings=(*found.warnings, *notices))
