"""The notice about a model whose type of weights reads slowly on this machine, given once, with the way out.

Only where types were measured here, and only where another type of about the same size, which loses no more, would read
much faster and write as fast.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from app.engine.load.machine_file import MachineFile, this_build
from app.engine.load.planner import LoadAttempt
from offload.footprint.model import PlannedModel
from offload.placement.assessment import Speed, assess
from offload.speed.cost_model import Rates
from quantizer.figures import format_speed
from quantizer.gguf.tensor_types import FILE_TYPES, FileType, file_type_name

_GAIN, _AS_FAST_WRITING = 1.5, 0.9
_SAME_SIZE, _SAME_LOSS = 1.05, 0.03  # times the bytes; of a perplexity of 6.23
_SAID = "slow type"  # a field of an entry beside what loads exceeded


def slow_type_notice(model: PlannedModel, attempt: LoadAttempt, rates: Rates, key: str, cache_dir: Path) -> str:
    """Return the notice about `model`, "" where there is nothing to say or where it was said before; `key` is its
    fingerprint."""
    said = MachineFile(cache_dir / "notices.json", this_build())
    found = faster_reader(model, attempt, rates)
    if found is None or said.entry(key).get(_SAID):
        return ""
    said.update(key, {_SAID: True})
    file_type, now, then = found
    today = file_type_name(model.header.integer("general.file_type"))
    return (
        f"{today} reads slowly on this processor: about {format_speed(now.prefill_tps)} tokens a second; "
        f"{file_type.name} of this model would read {format_speed(then.prefill_tps)} and write "
        f"{format_speed(then.decode_tps)}. Pull that file, or make it of the original (of this one it loses a little "
        "more): localllm quantize "
        f"{shlex.quote(str(model.header.path))} {file_type.name}"
    )


def faster_reader(model: PlannedModel, attempt: LoadAttempt, rates: Rates) -> tuple[FileType, Speed, Speed] | None:
    """Return the type to take instead, with the speeds of today and of that; None where none is much faster."""
    found = attempt.plan.assessment
    today = FILE_TYPES.get(file_type_name(model.header.integer("general.file_type")))
    in_use = {share.device.name for share in found.shares if share.n_layers}
    if today is None or today.perplexity_loss is None or found.speed is None or not in_use <= rates.tables.keys():
        return None
    faster: list[tuple[FileType, Speed]] = []
    for file_type in FILE_TYPES.values():
        loses_more = file_type.perplexity_loss is None or file_type.perplexity_loss > today.perplexity_loss + _SAME_LOSS
        if file_type is today or loses_more:
            continue
        other = model.quantized(file_type)
        if other.n_bytes > _SAME_SIZE * model.n_bytes:
            continue
        speed = assess(other.profile(found.profile.run_config), found.machine, rates).speed
        if (
            speed is not None
            and speed.prefill_tps >= _GAIN * found.speed.prefill_tps
            and speed.decode_tps >= _AS_FAST_WRITING * found.speed.decode_tps
        ):
            faster.append((file_type, speed))
    if not faster:
        return None
    file_type, speed = min(faster, key=lambda each: each[0].perplexity_loss or 0.0)
    return file_type, found.speed, speed
