"""One request of /v1/responses on its way: the answer as events or whole, then stored; in the background if it says so.

Also the conversation that it goes on with (`previous_response_id`, `conversation`, `item_reference`), whether and where
the answer is kept (`store`), what `truncation: "auto"` leaves out, and pages of items.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from typing_extensions import TypedDict

from app.common.event_log import log_event
from app.protocol.chat import Message, PromptProgress
from app.protocol.errors import ContextOverflowError, RequestError, ServiceError
from app.service.api.app_state import planner_warnings
from app.service.api.responses.requests import CompactBody, InputItem, InputTokensBody, Item, ResponsesBody, parse_item
from app.service.api.responses.responses import (
    UNFINISHED,
    Event,
    ResponseFormatter,
    ResponseObject,
    ResponseStatus,
    ResponseStreamEvents,
)
from app.service.api.responses.store import Kind, RemovedError, ResponseStore
from app.service.generation.chat import ChatTurn, chat_generation
from app.service.generation.generation import Answer, Delta
from app.service.generation.media import PromptMedia
from app.service.generation.progress import parts_with_progress
from app.service.http.errors import BUG, RefusedError, message_of
from app.service.http.guard import Caller
from app.service.models.model_file import Senses
from app.service.models.served_model import ServedModel
from quantizer.system.errors import StorageError, UserError
from quantizer.system.process import is_process_alive

LOST = "its service ended before the answer was whole, or could not store it."
_STORED = (
    "Only what is stored can be named; the settings responses_size and responses_days limit how much and how long."
)


@dataclass(frozen=True, slots=True)
class Context:
    """A conversation: its stored items, and the new ones with what they refer to."""

    earlier: Sequence[Item]
    new: Sequence[InputItem]

    @property
    def items(self) -> list[InputItem]:
        return [*(parse_item(item) for item in self.earlier), *self.new]

    def for_store(self, *, by_position: bool) -> list[Item]:
        """Return the new items as they are stored; by their position those that come again are stored once."""
        first = len(self.earlier)
        return [item.for_store(first + index if by_position else None) for index, item in enumerate(self.new)]


async def context_of(store: ResponseStore, runs: Runs, body: ResponsesBody | InputTokensBody | CompactBody) -> Context:
    """Return the conversation of a request. Raises RefusedError for a name of what is not stored."""
    earlier = await _earlier(store, runs, body)
    present = {item["id"]: item for item in earlier}
    items = [item for item in body.items() if not _is_present(item, present)]
    referenced = await store.referenced(name for item in items if (name := item.reference))
    for item in items:
        if item.reference and item.reference not in referenced:
            raise RefusedError(404, "not_found", f"Item with id {item.reference[:80]!r} not found.", _STORED)
    return Context(earlier, [parse_item(referenced[item.reference]) if item.reference else item for item in items])


def _is_present(item: InputItem, present: Mapping[str, Item]) -> bool:
    """Return whether the conversation has `item` already, by reference or whole: it is not repeated to the model."""
    stored = present.get(item.id or "")
    if stored is None:
        return False
    compared = PromptMedia(Senses(sees=True, hears=True))  # so that two pictures differ
    is_same = item.reference is None and parse_item(stored).messages(compared) == item.messages(compared)
    return is_same or item.reference is not None


async def _earlier(store: ResponseStore, runs: Runs, body: ResponsesBody | InputTokensBody | CompactBody) -> list[Item]:
    if conversation := body.conversation_id:
        found = await store.items(Kind.CONVERSATION, conversation)
        if found is None:
            raise not_found(Kind.CONVERSATION, conversation)
        return found
    if not (previous := body.previous_response_id):
        return []
    found = await store.items(Kind.RESPONSE, previous)
    record = await store.record(Kind.RESPONSE, previous)
    if record is not None and record.object["status"] in UNFINISHED:
        if not runs.is_running(previous, record.process):
            cause = f"The answer of the previous response with id {previous[:80]!r} is not stored: {LOST}"
            remedy = "Go on from an earlier response, or send the conversation in `input`."
            raise RefusedError(400, "previous_response_not_found", cause, remedy)
        cause = f"Previous response with id {previous[:80]!r} is still in progress."
        raise RefusedError(400, "previous_response_in_progress", cause, "Wait until it has ended, or cancel it.")
    if found is None:
        cause = f"Previous response with id {previous[:80]!r} not found."
        raise RefusedError(400, "previous_response_not_found", cause, _STORED)
    return found


def not_found(kind: Kind, name: str) -> RefusedError:
    return RefusedError(404, "not_found", f"{kind.title()} with id {name[:80]!r} not found.", _STORED)


_DEFAULT_LIMIT, _MOST = 20, 100  # source: openai 3.54, `InputItemListParams`


class ItemList(TypedDict):
    """A page of items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


