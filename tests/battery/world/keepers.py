"""People of a simulated world who are told that something is kept: stored responses, jobs, batches, messages of chats.

What was acknowledged has to be there in the end, once, whichever service or window was killed meanwhile, and though the
power failed: but for stored responses and conversations, of which a failure of the power may cost those before it. Each
leaves a check in the world, which is made when everybody has gone.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from app.chat.backend import ConnectionState, LoadedModel
from app.chat.branches import UNSAVED_ID, Conversation
from app.chat.conversation import MessageContent, MessageState
from app.chat.events import Added, ChatEvent
from app.chat.repository import OpenedChat, SqliteChatRepository
from app.chat.session import OpenChat
from app.chat.store.chat_store import ChatStore
from app.client.service_client import ServiceClient
from quantizer.system.errors import StorageError
from tests.battery.world.lives import Life
from tests.battery.world.world import PATIENCE_S, Client, World

__all__ = ["batcher", "converser", "employer", "storer", "writer"]

_JOB_ENDS = ("done", "failed", "cancelled", "interrupted")
_BATCH_ENDS = ("completed", "failed", "expired", "cancelled")


# Stored responses and conversations


@dataclass(slots=True)
class _Stored:
    """The responses that a person was told are stored: by id what was asked, and the answer once it was whole. Those
    that were stored `before` the power failed so many times may be lost if it fails again."""

    questions: dict[str, str] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)

    async def check(self, world: World, http: Client) -> None:
        for name, question in self.questions.items():
            reply = await http.asked("GET", f"/v1/responses/{name}")
            may_be_lost = self.before[name] < world.n_power_failures
            if reply is None or reply.status_code != 200:
                if reply is None or reply.status_code != 404 or not may_be_lost:
                    world.fault(f"a stored response is lost: {reply and reply.text[:200]}")
                continue
            response = reply.json()
            if may_be_lost and response["status"] == "failed":  # its beginning was stored, and its end lost
                continue
            if name in self.answers and _output(response) != self.answers[name]:
                world.fault(f"a stored response is {_output(response)!r} instead of {self.answers[name]!r}")
            if response["status"] in ("queued", "in_progress"):
                world.fault(f"the response {name} never ends")
            items = await http.asked("GET", f"/v1/responses/{name}/input_items?limit=100")
            n_times = _texts(items).count(f"<say>{question}</say>")
            if n_times != 1:
                world.fault(f"a stored response has its question {n_times} times")
        for name in self.deleted:
            reply = await http.asked("GET", f"/v1/responses/{name}")
            if reply is None or reply.status_code != 404:
                world.fault(f"a deleted response is there: {reply and reply.text[:200]}")


async def storer(world: World) -> None:
    """Ask for responses that are stored, each after the one before, some in the background; delete some, also while
    they are answered, and by another service."""
    chance, stored, previous = world.clock.chance, _Stored(), ""
    failures = world.n_power_failures  # when the previous one was stored
    world.checks.append(partial(stored.check, world))
    async with world.client() as http, world.client() as other:
        for _ in range(chance.randrange(1, 6)):
            await asyncio.sleep(world.clock.delay_s(chance.choice((0.05, 1.0, 5.0))))
            text = world.new_text()
            body: dict[str, Any] = {"model": chance.choice(world.models), "input": f"<say>{text}</say>"}
            if previous and chance.random() < 0.7:
                body["previous_response_id"] = previous
            if chance.random() < 0.35:
                body["background"] = True
            failures_now = world.n_power_failures  # of them one may come before the reply
            response = await _stored_response(world, http, body, failures)
            if response is None:
                previous = "" if failures < world.n_power_failures else previous
                continue
            name, failures = response["id"], failures_now
            if chance.random() < 0.15:
                previous = ""
                if await _is_deleted(world, other, name):
                    stored.deleted.append(name)
                continue
            response = await _ended_response(world, chance.choice((http, other)), response, failures)
            if response is None:
                continue
            stored.questions[name], stored.before[name] = text, failures
            if response["status"] == "completed":
                previous, stored.answers[name] = name, _output(response)
                if _output(response) != text:
                    world.fault(f"/v1/responses, stored: {_output(response)!r} instead of {text!r}")


async def _is_deleted(world: World, http: Client, name: str) -> bool:
    reply = await http.asked("DELETE", f"/v1/responses/{name}")
    if reply is not None and reply.status_code not in (200, 404):
        world.check_error("a deletion", reply.status_code, reply.text, stores=True)
        return False
    world.happened["deleted"] += 1
    return reply is not None


async def _stored_response(world: World, http: Client, body: dict[str, Any], failures: int) -> dict[str, Any] | None:
    """Return the response to `body`, which may be one that waits, None for an error or one that is not stored. The one
    before it was stored after so many `failures` of the power."""
    reply = await http.asked("POST", "/v1/responses", body)
    if reply is None:
        return None
    if reply.status_code != 200:
        if "previous_response" in reply.text and failures == world.n_power_failures:
            world.fault(f"a stored response is lost: {reply.text[:200]}")
        # an answer comes without being stored, unless nobody waits for it, or what came before cannot be opened
        stores = "background" in body or "previous_response_id" in body
        world.check_error("a stored response", reply.status_code, reply.text, stores=stores)
        return None
    response: dict[str, Any] = reply.json()
    return response if _is_stored(world, response) else None


async def _ended_response(world: World, http: Client, response: dict[str, Any], failures: int) -> dict[str, Any] | None:
    """Return a response once it has ended, None for one whose end is not stored. It was stored after so many `failures`
    of the power."""
    path = f"/v1/responses/{response['id']}"
    try:
        async with asyncio.timeout(PATIENCE_S):
            while response["status"] in ("queued", "in_progress"):
                await asyncio.sleep(0.2)
                reply = await http.answered(lambda: http.get(path))
                if reply.status_code != 200:
                    world.check_error("a response", reply.status_code, reply.text, stores=True)
                    if reply.status_code == 404:
                        if failures == world.n_power_failures:
                            world.fault(f"a response in the background is lost: {reply.text[:200]}")
                        return None
                    continue
                response = reply.json()
    except TimeoutError:
        if not world.disk.n_failed:  # another service than that which answers it does not know that it is not stored
            world.fault(f"a response has no end after {PATIENCE_S:g} s")
        return None
    world.happened[f"stored {response['status']}"] += 1
    return response if _is_stored(world, response) else None


def _is_stored(world: World, response: dict[str, Any]) -> bool:
    if not response["store"]:
        world.happened["not stored"] += 1
        if not world.disk.n_failed:
            world.fault(f"a response is not stored: {response.get('warnings')}")
    return bool(response["store"])


def _texts(items: httpx.Response | None) -> list[str]:
    """Return the texts of a list of items."""
    if items is None or items.status_code != 200:
        return []
    return [part.get("text", "") for item in items.json()["data"] for part in item.get("content", ())]


def _output(response: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for item in response["output"] for part in item["content"])


async def converser(world: World) -> None:
    """Go on with a conversation that the service keeps: what was acknowledged is in it once, and in order."""
    chance, said = world.clock.chance, list[tuple[int, str]]()
    async with world.client() as http, world.client() as other:
        failures = world.n_power_failures
        created = await http.asked("POST", "/v1/conversations", {})
        if created is None or created.status_code != 200:
            if created is not None:
                world.check_error("a conversation", created.status_code, created.text, stores=True)
            return
        name = created.json()["id"]
        world.checks.append(partial(_check_conversation, world, name, said))
        for _ in range(chance.randrange(1, 5)):
            await asyncio.sleep(world.clock.delay_s(chance.choice((0.05, 1.0, 5.0))))
            text = world.new_text()
            body = {"model": chance.choice(world.models), "input": f"<say>{text}</say>", "conversation": name}
            client, failures_now = chance.choice((http, other)), world.n_power_failures
            try:  # once: what a service did of it before it died is there, and would be there twice
                async with asyncio.timeout(PATIENCE_S):
                    reply = await client.answered(partial(client.post, "/v1/responses", json=body), repeats=False)
            except httpx.TransportError:
                continue
            except TimeoutError:
                world.fault(f"a response of a conversation has no end after {PATIENCE_S:g} s")
                continue
            if reply.status_code != 200:
                world.check_error("a response of a conversation", reply.status_code, reply.text, stores=True)
                if reply.status_code == 404:
                    if failures == world.n_power_failures:
                        world.fault(f"a conversation is lost: {reply.text[:200]}")
                    return
            elif reply.json()["store"]:
                said += [(failures_now, each) for each in (f"<say>{text}</say>", text)]
                world.happened["conversed"] += 1


async def _check_conversation(world: World, name: str, said: list[tuple[int, str]], http: Client) -> None:
    reply = await http.asked("GET", f"/v1/conversations/{name}/items?limit=100&order=asc")
    surely = [text for failures, text in said if failures == world.n_power_failures]
    if reply is None or reply.status_code != 200:
        if surely or not world.n_power_failures or reply is None or reply.status_code != 404:
            world.fault(f"a conversation is lost: {reply and reply.text[:200]}")
        return
    texts, known = _texts(reply), [text for _, text in said]
    found = [text for text in texts if text in known]  # others are of requests whose reply was lost
    if found != [text for text in known if text in found] or not set(surely) <= set(found):
        world.fault(f"a conversation has {texts} instead of {known}")


# Jobs


async def employer(world: World) -> None:
    """Start, watch, cancel and retry jobs; each that was acknowledged ends once, and is listed once from then on."""
    chance = world.clock.chance
    ended: dict[str, str] = {}
    async with world.client() as http:
        world.checks.append(partial(_check_jobs, world, http.service.port, ended))
        for _ in range(chance.randrange(1, 4)):
            await asyncio.sleep(world.clock.delay_s(2.0))
            kind = chance.choice(("tune", "bench"))
            body = {"kind": kind, "arguments": {"model": world.models[0]}}
            reply = await http.asked("POST", "/api/localllm/jobs", body)
            if reply is None or reply.status_code >= 400:
                if reply is not None:
                    world.check_error("a job", reply.status_code, reply.text, stores=True)
                continue
            job_id = reply.json()["id"]
            ended[job_id] = ""
            world.happened["job"] += 1
            if chance.random() < 0.4:
                await asyncio.sleep(world.clock.delay_s(1.0))
                await http.asked("POST", f"/api/localllm/jobs/{job_id}/cancel")
            await _until_ended(world, http, job_id, ended)
            if chance.random() < 0.3:
                again = await http.asked("POST", f"/api/localllm/jobs/{job_id}/retry")
                if again is not None and again.status_code < 400:
                    await _until_ended(world, http, job_id, ended)


async def _until_ended(world: World, http: Client, job_id: str, ended: dict[str, str]) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                reply = await http.answered(lambda: http.get(f"/api/localllm/jobs/{job_id}"))
                if reply.status_code != 200:
                    world.fault(f"an acknowledged job is lost: {reply.text[:200]}")
                    return
                job = reply.json()
                if job["state"] in _JOB_ENDS:
                    # one whose end could not be saved says so: it may be another one later
                    ended[job_id] = "" if "cannot be saved" in job["message"] else job["state"]
                    world.happened[f"job {job['state']}"] += 1
                    return
                await asyncio.sleep(1.0)
    except TimeoutError:
        world.fault(f"a job has no end after {PATIENCE_S:g} s")


async def _check_jobs(world: World, port: int, ended: dict[str, str], http: Client) -> None:
    if http.service.port != port:  # another service lists its own jobs, and those of services that have ended
        return
    reply = await http.asked("GET", "/api/localllm/jobs")
    if reply is None or reply.status_code != 200:
        return
    listed = reply.json()["jobs"]
    n_times = Counter(job["id"] for job in listed)
    states = {job["id"]: job["state"] for job in listed}
    for job_id, state in ended.items():
        if n_times[job_id] != 1:
            world.fault(f"an acknowledged job is listed {n_times[job_id]} times")
        elif state and states[job_id] != state:
            world.fault(f"a job that was {state} is {states[job_id]}")
        elif states[job_id] not in _JOB_ENDS:
            world.fault(f"a job is {states[job_id]} when everybody has gone")


# Batches


async def batcher(world: World) -> None:
    """Let a file of requests be answered, and look at the answers: each request has one, its own, or an error."""
    chance = world.clock.chance
    await asyncio.sleep(world.clock.delay_s(1.0))
    model, texts = chance.choice(world.models), {f"q{n}": world.new_text() for n in range(chance.randrange(1, 12))}
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": model, "messages": [{"role": "user", "content": f"<say>{text}</say>"}]},
        }
        for name, text in texts.items()
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    async with world.client() as http, world.client() as other:
        reply = await http.answered(
            lambda: http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("q.jsonl", data)})
        )
        if reply.status_code != 200:
            world.check_error("a file", reply.status_code, reply.text, stores=True)
            return
        body = {
            "input_file_id": reply.json()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        await asyncio.sleep(world.clock.delay_s(0.05))
        created = await http.asked("POST", "/v1/batches", body)
        if created is None or created.status_code != 200:
            if created is not None:
                world.check_error("a batch", created.status_code, created.text, stores=True)
            return
        batch_id = created.json()["id"]
        world.happened["batch"] += 1
        if world.kills_services and chance.random() < 0.5:
            await _until_answered(world, http, batch_id)
            http.service.kill()
        if is_cancelled := chance.random() < 0.2:
            await asyncio.sleep(world.clock.delay_s(0.5))
            await other.asked("POST", f"/v1/batches/{batch_id}/cancel")
        batch = await _ended_batch(world, other, batch_id)
        if batch is None:
            return
        status = batch["status"]
        world.happened[f"batch {status}"] += 1
        is_killed = "process ended with" in json.dumps(batch["errors"])
        if status != "completed" and not is_cancelled and not is_killed and not world.disk.n_failed:
            world.fault(f"a batch is {status}: {batch['errors']}")
        await _check_batch(world, http, batch, texts)
        world.checks.append(partial(_check_ended_batch, world, batch, texts))


async def _until_answered(world: World, http: Client, batch_id: str) -> None:
    """Wait until some requests of a batch are answered, or for a while."""
    for _ in range(world.clock.chance.randrange(1, 200)):
        reply = await http.answered(lambda: http.get(f"/v1/batches/{batch_id}"))
        if reply.status_code == 200 and reply.json()["request_counts"]["completed"]:
            return
        await asyncio.sleep(0.05)


async def _ended_batch(world: World, http: Client, batch_id: str) -> dict[str, Any] | None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                reply = await http.answered(lambda: http.get(f"/v1/batches/{batch_id}"))
                if reply.status_code == 404:
                    world.fault(f"an acknowledged batch is lost: {reply.text[:200]}")
                    return None
                if reply.status_code == 200 and reply.json()["status"] in _BATCH_ENDS:
                    batch: dict[str, Any] = reply.json()
                    return batch
                if reply.status_code != 200:
                    world.check_error("a batch", reply.status_code, reply.text, stores=True)
                await asyncio.sleep(1.0)
    except TimeoutError:
        world.fault(f"a batch has no end after {PATIENCE_S:g} s: {reply.text[:300]}")
        return None


async def _check_ended_batch(world: World, batch: dict[str, Any], texts: dict[str, str], http: Client) -> None:
    reply = await http.asked("GET", f"/v1/batches/{batch['id']}")
    if reply is None or reply.status_code != 200:
        world.fault(f"an ended batch is lost: {reply and reply.text[:200]}")
    elif reply.json()["status"] != batch["status"]:
        world.fault(f"a batch that was {batch['status']} is {reply.json()['status']}")
    else:
        await _check_batch(world, http, batch, texts)


async def _check_batch(world: World, http: Client, batch: dict[str, Any], texts: dict[str, str]) -> None:
    answered = list[str]()
    for file_id in filter(None, (batch["output_file_id"], batch["error_file_id"])):
        reply = await http.asked("GET", f"/v1/files/{file_id}/content")
        if reply is None or reply.status_code != 200:
            world.fault(f"the answers of a batch are lost: {reply and reply.text[:200]}")
            return
        for line in reply.text.splitlines():
            fields = json.loads(line)
            answered.append(fields["custom_id"])
            if fields["error"] is None:
                said = fields["response"]["body"]["choices"][0]["message"]["content"]
                if said != texts[fields["custom_id"]]:
                    world.fault(f"a batch answers {said!r} instead of {texts[fields['custom_id']]!r}")
    if len(set(answered)) != len(answered):
        world.fault(f"a batch answers twice: {answered}")
    if batch["status"] == "completed" and set(answered) != texts.keys():
        world.fault(f"a completed batch lacks {texts.keys() - set(answered)}")


# Chats in chats.db


@dataclass(slots=True)
class _Written:
    """A chat of a window: its id, and the texts that it showed as stored, by the ids of their messages."""

    chat_id: int | None = None
    texts: dict[int, str] = field(default_factory=dict)


async def writer(world: World) -> None:
    """Chat in a terminal app, which is killed now and then, and goes on in the next one, or in two at once."""
    chance, written = world.clock.chance, _Written()
    for _ in range(chance.randrange(1, 4)):
        n_windows = 2 if written.chat_id is not None and chance.random() < 0.4 else 1
        await asyncio.gather(*(_window(world, written) for _ in range(n_windows)))
        _check_chat(world, written)


async def _window(world: World, written: _Written) -> None:
    """Run an app until it ends, or is killed."""
    chance = world.clock.chance
    n_questions = chance.randrange(1, 5)
    life = world.processes.new_life("the app")
    has_ended = asyncio.Event()
    life.on_end.append(has_ended.set)
    if chance.random() < 0.3:
        life.dies_at = chance.randrange(1, chance.choice((40, 150)))
    dies_at_s = world.clock.delay_s(5.0) if chance.random() < 0.3 else PATIENCE_S * (n_questions + 1)
    life.task(_use_app(world, life, written, n_questions))
    try:
        async with asyncio.timeout(dies_at_s):
            await has_ended.wait()
    except TimeoutError:
        life.die()
    world.happened["app ended"] += 1


async def _use_app(world: World, life: Life, written: _Written, n_questions: int) -> None:
    try:
        await _chat(world, written, n_questions)
    except StorageError as error:
        if not world.disk.n_failed:
            world.fault(f"the app ended by {error!r}")
        world.happened["app failed"] += 1
    except Exception as error:
        world.fault(f"the app ended by {error!r}\n{traceback.format_exc(limit=-8)}")
    life.end()


async def _chat(world: World, written: _Written, n_questions: int) -> None:
    chance, port = world.clock.chance, world.clock.chance.choice(world.services).port
    model = chance.choice(world.models)
    async with (
        ServiceClient(f"http://127.0.0.1:{port}", transport=world.network) as client,
        SqliteChatRepository(world.settings.data_dir, world.settings.cache_dir) as repository,
    ):
        opened = OpenedChat(repository.new(), Conversation())
        if written.chat_id is not None:
            opened = await repository.open(written.chat_id)
        chat = OpenChat(opened, LoadedModel(client, ConnectionState(phase="ready", model=model, n_ctx=8192)))

        async def view(event: ChatEvent) -> None:
            if isinstance(event, Added) and event.message.id != UNSAVED_ID:
                written.chat_id = chat.stored.id
                written.texts[event.message.id] = event.message.content

        chat.view = view
        for _ in range(n_questions):
            await asyncio.sleep(world.clock.delay_s(1.0))
            text = world.new_text()
            await ask_in_chat(world, chat, f"<say>{text}</say>", stops=0.2)
            _note_answer(world, chat, text, written)
        await chat.close()


async def ask_in_chat(world: World, chat: OpenChat, question: str, *, stops: float) -> bool:
    """Ask, and wait for the answer or, with the chance `stops`, stop it after a while. Return whether it was."""
    chance = world.clock.chance
    chat.ask(MessageContent(role="user", content=question))
    is_impatient = chance.random() < stops
    try:
        async with asyncio.timeout(chance.choice((0.01, 0.3, 3.0)) if is_impatient else PATIENCE_S):
            await asyncio.shield(asyncio.ensure_future(chat.wait()))
    except TimeoutError:
        if not is_impatient:
            world.fault(f"a chat has no end after {PATIENCE_S:g} s")
        await chat.stop()
        return True
    return False


def _note_answer(world: World, chat: OpenChat, text: str, written: _Written) -> None:
    """Note what a chat shows as stored after the exchange that asked for `text`."""
    conversation = chat.conversation
    *_, question, last = [None, None, *conversation.branch]
    if conversation.errors:
        world.happened["chat failed"] += 1
        for error in conversation.errors.values():
            if isinstance(error, StorageError) and not world.disk.n_failed:
                world.fault(f"a chat fails: {error}")
        return
    if question is None or last is None or question.content != f"<say>{text}</say>":  # stopped before it was stored
        return
    is_whole = last.state is MessageState.FINISHED
    written.texts[last.id] = last.content
    world.happened["written" if is_whole else "written in part"] += 1
    if last.content != text if is_whole else not text.startswith(last.content):
        world.fault(f"a chat keeps {last.content!r} of {text!r}")


def _check_chat(world: World, written: _Written) -> None:
    """Check that all that was shown as stored is in chats.db, as it was."""
    if written.chat_id is None:
        return
    with ChatStore(world.settings.data_dir) as store:
        messages = {message.id: message for message in store.messages.of(written.chat_id)}
    for message_id, text in written.texts.items():
        if message_id not in messages:
            world.fault(f"a message is lost: {text!r}")
        elif messages[message_id].content != text:
            world.fault(f"a message is {messages[message_id].content!r} instead of {text!r}")
    n_times = Counter(message.content for message in messages.values() if message.role == "user")
    for text, count in n_times.items():
        if count > 1:
            world.fault(f"a question is there {count} times: {text!r}")
