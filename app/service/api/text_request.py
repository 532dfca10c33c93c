"""The request fields for text that dialects share, under llama-server's names, and the engine request made of them.

Sampling options, how llama-server writes values that the engine writes otherwise, the forms of a `prompt`, and how a
model's own sampling and its recipe fill the fields that are not given. Source: llama-server's README.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, Any, Self, TypeAlias, TypeVar, cast
from uuid import uuid4

from pydantic import Field, StrictBool, StrictInt, StrictStr, ValidationError, create_model

from app.engine.grammar.answer_format import AnswerFormat
from app.engine.request import IN_MEMORY, Request, SamplingParams
from app.protocol.errors import RequestError
from app.protocol.sampling import HTTP_NAMES, NUMBER_TYPES
from app.service.api.answer_forms import AnswerFormBody
from app.service.api.fields import Body, TokenIds
from app.service.generation.media import Medium, PromptMedia
from app.service.models.model_file import ModelFile
from app.service.models.served_model import ServedModel
from app.settings.private_files import conversation_name

AnyBody = TypeVar("AnyBody", bound=Body)
MixedTokens: TypeAlias = list[StrictInt | StrictStr]
Prompt: TypeAlias = str | tuple[int | str, ...]
Bias: TypeAlias = StrictBool | float  # false bans the token

MAX_ANSWERS = 8  # to one prompt
MAX_COMPLETIONS = 64  # of all prompts of a request
NO_LIMITS = (None, -1, -2)  # to the end of the answer, and to the end of the context
_LIMITS = ("num_predict", "n_predict", "max_completion_tokens", "max_tokens", "max_output_tokens")
_MOST_CELLS = 1 << 30  # llama.cpp counts them in 32 bits
MAX_CORPUS_NAME = 200  # characters
_IN_MEMORY_NAMES = ("in_memory", "in-memory")
_INTEGER = re.compile(r"-?[0-9]+")
_STOPS = ("stop_sequences", "stop")
_NUMBER_FIELDS: dict[str, Any] = {
    HTTP_NAMES.get(name, name): (kind | None, None) for name, kind in NUMBER_TYPES.items()
}
_NumberFields = create_model("_NumberFields", __base__=Body, **_NUMBER_FIELDS)


class SamplingBody(_NumberFields):  # type: ignore[valid-type, misc]  # made of the options that are declared once
    """The numbers of SamplingOptions, and the other options; None means not given."""

    stop: StrictStr | list[StrictStr] | None = None
    seed: int | None = None
    dry_sequence_breakers: list[StrictStr] | None = None
    logit_bias: dict[str, Bias] | list[tuple[StrictInt | StrictStr, Bias]] | None = None
    grammar: StrictStr | None = None
    deterministic: StrictBool | None = None  # the same answer to the same request, to the bit

    def demanded_grammar(self) -> str:
        """Return the GBNF of the answer, "" for none. Raises RequestError where another form is given too."""
        return self.grammar or ""

    def sampling(self, answer_format: AnswerFormat | None = None) -> SamplingParams:
        """Return the engine's parameters, with the grammar of `answer_format` if that is given. Raises RequestError."""
        numbers = {name: getattr(self, HTTP_NAMES.get(name, name)) for name in NUMBER_TYPES}
        options: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
        if options.get("top_k", 0) < 0:  # llama.cpp's "all of them"
            options["top_k"] = 0
        if self.seed != -1:  # llama.cpp's "random"
            options["seed"] = self.seed
        if self.dry_sequence_breakers is not None:
            options["dry_sequence_breakers"] = tuple(self.dry_sequence_breakers)
        grammar = self.demanded_grammar()
        if answer_format and grammar:
            raise RequestError("grammar excludes response_format and schemas.", "Send only one of them.")
        options["grammar"] = answer_format.grammar if answer_format else grammar
        biases = self._biases()
        of_tokens = tuple((token, bias) for token, bias in biases if isinstance(token, int))
        of_texts = tuple((text, bias) for text, bias in biases if isinstance(text, str))
        return SamplingParams(**options, logit_bias=of_tokens, text_bias=of_texts)

    def new_request(
        self, prompt: str | tuple[int, ...], answer_format: AnswerFormat | None, max_tokens: int | None, **options: Any
    ) -> Request:
        """Return the engine's request with a new id. Raises RequestError for values out of range."""
        return Request(
            request_id=uuid4().hex,
            prompt=prompt,
            sampling=self.sampling(answer_format),
            max_tokens=max_tokens,
            stop=self.stop_strings(),
            notices=answer_format.notices if answer_format else (),
            is_deterministic=self.deterministic,
            **options,
        )

    def stop_strings(self) -> tuple[str, ...]:
        """Return the strings to stop at. Clients with an empty field for them send an empty one, which stops nothing:
        llama-server leaves it out too."""
        strings = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        return tuple(text for text in strings if text)

    def _biases(self) -> list[tuple[int | str, float]]:
        """Return the biases by token id or by text, whose tokens all get it (source: llama-server, `logit_bias` in
        server-schema.cpp@0.3.36): pairs of llama-server's, or an object, where a key of digits is an id."""
        biases = self.logit_bias or {}
        found: list[tuple[int | str, float]] = []
        for named, bias in biases.items() if isinstance(biases, dict) else biases:
            token: int | str = named
            if bias is True:
                raise RequestError("logit_bias of a token is true.", "Give a number, or false to ban the token.")
            if isinstance(biases, dict) and isinstance(named, str) and _INTEGER.fullmatch(named):
                if not named.isdigit() or len(named) > 10:
                    raise RequestError(f"logit_bias names {named[:40]}, which is no token.", "Use ids from /tokenize.")
                token = int(named)
            found.append((token, -inf if bias is False else bias))
        return found


