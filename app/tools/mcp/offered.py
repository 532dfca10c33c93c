"""What localllm offers to other programs by MCP: its models, and search in the person's chats and documents.

Owns the table of these tools, their bounds, and what each returns; none of them changes anything. Models answer in the
service, which is started where none runs. A private chat is in no store, so no search finds it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
from array import array
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from app.chat.store.chat_store import ChatStore
from app.chat.store.search import ANYTHING
from app.client.launcher import load_model, open_service, running_service
from app.client.service_client import ServiceClient
from app.protocol.chat import AnswerDelta, Completed, GenerationOptions, Message, PromptProgress, Tool
from app.protocol.status import ModelStatus
from app.protocol.transcript import Segment, Transcribed
from app.settings.settings import Settings
from app.tools.argument_check import read_arguments
from app.tools.builtin.knowledge import SEARCH_KNOWLEDGE, KnowledgeServer
from app.tools.tool import CallContext, bounded
from quantizer.system.errors import UsageError

MAX_SOUND_BYTES = 16 << 20  # of one that comes in a message
_MAX_PROMPT, _MAX_TEXT, _MAX_TEXTS = 200_000, 20_000, 64
_MAX_TOKENS, _DEFAULT_TOKENS = 8_192, 1_024
_MAX_CALLS = 4  # at a time
_MAX_HITS, _DEFAULT_HITS = 50, 10
_REPORTED_EVERY_S = 0.5

Report = Callable[[str, float, float | None], Awaitable[None]]
"""Takes how far a call is: a message, how much is done, and of how much where that is known."""


def _schema(required: str, **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "required": [required], "additionalProperties": False}


_MODEL = {"type": "string", "maxLength": 500, "description": "Model of the library; by default the one that fits."}
_ASK = Tool(
    "ask",
    "Ask a language model that runs on this machine, and return its answer.",
    _schema(
        "prompt",
        prompt={"type": "string", "minLength": 1, "maxLength": _MAX_PROMPT},
        system={"type": "string", "maxLength": _MAX_PROMPT, "description": "System prompt."},
        model=_MODEL,
        max_tokens={"type": "integer", "minimum": 1, "maximum": _MAX_TOKENS, "default": _DEFAULT_TOKENS},
        temperature={"type": "number", "minimum": 0, "maximum": 5},
    ),
)
_SOUND = {
    "path": {"type": "string", "minLength": 1, "description": "Absolute path of the sound on this machine."},
    "data": {"type": "string", "minLength": 4, "maxLength": MAX_SOUND_BYTES * 4 // 3, "description": "In base64."},
}
_LANGUAGE = {"type": "string", "maxLength": 20, "description": "Language of the sound, as en; found out by default."}
_EMBED = Tool(
    "embed",
    "Return the vector of each text by an embedding model of this machine, as a JSON list of lists.",
    {
        **_schema(
            "texts",
            texts={
                "type": "array",
                "minItems": 1,
                "maxItems": _MAX_TEXTS,
                "items": {"type": "string", "minLength": 1, "maxLength": _MAX_TEXT},
            },
            model={**_MODEL, "description": "Embedding model of the library."},
        ),
        "required": ["texts", "model"],
    },
)
_SEARCH_CHATS = Tool(
    "search_chats",
    "Search the user's saved chats for all words of a query: title, day, and the place in the message.",
    _schema(
        "query",
        query={"type": "string", "minLength": 1, "maxLength": 500},
        max_results={"type": "integer", "minimum": 1, "maximum": _MAX_HITS, "default": _DEFAULT_HITS},
    ),
)


@dataclass(frozen=True, slots=True)
class _Call:
    arguments: Mapping[str, Any]
    report: Report


class OfferedTools:
    """The tools, for the person of `settings`. A sound is named by its `path` to a program that the person started
    here, and comes as `data` from anywhere else, which reads no file by its name."""

    def __init__(self, settings: Settings, sound_as: Literal["path", "data"]) -> None:
        self._settings = settings
        self._sound_as = sound_as
        self._places = asyncio.Semaphore(_MAX_CALLS)
        connect = partial(running_service, settings)
        self._knowledge = KnowledgeServer(settings.data_dir, connect, settings.reranker)
        sound = {sound_as: _SOUND[sound_as]}
        self._transcribe = Tool(
            "transcribe",
            "Write down what is said in a sound, by a model of this machine that hears.",
            _schema(sound_as, **sound, language=_LANGUAGE, model=_MODEL),
        )

    async def tools(self) -> tuple[Tool, ...]:
        """Return all tools; that for documents where the person has added a folder."""
        knowledge = tuple(tool.definition for tool in await self._knowledge.tools())
        return (_ASK, self._transcribe, _EMBED, _SEARCH_CHATS, *knowledge)

    async def call(self, name: str, arguments: Mapping[str, Any], report: Report) -> str:
        """Return what a tool returns; cancelling it ends what runs for it. Raises UserError."""
        tool = next((each for each in await self.tools() if each.name == name), None)
        if tool is None:
            raise UsageError(f"There is no tool {name!r}.", "tools/list has them.")
        call = _Call(read_arguments(json.dumps(arguments), tool.parameters), report)
        run = {
            "ask": self._answer,
            "transcribe": self._written_down,
            "embed": self._embedded,
            "search_chats": self._chats,
            SEARCH_KNOWLEDGE.name: self._passages,
        }[name]
        async with self._places:
            return await run(call)

    async def _loaded(self, client: ServiceClient, call: _Call) -> str:
        """Load the model of a call, and return its id; a model that does not fit is an error."""
        reported: list[float] = []

        def note(status: ModelStatus) -> None:
            reported.append(status.progress)

        loading = asyncio.create_task(load_model(client, call.arguments.get("model", self._settings.model), note))
        try:
            while not loading.done():
                await asyncio.wait({loading}, timeout=_REPORTED_EVERY_S)
                if not loading.done() and reported:
                    await call.report("loading the model", reported[-1], 1.0)
        finally:
            loading.cancel()
        return loading.result().id

    async def _answer(self, call: _Call) -> str:
        asked = call.arguments
        system = (Message("system", asked["system"]),) if asked.get("system") else ()
        options = GenerationOptions(
            max_tokens=asked.get("max_tokens", _DEFAULT_TOKENS), temperature=asked.get("temperature")
        )
        parts: list[str] = []
        ending = ""
        last_s = asyncio.get_running_loop().time()
        async with open_service(self._settings, keeps=True) as client:
            model = await self._loaded(client, call)
            async with aclosing(client.chat((*system, Message("user", asked["prompt"])), model, options)) as events:
                async for event in events:
                    if isinstance(event, AnswerDelta):
                        parts.append(event.text)
                    elif isinstance(event, Completed) and event.finish_reason == "length":
                        ending = "\n[The answer was cut at its limit of tokens.]"
                    now_s = asyncio.get_running_loop().time()
                    if now_s - last_s > _REPORTED_EVERY_S:
                        last_s = now_s
                        is_reading = isinstance(event, PromptProgress)
                        await call.report("reading" if is_reading else "writing", len(parts), None)
        return f"{''.join(parts)}{ending}"

    async def _written_down(self, call: _Call) -> str:
        if self._sound_as == "path":
            path = Path(call.arguments["path"])
            if not path.is_absolute():
                raise UsageError(f"{path} is not an absolute path.", "Name the sound by its whole path.")
            return await self._transcript(call, path)
        try:
            data = base64.b64decode(call.arguments["data"], validate=True)
        except ValueError as error:
            raise UsageError("`data` is not base64.") from error
        with tempfile.TemporaryDirectory(prefix="localllm-") as folder:
            path = Path(folder, "sound")
            await asyncio.to_thread(path.write_bytes, data)
            return await self._transcript(call, path)

    async def _transcript(self, call: _Call, path: Path) -> str:
        language = call.arguments.get("language", "")
        fields = {"language": language} if language else {}
        async with (
            open_service(self._settings, keeps=True) as client,
            aclosing(client.transcribe(path, call.arguments.get("model", ""), fields)) as events,
        ):
            async for event in events:
                if isinstance(event, Segment):
                    await call.report("transcribing", event.end_s, event.length_s or None)
                elif isinstance(event, Transcribed):
                    return event.text
        raise UsageError("Nothing was heard.")

    async def _embedded(self, call: _Call) -> str:
        async with open_service(self._settings, keeps=True) as client:
            vectors = await client.embed(call.arguments["texts"], call.arguments["model"])
        return json.dumps([[round(value, 6) for value in array("f", vector)] for vector in vectors])

    async def _chats(self, call: _Call) -> str:
        limit = call.arguments.get("max_results", _DEFAULT_HITS)

        def day_of(moment_ms: int) -> str:
            return f"{datetime.fromtimestamp(moment_ms / 1000, UTC).astimezone():%Y-%m-%d}"

        def find() -> list[str]:
            with ChatStore(self._settings.data_dir) as store:
                hits = store.search.find(call.arguments["query"], ANYTHING, limit=limit)
            return [
                " ".join((*hit.chat.title.split(), f"({day_of(hit.chat.updated_ms)}):", *hit.snippet.text.split()))
                for hit in hits
            ]

        found = await asyncio.to_thread(find)
        return bounded("\n".join(found)) or "No chat matches."

    async def _passages(self, call: _Call) -> str:
        return (await self._knowledge.call(SEARCH_KNOWLEDGE, call.arguments, CallContext())).text
