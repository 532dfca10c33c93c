"""What each reader of GGUFs in localllm makes of a file: validation, show, plan, plans of quantizations, the service.

All of them must take the same files for models, so that nobody is told of a model which the next command refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from app.library.local.index import Index
from app.library.local.model_record import describe_model
from app.library.machine_fit.planning import planning_context
from app.protocol.plan import describe_plan
from app.service.models.model_file import read_facts, read_model_file
from app.settings.settings import load_settings
from offload.footprint.model import PlannedModel
from quantizer.gguf.tensor_types import file_type_named
from quantizer.gguf.validation import check_answers, validate_gguf
from quantizer.system.errors import UserError
from quantizer.write.quantize_plan import plan
from tests.offload.machines import MACHINES

__all__ = ["GgufReaders", "disagreement"]

_MACHINE = next(iter(MACHINES.values()))
_TYPES = ("Q4_K_M", "Q8_0")


class GgufReaders:
    """The readers, which keep what they write in `folder`. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = Index(folder)
        self._planning = planning_context(load_settings(), _MACHINE)

    def __enter__(self) -> GgufReaders:
        return self

    def __exit__(self, *error: object) -> None:
        self._index.__exit__(*error)

    def verdicts(self, path: Path) -> dict[str, str]:
        """Return what each reader says of the file at `path`: nothing, or why it refuses it.

        Errors of another kind than UserError escape.
        """
        readers: dict[str, Callable[[Path], object]] = {
            "validation": validate_gguf,
            "show": lambda file: describe_model(validate_gguf(file), self._index, self._folder),
            "plan": self._plan,
            "quantize": lambda file: [plan(file, file_type_named(name), file.with_name("out.gguf")) for name in _TYPES],
            "service": lambda file: (read_facts(file), read_model_file(file)),
        }
        return {name: _refusal(read, path) for name, read in readers.items()}

    def _plan(self, path: Path) -> None:
        model = PlannedModel.read(path)
        check_answers(model.header, needs_tokenizer=False)
        describe_plan(self._planning.plan(model))


def disagreement(verdicts: Mapping[str, str]) -> str:
    """Return who refuses what another accepts, and why; empty where all agree."""
    refusals = {name: refusal for name, refusal in verdicts.items() if refusal}
    if len(refusals) in (0, len(verdicts)):
        return ""
    return "; ".join(f"{name} refuses what others accept: {refusal}" for name, refusal in refusals.items())


def _refusal(read: Callable[[Path], object], path: Path) -> str:
    try:
        read(path)
    except UserError as error:
        return str(error)
    return ""
