"""OpenAI's wire format, as the service and engines of others speak it: bodies of requests, calls and costs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from app.protocol.chat import Completed, GenerationOptions, MediaPart, Message, ToolCallDelta
from app.protocol.codec import encode

_SOUND_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}  # subtypes that OpenAI's API calls otherwise


def chat_body(messages: Sequence[Message], model: str, options: GenerationOptions | None) -> dict[str, Any]:
    """Return the body of a streamed chat, with the options that are set. Media are OpenAI's content parts."""
    tools = [{"type": "function", "function": encode(tool)} for tool in options.tools] if options else []
    body = {"model": model, "messages": [_chat_message(message) for message in messages], **_streamed(options)}
    return {**body, "tools": tools} if tools else body


def _chat_message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        named = {"name": message.name} if message.name else {}
        return {"role": "tool", "tool_call_id": message.call_id, **named, "content": message.content}
    if message.calls:
        thought = {"reasoning_content": message.reasoning} if message.reasoning else {}
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
        return {"role": message.role, "content": message.content or None, **thought, "tool_calls": calls}
    if not message.media:
        return {"role": message.role, "content": message.content}
    parts = [_media_part(part) for part in message.media]
    if message.content:
        parts.append({"type": "text", "text": message.content})
    return {"role": message.role, "content": parts}


def _media_part(part: MediaPart) -> dict[str, Any]:
    if part.is_sound:
        subtype = part.mime_type.removeprefix("audio/")
        sound = {"data": part.base64, "format": _SOUND_FORMATS.get(subtype, subtype)}
        return {"type": "input_audio", "input_audio": sound}
    return {"type": "image_url", "image_url": {"url": f"data:{part.mime_type};base64,{part.base64}"}}


def completion_body(prompt: str, model: str, options: GenerationOptions | None) -> dict[str, Any]:
    """Return the body of a streamed completion of `prompt`, which has neither thought nor tools, with the options that
    are set."""
    return {"model": model, "prompt": prompt, **_streamed(options and replace(options, think=None))}


def _streamed(options: GenerationOptions | None) -> dict[str, Any]:
    chosen = {name: value for name, value in asdict(options or GenerationOptions()).items() if value is not None}
    samplers, schema, _ = chosen.pop("samplers"), chosen.pop("json_schema", None), chosen.pop("tools")
    if schema is not None:
        chosen["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    thinking = _thinking(chosen.pop("think", None))
    return {"stream": True, "stream_options": {"include_usage": True}, **samplers, **thinking, **chosen}


def _thinking(level: str | None) -> dict[str, Any]:
    """Return the fields of a level: OpenAI's effort, or llama-server's and vLLM's number of tokens."""
    if level is None:
        return {}
    if level.isdecimal():
        return {"reasoning_budget_tokens": int(level), "thinking_token_budget": int(level)}
    return {"reasoning_effort": "none" if level == "off" else level}


class CallReader:
    """The calls of one streamed answer, numbered from 0 in the order in which they begin, each with an id of its own.

    Engines differ: some leave out the index, give all calls the same one, send no id, or repeat the name with each
    piece.
    """

    def __init__(self) -> None:
        self._index_of: dict[object, int] = {}  # by the engine's index
        self._ids: list[str] = []  # as the engine gave them
        self._used_ids: set[str] = set()

    def read(self, pieces: Sequence[Mapping[str, Any]] | None) -> tuple[ToolCallDelta, ...]:
        """Return the pieces of a delta's `tool_calls`. Raises AttributeError or TypeError for another form."""
        return tuple(self._read(piece) for piece in pieces or ())

    def _read(self, piece: Mapping[str, Any]) -> ToolCallDelta:
        function = piece.get("function") or {}
        call_id, name = str(piece.get("id") or ""), str(function.get("name") or "")
        given = piece.get("index")
        index = self._index_of.get(given, -1) if given is not None else len(self._ids) - 1
        is_new = index < 0 or (bool(name) and call_id != self._ids[index] and bool(call_id or given is None))
        if is_new:
            index = len(self._ids)
            self._ids.append(call_id)
        self._index_of[given] = index
        arguments = function.get("arguments")
        if not isinstance(arguments, str):  # a few engines send an object
            arguments = "" if arguments is None else json.dumps(arguments)
        if not is_new:
            return ToolCallDelta(index, arguments=arguments)
        # An id that is missing or came before gives way to one of nine characters, as Mistral's templates want them.
        unique = call_id if call_id and call_id not in self._used_ids else f"call{index:05d}"
        self._used_ids.add(unique)
        return ToolCallDelta(index, unique, name, arguments)


def completed_of(reason: str, usage: dict[str, Any], timings: dict[str, Any]) -> Completed:
    """Return the end of an answer from the last of OpenAI's `usage` and llama.cpp's `timings`."""
    details = usage.get("prompt_tokens_details") or {}
    return Completed(
        finish_reason=reason,
        n_prompt_tokens=usage.get("prompt_tokens", 0),
        n_cached_tokens=details.get("cached_tokens", 0),
        n_output_tokens=usage.get("completion_tokens", 0),
        time_to_first_token_s=timings.get("time_to_first_token_ms", 0.0) / 1000,
        prefill_tokens_per_s=timings.get("prompt_per_second", 0.0),
        decode_tokens_per_s=timings.get("predicted_per_second", 0.0),
        n_drafted_tokens=timings.get("draft_n", 0),
        n_accepted_tokens=timings.get("draft_n_accepted", 0),
        tokens_per_pass=timings.get("tokens_per_pass", 1.0),
        saved_s=timings.get("draft_saved_ms", 0.0) / 1000,
        n_cut_reasoning_tokens=timings.get("reasoning_cut_n", 0),
    )
