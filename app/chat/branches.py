"""The messages of the open chat, the shown branch, and the turns sent to the model.

Pure: independent of widgets, services and disks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise, takewhile

from app.chat.attachments.prompt import compose_prompt
from app.chat.compaction import TOKENS_AFTER, estimated_tokens, message_tokens, replaced_messages, sent_branch
from app.chat.conversation import (
    ChatSettings,
    MediaFile,
    Message,
    MessageContent,
    MessageState,
    MessageTree,
    Scalar,
    call_text,
    cited_sources,
    placed,
)
from app.chat.turns import made_calls, media_files_of, turns_of
from app.protocol.chat import MediaPart, Source, ToolCall
from app.protocol.chat import Message as ChatMessage
from app.protocol.codec import decode, encode
from app.tools.tool import ToolProgress
from quantizer.system.errors import ErrorInfo, UserError

# The id of a question that could not be stored, and was not sent.
UNSAVED_ID = 0
_FAILURE = "failure"  # key of a message's stats
_NO_PARTS: Mapping[str, MediaPart] = {}
_ANSWERING = frozenset({"assistant", "summary"})
_TAIL_CHARACTERS = 4000  # of the output of a running call


class Ending(Enum):
    """How a message ended."""

    COMPLETE = "complete"
    CUT = "cut"  # at the limit of tokens
    STOPPED = "stopped"  # by the user, or with its process
    ELSEWHERE = "elsewhere"  # not yet: another window writes it
    FAILED = "failed"


# By how an answer without text ended, and whether it has reasoning; an error or a stop says enough.
_EMPTY_ANSWERS = {
    (Ending.COMPLETE, False): "The model wrote nothing.",
    (Ending.COMPLETE, True): "The model wrote nothing after its thoughts.",
    (Ending.CUT, False): "The model wrote nothing before the token limit.",
    (Ending.CUT, True): "The thoughts reached the token limit before an answer.",
}


@dataclass(frozen=True, slots=True)
class LiveCall:
    """How far a running call of a tool is, and the end of what it has written so far."""

    progress: ToolProgress | None = None
    output: str = ""

    def after(self, progress: ToolProgress) -> LiveCall:
        """Return it with what `progress` adds: a piece of output leaves the last message as it is."""
        is_output_only = bool(progress.output) and not progress.message and progress.done is None
        output = (self.output + progress.output)[-_TAIL_CHARACTERS:]
        return LiveCall(self.progress if is_output_only else progress, output)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptEntry:
    """A shown message: its version (from 1 on), whether it is running, and the error that ended it in this session.
    `beside` is another version to compare it with; an answer that `has_figures` shows them, and
    one that `names_model` has another than the answer before it. Another window goes on after one that
    `is_elsewhere`.

    A message of role "tool" answers `call`, which has `live` while it runs. An entry that `is_joined` is followed by
    another call of the same answer. A summary replaces `n_summarised` messages; a running one is written in parts, of
    which this is the `part`. An answer was given the passages `sources` of the person's documents.
    """

    message: Message
    version: int = 1
    n_versions: int = 1
    is_running: bool = False
    is_elsewhere: bool = False
    error: UserError | None = None
    beside: TranscriptEntry | None = None
    has_figures: bool = False
    names_model: bool = True
    call: ToolCall | None = None
    live: LiveCall | None = None
    is_joined: bool = False
    n_summarised: int = 0
    part: tuple[int, int] = (1, 1)
    sources: tuple[Source, ...] = ()

    @property
    def ending(self) -> Ending:
        if self.is_elsewhere and self.message.state is MessageState.PARTIAL:
            return Ending.ELSEWHERE
        if self.error is not None:
            return Ending.FAILED
        if self.message.state is MessageState.PARTIAL:
            return Ending.STOPPED
        return Ending.CUT if self.message.stats.get("finish_reason") == "length" else Ending.COMPLETE


@dataclass(frozen=True, slots=True)
class RemovedMessages:
    """Removed messages, parents before children, and the branch shown before."""

    messages: tuple[Message, ...]
    leaf_id: int | None


@dataclass(frozen=True, slots=True)
class ContextSize:
    """The tokens of a branch with its prompt format; an estimate where no engine has counted all of them."""

    n_tokens: int = 0
    is_estimated: bool = False


@dataclass(slots=True)
class Conversation:
    """All messages of one chat by id. Raises KeyError for an unknown id. `leaf_id` is the end of the shown branch,
    `running_id` the running answer, `elsewhere` the messages after which other windows go on; `errors` holds the
    errors of this session by message, `live` the calls of tools that run. What the version `compared_id` says last
    is shown beside what the branch says in its place; `shows_figures` of every answer."""

    settings: ChatSettings = field(default_factory=ChatSettings)
    messages: dict[int, Message] = field(default_factory=dict)
    leaf_id: int | None = None
    running_id: int | None = None
    compared_id: int | None = None
    shows_figures: bool = False
    elsewhere: frozenset[int] = frozenset()
    part: tuple[int, int] = (1, 1)  # of a running summary
    errors: dict[int, UserError] = field(default_factory=dict)
    live: dict[int, LiveCall] = field(default_factory=dict)

    @property
    def branch(self) -> tuple[Message, ...]:
        """The shown messages, from the first to the leaf."""
        return self._tree.path(self.leaf_id)

    @property
    def last_answer(self) -> str:
        """The latest answer with text, or an empty string."""
        answers = (message.content for message in reversed(self.branch) if message.role == "assistant")
        return next((answer for answer in answers if answer), "")

    @property
    def unfinished_answer(self) -> Message | None:
        """The message that ends the branch if the answer can be continued: it was stopped or cut off and has text, or
        its calls have not run or have no answer yet."""
        last = self._last
        if last is None or last.message.role not in ("assistant", "tool") or last.is_elsewhere:
            return None
        if last.message.role == "tool" or made_calls(last.message):
            return last.message if last.message.role == "assistant" or last.message.result else None
        if last.ending is Ending.COMPLETE:
            return None
        parent_id = last.message.parent_id
        follows_calls = parent_id is not None and self.messages[parent_id].role == "tool"
        return last.message if last.message.content or follows_calls else None

    @property
    def is_answered_elsewhere(self) -> bool:
        """Whether another window goes on after the shown branch."""
        return self.leaf_id in self.elsewhere

    @property
    def is_answered(self) -> bool:
        """Whether the branch ends with an answer or a summary that was not stopped, did not fail and calls nothing."""
        last = self._last
        if last is None or last.message.role not in _ANSWERING or made_calls(last.message):
            return False
        return last.ending in {Ending.COMPLETE, Ending.CUT}

    @property
    def _last(self) -> TranscriptEntry | None:
        entries = self.entries()
        return entries[-1] if entries else None

    def entries(self) -> tuple[TranscriptEntry, ...]:
        tree = self._tree
        branch = tree.path(self.leaf_id)
        calls: dict[str, ToolCall] = {}
        entries: list[TranscriptEntry] = []
        model_before, cited = "", cited_sources(branch)
        for index, message in enumerate(branch):
            calls |= {call.call_id: call for call in message.calls}
            entry = self._entry(message, tree.siblings(message.id))
            names_model = message.model != model_before
            entry = replace(entry, names_model=names_model, sources=cited.get(message.id, ()))
            model_before = message.model or model_before
            if message.result is not None:
                entry = replace(entry, call=calls.get(message.result.call_id))
            if message.role == "tool" and index + 1 < len(branch):  # shown right above another call
                entry = replace(entry, is_joined=branch[index + 1].role == "tool" or has_only_calls(branch[index + 1]))
            if message.role == "summary":
                entry = replace(entry, n_summarised=len(replaced_messages(branch[: index + 1])))
            entries.append(entry)
        return self._compared(entries, tree)

    def add(self, message: Message) -> None:
        """Add or replace a message, and show the branch that ends with it."""
        self.messages[message.id] = message
        self.leaf_id = message.id

    def merge(self, messages: Iterable[Message]) -> None:
        """Add or replace messages that another window stored; the shown branch stays."""
        known = self.messages | {message.id: message for message in messages}
        self.messages = {message_id: known[message_id] for message_id in sorted(known)}

    def newest_leaf(self, without_id: int | None = None) -> int | None:
        """Return the end of the branch with the newest message, leaving out the message `without_id` and what follows
        it; None without any."""
        left_out = set() if without_id is None else set(self._tree.below(without_id))
        return max((id_ for id_ in self.messages if id_ not in left_out), default=None)

    def newest_below_leaf(self) -> int | None:
        """Return the end of the newest branch that goes on after the shown one; None if none does."""
        followed = any(message.parent_id == self.leaf_id for message in self.messages.values())
        if not followed:
            return None
        return self._tree.leaf_below(self.leaf_id) if self.leaf_id is not None else self.newest_leaf()

    def begin(self, answer: Message) -> None:
        self.add(answer)
        self.running_id = answer.id
        self.errors.pop(answer.id, None)

    def end(self, answer: Message) -> None:
        """Replace the running answer by its final state."""
        self.running_id = None
        self.messages[answer.id] = answer

    def step_to_version(self, message_id: int, n_steps: int) -> int | None:
        """Show the version `n_steps` to the right of a message, and return its id; None if there is none."""
        tree = self._tree
        leaf_id = tree.beside(message_id, n_steps)
        if leaf_id is None:
            return None
        self.leaf_id = leaf_id
        versions = tree.siblings(message_id)
        return versions[versions.index(message_id) + n_steps]

    def show(self, message_id: int) -> None:
        """Show a branch that contains this message; the current one if it does."""
        tree = self._tree
        if message_id not in {message.id for message in tree.path(self.leaf_id)}:
            self.leaf_id = tree.leaf_below(message_id)

    def remove(self, message_id: int) -> RemovedMessages:
        """Remove a message and its descendants; another version is shown instead."""
        doomed = set(self._tree.below(message_id))
        removed = RemovedMessages(tuple(m for m in self.messages.values() if m.id in doomed), self.leaf_id)
        parent_id = self.messages[message_id].parent_id
        self.messages = {id_: message for id_, message in self.messages.items() if id_ not in doomed}
        if self.leaf_id in doomed:
            versions = [message.id for message in self.messages.values() if message.parent_id == parent_id]
            self.leaf_id = self._tree.leaf_below(max(versions)) if versions else parent_id
        return removed

    def restore(self, removed: RemovedMessages) -> None:
        self.messages = dict(sorted([*self.messages.items(), *((m.id, m) for m in removed.messages)]))
        self.leaf_id = removed.leaf_id

    def compare_last(self, other_id: int | None = None) -> bool:
        """Show another version of the last answer beside it, by default the one before it or, of the first, the next;
        return False if there is none. If two are compared already, end that."""
        if self.compared_id is not None and other_id is None:
            self.compared_id = None
            return True
        self.compared_id = other_id or next(self._others_of_last_answer(), None)
        return self.compared_id is not None

    def _others_of_last_answer(self) -> Iterator[int]:
        """Yield the other versions of the last answer, the nearest earlier one first; then those of the answers whose
        calls led to it."""
        tree, branch = self._tree, self.branch
        question = max((index for index, message in enumerate(branch) if message.role == "user"), default=0)
        for answer in reversed([message for message in branch[question:] if message.role == "assistant"]):
            others = [id_ for id_ in tree.siblings(answer.id) if id_ != answer.id]
            yield from reversed([id_ for id_ in others if id_ < answer.id])
            yield from (id_ for id_ in others if id_ > answer.id)

    def summary_after(self, message_id: int) -> int | None:
        """Return the id of the summary that follows a message on the shown branch, None if another message does."""
        for before, after in pairwise(self.branch):
            if before.id == message_id and after.role == "summary" and after.state is MessageState.FINISHED:
                return after.id
        return None

    def editable(self, message_id: int) -> Message | None:
        """Return the message that editing this one changes: itself if it is a summary, else its question, or None."""
        message = self.messages[message_id]
        return message if message.role == "summary" else self.question_of(message_id)

    def question_of(self, message_id: int) -> Message | None:
        messages = self._tree.path(message_id)
        return next((message for message in reversed(messages) if message.role == "user"), None)

    def turns(self, leaf_id: int | None, parts: Mapping[str, MediaPart] = _NO_PARTS) -> list[ChatMessage]:
        """Return the turns up to a message, as sent to the model: the last summary, what it keeps and what follows it;
        of questions whose answer never ended, only the last one. `parts` are the pictures and sounds of `media_files`
        by their SHA-256."""
        return self.turns_of(self._tree.path(leaf_id), parts)

    def turns_of(self, path: Sequence[Message], parts: Mapping[str, MediaPart] = _NO_PARTS) -> list[ChatMessage]:
        """Return the turns of a branch, which need not be one of the chat; see `turns`."""
        return turns_of(path, parts, self.settings.system)

    def path(self, leaf_id: int | None) -> tuple[Message, ...]:
        """Return the branch up to a message, its beginning first."""
        return self._tree.path(leaf_id)

    def path_with(self, question: MessageContent, parent_id: int | None) -> tuple[Message, ...]:
        """Return the branch that asking `question` after a message makes."""
        asked = placed(replace(question, role="user"), max(self.messages, default=0) + 1, parent_id)
        return (*self._tree.path(parent_id), asked)

    def media_files(self, leaf_id: int | None) -> tuple[MediaFile, ...]:
        return self.media_files_of(self._tree.path(leaf_id))

    def media_files_of(self, path: Sequence[Message]) -> tuple[MediaFile, ...]:
        return media_files_of(path)

    def context_size(self, leaf_id: int | None) -> ContextSize:
        """Return the context used up to a message: as the last finished answer counted it, with an estimate of the
        rest."""
        sent = sent_branch(self._tree.path(leaf_id))
        n_counted_otherwise = len(sent.path) - len(sent.messages) + sent.n_kept
        size = ContextSize(estimated_tokens(self.settings.system), bool(self.settings.system))
        if sent.summary is not None:
            n_after = sent.summary.stats.get(TOKENS_AFTER)
            before = message_tokens(sent.path[:n_counted_otherwise], self.settings.system, n_counted_otherwise)
            size = ContextSize(n_after if isinstance(n_after, int) else before.total, is_estimated=True)
        for message in sent.path[n_counted_otherwise:]:
            n_prompt, n_output = (message.stats.get(name) for name in ("n_prompt_tokens", "n_output_tokens"))
            if isinstance(n_prompt, int) and isinstance(n_output, int):
                size = ContextSize(n_prompt + n_output)
            else:
                text = "\n".join(
                    [
                        compose_prompt(message.content, message.attachments, message.sources),
                        *map(call_text, message.calls),
                    ]
                )
                n_tokens = n_output if isinstance(n_output, int) else estimated_tokens(text)
                size = ContextSize(size.n_tokens + n_tokens, is_estimated=size.is_estimated or n_tokens > 0)
        return size

    def is_counted(self, leaf_id: int | None) -> bool:
        """Return whether an engine counted a prompt of the branch up to a message, with all that is sent before it."""
        return any(isinstance(message.stats.get("n_prompt_tokens"), int) for message in self._tree.path(leaf_id))

    def _entry(self, message: Message, versions: tuple[int, ...]) -> TranscriptEntry:
        return TranscriptEntry(
            message=message,
            version=versions.index(message.id) + 1,
            n_versions=len(versions),
            is_running=message.id == self.running_id,
            is_elsewhere=message.id in self.elsewhere,
            error=self.errors.get(message.id) or (None if message.id in self.elsewhere else stored_failure(message)),
            has_figures=self.shows_figures,
            live=self.live.get(message.id),
            part=self.part,
        )

    def _compared(self, entries: list[TranscriptEntry], tree: MessageTree) -> tuple[TranscriptEntry, ...]:
        """Return the entries with the compared version beside its other one: what either said last, after its calls."""
        compared_id, ids = self.compared_id, [entry.message.id for entry in entries]
        if compared_id is None or compared_id not in self.messages or compared_id in ids:
            return tuple(entries)
        versions = set(tree.siblings(compared_id))
        at = next((index for index, id_ in enumerate(ids) if id_ in versions), None)
        last = None if at is None else _last_answer([entry.message for entry in entries[at:]])
        other = tree.path(tree.leaf_below(compared_id))
        said = _last_answer(other[[message.id for message in other].index(compared_id) :])
        if last is None or said is None:
            return tuple(entries)
        beside = replace(self._entry(said, tree.siblings(said.id)), has_figures=True)
        index = ids.index(last.id)
        shown = replace(entries[index], beside=beside, has_figures=True, names_model=True)
        return (*entries[:index], shown, *entries[index + 1 :])

    @property
    def _tree(self) -> MessageTree:
        return MessageTree(self.messages.values())


def failure_stats(error: UserError) -> dict[str, Scalar]:
    """Return `error` as a figure of the answer that it ended, so that it is known when the chat is opened again."""
    return {_FAILURE: json.dumps(encode(ErrorInfo.of(error)))}


def stored_failure(message: Message) -> UserError | None:
    """Return the error that ended an unfinished answer, None where a person or the end of the process did. What an
    imported chat says there may be anything."""
    text = message.stats.get(_FAILURE)
    if message.state is not MessageState.PARTIAL or not isinstance(text, str):
        return None
    try:
        return decode(ErrorInfo, json.loads(text)).error()
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def empty_answer_text(entry: TranscriptEntry) -> str:
    """Return a sentence in place of an answer that ended without text; empty for every other answer."""
    message = entry.message
    is_empty = message.role == "assistant" and not message.content.strip() and not message.calls
    return _EMPTY_ANSWERS.get((entry.ending, bool(message.reasoning)), "") if is_empty else ""


def has_only_calls(message: Message) -> bool:
    """Return whether an answer has nothing to read but its calls of tools."""
    return bool(message.calls) and not message.content.strip() and not message.reasoning


def _last_answer(messages: Sequence[Message]) -> Message | None:
    """Return the last answer before the next question."""
    of_turn = takewhile(lambda message: message.role != "user", messages)
    return next((message for message in reversed(list(of_turn)) if message.role == "assistant"), None)
