"""What of a branch is sent to the model: its questions, answers, calls of tools and their results. Pure.

Owns which messages make one turn, how many pictures and sounds of results go with them, and what stands for the result
of a call that has none: a template wants a result for each. Which messages are sent at all is `app.chat.compaction`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, takewhile

from app.chat.attachments.prompt import PARAGRAPH_BREAK, media_of, prompt_parts
from app.chat.compaction import sent_branch, summary_turn
from app.chat.conversation import MediaFile, Message, MessageState, arguments_of
from app.protocol.chat import MediaPart, ToolCall
from app.protocol.chat import Message as ChatMessage
from app.tools.tool import ToolOutcome

CUT_OFF = "The call was cut off in the middle: what it did is not known."
NOT_RUN = "This call was not run."
NO_LONGER_SENT = "[The pictures and sounds of this result are no longer sent: newer ones are.]"
MAX_RESULT_MEDIA = 32  # a prompt has 64 at most, of 96 MiB in Base64; questions need room too
MAX_RESULT_MEDIA_BYTES = 32 << 20
_ASKING = frozenset({"user", "summary"})  # the roles of messages that are sent as a turn of the user


def turns_of(path: Sequence[Message], parts: Mapping[str, MediaPart], system: str = "") -> list[ChatMessage]:
    """Return the turns of a branch: the last summary, what it keeps and what follows; of questions whose answer never
    ended, only the last one. An answer goes with its calls, and each call with its result. `parts` are the pictures and
    sounds of `media_files_of` by their SHA-256."""
    turns = [ChatMessage("system", system)] if system else []
    shown = _shown_results(path)
    last_question = next((message.id for message in reversed(path) if message.role == "user"), 0)
    for is_asking, messages in _groups(path):
        if is_asking:
            texts = [text for message in messages for text in _sent_texts(message)]
            media = tuple(parts[file.sha256] for message in messages for file in media_of(message.attachments))
            ends = accumulate(len(text) + len(PARAGRAPH_BREAK) for text in texts[:-1])
            turns.append(ChatMessage("user", PARAGRAPH_BREAK.join(texts), media, part_ends=tuple(ends)))
        else:
            for turn, result in _answered(messages, sends_reasoning=messages[0].id > last_question):
                files = media_of(result.attachments) if result is not None else ()
                if result is None or not files:
                    turns.append(turn)
                elif result.id in shown:
                    turns.append(replace(turn, media=tuple(parts[file.sha256] for file in files)))
                else:
                    turns.append(replace(turn, content=PARAGRAPH_BREAK.join((turn.content, NO_LONGER_SENT))))
    return turns


def media_files_of(path: Sequence[Message]) -> tuple[MediaFile, ...]:
    """Return the pictures and sounds of `turns_of`."""
    shown = _shown_results(path)
    sent = (message for is_asking, group in _groups(path) for message in group if is_asking or message.id in shown)
    return tuple(file for message in sent for file in media_of(message.attachments))


def _shown_results(path: Sequence[Message]) -> frozenset[int]:
    """Return the ids of the results whose pictures and sounds are sent: the latest. Of too many the older half goes at
    once, since the engine reads again what follows one that goes."""
    shown: list[Message] = []
    for message in sent_branch(path).path:
        if message.role == "tool" and message.attachments:
            shown.append(message)
            while len(shown) > 1 and _are_too_many(shown):
                shown = shown[len(shown) // 2 :]
    return frozenset(message.id for message in shown)


def _are_too_many(results: Sequence[Message]) -> bool:
    files = [file for result in results for file in media_of(result.attachments)]
    return len(files) > MAX_RESULT_MEDIA or sum(file.n_bytes for file in files) > MAX_RESULT_MEDIA_BYTES


def made_calls(answer: Message) -> tuple[ToolCall, ...]:
    """Return the calls of an answer that may run: none of one that was stopped or cut, whose last call is not whole."""
    is_whole = answer.state is MessageState.FINISHED and answer.stats.get("finish_reason") != "length"
    return answer.calls if is_whole else ()


def _groups(path: Sequence[Message]) -> Iterator[tuple[bool, list[Message]]]:
    """Yield, and whether the user says it, what follows each other: the summary and the questions, or the answers with
    the results of their calls. A question that was asked again before its answer ended is left out; one that the model
    answered with nothing is not."""
    sent = sent_branch(path).path
    answered = {
        message.parent_id for message in sent if message.role == "assistant" and message.state is MessageState.FINISHED
    }
    said = [
        message
        for message in sent
        if message.content or message.role == "user" or made_calls(message) or message.result is not None
    ]
    for is_asking, group in groupby(said, key=lambda message: message.role in _ASKING):
        whole = list(group)
        if is_asking:
            questions = [message for message in whole if message.role == "user"]
            asked = [message for message in questions[:-1] if message.id in answered] + questions[-1:]
            whole = [*(message for message in whole if message.role == "summary"), *asked]
        yield is_asking, whole


def _sent_texts(message: Message) -> list[str]:
    if message.role == "summary":
        return [summary_turn(message.content)]
    return prompt_parts(message.content, message.attachments, message.sources)


def _answered(messages: Sequence[Message], *, sends_reasoning: bool) -> Iterator[tuple[ChatMessage, Message | None]]:
    """Yield the turns of answers and results, each with the message whose result it is. What has text alone is joined
    with what follows it. Models go on from their reasoning while they call tools; of earlier questions they are not
    shown it."""
    texts: list[str] = []
    called: set[str] = set()  # by the last answer: other results are sent as text
    for index, message in enumerate(messages):
        calls = made_calls(message)
        if message.content and not (message.result is not None and message.result.call_id in called):
            texts += _sent_texts(message)
        if message.role != "tool":
            called = {call.call_id for call in calls}
        if calls:
            after = takewhile(lambda each: each.role == "tool", messages[index + 1 :])
            results = {each.result.call_id: each for each in after if each.result is not None}
            reasoning = message.reasoning if sends_reasoning else ""
            # Engines refuse arguments that are no JSON; the result of such a call says that they were none.
            sent = tuple(replace(call, arguments="{}") if arguments_of(call) is None else call for call in calls)
            yield ChatMessage("assistant", PARAGRAPH_BREAK.join(texts), calls=sent, reasoning=reasoning), None
            texts = []
            for call in calls:
                result = results.get(call.call_id)
                yield ChatMessage("tool", _result_text(result), call_id=call.call_id, name=call.name), result
    if texts:
        yield ChatMessage("assistant", PARAGRAPH_BREAK.join(texts)), None


def _result_text(message: Message | None) -> str:
    if message is None or message.result is None:
        return NOT_RUN
    is_cut_off = message.result.outcome is ToolOutcome.RUNNING
    return PARAGRAPH_BREAK.join(filter(None, (message.content, CUT_OFF if is_cut_off else "")))
