"""The answers of GPT-OSS, in the Harmony format: messages with a header each, which names a channel or a recipient.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…` is reasoning, then text; a
message `to=functions.NAME` is a call. Owns how a header is read, and what becomes of headers that are damaged. Source:
OpenAI's "Harmony response format", and the chat template of gpt-oss-120b.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.common.answer_text import partial_match_length
from app.protocol.chat import AnswerDelta, ToolCallDelta, joined_deltas
from app.service.tools.argument_forms import JsonArguments
from app.service.tools.parser import ToolOptions, new_call_id

MAX_HEADER_CHARACTERS = 256
_MESSAGE = "<|message|>"
_ENDINGS = ("<|end|>", "<|call|>", "<|return|>")
_HEADER_TAGS = ("<|start|>", "<|channel|>", "<|constrain|>", _MESSAGE)
HARMONY_TAGS = (*_HEADER_TAGS, *_ENDINGS)  # special tokens, which must be visible for answers to be parsed
HARMONY_BOUNDS = (*_ENDINGS, "<|start|>", "<|channel|>")  # of a message's content; models forget its end

_TAG = re.compile(r"<\|(?:start|channel|constrain|message|end|call|return)\|>")
_ROLE = re.compile(r"\s*(?P<name>(?!to=)[\w.-]*)")
_RECIPIENT = re.compile(r"\bto=(?P<name>[^\s<]+)")
_CHANNELS = ("analysis", "commentary", "final")
_CHANNEL = re.compile(rf"<\|channel\|>\s*(?P<name>{'|'.join(_CHANNELS)})")
_REST_OF_HEADER = re.compile(r"(?:\s|to=[^\s<]*|<\|(?:constrain|channel|start)\|>|assistant|json|code)*")
_WORD = re.compile(r"[\w.-]*")
_LETTER = re.compile(r"\w")
_BEFORE_TAG = re.compile(r"\s*(?:assistant)?\s*(?:to=\S+(?:\s+\w+)?)?\s*")  # a role, a recipient, or neither
_SEPARATORS = " \t\r\n,;]}"  # after arguments; models add a brace too many
_NAMESPACE = "functions."
_NOBODY = ("assistant", "user", "all")  # recipients that are no tools
_PARAGRAPH_BREAK = "\n\n"  # between two messages of one kind

Part: TypeAlias = Literal["text", "reasoning"]


@dataclass(frozen=True, slots=True)
class _Header:
    """The header of a message: who speaks, on which channel, to whom; empty where it does not say."""

    role: str
    channel: str
    recipient: str

    @property
    def part(self) -> Part:
        """What the message is part of, if it is no call. Nobody but the assistant speaks to the user."""
        is_answer = self.role in ("", "assistant") and self.channel != "analysis"
        return "text" if is_answer else "reasoning"

    @property
    def function(self) -> str:
        """The tool that is called; models leave its namespace out."""
        return self.recipient.removeprefix(_NAMESPACE) if self.role in ("", "assistant") else ""


class HarmonyParser:
    """Splits one answer with the tools of `options`.

    A message of the analysis is reasoning, and others are text, unless the recipient is a tool: that is a call on
    whatever channel. A call of an unknown tool stays as it is. Text that `is_verbatim` is the last message, whatever it
    quotes. Each step reads from the unread text and returns whether another step can follow without more text.
    """

    def __init__(
        self,
        options: ToolOptions,
        *,
        begins_in_text: bool = False,
        separates_reasoning: bool = True,
        is_verbatim: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._tools = {tool.name for tool in options.callable_tools}
        self._may_repeat = options.may_repeat
        self._separates_reasoning = separates_reasoning
        self._is_verbatim = is_verbatim
        self._new_id = new_id
        self._unread = ""
        self._is_final = False
        self._n_calls = 0
        self._function = ""  # whose call the last header may have begun
        self._doubtful = ""  # that header, which is text if it has not
        self._part: Part = "text"
        self._shown = {"text": False, "reasoning": False}  # whether any was
        self._is_first = False  # of the message's content
        self._is_raw = False
        self._arguments = JsonArguments()
        self._step = self._content if begins_in_text else self._header
        self._said: dict[Part, list[str]] = {"text": [], "reasoning": []}
        self._calls: list[ToolCallDelta] = []

    @property
    def is_holding(self) -> bool:
        return bool(self._unread or self._doubtful)

    def push(self, text: str, *, is_final: bool = False) -> AnswerDelta:
        """Return the parts that are certain after `text`; with `is_final`, all that was held back."""
        self._unread += text
        self._is_final = is_final
        while self._step():
            pass
        text, reasoning = "".join(self._said["text"]), "".join(self._said["reasoning"])
        parsed = AnswerDelta(text, reasoning=reasoning, calls=joined_deltas(self._calls))
        self._said, self._calls = {"text": [], "reasoning": []}, []
        return parsed

    # Between messages

    def _header(self) -> bool:
        """Read up to the content of the next message; text without a header is the answer."""
        window = self._unread[:MAX_HEADER_CHARACTERS]
        tag = _TAG.search(window)
        is_whole = tag is not None or self._is_final
        n_before = tag.start() if tag else len(window) - (0 if is_whole else partial_match_length(window, HARMONY_TAGS))
        if not _may_begin_header(window[:n_before], is_whole=is_whole):
            return self._begin("text")
        bound = next((found for found in _TAG.finditer(window) if found[0] in (_MESSAGE, *_ENDINGS)), None)
        if bound is not None and bound[0] == _MESSAGE:
            return self._end_header(window[: bound.start()], bound.end())
        if bound is None and len(self._unread) < MAX_HEADER_CHARACTERS and not self._is_final:
            return False
        n_header, n_read = (len(window), len(window)) if bound is None else bound.span()
        return self._begin_without_message(window[:n_header], n_read)

    def _end_header(self, text: str, n_read: int) -> bool:
        text = text.rpartition("<|start|>")[2]  # between the end of a message and the content of the next
        found = (pattern.search(text) for pattern in (_ROLE, _CHANNEL, _RECIPIENT))
        header = _Header(*(each["name"] if each else "" for each in found))
        if header.function in self._tools and (not self._n_calls or self._may_repeat):
            self._function, self._doubtful = header.function, self._unread[:n_read]
            self._part, self._step = header.part, self._call
        elif header.recipient not in ("", *_NOBODY) if header.part == "text" else not self._separates_reasoning:
            self._begin_raw(n_read)
        else:
            self._begin(header.part)
        self._unread = self._unread[n_read:]
        return True

    def _begin_without_message(self, text: str, n_read: int) -> bool:
        """Begin the content of a message whose header `text` has no end, or drop a header without content.

        Models put what is no answer behind `<|channel|>`, and then begin again.
        """
        tags = list(_TAG.finditer(text))
        if not tags:
            return self._begin("text") if text.strip() and n_read == len(text) else self._drop(n_read)
        begin = max((found.start() for found in tags if found[0] == "<|channel|>"), default=len(text))
        channel, word = _CHANNEL.match(text, begin), _WORD.match(text, tags[-1].end())
        is_role = tags[-1][0] != "<|channel|>"
        end = channel.end() if channel else word.end() if word and is_role else tags[-1].end()
        is_cut = channel is None and any(name.startswith(text[end:].strip()) for name in _CHANNELS)
        if is_cut or _REST_OF_HEADER.fullmatch(text, end):
            return self._drop(n_read)
        is_text = channel["name"] == "final" if channel else is_role
        if not (is_text or _LETTER.search(text, end)):
            return self._drop(n_read)
        self._begin("text" if is_text else "reasoning")
        return self._drop(end)

    def _drop(self, n_characters: int) -> bool:
        self._unread = self._unread[n_characters:]
        return bool(self._unread)

    # In a message

    def _begin(self, part: Part) -> bool:
        self._part, self._is_first, self._is_raw, self._step = part, True, False, self._content
        return True

    def _begin_raw(self, n_header: int) -> bool:
        """Begin text that includes its header, the next `n_header` characters, and its end."""
        self._begin("text")
        self._is_raw = True
        self._show(self._unread[:n_header])
        return True

    def _content(self) -> bool:
        if self._is_verbatim and self._part == "text" and not self._is_raw:
            self._show(self._unread)
            self._unread = ""
            return False
        drops_blanks = self._part == "reasoning"
        if drops_blanks and self._is_first:
            self._unread = self._unread.lstrip()
        found = [(index, tag) for tag in HARMONY_BOUNDS if (index := self._unread.find(tag)) >= 0]
        if found:
            index, tag = min(found)
            content = self._unread[:index]
            self._show(content.rstrip() if drops_blanks else content)
            self._unread = self._unread[index:]
            if tag in _ENDINGS:
                if self._is_raw:
                    self._show(tag)
                self._unread = self._unread.removeprefix(tag)
            self._step = self._header
            return True
        n_shown = len(self._unread)
        if not self._is_final:
            n_shown -= partial_match_length(self._unread, HARMONY_BOUNDS)
        if drops_blanks:
            n_shown = len(self._unread[:n_shown].rstrip())
        self._show(self._unread[:n_shown])
        self._unread = "" if self._is_final else self._unread[n_shown:]
        return False

    def _show(self, text: str) -> None:
        if not text:
            return
        if self._is_first and self._shown[self._part]:
            self._said[self._part].append(_PARAGRAPH_BREAK)
        self._is_first, self._shown[self._part] = False, True
        self._said[self._part].append(text)

    # In a call

    def _call(self) -> bool:
        """Read up to the arguments, which are an object; a message without content has none."""
        begun = self._unread.lstrip()
        is_empty = begun.startswith(HARMONY_BOUNDS) or (self._is_final and not begun)
        if is_empty or begun.startswith("{"):
            self._calls.append(ToolCallDelta(self._n_calls, self._new_id(), self._function, "{}" if is_empty else ""))
            self._n_calls += 1
            self._unread, self._doubtful = begun, ""
            self._arguments, self._step = JsonArguments(), self._after_call if is_empty else self._in_arguments
            return True
        if not self._is_final and any(tag.startswith(begun) for tag in (*HARMONY_BOUNDS, "")):
            return False
        n_header = len(self._doubtful)
        self._unread, self._doubtful = self._doubtful + self._unread, ""
        if self._part == "text" or not self._separates_reasoning:
            self._begin_raw(n_header)
        else:
            self._begin("reasoning")
        return self._drop(n_header)

    def _in_arguments(self) -> bool:
        more = self._arguments.push(self._unread)
        if more:
            self._calls.append(ToolCallDelta(self._n_calls - 1, arguments=more))
        self._unread = self._arguments.rest or ""
        if self._arguments.rest is None:
            return False
        self._step = self._after_call
        return True

    def _after_call(self) -> bool:
        """Read up to the end of the message, or to what a model adds to its arguments."""
        self._unread = self._unread.lstrip(_SEPARATORS)
        return bool(self._unread) and self._begin(self._part)


def _may_begin_header(text: str, *, is_whole: bool) -> bool:
    """Return whether `text` may come before the first tag of a header; unless it `is_whole`, more may follow."""
    if is_whole:
        return _BEFORE_TAG.fullmatch(text) is not None
    text = text.strip()
    rest = text.removeprefix("assistant").strip()
    return "assistant".startswith(text) or "to=".startswith(rest) or rest.startswith("to=")
