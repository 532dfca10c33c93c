"""The chat turn of a request for the model that answers it, which may see and hear.

Owns what a client is told that sends a picture or sound to a model that cannot take it: which one here can, or which to
get. Independent of dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from app.service.api.app_state import AppState
from app.service.api.prompt_forms import PromptField
from app.service.generation.media import PromptMedia
from app.service.generation.unreadable_content import UnreadableError
from app.service.models.manager import ModelManager
from app.service.models.served_model import ServedModel
from app.service.threads import in_thread

Made = TypeVar("Made")
AnyPromptBody = TypeVar("AnyPromptBody", bound=PromptField)

_WORDS: Mapping[str, tuple[str, str]] = {"image": ("sees pictures", "see"), "audio": ("hears sounds", "hear")}


async def turn_of(state: AppState, model: ServedModel, make: Callable[[PromptMedia], Made]) -> Made:
    """Return what `make` makes with the pictures, sounds and documents of a new turn of `model`.

    Raises RequestError as `make` does, with a remedy that names a model for what this one does not read.
    """
    try:
        media = PromptMedia(model.senses, state.media_fetcher, {})
        made = make(media)
        if media.unread:  # which are known now: read them, and begin again
            made = make(PromptMedia(model.senses, state.media_fetcher, await state.documents.read(media.unread)))
    except UnreadableError as error:
        remedy = await _remedy(state.models, error.kind)
        raise UnreadableError(error.content_type, error.senses, remedy) from None
    return made


async def prompt_with_media(
    state: AppState, model: ServedModel, body: AnyPromptBody
) -> tuple[AnyPromptBody, PromptMedia]:
    """Return `body` with the pictures and sounds of its prompts, and these. Raises RequestError as `turn_of`."""
    return await turn_of(state, model, lambda media: (body.with_markers(media, state.media_marker), media))


async def _remedy(models: ModelManager, kind: str) -> str:
    """Return what to do with content of a kind that the model does not read."""
    if kind not in _WORDS:
        return "Ask again in words, or send its text."
    does, do = _WORDS[kind]
    described = await models.catalog.list_with_facts()
    able = [ref.id for ref, facts in described if kind in models.senses(ref, facts).modalities]
    if able:
        return f"Ask {able[0]}, which {does}."
    return await _to_get(does, do) if kind == "image" else f"No model here can {do}; get one with its mmproj file."


@in_thread
def _to_get(does: str, do: str) -> str:
    """Return which model of the catalogue to get: the smallest that sees."""
    from app.library.hub.catalogue import Role, read_catalogue  # it plans models: numpy would come with the service

    seeing = (model for model in read_catalogue().models if Role.VISION in model.roles)
    smallest = min(seeing, key=lambda model: model.parameters, default=None)
    if smallest is None:
        return f"No model here can {do}; get one with its mmproj file."
    return f"No model here can {do}. Get one that {does}: `localllm pull {smallest.name}`."
