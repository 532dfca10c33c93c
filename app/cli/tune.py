"""`localllm tune`: measure how this machine runs a model fastest, and show what was measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from app.cli.completions import complete_model
from app.cli.progress import with_progress
from app.cli.quiet import warn_if_busy
from app.engine.tuning import DEFAULT_KV_TYPE, Measured, TuneRequest, choose, measured_of
from app.terminal import printable
from quantizer.errors import UsageError

__all__ = ["tune"]

_MARK = "* "
_VERIFIED = 16  # a step's size that every measurement has


@click.command(epilog="Example: localllm tune model.gguf")
@click.argument("model", required=False, shell_complete=complete_model)
@click.option("--show", is_flag=True, help="Print what was measured before, of MODEL or of all, and measure nothing.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads; 0 takes the physical cores.")
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
def tune(model: str | None, show: bool, threads: int, wants_json: bool) -> None:
    """Measure MODEL (guide, a path to a GGUF, or a name in the library) under each setting of the engine.

    The fastest one for what you use the model for is taken from the next load on. What smaller types of KV cache cost
    is measured too, and never chosen: --kv-type of `serve` and `run` does that.
    """
    from app.library.resolve import resolve
    from app.service.model_file import read_model_file
    from app.settings import load_settings

    settings = load_settings()
    if show:
        _show_known(settings.cache_dir, resolve(model, settings).path if model else None, wants_json=wants_json)
        return
    if model is None:
        raise UsageError("There is no MODEL.", "Name one, or give --show.")
    path = resolve(model, settings).path
    read_model_file(path)  # the gate
    warn_if_busy()
    _print(path.name, _measure(path, threads), wants_json=wants_json)


def _measure(path: Path, n_threads: int) -> list[Measured]:
    """Let a child measure. Leaving early ends it. Raises UserError."""
    from app.engine.child import Step, results_of

    request = TuneRequest(str(path), n_threads)
    watched = partial(with_progress, "Measuring")
    return [measured_of(entry) for entry in results_of("app.engine.tune_process", request, Step, watched)]


def _show_known(cache_dir: Path, path: Path | None, *, wants_json: bool) -> None:
    from app.engine.loading import tune_file
    from app.engine.store import model_key

    known = tune_file(cache_dir)
    wanted = None if path is None else model_key(path)
    names = {key: name for key, name in known.names().items() if wanted in (None, key)}
    if not names:
        raise UsageError("Nothing was measured yet.", "Run `localllm tune MODEL`.")
    for key, name in names.items():
        _print(name, known.measured(key), wants_json=wants_json)


def _print(name: str, measured: Sequence[Measured], *, wants_json: bool) -> None:
    from app.engine.tuning import DEFAULT_WORK

    best = choose(_of_default_cache(measured), DEFAULT_WORK)
    if wants_json:
        click.echo(json.dumps({"model": name, "best": asdict(best.setting), "measured": [asdict(m) for m in measured]}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=printable(name), box=None, pad_edge=False, collapse_padding=True)
    depths = [depth for depth, _ in best.decode]
    headings = ("attention", "repacked", "threads", "batch", "cache", "prefill", *(f"at {depth}" for depth in depths))
    for heading in (*headings, f"{_VERIFIED} tokens"):
        table.add_column(heading, justify="right")
    for item in measured:
        attention, *figures = _row(item)
        # the mark is there where bold is not: in a file, with NO_COLOR
        table.add_row(f"{_MARK if item is best else ''}{attention}", *figures, style="bold" if item is best else None)
    Console().print(table)
    click.echo("Tokens a second, decode by tokens in the cache; last, a step's time over that of one token.")
    click.echo(f"{_MARK.strip()} is fastest for 512 tokens of prompt and 256 of answer.")


def _of_default_cache(measured: Sequence[Measured]) -> list[Measured]:
    """Return what keeps the cache as it is unless a person chooses: smaller types answer a little differently."""
    return [item for item in measured if item.setting.kv_type == DEFAULT_KV_TYPE] or list(measured)


def _row(item: Measured) -> tuple[str, ...]:
    setting = item.setting
    verify = dict(item.step_ratios).get(_VERIFIED)
    return (
        "fused" if setting.flash_attention else "plain",
        "yes" if setting.extra_buffers else "no",
        str(setting.n_threads),
        str(setting.n_ubatch),
        setting.kv_type,
        f"{item.prefill:.1f}",
        *(f"{speed:.1f}" for _, speed in item.decode),
        f"{verify:.2f}" if verify else "",
    )
