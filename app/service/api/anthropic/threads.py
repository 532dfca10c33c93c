"""Threads of /v1/messages: a client sends the newest message, and names the answer before it.

They are stored with the responses of OpenAI's dialect, within the same limits of size and age. An answer can be gone on
from once: of one that has been nothing stays but that. Source: Anthropic's SDK for Python, 2.14
(`message-threads-2026-08-12`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from app.common.event_log import log_event
from app.service.api.anthropic.requests import CountTokensBody, MessagesBody
from app.service.api.responses.store import Kind, ResponseStore
from app.service.http.errors import RefusedError
from quantizer.system.errors import StorageError

AnyBody = TypeVar("AnyBody", bound=CountTokensBody)

_REPLAY = 'Send all messages with thread {"type": "create"}.'
_FIXED = ("system", "tools")  # for all of a thread; the store has `system` as the instructions
_CONTINUED = "is_continued"  # of an answer after which the thread has gone on


def _refused(status: int, code: str, cause: str, remedy: str, **details: object) -> RefusedError:
    return RefusedError(status, code, cause, remedy, {"error_code": code, **details})


async def whole_conversation(store: ResponseStore, body: AnyBody) -> AnyBody:
    """Return `body` with all messages of its thread, its system text and tools. Raises RefusedError for a thread that
    is not stored, with the codes by which the SDKs send everything again."""
    if body.thread is None:
        return body
    if not store.is_enabled:
        cause = "The setting responses_size lets no thread be stored."
        raise _refused(400, "thread_unsupported_request", cause, "Send all messages, without thread.")
    if body.thread.type == "create":
        return body
    name = body.thread.previous_message_id
    record = await store.record(Kind.THREAD, name)
    items = await store.items(Kind.THREAD, name)
    if record is None or items is None:
        raise _refused(404, "thread_not_found", f"Thread with the message {name[:80]!r} not found.", _REPLAY)
    if record.object.get(_CONTINUED):
        cause = f"The thread has already gone on from the message {name[:80]!r}."
        raise _refused(400, "thread_already_continued", cause, f"Continue from its latest message. {_REPLAY}")
    fixed = {"system": record.object["instructions"], "tools": record.object["tools"]}
    changed = [field for field in _FIXED if field in body.raw and body.raw[field] != fixed[field]]
    if changed:
        cause = f"{' and '.join(changed)} cannot change within a thread."
        raise _refused(400, "thread_fingerprint_mismatch", cause, _REPLAY)
    earlier = [{field: value for field, value in item.items() if field != "id"} for item in items]
    return type(body).model_validate({**body.raw, **fixed, "messages": [*earlier, *body.raw["messages"]]})


@contextmanager
def continuing(open_threads: set[tuple[str, str]], body: MessagesBody, owner: str) -> Iterator[None]:
    """Hold the message that `body` goes on from, and who asks, in `open_threads`. Raises RefusedError where another
    request of `owner` does: of others' threads nobody learns whether they are there."""
    name = body.thread.continued if body.thread is not None else ""
    if not name:
        yield
        return
    if (owner, name) in open_threads:
        cause = f"Another request is going on from the message {name[:80]!r}."
        raise _refused(400, "thread_continue_in_flight", cause, f"Wait for its answer. {_REPLAY}")
    open_threads.add((owner, name))
    try:
        yield
    finally:
        open_threads.discard((owner, name))


async def keep(store: ResponseStore, body: MessagesBody, name: str, content: Sequence[Any]) -> None:
    """Store the thread of `body` up to its answer, the message `name` with `content`, in place of the message that it
    went on from. One that cannot be stored is not found by the next request, and its client sends everything again."""
    if body.thread is None:
        return
    value = {"id": name, "instructions": body.raw.get("system"), "tools": body.raw.get("tools")}
    items = [{"id": "", **message} for message in body.raw["messages"]]
    try:
        await store.add(Kind.THREAD, value, items, [{"id": "", "role": "assistant", "content": list(content)}])
        if body.thread.continued:
            await store.add(Kind.THREAD, {"id": body.thread.continued, _CONTINUED: True}, [])
    except StorageError as error:
        log_event("service", f"A thread is not stored: {error}")
