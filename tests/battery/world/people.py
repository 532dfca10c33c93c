"""The people of a simulated world: programs that ask in five dialects, chats, and what goes wrong around them.

Each question has an answer that is known beforehand, so that an answer of somebody else's, a lost piece or one that
came twice shows at once.
"""

from __future__ import annotations

import asyncio
import errno
import json
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.chat.backend import ConnectionState, LoadedModel
from app.chat.conversation import Message, MessageState
from app.chat.repository import InMemoryChatRepository
from app.chat.session import OpenChat
from app.client.service_client import ServiceClient
from app.protocol.chat import GenerationOptions
from app.protocol.chat import Message as ChatMessage
from quantizer.system.errors import UserError
from tests.battery.world.disk import Fault
from tests.battery.world.keepers import ask_in_chat, batcher, converser, employer, storer, writer
from tests.battery.world.world import PATIENCE_S, Client, World

__all__ = ["Dialect", "people"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to ask: the path, the body of a question, and the texts and the end in an answer or one event of it."""

    path: str
    body: Callable[[str], dict[str, Any]]
    whole: Callable[[Any], str]
    piece: Callable[[Any], str]
    is_end: Callable[[Any], bool]


def _messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _joined(parts: Sequence[Mapping[str, Any]]) -> str:
    return "".join(part.get("text", "") for part in parts)


DIALECTS = (
    Dialect(
        "/v1/chat/completions",
        lambda text: {"messages": _messages(text)},
        lambda data: data["choices"][0]["message"]["content"],
        lambda data: data["choices"][0]["delta"].get("content") or "" if data["choices"] else "",
        lambda data: bool(data["choices"]) and data["choices"][0]["finish_reason"] is not None,
    ),
    Dialect(
        "/v1/completions",
        lambda text: {"prompt": text, "max_tokens": 1000},
        lambda data: data["choices"][0]["text"],
        lambda data: data["choices"][0]["text"] if data["choices"] else "",
        lambda data: bool(data["choices"]) and data["choices"][0]["finish_reason"] is not None,
    ),
    Dialect(
        "/api/chat",
        lambda text: {"messages": _messages(text)},
        lambda data: data["message"]["content"],
        lambda data: data["message"]["content"],
        lambda data: data["done"],
    ),
    Dialect(
        "/v1/messages",
        lambda text: {"messages": _messages(text), "max_tokens": 1000},
        lambda data: _joined(data["content"]),
        lambda data: data["delta"].get("text", "") if data["type"] == "content_block_delta" else "",
        lambda data: data["type"] == "message_stop",
    ),
    Dialect(
        "/v1/responses",
        lambda text: {"input": text},
        lambda data: "".join(_joined(item["content"]) for item in data["output"]),
        lambda data: data["delta"] if data["type"] == "response.output_text.delta" else "",
        lambda data: data["type"] == "response.completed",
    ),
)


async def _asker(world: World) -> None:
    """Ask some questions one after another, in any dialect, whole or streamed, and hang up on some."""
    chance = world.clock.chance
    async with world.client() as http:
        for _ in range(chance.randrange(1, 6)):
            await asyncio.sleep(world.clock.delay_s(chance.choice((0.01, 0.3, 3.0, 20.0))))
            dialect, text, model = chance.choice(DIALECTS), world.text(), chance.choice(world.models)
            is_endless = chance.random() < 0.15  # nobody waits for that
            said = f"<noise>{chance.randrange(2000, 6000)}</noise>{text}" if is_endless else f"<say>{text}</say>"
            body = {"model": model, **dialect.body(said)}
            if dialect.path == "/api/chat":
                body["keep_alive"] = chance.choice((0, 1, "30s", "5m", -1))
            headers = {"x-localllm-priority": "batch"} if chance.random() < 0.15 else {}
            asking = _streamed if chance.random() < 0.6 else _whole
            patience_s = chance.choice((0.005, 0.1, 1.0)) if is_endless or chance.random() < 0.25 else PATIENCE_S
            try:
                question = _Question(dialect, body, headers, None if is_endless else text)
                async with asyncio.timeout(patience_s):
                    await http.answered(partial(asking, world, http, question))
            except TimeoutError:
                if patience_s == PATIENCE_S:
                    world.fault(f"{dialect.path}: no end after {PATIENCE_S:g} s")
                world.happened["hung up"] += 1


@dataclass(frozen=True, slots=True)
class _Question:
    """A question in a dialect; `text` is the answer to it, None where nobody waits for that."""

    dialect: Dialect
    body: dict[str, Any]
    headers: dict[str, str]
    text: str | None


async def _whole(world: World, http: Client, question: _Question) -> None:
    dialect, text = question.dialect, question.text
    reply = await http.post(dialect.path, json={**question.body, "stream": False}, headers=question.headers)
    if reply.status_code != 200:
        world.check_error(dialect.path, reply.status_code, reply.text)
        return
    world.happened["answered"] += 1
    if (said := dialect.whole(reply.json())) != text and text is not None:
        world.fault(f"{dialect.path}: {said!r} instead of {text!r}")


async def _streamed(world: World, http: Client, question: _Question) -> None:
    dialect, text = question.dialect, question.text
    said, n_ends, is_error = "", 0, False
    body = {**question.body, "stream": True}
    async with http.stream("POST", dialect.path, json=body, headers=question.headers) as reply:
        if reply.status_code != 200:
            await reply.aread()
            world.check_error(dialect.path, reply.status_code, reply.text)
            return
        async for line in reply.aiter_lines():
            if not line.startswith(("data: {", "{")):
                continue
            data = json.loads(line.removeprefix("data: "))
            if data.get("error") or data.get("type") in ("error", "response.failed"):
                world.check_error(f"{dialect.path}, streamed", 500, json.dumps(data, ensure_ascii=False))
                is_error = True
                continue
            said += dialect.piece(data)
            n_ends += dialect.is_end(data)
            if text is not None and not text.startswith(said):
                world.fault(f"{dialect.path}, streamed: {said!r} is no beginning of {text!r}")
                return
    world.happened["streamed"] += 1
    if is_error:
        return
    if n_ends != 1:
        world.fault(f"{dialect.path}: {n_ends} ends of an answer, {said!r}")
    elif said != text and text is not None:
        world.fault(f"{dialect.path}, streamed: {said!r} instead of {text!r}")


async def _chatter(world: World) -> None:
    """Chat: ask, stop, ask again, read ahead. What the chat keeps is what was said."""
    chance = world.clock.chance
    model, port = chance.choice(world.models), chance.choice(world.services).port
    async with ServiceClient(f"http://127.0.0.1:{port}", transport=world.network) as client:
        opened = await InMemoryChatRepository().open()
        connection = LoadedModel(client, ConnectionState(phase="ready", model=model, n_ctx=8192))
        chat = OpenChat(opened, connection)
        expected: dict[str, str] = {}
        for _ in range(chance.randrange(1, 5)):
            await asyncio.sleep(world.clock.delay_s(2.0))
            if chance.random() < 0.3:
                await _read_ahead(world, client, model)
            text = world.text()
            question = f"<say>{text}</say>"
            expected[question] = text
            if await ask_in_chat(world, chat, question, stops=0.3):
                world.happened["stopped"] += 1
            _check_chat(world, chat, expected)
        await chat.close()


def _check_chat(world: World, chat: OpenChat, expected: Mapping[str, str]) -> None:
    """Check what a chat keeps after an exchange: the whole text, or a beginning that is marked as such."""
    conversation = chat.conversation
    *_, question, last = [None, *conversation.branch] if len(conversation.branch) > 1 else (None, None)
    if chat.is_answering:
        world.fault("a chat still answers after its end")
    if not isinstance(question, Message) or not isinstance(last, Message) or last.role != "assistant":
        world.happened["no answer"] += 1
        return
    text = expected[question.content]
    if last.state is MessageState.FINISHED and not conversation.errors:
        world.happened["chatted"] += 1
        if last.content != text:
            world.fault(f"a chat keeps {last.content!r} as the whole of {text!r}")
    elif not text.startswith(last.content):
        world.fault(f"a chat keeps {last.content!r}, no beginning of {text!r}")


async def _read_ahead(world: World, client: ServiceClient, model: str) -> None:
    with suppress(UserError):
        async with (
            asyncio.timeout(PATIENCE_S),
            aclosing(
                client.read_ahead([ChatMessage("user", world.text() * 4)], model, GenerationOptions())
            ) as progress,
        ):
            async for _ in progress:
                world.happened["read ahead"] += 1


async def _switcher(world: World) -> None:
    """Load, unload, count and look, as an app and a monitor do."""
    chance = world.clock.chance
    async with world.client() as http:
        for _ in range(chance.randrange(2, 10)):
            await asyncio.sleep(world.clock.delay_s(3.0))
            model = chance.choice(world.models)
            method, path, body = chance.choice(
                (
                    ("POST", "/api/localllm/load", {"model": model}),
                    ("POST", "/api/localllm/unload", {"model": model}),
                    ("POST", "/api/generate", {"model": model, "keep_alive": 0, "stream": False}),
                    ("POST", "/tokenize", {"model": model, "content": world.text()}),
                    ("POST", "/v1/embeddings", {"model": model, "input": [world.text(), world.text()]}),
                    ("GET", "/api/ps", None),
                    ("GET", "/api/localllm/status", None),
                    ("GET", "/metrics", None),
                    ("GET", "/slots", None),
                )
            )
            reply = await http.asked(method, path, body)
            world.happened[path] += 1
            if reply is not None and reply.status_code >= 400:
                world.check_error(path, reply.status_code, reply.text)


async def _misfortune(world: World) -> None:
    """Kill engines, jobs and services at any time, as a fault of llama.cpp or a system without memory does."""
    chance = world.clock.chance
    for _ in range(chance.randrange(0, 5)):
        await asyncio.sleep(world.clock.delay_s(chance.choice((0.05, 0.5, 5.0))))
        if world.kills_services and chance.random() < 0.4:
            chance.choice(world.services).kill()
            continue
        alive = [each for each in world.processes.running.values() if not each.is_over]
        if alive:
            chance.choice(world.processes.engines or alive if chance.random() < 0.6 else alive).die(
                chance.choice((-9, -6, -11, 1))
            )
            world.happened["killed"] += 1


_PLACES = (
    ("",),
    ("data/",),
    ("cache/",),
    ("data/chats.db", "data/windows"),
    ("data/responses.db",),
    ("data/jobs",),
    ("data/batches",),
)


def disk_faults(world: World) -> list[Fault]:
    """Return when the disk is full from now on, or fails, and where."""
    chance, found = world.clock.chance, list[Fault]()
    begin_s = world.clock.now_s
    for _ in range(chance.randrange(1, 4) if chance.random() < 0.4 else 0):
        begin_s += world.clock.delay_s(chance.choice((0.1, 1.0, 5.0)))
        end_s = begin_s + chance.choice((0.05, 0.5, 5.0))
        found.append(Fault(begin_s, end_s, chance.choice((errno.ENOSPC, errno.EIO)), chance.choice(_PLACES)))
        begin_s = end_s
    return found


def people(world: World) -> list[Any]:
    """Return the coroutines of some people, drawn anew for each world."""
    chance = world.clock.chance
    kinds = (_asker, _asker, _asker, _chatter, _switcher, employer, storer, converser, batcher, writer)
    drawn = [chance.choice(kinds) for _ in range(chance.randrange(2, 9))]
    return [_living(world, kind) for kind in (*drawn, _misfortune)]


async def _living(world: World, kind: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    try:
        await kind(world)
    except Exception as error:  # the client that they use has failed them
        world.fault(f"{kind.__name__.strip('_')}: {error!r}\n{traceback.format_exc(limit=-4)}")