@dataclass(frozen=True, slots=True)
class Page:
    """Which items are wanted: at most `limit`, after the one with the id `after`, the newest first or last."""

    limit: int = _DEFAULT_LIMIT
    is_ascending: bool = False
    after: str = ""

    @classmethod
    def of(cls, limit: str, order: str, after: str, *, usual: int = _DEFAULT_LIMIT, most: int = _MOST) -> Page:
        """Return the page that a query asks for, of `usual` items, or the `limit`. Raises RequestError for an invalid
        one."""
        if order not in ("", "asc", "desc"):
            raise RequestError(f"order is {order[:40]!r}.", "Use asc or desc.")
        is_number = limit.isascii() and limit.isdigit() and len(limit) < 6
        if limit and not (is_number and 1 <= int(limit) <= most):
            raise RequestError(f"limit is {limit[:40]!r}.", f"Ask for 1 to {most} items.")
        return cls(int(limit or usual), order == "asc", after)


def page_of(items: Sequence[Item], page: Page) -> ItemList:
    """Return the page of `items`, which are in the order of the conversation. Raises RequestError for no such item."""
    ordered = list(items) if page.is_ascending else list(reversed(items))
    if page.after:
        ids = [item["id"] for item in ordered]
        if page.after not in ids:
            cause = f"`after` must be the id of an item in this list (got {page.after[:80]!r})."
            raise RequestError(cause, "Give the id of an item.")
        ordered = ordered[ids.index(page.after) + 1 :]
    shown = ordered[: page.limit]
    return list_of(shown, has_more=len(shown) < len(ordered))


def list_of(items: Sequence[Item], *, has_more: bool = False) -> ItemList:
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


