"""What `localllm doctor MODEL` says of one model: a short measurement, and what holds it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.terminal import printable

if TYPE_CHECKING:
    from app.bench.turn import Turn
    from app.settings import Settings
    from offload.bottleneck import Bottleneck, Symptoms
    from offload.machine import Machine

__all__ = ["Examination", "examined", "model_json", "model_lines"]


@dataclass(frozen=True, slots=True)
class Examination:
    """What was measured of a model, and what binds."""

    turn: Turn
    found: Bottleneck


def examined(model: str, settings: Settings, machine: Machine) -> Examination:
    """Measure one turn of `model` and say what binds. Raises UserError."""
    from app.bench.turn import measured_turn
    from app.cli.answering import LoadingLine
    from app.library.resolve import resolve
    from offload.bottleneck import bottleneck

    path = resolve(model, settings).path
    judged = _judging(path, settings, machine)
    click.echo(printable(f"Measuring {path.name} …"), err=True)
    turn = asyncio.run(measured_turn(model, settings, LoadingLine().show))
    return Examination(turn, bottleneck(judged(turn)))


def _judging(path: Path, settings: Settings, machine: Machine) -> Callable[[Turn], Symptoms]:
    """Plan the model at `path` and return what makes symptoms of a turn; what it is used for is known by then."""
    from app.engine.loading import tune_file
    from app.engine.store import model_key
    from app.library.fit import circumstances_here
    from offload.bottleneck import Symptoms
    from offload.model import PlannedModel
    from offload.prediction import faster_quantization
    from quantizer.gate import admit, tensors_of

    header = admit(path)
    candidate, here = PlannedModel(header, tensors_of(header)), circumstances_here(settings, machine)
    planned = here.plan(candidate)
    smaller = faster_quantization(candidate, here.question, here.machine, here.rates)
    work = tune_file(settings.cache_dir).work(model_key(path))

    def symptoms(turn: Turn) -> Symptoms:
        return Symptoms(
            verdict=planned.found.verdict,
            queue_s=turn.queue_s,
            n_ahead=turn.n_ahead,
            prefill_tps=turn.prefill_tps,
            decode_tps=turn.decode_tps,
            n_prefill=work.n_prefill,
            n_decode=work.n_decode,
            read_bytes=sum(share.read_bytes for share in planned.found.shares),
            predicted_tps=planned.found.decode_tps,
            remedy=planned.remedies[0].what if planned.remedies else None,
            smaller=smaller,
        )

    return symptoms


def model_json(examination: Examination) -> dict[str, Any]:
    """Return it as one object."""
    return {**asdict(examination.turn), **asdict(examination.found)}


def model_lines(model: str, examination: Examination) -> Iterator[str]:
    """Yield the lines for a person."""
    from offload.wording import speed

    turn, found = examination.turn, examination.found
    yield f"{model}: answers {speed(turn.decode_tps)} tok/s, prompts {speed(turn.prefill_tps)} tok/s."
    yield f"What holds it back is {found.constraint}. {found.reason}"
    yield f"First: {found.first_step}"