def conversation_of(key: str | None, retention: str | None) -> str:
    """Return the conversation of a request with OpenAI's `prompt_cache_key` and `prompt_cache_retention`."""
    if retention in _IN_MEMORY_NAMES:
        return IN_MEMORY
    return conversation_name(key) if key else ""


class LoraScale(Body):
    """The scale of an adapter, given by name or by its number in the order of `--lora` (as llama-server does)."""

    id: StrictInt | None = None
    name: StrictStr | None = None
    scale: float

    def as_pair(self) -> tuple[int | str, float]:
        name = self.id if self.name is None else self.name
        if name is None or (self.id is not None and self.name is not None):
            raise RequestError("An entry of lora needs an id or a name.", 'Use {"id": 0, "scale": 0.5}.')
        return name, self.scale


class GenerationBody(AnswerFormBody, SamplingBody):
    """The fields that OpenAI's dialect and llama-server share, but for the prompt; None means not given."""

    model: StrictStr | None = None
    stream: bool | None = None
    timings_per_token: bool | None = None
    post_sampling_probs: StrictBool | None = None
    return_progress: bool | None = None  # of the prompt, in events of a stream
    ignore_eos: bool | None = None
    lora: list[LoraScale] | None = None
    context_shift: bool | None = None
    n_keep: int | None = None
    max_time: float | None = None
    t_max_predict_ms: int | None = None
    max_draft_tokens: int | None = Field(None, alias="speculative.n_max")
    prompt_cache_key: StrictStr | None = None
    prompt_cache_retention: StrictStr | None = None
    draft_corpus: Annotated[StrictStr, Field(max_length=MAX_CORPUS_NAME)] | None = None

    def request(self, prompt: str | tuple[int, ...] = "", *, add_special: bool = True) -> Request:
        """Return the engine's request for `prompt`. Raises RequestError for values out of range or unsupported."""
        limit, limit_ms = self._limit(), self.t_max_predict_ms  # of the latter 0 and -1 mean none
        return self.new_request(
            prompt,
            self._text_format(),
            None if limit == -1 else limit,
            ignore_eos=bool(self.ignore_eos),
            add_special=add_special,
            n_logprobs=self._n_logprobs(),
            logprobs_after_samplers=bool(self.post_sampling_probs),
            lora=None if self.lora is None else tuple(item.as_pair() for item in self.lora),
            context_shift=self.context_shift,
            n_keep=self.n_keep or 0,
            max_time_s=self.max_time,
            max_predict_s=None if limit_ms in (None, 0, -1) else limit_ms / 1000,
            max_draft_tokens=self.max_draft_tokens,
            conversation=(conversation := conversation_of(self.prompt_cache_key, self.prompt_cache_retention)),
            corpus="" if conversation == IN_MEMORY else self.draft_corpus or "",
        )

    def requests_for(
        self, prompts: Sequence[str | tuple[int, ...]], n_answers: int, **changes: Any
    ) -> tuple[Request, ...]:
        """Return `n_answers` requests, with `changes`, for each of `prompts`. Raises RequestError for none, too many,
        and as `request`."""
        if not 1 <= len(prompts) * n_answers <= MAX_COMPLETIONS:
            cause = f"The request has {len(prompts)} prompts with {n_answers} answers each."
            raise RequestError(cause, f"Ask for 1 to {MAX_COMPLETIONS} texts in all.")
        requests = (replace(self.request(prompt), **changes) for prompt in prompts)
        return tuple(variant for request in requests for variant in request.variants(n_answers))

    def _text_format(self) -> AnswerFormat | None:
        """Return the form of a completion."""
        return self.demanded_format()

    # Every route has its own fields for these.
    @abstractmethod
    def _limit(self) -> int | None: ...  # of output tokens; -1 and None mean none
    @abstractmethod
    def _n_logprobs(self) -> int | None: ...  # the number of alternatives to report for each token