class Exchange:
    """The answer of `model` to `turn`, which is the request `body` in its `context`."""

    def __init__(
        self, model: ServedModel, turn: ChatTurn, body: ResponsesBody, context: Context, store: ResponseStore
    ) -> None:
        self._model = model
        self._turn = turn
        self._context = context
        self._store = store
        self._truncates = body.truncates
        self._reports_progress = bool(body.return_progress)
        self._counts_tokens = bool(body.timings_per_token)
        self._left_out = ""  # the notice of what truncation has left out
        self.was_deleted = False  # while it was answered in the background, by a client of another service
        formatter = ResponseFormatter(
            turn.request.request_id,
            model.ref.id,
            body.echo(turn.request.sampling),
            stores=body.stores and store.is_enabled,
            form=body.output_form(context.items),
        )
        self.events = ResponseStreamEvents(formatter)

    @property
    def response_id(self) -> str:
        return self.events.formatter.response_id

    @property
    def owner(self) -> str:
        return self._store.caller.owner

    async def queue(self) -> list[Event]:
        """Store the response as one that waits in the background, and return its first events. Raises StorageError, and
        RequestError for one that is too large: what is not stored is lost with the connection."""
        queued = self.events.so_far("queued")
        if cause := await self._add(queued, os.getpid(), extends=False):
            raise RequestError(f"A response with background has to be stored. {cause}", "Leave out background.")
        return list(self.events.opening("queued"))

    async def end(self, response: ResponseObject) -> Event:
        """Store `response`, which ended without its whole answer, and return its event."""
        return self.events.last(await self._keep(response, extends=False, is_again=True))

    async def whole(self) -> ResponseObject:
        async with aclosing(self.answer()) as events:
            last = [event async for event in events][-1]
        return cast("ResponseObject", last["response"])

    async def stream(self) -> AsyncGenerator[Event, None]:
        """Yield all events. A client that sees neither completion nor failure retries, so a failure is an event."""
        is_begun = False
        try:
            async with aclosing(self.answer()) as events:
                async for event in events:
                    is_begun = True
                    yield event
        except UserError as error:
            if not is_begun:
                raise
            yield self.events.last({**self.events.failed(error), "store": False})

    async def answer(self, *, was_queued: bool = False) -> AsyncGenerator[Event, None]:
        """Yield the events, but for those of queuing. Raises the error of the answer."""
        events, is_begun = self.events, False
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                if not is_begun:  # only now the model is loaded and there may be warnings
                    is_begun = True
                    if self._left_out:
                        self._model.record.notices.append(self._left_out)
                    events.formatter = replace(events.formatter, warnings=planner_warnings(self._model))
                    for event in [events.begun()] if was_queued else events.opening():
                        yield event
                if isinstance(part, PromptProgress):
                    yield events.progress(part)
                    continue
                answer, delta = part
                for event in events.of_delta(delta) if delta else ():
                    if delta and self._counts_tokens and event["type"].endswith(".delta"):
                        event["timings"] = {"predicted_n": delta.n_tokens}
                    yield event
                if answer.is_finished:
                    for event in events.closing(answer):
                        yield event
                    yield events.last(await self._keep(events.ended(answer), is_again=was_queued))

    async def _keep(self, response: ResponseObject, *, extends: bool = True, is_again: bool = False) -> ResponseObject:
        """Store `response` where it is to be, and return it as it is answered: one that cannot be stored has a warning.
        It `extends` the conversation that it belongs to. One that `is_again` stored may have been deleted meanwhile."""
        try:
            cause = await self._add(response, extends=extends, is_again=is_again)
        except RemovedError:
            self.was_deleted, cause = True, "It was deleted."
        except StorageError as error:
            log_event("service", f"A response is not stored: {error}")
            cause = message_of(error, hide_paths=True)
        if not cause:
            return response
        warnings = [*response.get("warnings", ()), f"The response is not stored. {cause}"]
        return {**response, "store": False, "warnings": warnings}

    async def _add(self, response: ResponseObject, process: int = 0, *, extends: bool, is_again: bool = False) -> str:
        """Store `response` as `_keep` says; `process` answers it in the background. Return why it was not stored, ""
        where it was or is not to be. Raises StorageError, and RemovedError for one that is not there again."""
        conversation = response["conversation"] if extends else None
        if not (response["store"] or conversation):
            return ""
        new = self._context.for_store(by_position=response["conversation"] is None)
        outputs = cast("list[Item]", response["output"])
        if conversation and not await self._store.extend(conversation["id"], [*new, *outputs]):
            return "Its conversation has been deleted."
        if response["store"]:
            kept = {name: value for name, value in response.items() if name not in ("output", "warnings")}
            items = [*self._context.earlier, *new]
            if not await self._store.add(Kind.RESPONSE, kept, items, outputs, process, is_again=is_again):
                return "It is larger than the setting responses_size."
        return ""

    async def _parts(self) -> AsyncGenerator[tuple[Answer, Delta | None] | PromptProgress, None]:
        """Yield the parts of the answer, to the newest turns where all are too long and `truncation` is auto."""
        turn = self._turn
        while True:
            has_begun = False
            generation = await chat_generation(self._model, turn)
            try:
                reports = self._reports_progress
                made = parts_with_progress(generation, self._model) if reports else generation.parts(self._model)
                async with aclosing(made) as parts:
                    async for part in parts:
                        has_begun = True
                        yield part
            except ContextOverflowError as error:
                if has_begun or not self._truncates:
                    raise
                turn = replace(turn, messages=without_oldest(turn.messages, error))
                n_left_out = len(self._turn.messages) - len(turn.messages)
                self._left_out = (
                    f"The context holds {error.n_ctx} tokens; the oldest {n_left_out} messages were left out."
                )
            else:
                return


_SHARE = 0.75  # of the context, so that the answer has room and the next turns do not cut again
_MESSAGE_CHARACTERS = 48  # what a template adds to a message, at least


