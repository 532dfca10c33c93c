"""One turn of a conversation in any dialect, and the generation that answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from app.common.answer_text import reasoning_tags_of
from app.common.common_prefix import common_prefix
from app.engine.grammar.answer_format import AnswerFormat
from app.engine.request import Request
from app.protocol.chat import Message
from app.protocol.errors import RequestError
from app.service.generation.generation import Answer, Generation
from app.service.generation.harmony import HARMONY_TAGS
from app.service.generation.media import NO_MEDIA, PromptMedia, notice_of_notes
from app.service.generation.prompt import write_prompt
from app.service.generation.thinking import DEFAULT_THINKING, Thinking, reasoning_budget
from app.service.models.served_model import ServedModel
from app.service.tools.call_grammar import BoundCalls, answer_grammar, bound_calls
from app.service.tools.formats import GENERIC, tool_format_of
from app.service.tools.parser import NO_TOOLS, ToolCalling, ToolOptions

_OTHER_WORDS = ("A", "B")
_MOST_PART_ENDS = 3  # of a message, the last ones: each is a prompt rendered and tokenized


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """`messages` to be answered by `n_answers` of `request`, which has no prompt yet.

    Pictures and sounds stand in the messages as markers of `media`. Unless `separates_reasoning`, reasoning is part of
    the text. With `continues` an answer continues the last message, if that is the assistant's. Unless it
    `opens_answer`, the prompt ends with the last message, and the model writes what begins an answer. An answer has the
    `answer_format`, if that is given, after reasoning; with tools it has that or calls.

    Raises RequestError for a grammar of the request together with tools or a format.
    """

    messages: Sequence[Message]
    request: Request
    tools: ToolOptions = NO_TOOLS
    answer_format: AnswerFormat | None = None
    n_answers: int = 1
    thinking: Thinking = DEFAULT_THINKING
    separates_reasoning: bool = True
    continues: bool = False
    opens_answer: bool = True
    media: PromptMedia = NO_MEDIA

    def __post_init__(self) -> None:
        if self.request.sampling.grammar and (self.tools.tools or self.answer_format):
            other = "tools" if self.tools.tools else "a schema of the answer (response_format)"
            raise RequestError(f"Both a grammar and {other} are given.", "Send one of them.")

    @property
    def begun(self) -> str:
        """The text that the answer continues."""
        last = self.messages[-1]
        return last.content if self.continues and last.role == "assistant" and not last.calls else ""

    def bound(self, generation: Generation, chat_template: str, calls: BoundCalls | None = None) -> Request:
        """Return the request of `generation` with what binds its answer: the budget of reasoning, a grammar, or
        `calls`, which are computed unless they are given. Raises RequestError for what cannot be enforced, and has
        notices of what is not."""
        (request,) = generation.requests
        if self.answer_format:
            request = replace(request, notices=self.answer_format.notices)
        tags, tool_calling = generation.tags, generation.tool_calling
        if not request.sampling.grammar:  # the client's has no rules for reasoning
            may_call = tool_calling is not None
            budget = reasoning_budget(tags, chat_template, self.thinking, may_call=may_call)
            request = replace(request, reasoning=budget)
        if tool_calling is not None:
            calls = calls or bound_calls(tool_calling, tags, self.answer_format)
            notices = (*calls.notices, *request.notices)
            return replace(request, sampling=replace(request.sampling, calls=calls.rules), notices=notices)
        if self.answer_format:
            grammar = answer_grammar(self.answer_format, tags)
            return replace(request, sampling=replace(request.sampling, grammar=grammar))
        return request


async def chat_generation(model: ServedModel, turn: ChatTurn) -> Generation:
    """Return the generation of `turn` on `model`. Raises RequestError where its template refuses the messages."""
    model = model.for_chat(has_tools=bool(turn.tools.tools))

    async def render(messages: Sequence[Message]) -> str:
        return (await write_prompt(model, messages, turn.tools, turn.thinking))[0]

    generation = await prompt_of(model, turn)
    media = await turn.media.inputs(generation.prompt)
    branches: tuple[int, ...] = ()
    facts = model.engine.status.facts
    if facts is None or not facts.truncation.is_unlimited:  # the model may be one that needs such places
        branches = await branches_of(generation.prompt, turn.messages, render)
    request = replace(generation.requests[0], media=media, branches=branches)
    generation, calls = replace(generation, requests=(request,)), None
    if generation.tool_calling is not None:  # a second for 200 tools that were not seen before
        calls = await asyncio.to_thread(bound_calls, generation.tool_calling, generation.tags, turn.answer_format)
    requests = turn.bound(generation, model.file.chat_template, calls).variants(turn.n_answers)
    if notice := notice_of_notes(turn.messages, turn.media.senses):
        model.record.notices.append(notice)

    def prefill_next(answer: Answer) -> None:
        if answer.calls or turn.begun:  # a tool answers next, or the message is not whole
            return
        sends_reasoning = any(message.reasoning for message in turn.messages)
        said = Message("assistant", answer.text, reasoning=answer.reasoning if sends_reasoning else "")

        async def prompt_after(text: str) -> str:
            return await render([*turn.messages, said, Message("user", text)])

        model.prefill_ahead(requests[0], prompt_after)

    return replace(generation, requests=requests, on_finished=prefill_next)


async def prompt_of(model: ServedModel, turn: ChatTurn) -> Generation:
    """Return the generation of `turn` as far as its prompt says: one request, up to where the answer goes on, which
    nothing binds yet. Raises RequestError as the template does."""
    model = model.for_chat(has_tools=bool(turn.tools.tools))
    file, begun = model.file, turn.begun
    messages = turn.messages[:-1] if begun else turn.messages
    opens_answer = turn.opens_answer or bool(begun)
    text, quoted = await write_prompt(model, messages, turn.tools, turn.thinking, opens_answer=opens_answer)
    tags = reasoning_tags_of(file.chat_template, text)
    has_grammar = bool(turn.request.sampling.grammar)  # of the text: it has no rules for reasoning
    add_special = not (file.bos_token and text.startswith(file.bos_token))
    if begun or (has_grammar and (tags.has_channels or tags.is_open or tags.begun)):
        closing = tags.closing if tags.is_open else ""
        text = f"{text}{closing}{tags.before_text.removeprefix(tags.begun)}{begun}"
        tags = replace(tags, is_open=False, is_past=True, begun="")  # a call begins with all of its header
    tool_format = tool_format_of(file.chat_template) or GENERIC
    tool_calling = ToolCalling(tool_format, turn.tools) if turn.tools.tools else None
    # Tags of reasoning and calls may be special tokens, which are shown only where they are named.
    visible = (*tags.visible, *(tool_format.tags if tool_calling else ()))
    request = replace(
        turn.request,
        prompt=text,
        add_special=add_special,
        visible_tags=HARMONY_TAGS if tags.has_channels else visible,
        quoted=quoted,
    )
    return Generation(
        (request,),
        tags,
        tool_calling,
        separates_reasoning=turn.separates_reasoning,
        is_verbatim=bool(turn.request.sampling.grammar or turn.answer_format),
    )


async def n_prompt_tokens(model: ServedModel, turn: ChatTurn) -> int:
    generation = await prompt_of(model, turn)
    media = await turn.media.inputs(generation.prompt)
    return await model.n_tokens(generation.prompt, add_special=generation.requests[0].add_special, media=media)


async def branches_of(
    prompt: str, messages: Sequence[Message], render: Callable[[Sequence[Message]], Awaitable[str]]
) -> tuple[int, ...]:
    """Return the ends, in characters of `prompt`, of what it shares with prompts that differ from a message on, or from
    the end of a part of it: a model with states should save them there.

    A template may print its last messages otherwise, or refuse fewer of them: what is shared is then shorter, or the
    place is left out.
    """
    # Chats share a system prompt and tools before the first, and the documents in it; the last one is edited or
    # answered again.
    of_user = [index for index, message in enumerate(messages) if message.role == "user"]
    ends: set[int] = set()
    for index in {*of_user[:1], *of_user[-1:]}:
        content = messages[index].content
        for place in (0, *messages[index].part_ends[-_MOST_PART_ENDS:]):
            said = content[place:].lstrip()
            word = next(word for word in _OTHER_WORDS if not said.startswith(word))
            try:
                other = await render([*messages[:index], replace(messages[index], content=content[:place] + word)])
            except RequestError:
                continue
            ends.add(len(common_prefix(prompt, other)))
    return tuple(sorted(ends - {0}))
