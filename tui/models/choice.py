"""The choice of a local model by a typed name, as `/model NAME` does.

Owns how much of a name may be left out. Independent of widgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quantizer.system.errors import UsageError
from tui.connection import ServiceConnection, is_localllm, localllm_service

if TYPE_CHECKING:
    from app.protocol.library import LocalModel


_LIST = "/model lists the local models."


async def local_models(connection: ServiceConnection) -> tuple[LocalModel, ...]:
    """Return the models of this machine that can run, other programs' models too. Raises UserError."""
    service = await localllm_service(connection)
    listing = await service.library.models(external=True)
    return tuple(model for model in listing.models if not model.damaged)


async def resolve_model(connection: ServiceConnection, typed: str) -> str:
    """Return the service's id of the model called `typed`, which begins to load. Raises UserError."""
    service = await connection.service()
    if is_localllm(service):
        return await service.load(find_model(typed, await local_models(connection)).path)
    return await service.load(typed)


def find_model(typed: str, models: Sequence[LocalModel]) -> LocalModel:
    """Return the model called `typed`, else the only one whose name contains its words. Raises UsageError.

    Its names are its id and that of its file.
    """
    wanted = typed.casefold()
    names = {model.path: f"{model.id} {model.file_stem}".casefold() for model in models}
    exact = [model for model in models if wanted in (model.id.casefold(), model.path.casefold())]
    exact = exact[:1] or [model for model in models if wanted == model.file_stem.casefold()]
    found = exact or [model for model in models if all(word in names[model.path] for word in wanted.split())]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{typed} may be {', '.join(model.id for model in found)}.", "Type more of the name.")
    raise UsageError(f"There is no local model {typed}.{_similar(wanted, models)}", _LIST)


def _similar(typed: str, models: Sequence[LocalModel]) -> str:
    from difflib import get_close_matches  # only for a typing error

    names = {model.id.casefold(): model.id for model in models}
    similar = get_close_matches(typed, names, n=1, cutoff=0.4)
    return f" Did you mean {names[similar[0]]}?" if similar else ""


def model_lines(models: Sequence[LocalModel], current: str) -> list[str]:
    """Return one line for each model, with a mark before the `current` one."""
    lines = [f"{'*' if current in (model.loaded_as, model.id) else ' '} {model.id}" for model in models]
    return lines or ["There is no local model: localllm pull downloads one."]