class OptionsBody(SamplingBody):
    """Ollama's options: sampling under llama-server's names; options of loading are ignored."""

    num_predict: int | None = None
    num_keep: int | None = None


class _RecipeOptions(OptionsBody):
    """The parameters of a recipe; `num_ctx` is the smallest context of the engine, 0 leaves it open."""

    num_ctx: Annotated[StrictInt, Field(ge=0, le=_MOST_CELLS)] | None = None


def parse_parameters(parameters: Mapping[str, Any]) -> OptionsBody:
    """Return `parameters`, checked. Raises RequestError for values out of range or of another kind."""
    try:
        options: OptionsBody = _RecipeOptions.model_validate(parameters)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise RequestError(f"The parameter {fault['loc'][0]}: {fault['msg']}.", "Correct it.") from None
    options.sampling()
    return options


def with_model_defaults(body: AnyBody, file: ModelFile) -> AnyBody:
    """Return `body` with the sampling of the model `file`, and the other parameters of its recipe, in fields that are
    not given. Raises as `parse_parameters`."""
    options = parse_parameters(file.recipe.parameters) if file.recipe.parameters else OptionsBody()
    defaults: dict[str, Any] = {HTTP_NAMES.get(name, name): value for name, value in file.sampling.stated.items()}
    own = {name: getattr(options, name) for name in SamplingBody.model_fields if name != "stop"}
    defaults |= {name: value for name, value in own.items() if value is not None}
    defaults["num_keep"] = defaults["n_keep"] = options.num_keep
    defaults |= _for_first(body, _STOPS, [*options.stop_strings()] or None)
    defaults |= _for_first(body, _LIMITS, None if options.num_predict in NO_LIMITS else options.num_predict)
    fields = type(body).model_fields
    missing = {name: value for name, value in defaults.items() if name in fields and getattr(body, name) is None}
    return body.model_copy(update={name: value for name, value in missing.items() if value is not None})


