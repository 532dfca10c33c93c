"""Whether llama.cpp can load what a plan writes: asked before a byte of it is written.

Loading is another room's, so a command does it, in a process that may crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.header import planned_header
from quantizer.gguf.validation import is_model
from quantizer.system.child_request import run_child
from quantizer.system.errors import EngineError, WrongProcessorError
from quantizer.system.files import explained
from quantizer.system.temporary_folder import temporary_folder
from quantizer.write.quantize_plan import QuantizePlan

_N_NAMED = 5
_REMEDY = "Choose another model."


def check_load(plan: QuantizePlan, command: Sequence[str], warn: Callable[[str], object]) -> None:
    """Let `command` load the planned model, whose weights are all zero. The command gets {"path": PATH} and answers
    {"unread": NAMES}, the tensors that llama.cpp's graph does not use. Raises CheckpointError with these names, or with
    llama.cpp's own words, for instance about a missing tensor. Adapters and projectors are no models and not
    checked. `warn` gets a sentence where a temporary folder is left."""
    with temporary_folder("load", warn) as folder:
        path = write_without_weights(plan, folder)
        try:
            child = run_child(command, {"path": str(path)}, "load check", _REMEDY, runs_llama=True)
            answers = list(child) if path else []
        except WrongProcessorError:
            raise
        except EngineError as error:
            raise CheckpointError(f"The written model would not load. {error.cause}", _REMEDY) from error
    if unread := [name for answer in answers for name in answer["unread"]]:
        names = ", ".join(unread[:_N_NAMED]) + (f" and {len(unread) - _N_NAMED} more" if len(unread) > _N_NAMED else "")
        raise CheckpointError(f"llama.cpp does not use all tensors of this model: {names}.", _REMEDY)


def write_without_weights(plan: QuantizePlan, folder: Path) -> Path | None:
    """Write the planned model's files into `folder`, each as its header and a hole of the size of its weights, which
    takes no space on most file systems. Return the path of the first; None where the plan is for no model."""
    shards = [shard for shard in plan.shards if shard.path != plan.projector]
    first = shards[0]
    if not is_model(planned_header(first.header, first.file.n_bytes, first.path)):
        return None
    with explained(f"{folder} cannot be written", "Free some space there, or set TMPDIR to another folder."):
        for shard in shards:
            with (folder / shard.path.name).open("wb") as file:
                file.write(shard.header)
                file.truncate(shard.file.n_bytes)
    return folder / first.path.name
