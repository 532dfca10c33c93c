"""The endpoints of LM Studio's SDK for text and vectors: predict, complete, embed, tokenize, apply the template.

A prediction is a chat or text completion in OpenAI's form: LM Studio's configuration is converted to its fields, so
tools, schemas, reasoning and recipes are those of every dialect. Its answer is packets: fragments, tool calls,
statistics, the progress of its prompt. Source: lmstudio-js 2.0.0, `llmBackendInterface` and `LLMPredictionStats`; 1.5.0
has fewer fields and drops the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, StrictBool, StrictStr, ValidationError

from app.engine.messages import Finished
from app.engine.request import FinishReason, TokenLogprob
from app.protocol.chat import PromptProgress, ToolCall, with_deltas
from app.protocol.errors import RequestError
from app.service.api.app_state import turn_of
from app.service.api.embeddings import as_floats
from app.service.api.lmstudio.sdk_models import SpecifierBody, described, model_for
from app.service.api.lmstudio.sdk_requests import (
    CLOSING_TAG,
    OPENING_TAG,
    ChatHistory,
    ConfigStack,
    PromptTemplate,
    load_fields,
    prediction_fields,
    sdk_config,
)
from app.service.api.lmstudio.sdk_session import Channel, Context, Endpoint, sdk_error
from app.service.api.openai.requests import ChatCompletionBody, CompletionBody
from app.service.api.text_request import with_model_defaults
from app.service.generation.chat import ChatTurn, chat_generation, prompt_of
from app.service.generation.generation import Answer, Delta, Generation
from app.service.generation.progress import prompt_progress, with_progress
from app.service.http.field_faults import invalid_fields
from app.service.models.served_model import ServedModel

AnyBody = TypeVar("AnyBody", bound=BaseModel)
Packet: TypeAlias = dict[str, Any]
ReasoningType: TypeAlias = Literal["none", "reasoning", "reasoningStartTag", "reasoningEndTag"]
Part: TypeAlias = tuple[Answer, Delta | None] | PromptProgress
_OF_CHATS = ("logprobs", "tool_choice", "reasoning_format", "enable_thinking", "reasoning_budget_tokens")
_TEMPLATE, _SYSTEM_PROMPT = "llm.prediction.promptTemplate", "llm.prediction.systemPrompt"


class _ConfiguredBody(SpecifierBody):
    predictionConfigStack: ConfigStack = ConfigStack()  # noqa: N815


class _PredictBody(_ConfiguredBody):
    history: ChatHistory


class _RawBody(_ConfiguredBody):
    rawPrompt: StrictStr  # noqa: N815


class _TemplateOptions(SpecifierBody):
    omitBosToken: StrictBool = False  # noqa: N815
    omitEosToken: StrictBool = False  # noqa: N815
    toolDefinitions: list[dict[str, Any]] | None = None  # noqa: N815


class _ApplyBody(SpecifierBody):
    history: ChatHistory
    predictionConfigStack: ConfigStack = ConfigStack()  # noqa: N815
    opts: _TemplateOptions = _TemplateOptions()


class _TextBody(SpecifierBody):
    inputString: StrictStr  # noqa: N815


class _DraftBody(SpecifierBody):
    draftModelKey: StrictStr  # noqa: N815


async def _predict(context: Context, body: _PredictBody, channel: Channel) -> None:
    model, fields = await _begun(context, body)
    template = _template(fields)
    if template is None:
        turn = await _turn(context, model, body.history, fields)
        await _answer(context, model, fields, channel, chat_generation(model, turn))
        return
    prompt = await _rendered(model, template, body.history)
    await _answer(context, model, fields, channel, _raw_generation(model, fields, prompt, template.stopStrings))


async def _complete(context: Context, body: _RawBody, channel: Channel) -> None:
    model, fields = await _begun(context, body)
    await _answer(context, model, fields, channel, _raw_generation(model, fields, body.rawPrompt))


async def _raw_generation(
    model: ServedModel, fields: Mapping[str, Any], prompt: str, stops: tuple[str, ...] = ()
) -> Generation:
    options, _ = prediction_fields(fields)
    if options.pop("tools", None):
        raise RequestError("Tools are given for the completion of a text.", "Use them in a chat.")
    n_logprobs = options.pop("top_logprobs", None)
    options = {name: value for name, value in options.items() if name not in _OF_CHATS}
    if n_logprobs is not None:
        options["logprobs"] = n_logprobs
    if stops:
        options["stop"] = [*options.get("stop", ()), *stops]
    body = _body(CompletionBody, {"prompt": prompt, **options})
    return Generation(with_model_defaults(body, model.file).completion_requests())


async def _answer(
    context: Context, model: ServedModel, fields: Mapping[str, Any], channel: Channel, preparing: Awaitable[Generation]
) -> None:
    """Send the answer in packets until its end, or until the client cancels it."""
    has_form = (fields.get("llm.prediction.structured") or {}).get("type", "none") != "none"
    maker = PacketMaker(has_reasoning=not has_form)
    ended: list[Answer] = []
    cancelled = asyncio.ensure_future(channel.is_cancelled.wait())
    generation = await preparing
    progress = partial(prompt_progress, model, generation.requests[0].request_id)
    try:
        async with aclosing(with_progress(generation.parts(model), progress, only_growth=True)) as parts:
            while (part := await _next(parts, cancelled)) is not None:
                if isinstance(part, PromptProgress):
                    await channel.send(progress_packet(part))
                    continue
                answer, delta = part
                for packet in maker.of_delta(delta) if delta else ():
                    await channel.send(packet)
                if answer.is_finished:
                    ended.append(answer)
        for packet in maker.of_end():
            await channel.send(packet)
    finally:
        cancelled.cancel()
    facts = await model.ready()
    stopped = {"stopReason": "userStopped", "predictedTokensCount": maker.n_tokens}
    await channel.send(
        {
            "type": "success",
            "stats": stats_of(ended[0], facts.n_ctx) if ended else stopped,
            "modelInfo": await described(context, model),
            "loadModelConfig": sdk_config(load_fields(context.domain, model.engine.config, facts)),
            "predictionConfig": sdk_config(fields),
        }
    )


async def _next(parts: AsyncGenerator[Part, None], cancelled: asyncio.Future[Any]) -> Part | None:
    """Return the next part of an answer; None at its end, and as soon as it is cancelled."""
    coming = asyncio.ensure_future(anext(parts, None))
    try:
        await asyncio.wait({coming, cancelled}, return_when=asyncio.FIRST_COMPLETED)
        return coming.result() if coming.done() else None
    finally:
        if not coming.done():
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _turn(context: Context, model: ServedModel, history: ChatHistory, fields: Mapping[str, Any]) -> ChatTurn:
    options, _ = prediction_fields(fields)
    if "tools" not in options:  # JavaScript's act sends a choice without tools in its last round
        options.pop("tool_choice", None)
    messages = history.openai_messages(str(fields.get(_SYSTEM_PROMPT) or ""), context.state.uploads)
    chat = _body(ChatCompletionBody, {"messages": messages, **options})
    return await turn_of(context.state, model, with_model_defaults(chat, model.file).turn)


def _body(kind: type[AnyBody], fields: Mapping[str, Any]) -> AnyBody:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise invalid_fields(error, fields) from None


def _template(fields: Mapping[str, Any]) -> PromptTemplate | None:
    value = fields.get(_TEMPLATE)
    return None if value is None else _body(PromptTemplate, value)


async def _rendered(model: ServedModel, template: PromptTemplate, history: ChatHistory) -> str:
    messages = history.openai_messages()
    if any(isinstance(message["content"], list) for message in messages):
        raise RequestError("Files need the chat template of the model.", "Leave promptTemplate out.")
    if template.type == "manual":
        if template.manualPromptTemplate is None:
            raise RequestError("promptTemplate has no manualPromptTemplate.", "Send it.")
        return template.manualPromptTemplate.text(messages)
    jinja = template.jinjaPromptTemplate
    if jinja is None:
        raise RequestError("promptTemplate has no jinjaPromptTemplate.", "Send it.")
    render = model.renderer.render
    return await render(jinja.template, messages, bos_token=jinja.bosToken, eos_token=jinja.eosToken, tools=None)


async def _begun(context: Context, body: _ConfiguredBody) -> tuple[ServedModel, dict[str, Any]]:
    fields = body.predictionConfigStack.fields_of()
    _, ignored = prediction_fields(fields)
    context.record.ignored = (*context.record.ignored, *ignored)
    return await model_for(context, body.wanted), fields


async def _apply_template(context: Context, body: _ApplyBody) -> dict[str, str]:
    fields = body.predictionConfigStack.fields_of()
    model = await model_for(context, body.wanted)
    if (template := _template(fields)) is not None:
        return {"formatted": await _rendered(model, template, body.history)}
    if body.opts.toolDefinitions:
        fields = {**fields, "llm.prediction.tools": {"type": "toolArray", "tools": body.opts.toolDefinitions}}
    turn = await _turn(context, model, body.history, fields)
    prompt = (await prompt_of(model, turn)).prompt
    text = turn.media.with_public_markers(prompt, context.state.media_marker)
    if body.opts.omitBosToken:
        text = text.removeprefix(model.file.bos_token)
    return {"formatted": text}


async def _tokenize(context: Context, body: _TextBody) -> dict[str, list[int]]:
    model = await model_for(context, body.wanted)
    with model.in_use() as engine:
        return {"tokens": list(await engine.tokenize(body.inputString, add_special=False, parse_special=True))}


async def _count_tokens(context: Context, body: _TextBody) -> dict[str, int]:
    return {"tokenCount": len((await _tokenize(context, body))["tokens"])}


async def _embed(context: Context, body: _TextBody) -> dict[str, list[float]]:
    model = await model_for(context, body.wanted)
    embedded = await model.embed([body.inputString])
    return {"embedding": as_floats(embedded.vectors[0])}


async def _preload_draft(context: Context, body: _DraftBody) -> None:
    await context.tell(f"localllm ignores the draft model {body.draftModelKey[:80]}: start it with `serve --draft`.")


class PacketMaker:
    """Makes the packets of one answer as it grows. Without `has_reasoning` only its text is sent. The text of an answer
    in a given form is parsed whole by clients, so reasoning must not come before it."""

    def __init__(self, *, has_reasoning: bool = True) -> None:
        self._has_reasoning = has_reasoning
        self.n_tokens = 0  # of the fragments so far
        self._is_reasoning = False
        self._calls: tuple[ToolCall, ...] = ()

    def of_delta(self, delta: Delta) -> Iterator[Packet]:
        n_new, self.n_tokens = delta.n_tokens - self.n_tokens, delta.n_tokens
        if delta.reasoning and self._has_reasoning:
            if not self._is_reasoning:
                self._is_reasoning = True
                yield _fragment(OPENING_TAG, 0, "reasoningStartTag")
            yield _fragment(delta.reasoning, n_new, "reasoning")
            n_new = 0
        if delta.text:
            yield from self._end_reasoning()
            yield _fragment(delta.text, n_new, "none", delta.logprobs)
        for part in delta.calls:
            yield from self._end_reasoning()
            if part.index == len(self._calls):
                yield from self._end_call()
                yield {"type": "toolCallGenerationStart", "toolCallId": part.call_id}
                yield {"type": "toolCallGenerationNameReceived", "name": part.name}
            self._calls = with_deltas(self._calls, [part])
            if part.arguments:
                yield {"type": "toolCallGenerationArgumentFragmentGenerated", "content": part.arguments}

    def of_end(self) -> Iterator[Packet]:
        yield from self._end_reasoning()
        yield from self._end_call()

    def _end_reasoning(self) -> Iterator[Packet]:
        if self._is_reasoning:
            self._is_reasoning = False
            yield _fragment(f"{CLOSING_TAG}\n\n", 0, "reasoningEndTag")

    def _end_call(self) -> Iterator[Packet]:
        """Yield the end of the last call; one that was cut off has failed."""
        if not self._calls:
            return
        call = self._calls[-1]
        arguments = call.arguments_object()
        if arguments is None:
            error = RequestError(f"The call of {call.name} was cut off.", "Allow more tokens.")
            yield {"type": "toolCallGenerationFailed", "error": sdk_error(error), "rawContent": call.arguments}
        else:
            request = {"type": "function", "id": call.call_id, "name": call.name, "arguments": arguments}
            yield {"type": "toolCallGenerationEnd", "toolCallRequest": request, "rawContent": call.arguments}


def _fragment(text: str, n_tokens: int, kind: ReasoningType, logprobs: Sequence[TokenLogprob] = ()) -> Packet:
    fragment: Packet = {
        "content": text,
        "tokensCount": n_tokens,
        "containsDrafted": False,
        "reasoningType": kind,
        "isStructural": False,
    }
    packet: Packet = {"type": "fragment", "fragment": fragment}
    if logprobs:
        fragment["tokens"] = [  # as 2.0.0 has it
            {
                "text": _text(entry.piece),
                "id": entry.token,
                "logProb": entry.logprob or 0.0,
                "candidates": [{"text": _text(piece), "id": id_, "logProb": prob} for id_, piece, prob in entry.top],
            }
            for entry in logprobs
        ]
        packet["logprobs"] = [  # as 1.5.0 has it: each token with its alternatives, the token itself first
            [
                {"text": _text(entry.piece), "logprob": entry.logprob},
                *({"text": _text(piece), "logprob": prob} for id_, piece, prob in entry.top if id_ != entry.token),
            ]
            for entry in logprobs
        ]
    return packet


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")


def progress_packet(progress: PromptProgress) -> Packet:
    """Return how much of the prompt has been computed; 1.5.0 reads no details."""
    n_total, n_done = progress.n_tokens, progress.n_read
    details = {
        "cachedTokenCount": progress.n_cached,
        "totalPromptTokenCount": n_total,
        "processedPromptTokenCount": n_done,
        "unprocessedPromptTokenCount": n_total - n_done,
    }
    return {"type": "promptProcessingProgress", "progress": n_done / n_total, "details": details}


def stop_reason(answer: Answer, n_ctx: int) -> str:
    end = answer.end
    if end.reason is FinishReason.ABORTED:
        return "userStopped"
    if end.reason is FinishReason.LENGTH:
        n_tokens = end.usage.n_prompt_tokens + end.usage.n_output_tokens - end.usage.n_dropped_tokens
        return "contextLengthReached" if n_tokens >= n_ctx else "maxPredictedTokensReached"
    if any(call.arguments_object() is not None for call in answer.calls):
        return "toolCalls"
    return "stopStringFound" if end.stopped_by else "eosFound"


def stats_of(answer: Answer, n_ctx: int) -> Packet:
    end: Finished = answer.end
    usage, timings = end.usage, end.timings
    stats: Packet = {
        "stopReason": stop_reason(answer, n_ctx),
        "timeToFirstTokenSec": timings.time_to_first_token_s,
        "totalTimeSec": timings.time_to_first_token_s + timings.decode_s,
        "promptTokensCount": usage.n_prompt_tokens,
        "predictedTokensCount": usage.n_output_tokens,
        "totalTokensCount": usage.n_prompt_tokens + usage.n_output_tokens,
    }
    if timings.decode_s > 0:
        stats["tokensPerSecond"] = usage.n_output_tokens / timings.decode_s
    if end.stopped_by:
        stats["stopString"] = end.stopped_by
    if usage.n_drafted_tokens:
        stats["totalDraftTokensCount"] = usage.n_drafted_tokens
        stats["acceptedDraftTokensCount"] = usage.n_accepted_tokens
        stats["rejectedDraftTokensCount"] = usage.n_drafted_tokens - usage.n_accepted_tokens
    return stats


_TOKEN_ENDPOINTS = {"tokenize": Endpoint(_TextBody, _tokenize), "countTokens": Endpoint(_TextBody, _count_tokens)}
LLM_ENDPOINTS = {
    "predict": Endpoint(_PredictBody, stream=_predict),
    "completeRawText": Endpoint(_RawBody, stream=_complete),
    "applyPromptTemplate": Endpoint(_ApplyBody, _apply_template),
    "preloadDraftModel": Endpoint(_DraftBody, _preload_draft),
    **_TOKEN_ENDPOINTS,
}
EMBEDDING_ENDPOINTS = {"embedString": Endpoint(_TextBody, _embed), **_TOKEN_ENDPOINTS}