def _for_first(body: Body, names: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return `value` under the first of `names` that `body` has as a field, nothing where any of them is given."""
    own = [name for name in names if name in type(body).model_fields]
    is_given = any(getattr(body, name) is not None for name in own)
    return {own[0]: value} if own and not is_given else {}


class PromptObject(Body):
    """A prompt as an object: a text with a marker (`media_marker` of /props) for each picture and sound beside it."""

    prompt_string: StrictStr
    multimodal_data: list[StrictStr] | None = None

    def text(self, media: PromptMedia, marker: str) -> str:
        """Return the prompt with the markers of `media` in place of `marker`. Raises RequestError as `fault` does."""
        files = [Medium.of(item) for item in self.multimodal_data or ()]
        if not files:
            return self.prompt_string
        for medium in files:
            if fault := media.fault(medium):
                raise fault
        first, *others = self.prompt_string.split(marker)
        if len(others) != len(files):
            cause = f"The prompt has {len(others)} media markers for {len(files)} files in multimodal_data."
            raise RequestError(cause, "Write the media_marker of /props where each of them stands.")
        return first + "".join(
            f"{media.part_of(medium).text}{text}" for medium, text in zip(files, others, strict=True)
        )


class PromptField(Body):
    """A `prompt`; a list with a number in it is one prompt, other lists are several."""

    prompt: (
        StrictStr
        | list[StrictStr]
        | TokenIds
        | list[TokenIds]
        | PromptObject
        | list[StrictInt | StrictStr | PromptObject | MixedTokens]
    )

    def with_markers(self, media: PromptMedia, marker: str) -> Self:
        """Return the body with texts in place of objects. Raises RequestError as `PromptObject.text`."""
        prompt: Any = self.prompt
        if isinstance(prompt, PromptObject):
            return self.model_copy(update={"prompt": prompt.text(media, marker)})
        if not isinstance(prompt, list):
            return self
        texts = [item.text(media, marker) if isinstance(item, PromptObject) else item for item in prompt]
        return self.model_copy(update={"prompt": texts})

    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        prompts = self.mixed_prompts()
        assert not any(map(_is_mixed, prompts)), "mixed prompts become token ids before requests are made of them"
        return cast("tuple[str | tuple[int, ...], ...]", prompts)

    def mixed_prompts(self) -> tuple[Prompt, ...]:
        """Return all prompts. Raises RequestError for a list of token ids and of prompts."""
        prompt: Any = self.prompt
        if not isinstance(prompt, list):
            prompt = [prompt]
        if not any(isinstance(item, int) for item in prompt):
            return tuple(item if isinstance(item, str) else tuple(item) for item in prompt)
        if not all(isinstance(item, int | str) for item in prompt):
            raise RequestError("The prompt is a list of both token ids and prompts.", "Send one kind.")
        return (tuple(prompt),)

    def text_prompt(self) -> str:
        prompts = self.prompts()
        if len(prompts) != 1:
            raise RequestError(f"There are {len(prompts)} prompts.", "Send one prompt a request.")
        if not isinstance(prompts[0], str):
            raise RequestError("The prompt before a suffix is token ids.", "Give text.")
        return prompts[0]


AnyPromptBody = TypeVar("AnyPromptBody", bound=PromptField)


async def with_token_ids(body: AnyPromptBody, model: ServedModel) -> AnyPromptBody:
    """Return `body` with the token ids of `model` in place of mixed prompts. Raises RequestError as `mixed_prompts`."""
    prompts = body.mixed_prompts()
    if not any(map(_is_mixed, prompts)):
        return body
    resolved: list[Any] = [prompt if isinstance(prompt, str) else list(prompt) for prompt in prompts]
    with model.in_use() as engine:
        for number in [number for number, prompt in enumerate(prompts) if _is_mixed(prompt)]:
            tokens: list[int] = []
            for index, part in enumerate(resolved[number]):
                if isinstance(part, str):  # the model's first token is added where the prompt begins with text
                    tokens += await engine.tokenize(part, add_special=index == 0, parse_special=True)
                else:
                    tokens.append(part)
            resolved[number] = tokens
    return body.model_copy(update={"prompt": resolved})


def _is_mixed(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and any(isinstance(part, str) for part in prompt)
