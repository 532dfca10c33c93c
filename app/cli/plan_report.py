"""A plan as it is printed: a table by device, speeds, the curve, warnings and ways out.

So too the table of cache sizes, which can be one JSON object as well (that of a plan is `offload.plan_json`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from offload.allocation import Share
from offload.assessment import Verdict
from offload.kv_table import KvRow
from offload.plan import Plan
from offload.profile import DEFAULT_N_UBATCH
from offload.wording import memory, speed, tokens

__all__ = ["aligned", "kv_table_json", "kv_table_lines", "plan_lines"]

_VERDICTS = {
    Verdict.FITS: "It fits.",
    Verdict.TIGHT: "It fits, tightly.",
    Verdict.PARTIAL: "Only a part of it fits where it is fast.",
    Verdict.WONT_RUN: "It will not run here.",
}
_N_ROWS, _BAR_COLUMNS, _COMMAND_COLUMNS = 12, 50, 60


def plan_lines(plan: Plan, *, with_curve: bool = False) -> Iterator[str]:
    """Yield the lines of a plan."""
    found, setting = plan.found, plan.setting
    yield _VERDICTS[found.verdict]
    cells = f"{tokens(setting.n_cells)} cells of {setting.kv_types}"
    yield f"Context {tokens(setting.n_ctx)} tokens, {cells}{_batches(plan)}."
    if found.shares:
        yield ""
        yield from _table(plan)
    yield from (f"Beside it: {extra.what}, {memory(extra.n_bytes)}." for extra in found.profile.extras)
    if found.speed:
        answers, prompts = speed(found.speed.decode_tps), speed(found.speed.prefill_tps)
        yield ""
        behind = f"behind {tokens(setting.depth)} tokens"
        yield f"Answers {answers} tok/s {behind} (± {plan.uncertainty:.0%}), prompts {prompts} tok/s."
        yield f"First token of a 2,048-token prompt after {found.speed.first_token_s:.1f} s."
    yield from (f"! {warning}" for warning in plan.warnings)
    if plan.remedies:
        yield ""
        yield "What would help:"
        yield from _remedies(plan)
    if with_curve:
        yield ""
        yield from _curve_lines(plan)


def kv_table_json(rows: Sequence[KvRow]) -> dict[str, Any]:
    """Return the table as one object, sizes in bytes."""
    return {"kv_table": [{"n_ctx": row.n_ctx, **row.n_bytes} for row in rows]}


def kv_table_lines(rows: Sequence[KvRow]) -> Iterator[str]:
    """Yield the lines of the table, a column for each type."""
    yield from aligned(
        [["context", *rows[0].n_bytes], *([tokens(row.n_ctx), *map(memory, row.n_bytes.values())] for row in rows)]
    )


def _curve_lines(plan: Plan) -> Iterator[str]:
    """Yield tok/s against layers on the fastest GPU as bars; at most a dozen of them, the plan's own among them."""
    found = plan.found
    if len(found.curve) < 2 or found.placement is None:
        yield "No curve: there are no layers to move between a GPU and the processor."
        return
    here = min(found.placement.n_on_gpus, len(found.curve) - 1)
    most = max(found.curve)
    yield "layers on the GPU, tok/s"
    for count in _sampled(len(found.curve), here):
        bar = "█" * max(1, round(_BAR_COLUMNS * found.curve[count] / most))
        yield f"{count:>4} {bar} {speed(found.curve[count])}{'  ← here' if count == here else ''}"


def _sampled(n_points: int, here: int) -> Sequence[int]:
    """Return indices from first to last, evenly but for `here`."""
    step = max(1, -(-n_points // _N_ROWS))
    return sorted({*range(0, n_points, step), here, n_points - 1})


def _table(plan: Plan) -> Iterator[str]:
    columns: dict[str, Callable[[Share], int]] = {
        "weights": lambda share: share.weight_bytes,
        "cache": lambda share: share.cache_bytes,
        "compute": lambda share: share.compute_bytes + share.host_bytes,
    }
    if plan.found.profile.extras:
        columns["beside"] = lambda share: share.beside_bytes
    columns["free"] = lambda share: share.device.free_bytes
    rows = [
        [share.device.name, str(share.n_layers), *(memory(size(share)) for size in columns.values())]
        for share in plan.found.shares
    ]
    yield from aligned([["device", "layers", *columns], *rows])


def _batches(plan: Plan) -> str:
    """Say what was chosen against the usual."""
    n_ubatch = plan.setting.n_ubatch
    return f", in micro-batches of {n_ubatch} tokens" if n_ubatch != DEFAULT_N_UBATCH else ""


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows with their first column on the left and figures on the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for name, *figures in rows:
        cells = [figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True)]
        yield "  ".join([name.ljust(widths[0]), *cells])


def _remedies(plan: Plan) -> Iterator[str]:
    width = max((len(remedy.what) for remedy in plan.remedies if len(remedy.what) <= _COMMAND_COLUMNS), default=0)
    for remedy in plan.remedies:
        gained = f"{speed(remedy.decode_tps)} tok/s" if remedy.decode_tps is not None else "speed unknown"
        if len(remedy.what) > _COMMAND_COLUMNS:  # a command line, to be copied
            yield f"  {remedy.what}"
            yield f"    {remedy.cost}"
        else:
            yield f"  {remedy.what.ljust(width)}  {gained:>13}  {remedy.cost}"
