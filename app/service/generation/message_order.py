"""The order in which a chat template can take messages: measured once by rendering, then kept to in every dialect.

Clients send what their users did: a second system message, two questions in a row, a word after a tool's result, calls
that were cut off. Templates refuse some of that, or leave a message out without a word. Sequences that a template takes
are rendered as they are.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b

from app.protocol.chat import Message, Role, ToolCall
from app.protocol.errors import RequestError

PARAGRAPH_BREAK = "\n\n"
_PLAIN_ID = re.compile(r"[A-Za-z0-9]{9}")  # all that Mistral's templates take
_ID_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
# What the user says where a template wants a question: before an answer, and between a text and the call after it.
_OPENING, _GO_ON = "Hello.", "Go on."


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOrder:
    """What a template takes, which is: it refuses nothing, and prints the text of each message, in their order."""

    takes_system: bool = True
    takes_several_systems: bool = True
    takes_late_system: bool = True
    takes_no_user: bool = True
    takes_users: bool = True  # two in a row
    takes_assistants: bool = True
    takes_assistant_first: bool = True
    takes_user_after_result: bool = True
    takes_result_without_call: bool = True
    takes_call_without_result: bool = True
    takes_parallel_calls: bool = True
    takes_call_after_result: bool = True
    takes_text_with_call: bool = True
    takes_any_call_id: bool = True
    takes_no_call_id: bool = True
    takes_no_tool_name: bool = True  # in a result
    takes_calls: bool = True  # and their results; otherwise both are written as text


TAKES_ALL = TemplateOrder()
STRICTEST = TemplateOrder(**{each.name: False for each in fields(TemplateOrder)})

# The sequences by which each is measured: S system, U user, A assistant, C a call, D two calls, B text and a call, I a
# call with an id of OpenAI's form, N one without id, M two such, T the result of one, R
# one that does not name its tool.
_PROBES: Mapping[str, tuple[str, ...]] = {
    "takes_system": ("SU", "SUAU"),  # Mistral Nemo's prints it before the last question
    "takes_several_systems": ("SSU",),
    "takes_late_system": ("SUASU", "SUAUS", "US"),
    "takes_no_user": ("S",),
    "takes_users": ("UUAUU",),
    "takes_assistants": ("UAAU",),
    "takes_assistant_first": ("AU", "SAU"),
}
_CALL_PROBES: Mapping[str, tuple[str, ...]] = {
    "takes_late_system": ("SUASU", "SUAUS", "US", "UCTSU"),
    "takes_assistants": ("UAAU", "UACTAU", "UCTAAU"),
    "takes_assistant_first": ("AU", "SAU", "CTU"),
    "takes_user_after_result": ("UCTU", "UCTUAU"),
    "takes_result_without_call": ("TU", "UTU", "TTUT"),
    "takes_call_without_result": ("UCU", "UC"),
    "takes_parallel_calls": ("UDTT",),
    "takes_call_after_result": ("UCTCT",),
    "takes_text_with_call": ("UBT", "UBTAU"),
    "takes_any_call_id": ("UIT",),
    "takes_no_call_id": ("UNT", "UMTTMTT"),
    "takes_no_tool_name": ("UCR", "UCCR"),  # Gemma 4's looks it up, in the message before
}
_ROLES: Mapping[str, Role] = {"S": "system", "U": "user", "T": "tool", "R": "tool"}
PROBED_TOOL = "localllm_probe"


def is_plain(messages: Sequence[Message]) -> bool:
    """Return whether `messages` are what every template is made for: questions and answers in turn, after a system
    message or none."""
    spoken = messages[1:] if messages[:1] and messages[0].role == "system" else messages
    roles = [message.role for message in spoken if not message.calls]
    return len(roles) == len(spoken) > 0 and roles == [("user", "assistant")[index % 2] for index in range(len(roles))]


async def measured_order(
    render: Callable[[Sequence[Message]], Awaitable[str]], *, has_calls: bool, has_tools: bool
) -> TemplateOrder:
    """Return what a template takes, which knows calls if it `has_calls`, with tools or without; `render` raises
    RequestError where it refuses messages."""
    takes_calls = not has_calls or await is_taken(_probe("UCT"), render)
    probes = dict(_PROBES)
    if has_calls and takes_calls:  # elsewhere calls are text before messages are ordered
        probes |= _CALL_PROBES
        if has_tools:  # Mistral Nemo's prints the system message before a question that comes last, or not
            probes["takes_system"] = (*_PROBES["takes_system"], "SUCT")
    taken = {}
    for name, sequences in probes.items():
        taken[name] = True
        for letters in sequences:
            if "M" in letters and not taken["takes_parallel_calls"]:
                continue
            if "R" in letters and not await is_taken(_probe(letters.replace("R", "T")), render):
                continue
            taken[name] = taken[name] and await is_taken(_probe(letters), render)
    return TemplateOrder(**taken, takes_calls=takes_calls)


async def takes_system(render: Callable[[Sequence[Message]], Awaitable[str]]) -> bool:
    """Return whether a template prints the system message of a plain chat, wherever its makers want it."""
    probes = _PROBES["takes_system"]
    return all([await is_taken(_probe(letters), render, in_their_order=False) for letters in probes])


def _probe(letters: str) -> list[Message]:
    messages: list[Message] = []
    unanswered: list[ToolCall] = []
    for place, letter in enumerate(letters):
        if letter in _ROLES:
            messages.append(Message(_ROLES[letter], "x"))
            if letter in "TR":  # a client that sends no ids may send no names either
                call = unanswered.pop(0) if unanswered else ToolCall("call00000", "")
                messages[-1] = replace(
                    messages[-1], call_id=call.call_id, name=call.name if call.call_id and letter == "T" else ""
                )
            continue
        calls = []
        for number in range({"A": 0, "D": 2, "M": 2}.get(letter, 1)):
            call_id = {"I": f"call_{number:024d}", "N": "", "M": ""}.get(letter, f"call{place:04d}{number}")
            calls.append(ToolCall(call_id, PROBED_TOOL, "{}"))
        unanswered += calls
        messages.append(Message("assistant", "x" if letter in "AB" else "", calls=tuple(calls)))
    return messages


async def is_taken(
    messages: Sequence[Message],
    render: Callable[[Sequence[Message]], Awaitable[str]],
    *,
    in_their_order: bool = True,
) -> bool:
    """Return whether `render` prints every text of `messages`. Marks stand in their place: a short text is easily found
    where another message has it too."""
    marks: list[str] = []

    def mark() -> str:
        marks.append(f"probe{len(marks)}word")
        return marks[-1]

    marked = []
    for message in messages:
        content = mark() if message.content else ""
        calls = tuple(replace(call, arguments=f'{{"a": "{mark()}"}}') for call in message.calls)
        marked.append(replace(message, content=content, calls=calls))
    try:
        prompt = await render(marked)
    except RequestError:
        return False
    end = 0
    for each in marks:
        found = prompt.find(each, end)
        if found < 0:
            return False
        end = found if in_their_order else 0
    return True


def in_order(messages: Sequence[Message], order: TemplateOrder) -> list[Message]:
    """Return `messages`, whose calls are whole, as a template of `order` takes them, with every text. Pure."""
    if not messages:  # before an answer that is to be continued
        return [Message("user", _OPENING)]
    ordered = [
        message
        for message, following in zip(messages, [*messages[1:], None], strict=True)
        # An answer of which only reasoning came was cut before it began.
        if following is None
        or following.role == "assistant"
        or message.content
        or message.calls
        or not message.reasoning
    ]
    ordered = _with_systems(ordered, order)
    if not order.takes_assistant_first:
        first = next((index for index, message in enumerate(ordered) if message.role != "system"), len(ordered))
        if ordered[first:] and ordered[first].role == "assistant":
            ordered.insert(first, Message("user", _OPENING))
    ordered = _joined(ordered, order)
    if not order.takes_text_with_call:
        ordered = [part for message in ordered for part in _text_apart(message, order)]
    if not order.takes_parallel_calls and order.takes_call_after_result:
        ordered = _with_single_calls(ordered)
    if not order.takes_no_tool_name:
        ordered = _with_tool_names(ordered)
    if not order.takes_any_call_id:
        return _with_plain_ids(ordered)
    return ordered if order.takes_no_call_id else _with_plain_ids(ordered, is_each=False)


def with_whole_calls(messages: Sequence[Message], order: TemplateOrder) -> list[Message]:
    """Return `messages` with calls that no template can write, and those that this one does not take, as text.

    That is a call cut off by max_tokens or by a client that stopped, and where a template insists on pairs, a call
    without result and a result without call. Their results are what the user says, after those of whole calls.
    """
    mended: list[Message] = []
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        if message.role == "tool" and not order.takes_result_without_call:
            mended.append(_said_result(message.name, message))
            continue
        if not message.calls:
            mended.append(message)
            continue
        pairs, results, others = _paired(message.calls, rest)
        texts, said = [], []
        kept: list[ToolCall] = []
        for call, result in pairs:
            is_open = result is None and not order.takes_call_without_result
            if call.arguments_object() is not None and not is_open:
                kept.append(call)
                continue
            texts.append(f"Incomplete call of {call.name}: {call.arguments}")
            if result is not None:
                results = [other for other in results if other is not result]
                said.append(_said_result(call.name, result))
        if texts:
            message = replace(
                message, content=PARAGRAPH_BREAK.join(filter(None, (message.content, *texts))), calls=tuple(kept)
            )
        if others and not order.takes_result_without_call:
            results = [result for result in results if all(result is not other for other in others)]
            said += [_said_result(result.name, result) for result in others]
        mended += [message, *results, *said]
    return mended


def _said_result(name: str, result: Message) -> Message:
    return Message("user", f"Result of the call of {name}: {result.content}" if name else f"Result: {result.content}")


def _paired(
    calls: Sequence[ToolCall], following: list[Message]
) -> tuple[list[tuple[ToolCall, Message | None]], list[Message], list[Message]]:
    """Return each call with its result, found by its id or else the next one, all results in `following`, which loses
    them, and those of no call."""
    n_results = next((index for index, other in enumerate(following) if other.role != "tool"), len(following))
    results, following[:n_results] = following[:n_results], []
    left, pairs = list(results), []
    for call in calls:
        named = [result for result in left if result.call_id and result.call_id == call.call_id]
        result = next(iter(named or left), None)
        if result is not None:
            left.remove(result)
        pairs.append((call, result))
    return pairs, results, left


def _with_systems(messages: Sequence[Message], order: TemplateOrder) -> list[Message]:
    n_first = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    first, rest = list(messages[:n_first]), list(messages[n_first:])
    if len(first) > 1 and not order.takes_several_systems:
        first = [Message("system", PARAGRAPH_BREAK.join(message.content for message in first if message.content))]
    if not order.takes_late_system:
        rest = [replace(message, role="user") if message.role == "system" else message for message in rest]
    if first and not order.takes_system:
        # Gemma 2 has no such role: its maker's advice is to put the text before the first question.
        said = [replace(message, role="user") for message in first]
        if rest[:1] and rest[0].role == "user":
            said.append(rest.pop(0))
        return [Message("user", PARAGRAPH_BREAK.join(message.content for message in said if message.content)), *rest]
    if not order.takes_no_user and all(message.role != "user" for message in rest):
        question = [replace(message, role="user") for message in first[-1:]] or [Message("user", _OPENING)]
        return [*first[:-1], *question, *rest]
    return [*first, *rest]


def _joined(messages: Sequence[Message], order: TemplateOrder) -> list[Message]:
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is None:
            joined.append(message)
        elif last.role == "tool" and message.role == "user" and not order.takes_user_after_result:
            joined[-1] = replace(last, content=PARAGRAPH_BREAK.join(filter(None, (last.content, message.content))))
        elif (message.role == "user" and not order.takes_users and last.role == "user") or (
            message.role == "assistant" and not order.takes_assistants and can_join(last, message)
        ):
            joined[-1] = join(last, message)
        else:
            joined.append(message)
    return joined


def _text_apart(message: Message, order: TemplateOrder) -> list[Message]:
    if not message.calls or not message.content:
        return [message]
    # Command R7B and others leave the text out; Mistral's, which want turns, do not count a message with calls as one.
    between = [] if order.takes_assistants else [Message("user", _GO_ON)]
    return [replace(message, calls=()), *between, Message("assistant", calls=message.calls)]


def can_join(one: Message, other: Message) -> bool:
    """Return whether two messages can be one; text that follows a call must not move before it."""
    return one.role == other.role != "tool" and (not one.calls or not other.content)


def join(one: Message, other: Message) -> Message:
    """Return two messages of one role as one."""
    return replace(
        other,
        content=PARAGRAPH_BREAK.join(filter(None, (one.content, other.content))),
        reasoning=PARAGRAPH_BREAK.join(filter(None, (one.reasoning, other.reasoning))),
        calls=(*one.calls, *other.calls),
    )


def _with_single_calls(messages: Sequence[Message]) -> list[Message]:
    """Return `messages` with one call in each, followed by its result: Llama 3.1 to 3.3 refuse more, GigaChat and
    GPT-OSS leave them out."""
    ordered: list[Message] = []
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        if len(message.calls) < 2:
            ordered.append(message)
            continue
        pairs, _, left = _paired(message.calls, rest)
        for number, (call, result) in enumerate(pairs):
            one = message if number == 0 else Message("assistant")
            ordered += [replace(one, calls=(call,)), *([result] if result is not None else [])]
        ordered += left
    return ordered


def _with_tool_names(messages: Sequence[Message]) -> list[Message]:
    names = {call.call_id: call.name for message in messages for call in message.calls}
    return [
        replace(message, name=names.get(message.call_id, "unknown"))
        if message.role == "tool" and not message.name
        else message
        for message in messages
    ]


def _with_plain_ids(messages: Sequence[Message], *, is_each: bool = True) -> list[Message]:
    """Return `messages` with ids of nine letters and digits, made of the client's, so that a later prompt has the same
    ones and its prefix is reused. A call without id gets one by its number in the conversation; unless `is_each`, only
    such calls get one."""
    ordered: list[Message] = []
    unanswered: list[tuple[str, str]] = []  # ids of the client and of the template
    n_calls = 0
    for message in messages:
        if message.calls:
            unanswered = []
            for call in message.calls:
                n_calls += 1
                is_kept = call.call_id and not is_each
                new = call.call_id if is_kept else _plain_id(call.call_id or f"call {n_calls}")
                unanswered.append((call.call_id, new))
            calls = [replace(call, call_id=new) for call, (_, new) in zip(message.calls, unanswered, strict=True)]
            message = replace(message, calls=tuple(calls))
        elif message.role == "tool":
            known = next((pair for pair in unanswered if message.call_id in ("", pair[0])), None)
            if known is not None:
                unanswered.remove(known)
            if known is not None or is_each or not message.call_id:
                message = replace(message, call_id=known[1] if known is not None else _plain_id(message.call_id))
        ordered.append(message)
    return ordered


def _plain_id(call_id: str) -> str:
    if _PLAIN_ID.fullmatch(call_id):
        return call_id
    number = int.from_bytes(blake2b(call_id.encode("utf-8", "replace"), digest_size=8).digest())
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_ID_ALPHABET))
        digits.append(_ID_ALPHABET[digit])
    return "".join(digits)
