"""llama-server's objects: their fields and what these may be."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypeAlias

from annotated_types import MinLen
from pydantic import ConfigDict, NonNegativeInt, with_config
from typing_extensions import TypedDict

from app.engine.request import SamplingParams
from app.service.api.fields import Byte, WithWarnings
from app.service.api.openai.schemas import ChatTokenLogprob, Timings

__all__ = [
    "ApplyTemplateResponse",
    "Completion",
    "CompletionChunk",
    "CompletionFinalChunk",
    "Content",
    "Health",
    "Loading",
    "LoraAdapter",
    "Pieces",
    "Props",
    "SelectedFields",
    "SeveralCompletions",
    "SlotState",
    "Tokens",
]


class Health(TypedDict):
    """The default model can answer."""

    status: Literal["ok"]


class _LoadingError(TypedDict):
    code: Literal[503]
    message: Literal["Loading model"]
    type: Literal["unavailable_error"]


class Loading(TypedDict):
    """It is not loaded yet."""

    error: _LoadingError


class LoraAdapter(TypedDict):
    """An adapter of the default model, and its scale where a request names none."""

    id: NonNegativeInt
    name: str
    scale: float


class DefaultSettings(TypedDict):
    """The context that a request has, and how tokens are chosen where it says nothing."""

    n_ctx: NonNegativeInt
    params: SamplingParams


class Modalities(TypedDict):
    """What a model takes besides text."""

    vision: Literal[False]
    audio: Literal[False]


class Props(TypedDict):
    """What clients ask before they send work."""

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
    """A place for an answer."""

    id: NonNegativeInt
    n_ctx: NonNegativeInt
    is_processing: bool


class Tokens(TypedDict):
    """A text as token ids."""

    tokens: list[int]


class Piece(TypedDict):
    """A token with its text, or with its bytes where they are part of a character."""

    id: int
    piece: str | list[Byte]


class Pieces(TypedDict):
    """A text as token ids with the text of each."""

    tokens: list[Piece]


class Content(TypedDict):
    """Token ids as a text."""

    content: str


class ApplyTemplateResponse(TypedDict):
    """Messages as the prompt that a chat would make of them."""

    prompt: str


class GenerationSettings(TypedDict):
    """How tokens were chosen: SamplingParams without the biases, and where an answer was to end."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_last_n: int
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: list[str]
    mirostat: Literal[0, 1, 2]
    mirostat_tau: float
    mirostat_eta: float
    seed: int | None
    grammar: str
    n_predict: int
    stop: list[str]


class CompletionChunk(TypedDict):
    """What is new in an answer."""

    index: NonNegativeInt
    content: str
    tokens: list[None]
    stop: Literal[False]
    tokens_predicted: NonNegativeInt
    completion_probabilities: NotRequired[list[ChatTokenLogprob]]


class CompletionFinalChunk(WithWarnings):
    """The last event of an answer."""

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
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    timings: Timings


class Completion(CompletionFinalChunk):
    """An answer in one piece."""

    completion_probabilities: NotRequired[list[ChatTokenLogprob]]


@with_config(ConfigDict(json_schema_extra={"patternProperties": {"/": {}}}))
class SelectedFields(TypedDict, total=False):
    """Those fields of an answer that `response_fields` names; "a/b" is the field b of a."""

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
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    timings: Timings
    completion_probabilities: list[ChatTokenLogprob]


SeveralCompletions: TypeAlias = Annotated[list[Completion | SelectedFields], MinLen(2)]
