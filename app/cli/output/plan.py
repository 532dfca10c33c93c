"""The printed plan: devices, speeds, the curve, warnings, remedies; tables of cache sizes and draft gains.

Owns these texts, and the JSON of the two tables (a plan's is `app.protocol.plan`). Independent of how plans are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from app.common.terminal import counted
from app.engine.speculative.cost_model import DraftGain
from app.protocol.library import ModelFit
from app.protocol.plan import MeasuredRun, describe_draft, measured_speed
from offload.advice.remedies import choice_summary
from offload.footprint.model import DEFAULT_N_PROMPT, DEFAULT_N_UBATCH, KvRow
from offload.format import format_memory, format_speed_range
from offload.placement.assessment import FitLevel
from offload.placement.shares import Share, turn_of
from offload.plan import PlacementPlan
from quantizer.figures import format_speed
from quantizer.gguf.tensor_types import DRAFT_COPY_TYPE

# In a table, and as a sentence.
_VERDICTS = {
    FitLevel.FITS: ("fits", "It fits."),
    FitLevel.TIGHT: ("fits tightly", "It fits tightly."),
    FitLevel.PARTIAL: ("partly offloaded", "Partly offloaded: only some layers fit where they are fast."),
    FitLevel.WONT_RUN: ("will not run", "It will not run here."),
}
_N_ROWS, _BAR_COLUMNS, _COMMAND_COLUMNS = 12, 50, 60


def plan_lines(
    plan: PlacementPlan, runs: Sequence[MeasuredRun] = (), *, with_curve: bool = False, max_bytes: int = 0
) -> Iterator[str]:
    """Yield the plan; `runs` are those of the model here, which precede what is predicted. Models may take `max_bytes`
    together; 0 is no limit."""
    found, setting = plan.assessment, plan.run_config
    yield _VERDICTS[found.verdict][1]
    cells = f"{setting.n_cells:,} cells of {setting.kv_types}"
    batches = f", in micro-batches of {setting.n_ubatch} tokens" if setting.n_ubatch != DEFAULT_N_UBATCH else ""
    yield f"Context {setting.n_ctx:,} tokens, {cells}{batches}."
    if found.shares:
        yield ""
        yield from _table(plan)
    for extra in found.profile.extras:
        tokens = f" {extra.projector.tokens_text}" if extra.projector else ""
        yield f"Beside it: {extra.what}, {format_memory(extra.n_bytes)}.{tokens}"
    if chats_bytes := found.state_bytes(max_bytes or None):
        yield f"Chats that left the cache: up to {format_memory(chats_bytes)} more, given back where memory is short."
    if found.speed:
        measured = measured_speed(runs, found.placement.n_on_gpus if found.placement else 0)
        answers, prompts = format_speed(found.speed.decode_tps), format_speed(found.speed.prefill_tps)
        yield ""
        if measured.decode_tps is not None:
            reads = "" if measured.prefill_tps is None else f", prompts {format_speed(measured.prefill_tps)} tok/s"
            of = f"median of {counted(measured.n_answers, 'answer')}"
            where = f"{measured.where[0].upper()}{measured.where[1:]}"
            yield f"{where}: answers {format_speed(measured.decode_tps)} tok/s{reads} ({of})."
        first_s, begin = found.speed.first_token_s, "Predicted: answers" if measured.decode_tps else "Answers"
        if measured.prefill_tps is not None:
            first_s = DEFAULT_N_PROMPT / measured.prefill_tps
        behind = f"behind {setting.depth:,} tokens"
        yield f"{begin} {answers} tok/s {behind} (± {plan.uncertainty:.0%}), prompts {prompts} tok/s."
        yield f"First token of a {DEFAULT_N_PROMPT:,}-token prompt after {first_s:.1f} s."
        yield from _weighing(plan)
    yield from (f"! {warning}" for warning in plan.warnings)
    if plan.remedies:
        yield ""
        yield "What would help:"
        yield from _remedies(plan)
    if plan.drafts:
        yield ""
        yield from _drafts(plan)
    if with_curve:
        yield ""
        yield from _curve_lines(plan)


def _weighing(plan: PlacementPlan) -> Iterator[str]:
    """Yield who computes prompts with what the processor keeps, and what the placement was chosen before."""
    found, other = plan.assessment, plan.assessment.runner_up
    if found.placement is not None and (gpu := found.placement.prompt_gpu) and found.fetched_bytes:
        per_batch = f"{format_memory(found.fetched_bytes)} for every {plan.run_config.n_ubatch:,} tokens"
        yield f"Prompts are computed by {gpu}, which fetches {per_batch} of them from the processor's memory."
    if other is None or other.speed is None or other.turn_s is None or found.turn_s is None:
        return
    turn = turn_of(found.profile)
    yield f"A turn of {turn.n_prompt:,} tokens of prompt and {turn.n_answer} of answer takes {found.turn_s:.1f} s."
    answers, prompts = format_speed(other.speed.decode_tps), format_speed(other.speed.prefill_tps)
    speeds = f"answers {answers} tok/s, prompts {prompts} tok/s, {other.turn_s:.1f} s a turn"
    yield f"Next best: {choice_summary(other)}: {speeds}."


def kv_table_json(rows: Sequence[KvRow]) -> dict[str, Any]:
    """Return the table as one object, sizes in bytes."""
    return {"kv_table": [{"n_ctx": row.n_ctx, **row.n_bytes} for row in rows]}


def kv_table_lines(rows: Sequence[KvRow]) -> Iterator[str]:
    sizes = [[f"{row.n_ctx:,}", *map(format_memory, row.n_bytes.values())] for row in rows]
    yield from _aligned([["context", *rows[0].n_bytes], *sizes])


def _curve_lines(plan: PlacementPlan) -> Iterator[str]:
    """Yield tok/s against layers on the fastest GPU as bars; at most a dozen of them, the plan's own among them."""
    found = plan.assessment
    if len(found.curve) < 2 or found.placement is None:
        yield "No curve: there are no layers to move between GPU and CPU."
        return
    here = min(found.placement.n_on_gpus, len(found.curve) - 1)
    most = max(found.curve)
    yield "layers on the GPU, tok/s"
    step = max(1, -(-len(found.curve) // _N_ROWS))  # evenly, but for the plan's own and the last
    for count in sorted({*range(0, len(found.curve), step), here, len(found.curve) - 1}):
        bar = "█" * max(1, round(_BAR_COLUMNS * found.curve[count] / most))
        yield f"{count:>4} {bar} {format_speed(found.curve[count])}{'  ← here' if count == here else ''}"


def _table(plan: PlacementPlan) -> Iterator[str]:
    columns: dict[str, Callable[[Share], int]] = {
        "weights": lambda share: share.weight_bytes,
        "cache": lambda share: share.cache_bytes,
        "compute": lambda share: share.compute_bytes + share.host_bytes,
    }
    if plan.assessment.profile.extras:
        columns["beside"] = lambda share: share.beside_bytes
    columns["free"] = lambda share: share.device.free_bytes
    rows = [
        [share.device.name, str(share.n_layers), *(format_memory(size(share)) for size in columns.values())]
        for share in plan.assessment.shares
    ]
    yield from _aligned([["device", "layers", *columns], *rows])


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows with their first column on the left and figures on the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for name, *figures in rows:
        cells = [figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True)]
        yield "  ".join([name.ljust(widths[0]), *cells])


def _remedies(plan: PlacementPlan) -> Iterator[str]:
    width = max((len(remedy.what) for remedy in plan.remedies if len(remedy.what) <= _COMMAND_COLUMNS), default=0)
    for remedy in plan.remedies:
        gained = f"{format_speed(remedy.decode_tps)} tok/s" if remedy.decode_tps is not None else "speed unknown"
        if len(remedy.what) > _COMMAND_COLUMNS:  # a command line, to be copied
            yield f"  {remedy.what}"
            yield f"    {remedy.cost}"
        else:
            yield f"  {remedy.what.ljust(width)}  {gained:>13}  {remedy.cost}"


def _drafts(plan: PlacementPlan) -> Iterator[str]:
    """Yield what draft models would do: all that were weighed where one pays, or where they would take the place of
    layers; else only the best."""
    is_partial = plan.assessment.verdict is FitLevel.PARTIAL and bool(plan.assessment.machine.gpus)
    offers = [describe_draft(offer) for offer in plan.drafts]
    if not is_partial and not plan.drafts[0].pays:
        yield f"No draft model pays here. The best is {offers[0].what}: {offers[0].gain_text}."
        return
    yield "As drafts in the GPU's memory, instead of layers:" if is_partial else "As drafts beside it:"
    for offer in offers:
        place = f" beside {offer.layers} layers" if is_partial else ""
        beside, speed = f"{format_memory(offer.bytes)}{place}", format_speed(offer.decode_tps)
        yield f"  {offer.what} ({beside}): answers {speed} tok/s, {offer.gain_text}"
    if not plan.drafts[0].pays:
        yield "  Layers are the better use of this memory."
    elif any(offer.pays and offer.file_type == DRAFT_COPY_TYPE for offer in plan.drafts):
        yield "  --draft copy makes the copy and uses it."


def gains_json(rows: Sequence[DraftGain], *, is_measured: bool) -> dict[str, Any]:
    return {
        "is_measured": is_measured,
        "speculation": [
            {
                "acceptance": row.acceptance,
                "gains": [{"draft_tokens": length, "gain": round(gain, 3)} for length, gain in row.gains.items()],
                "best": {"draft_tokens": row.best_length, "gain": round(row.best_gain, 3)},
            }
            for row in rows
        ],
    }


def gains_lines(rows: Sequence[DraftGain], *, is_measured: bool) -> Iterator[str]:
    yield "Speed-up by draft length; rows: acceptance rate of each draft token."
    yield ""
    table = [["acceptance", *map(str, rows[0].gains), "best"]]
    for row in rows:
        best = f"{row.best_gain:.2f} with {row.best_length}" if row.best_length else "no drafts"
        table.append([f"{row.acceptance:.0%}", *(f"{gain:.2f}" for gain in row.gains.values()), best])
    yield from _aligned(table)
    yield ""
    if is_measured:
        yield "Step costs were measured here with this model."
    else:
        yield "Step costs are typical of a CPU; `localllm tune MODEL` measures them here."


def format_fit(fit: ModelFit) -> str:
    """Return the fit level and the speed: fits, 32 tok/s, or a range where it is uncertain."""
    pace = "" if fit.decode_tps is None else f", {format_speed_range(fit.decode_tps, fit.uncertainty)} tok/s"
    return _VERDICTS[FitLevel(fit.verdict)][0] + pace