def without_oldest(messages: Sequence[Message], overflow: ContextOverflowError) -> list[Message]:
    """Return the system's and the newest turns of `messages`. Raises `overflow` where no turn can leave. The number of
    tokens is estimated by length, so the result may be too long again, but it is shorter."""
    n_system = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    starts = [index for index in range(n_system + 1, len(messages)) if messages[index].role == "user"]
    if not starts:
        raise overflow
    lengths = [
        len(message.content)
        + len(message.reasoning)
        + sum(len(call.name) + len(call.arguments) for call in message.calls)
        + _MESSAGE_CHARACTERS
        for message in messages
    ]
    most = _SHARE * overflow.n_ctx * sum(lengths) / max(1, overflow.n_prompt_tokens)
    start = next((start for start in starts if sum(lengths[:n_system]) + sum(lengths[start:]) <= most), starts[-1])
    return [*messages[:n_system], *messages[start:]]


MAX_RUNNING = 64
MAX_ENDED = 16  # whose events are held for those who listen later
_ENDED = ServiceError("The service ended before the answer was whole.", "Ask again.")


class Run:
    """An exchange in a task of its own. `response` is what there is of it."""

    def __init__(self, exchange: Exchange, events: list[Event]) -> None:
        self._exchange = exchange
        self._events = events
        self._status: ResponseStatus = "queued"
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def response(self) -> ResponseObject:
        if not self.has_ended:
            return self._exchange.events.so_far(self._status)
        return cast("ResponseObject", self._events[-1]["response"])

    @property
    def owner(self) -> str:
        """Whose response it is."""
        return self._exchange.owner

    @property
    def has_ended(self) -> bool:
        return self._status not in UNFINISHED

    @property
    def was_deleted(self) -> bool:
        """Whether the response was deleted while it was answered, which another service does not say."""
        return self._exchange.was_deleted

    async def follow(self, after: int = -1) -> AsyncGenerator[Event, None]:
        """Yield the events with a higher number than `after`, until the last one."""
        index = after + 1
        while True:
            changed = self._changed
            for event in self._events[index:]:
                index += 1
                yield event
            if self.has_ended and index >= len(self._events):
                return
            await changed.wait()

    async def cancel(self, error: UserError | None = None) -> None:
        """End it, with `error` if one is given; what there is of the answer stays."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if not self.has_ended:
            events = self._exchange.events
            self._add(await self._exchange.end(events.failed(error) if error else events.so_far("cancelled")))

    async def _run(self) -> None:
        try:
            async with aclosing(self._exchange.answer(was_queued=True)) as events:
                async for event in events:
                    self._add(event)
        except UserError as error:
            self._add(await self._exchange.end(self._exchange.events.failed(error)))
        except Exception as error:
            log_event("service", f"A response in the background failed: {error!r}")
            self._add(await self._exchange.end(self._exchange.events.failed(BUG)))

    def _add(self, event: Event) -> None:
        self._events.append(event)
        if "response" in event:
            self._status = event["response"]["status"]
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Runs:
    """The runs of this service, by the id of the response: those that run, and the last ones that have ended."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}

    async def start(self, exchange: Exchange) -> Run:
        """Begin to answer, and return the run, which goes on by itself. Raises RefusedError where too many run."""
        if sum(not run.has_ended for run in self._runs.values()) >= MAX_RUNNING:
            cause = f"{MAX_RUNNING} responses run in the background already."
            raise RefusedError(429, "rate_limit_exceeded", cause, "Wait until one has ended, or cancel one.")
        run = self._runs[exchange.response_id] = Run(exchange, await exchange.queue())
        ended = [name for name, other in self._runs.items() if other.has_ended]
        for name in ended[: max(0, len(ended) - MAX_ENDED)]:
            del self._runs[name]
        return run

    def is_running(self, response_id: str, process: int) -> bool:
        """Return whether a response that is stored as unfinished is being answered: by this service, or by `process`,
        another one. That it is stored so does not say it: its service may have died, or failed to store the end."""
        if process == os.getpid():  # or that of a service before this one, which had the same number
            run = self._runs.get(response_id)
            return run is not None and not run.has_ended
        return is_process_alive(str(process))

    def find(self, response_id: str, caller: Caller) -> Run | None:
        """Return the run of a response that `caller` sees, None for one of another service or that ended long ago."""
        run = self._runs.get(response_id)
        return run if run is not None and caller.sees(run.owner) else None

    async def remove(self, response_id: str, caller: Caller) -> None:
        if run := self.find(response_id, caller):
            del self._runs[response_id]
            await run.cancel()

    async def close(self) -> None:
        await asyncio.gather(*(run.cancel(_ENDED) for run in self._runs.values()))
