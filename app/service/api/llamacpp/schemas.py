"""llama-server's objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from annotated_types import MinLen
from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.engine.request import SamplingParams
from app.protocol.sampling import SamplingOptions
from app.service.api.fields import Byte, WithWarnings
from app.service.api.openai.schemas import ChatTokenLogprob, Timings

__all__ = [
    "ApplyTemplateResponse",
    "Completion",
    "CompletionChunk",
    "DefaultSettings",
    "DetokenizeResponse",
    "GenerationSettings",
    "HealthResponse",
    "LoadingError",
    "LoraAdapter",
    "Modalities",
    "Piece",
    "Props",
    "SelectedFields",
    "SeveralCompletions",
    "SlotState",
    "StopType",
    "TokenizePiecesResponse",
    "TokenizeResponse",
]

StopType: TypeAlias = Literal["eos", "limit", "word"]


class HealthResponse(TypedDict):
    """The default model can answer."""

    status: Literal["ok"]


class _LoadingFields(TypedDict):
    code: Literal[503]
    message: Literal["Loading model"]
    type: Literal["unavailable_error"]


class LoadingError(TypedDict):
    """The default model is not loaded yet."""

    error: _LoadingFields


class LoraAdapter(TypedDict):
    """An adapter of the default model, and its scale in requests that name none."""

    id: NonNegativeInt
    name: str
    scale: float


class DefaultSettings(TypedDict):
    """The context of a request, and the default sampling options."""

    n_ctx: NonNegativeInt
    params: SamplingParams


class Modalities(TypedDict):
    """The inputs of a model besides text."""

    vision: Literal[False]
    audio: Literal[False]


class Props(TypedDict):
    """The facts that clients read before they send work."""

    default_generation_settings: DefaultSettings
    total_slots: NonNegativeInt
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: Modalities
    build_info: str


class SlotState(TypedDict):
    """A slot of the engine."""

    id: NonNegativeInt
    n_ctx: NonNegativeInt
    is_processing: bool


class TokenizeResponse(TypedDict):
    """A text as token ids."""

    tokens: list[int]


class Piece(TypedDict):
    """A token with its text, or with its bytes where they are part of a character."""

    id: int
    piece: str | list[Byte]


class TokenizePiecesResponse(TypedDict):
    """A text as token ids with the text of each."""

    tokens: list[Piece]


class DetokenizeResponse(TypedDict):
    """Token ids as a text."""

    content: str


class ApplyTemplateResponse(TypedDict):
    """Messages as the prompt that a chat would make of them."""

    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings(SamplingOptions):
    """The options of a request: how tokens were sampled (but for biases), and where the answer was to end."""

    n_predict: int
    stop: tuple[str, ...]


class CompletionChunk(TypedDict):
    """The new part of an answer."""

    index: NonNegativeInt
    content: str
    tokens: list[None]
    stop: Literal[False]
    tokens_predicted: NonNegativeInt
    completion_probabilities: NotRequired[list[ChatTokenLogprob]]


class Completion(WithWarnings):
    """An answer in one object; also the last event of a stream, without its text."""

    index: NonNegativeInt
    content: str
    tokens: list[None]
    stop: Literal[True]
    model: str
    tokens_predicted: NonNegativeInt
    tokens_evaluated: NonNegativeInt
    tokens_cached: NonNegativeInt
    generation_settings: GenerationSettings
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: StopType
    stopping_word: str
    timings: Timings
    completion_probabilities: NotRequired[list[ChatTokenLogprob]]


SelectedFields: TypeAlias = dict[str, Any]  # the fields of a Completion that `response_fields` names
SeveralCompletions: TypeAlias = Annotated[list[Completion | SelectedFields], MinLen(2)]
