"""`localllm tune`: measure the fastest settings for a model, and show earlier measurements; warn of a busy machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from app.cli.options import options, options_of
from app.cli.output.format import print_json
from app.cli.output.progress import with_progress
from app.common.terminal import printable
from app.engine.tuning.tune_results import (
    AS_FAST,
    DEFAULT_KV_TYPE,
    DEFAULT_WORKLOAD,
    N_BATCHED,
    SpeedMeasurement,
    TuneFile,
    TuneRequest,
    fastest,
    tune_key,
)
from app.options.jobs import TuneOptions
from app.settings.settings import load_settings
from quantizer.gguf.header import read_header
from quantizer.system.errors import UsageError

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
@click.option("--show", is_flag=True, help="Print earlier measurements of MODEL, or of all models; measure nothing.")
@options("wants_json")
def tune(options: TuneOptions, *, show: bool, wants_json: bool) -> None:
    """Measure the speed of MODEL (guide, a path to a GGUF, or a name in the library) with each setting of the engine.

    The fastest setting for the way you use the model applies from the next load on. Smaller KV cache types are
    measured too, but never chosen for you: pass --kv-type to `serve` or `run`.
    """
    from app.engine.model_task import TaskProgress, run_task
    from app.library.local.resolve import resolve
    from app.service.models.model_file import read_model_file

    settings, model = load_settings(), options.model
    if show:
        known = TuneFile(settings.cache_dir)
        wanted = tune_key(read_header(resolve(model, settings).path)) if model else None
        names = {key: name for key, name in known.names().items() if wanted in (None, key)}
        if not names:
            raise UsageError("There are no measurements yet.", "Run `localllm tune MODEL`.")
        for key, name in names.items():
            _print(name, known.measured(key), wants_json=wants_json)
        return
    if not model:
        raise UsageError("There is no MODEL.", "Name one, or pass --show.")
    path = resolve(model, settings).path
    read_model_file(path)  # the gate
    warn_if_busy()
    # in a child process, which ends with the iteration
    request, track = TuneRequest(str(path), options.threads), partial(with_progress, "Measuring")
    measured = run_task("app.engine.tuning.tuner", request, TaskProgress, SpeedMeasurement, track)
    _print(path.name, measured, wants_json=wants_json)


def _print(name: str, measured: Sequence[SpeedMeasurement], *, wants_json: bool) -> None:
    # smaller KV types change answers, so they are never chosen here
    unchanged = [item for item in measured if item.setting.kv_type == DEFAULT_KV_TYPE]
    best = fastest(unchanged or measured, DEFAULT_WORKLOAD)
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
        attention, *figures = _row(item, depths)
        # the mark is there where bold is not: in a file, with NO_COLOR
        table.add_row(f"{_MARK if item is best else ''}{attention}", *figures, style="bold" if item is best else None)
    Console().print(table)
    click.echo(
        f"Tokens per second: prefill, decode at that many tokens of context, and {N_BATCHED} answers at once, in total."
    )
    click.echo(f"of {_VERIFIED}: the time of a step of {_VERIFIED} tokens divided by that of one token.")
    click.echo("Weights: as in the file (plain), repacked for the processor, or both, for large and small steps.")
    among = f"of those within {100 * AS_FAST:g} %, for {N_BATCHED} answers"
    click.echo(f"{_MARK.strip()} is fastest for 512 tokens of prompt and 256 of answer; {among}.")


def _row(item: SpeedMeasurement, depths: Sequence[int]) -> tuple[str, ...]:
    setting, decode = item.setting, dict(item.decode)
    verify = dict(item.step_ratios).get(_VERIFIED)
    return (
        "fused" if setting.flash_attention else "plain",
        setting.weights,
        str(setting.n_threads),
        str(setting.n_ubatch),
        setting.kv_type,
        f"{item.prefill:.1f}",
        *(f"{decode[depth]:.1f}" if depth in decode else "" for depth in depths),
        f"{item.batched_decode:.1f}" if item.batched_decode else "",
        f"{verify:.2f}" if verify else "",
    )
