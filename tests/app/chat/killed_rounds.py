"""One trial: a chat whose model calls tools is killed, and its messages are checked for all that was acknowledged.

Owns what of a call may not be lost. Used by a test and, a hundred times, by tests/battery/kills/kill_chats.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app.chat.conversation import Message, MessageState
from app.chat.rounds import pending_calls
from app.chat.store.chat_store import ChatStore
from app.chat.turns import CUT_OFF, turns_of
from app.tools.tool import ToolOutcome
from tests.app.chat.killed_writer import Trial, kill_a_writer

__all__ = ["kill_rounds"]

_WRITER = Path(__file__).with_name("rounds_writer.py")


def kill_rounds(data_dir: Path, after_s: float) -> Trial:
    """Start a chat that calls tools on `data_dir`, kill it `after_s` seconds after its first words, and see what is
    left."""
    return kill_a_writer(data_dir, after_s, _WRITER, _faults)


def _faults(data_dir: Path, told: list[dict[str, Any]]) -> Iterator[str]:
    with ChatStore(data_dir) as store:
        (chat,) = store.chats.page()
        transcript = store.transcripts.read(chat.id)
    kept = {message.id: message for message in transcript.messages}
    for line in told:
        if "begun" in line:
            yield from _faults_of_call(line, kept.get(line["begun"]))
        if "changing" in line:
            message = kept.get(line["changing"])
            n_changes = len(message.result.changes) if message and message.result else 0
            if n_changes < line["n"]:
                yield f"{line['n']} changes of message {line['changing']} may be made, {n_changes} are stored"
    yield from _faults_of_the_end(transcript.branch, kept)


def _faults_of_call(line: Mapping[str, Any], message: Message | None) -> Iterator[str]:
    if message is None or message.result is None or message.result.call_id != line["call"]:
        yield f"the call {line['call']} may run and is stored as {message}"
        return
    is_running, is_partial = message.result.outcome is ToolOutcome.RUNNING, message.state is MessageState.PARTIAL
    if is_running != is_partial:
        yield f"message {message.id} is {message.state} and its call {message.result.outcome}"


def _faults_of_the_end(branch: tuple[Message, ...], kept: Mapping[int, Message]) -> Iterator[str]:
    """Yield what is wrong about what was running: only the last message may be, and the model is told of it."""
    partial = [message.id for message in kept.values() if message.state is MessageState.PARTIAL]
    if partial not in ([], [branch[-1].id]):
        yield f"messages {partial} are not finished, and the last one is {branch[-1].id}"
    result = branch[-1].result
    if partial and result is not None:
        if any(call.call_id == result.call_id for call in pending_calls(branch)):
            yield "a call that was cut off would run again"
        told = [turn.content for turn in turns_of(branch, {}) if turn.call_id == result.call_id]
        if not told or CUT_OFF not in told[0]:
            yield f"the model is told of the call that was cut off: {told}"
