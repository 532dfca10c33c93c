"""The tool calls of one answer: free text until one begins, then bound by grammars until the calls end.

A token belongs to one stage: none goes beyond the head of a call or beyond its end. A call within reasoning is a
thought and binds nothing. Whether another call follows is for the model to say and not for a grammar, whose only choice
beside the end of the answer is that call: a small model would repeat itself as long as it may. An answer that has made
a call twice ends. What can be written in one way only, as the rest of a head whose tool is clear, is `forced`:
its tokens are computed in one batch instead of sampled one by one.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from app.engine.backend import BindableSampler
from app.engine.grammar.call_rules import CallRules, common_begin, numbered, rest_after, texts_grammar
from app.engine.grammar.gbnf import with_plain_values

MAX_CALLS = 128  # in one answer
MAX_REQUIRED_CALLS = 16  # in one that must be calls
_ENDING = 'root ::= ""\n'
_N_TAIL = 512  # characters in which the head of a call is looked for
# In the place of a part: the text behind the calls, the end of the answer, and text that is no call.
_LAST, _NO_MORE, _ANSWER = -1, -2, -3
_BLANKS = " \t\r\n"
_MAX_BLANKS = 8  # between calls


class _Option(NamedTuple):
    """One of the texts that may come, and the part of the rules that it begins."""

    text: str
    part: int


class AnswerVocabulary(NamedTuple):
    """The tokens of an answer as text: `piece` returns the bytes of a token, none for one that is not output. Special
    tokens are output only if they are `visible`."""

    piece: Callable[[int], bytes]
    visible: Collection[int]
    tokenize: Callable[[str], Sequence[int]]


class CallStages:
    """Stages of one answer under `rules`, which bind `sampler`. `closings` end reasoning; unless it `may_end`, an
    answer goes on as free text where the rules end it."""

    def __init__(
        self,
        rules: CallRules,
        sampler: BindableSampler,
        vocabulary: AnswerVocabulary,
        closings: Collection[str] = (),
        *,
        may_end: bool = True,
    ) -> None:
        self.forced: deque[int] = deque()
        self.n_calls = 0
        self._rules = rules
        self._sampler = sampler
        self._piece = vocabulary.piece
        self._visible = vocabulary.visible
        self._tokenize = vocabulary.tokenize
        self._closings = closings
        self._may_end = may_end
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tail = rules.begun  # of the text, where a call may begin
        self._last_bytes = frozenset("".join(opening[-1] for opening, _ in rules.openings).encode())
        self._head_ends = frozenset(head.text[-1] for head in rules.heads)
        self._is_at_begin = bool(rules.bare)
        self._is_bare = False  # the call has begun without what stands before calls
        self._options: Sequence[_Option] = ()
        self._begun = ""  # of one of the options
        self._is_loose = False  # blanks that they begin with may be others
        self._call = ""  # the part of the call that is being written, and its text so far
        self._made: set[str] = set()  # calls, as they were written
        self._is_repeating = False  # a call was made twice
        self._step = self._wait
        if rules.begin:
            self._step = self._begin
            sampler.bind(with_plain_values(rules.begin), vocabulary.visible)
        elif rules.begun:
            heads = [_Option(text.removeprefix(rules.begun), part) for text, part in self._first(rules.first)]
            self._choose(heads, "")

    def sample(self, row: int, *, is_thought: bool = False) -> int:
        """Return the next token, for which `row` has the logits; one that begins a call and goes on as no call does is
        replaced by another. Raises as `Sampler` does."""
        token = self._sampler.sample(row)
        if self._step == self._between and not self._may_go_on(self._piece(token)):
            return self._closing(row)
        if is_thought or self._step != self._wait:
            return token
        refused: set[int] = set()
        while not self._may_follow(self._piece(token)):
            refused.add(token)
            token = self._sampler.sample_other(row, refused)
        return token

    def follow(self, token: int, *, was_thought: bool = False, is_thought: bool = False) -> None:
        """Follow the next token of the answer, sampled or forced."""
        text = self._decoder.decode(self._piece(token))
        if self._step not in (self._wait, self._begin):
            self._step(text)
            return
        if was_thought:
            text = self._tail + text
            self._tail = text[-_N_TAIL:] if is_thought else ""
            text = self._behind_thought(text)
        elif is_thought:
            self._tail = ""
        if not is_thought:
            self._step(text)

    # Stages, each of which takes new text

    def _wait(self, text: str) -> None:
        self._tail += text
        options, begun = self._opened(self._tail)
        if options and _fits(options, begun):
            self._is_loose = True
            self._choose(options, begun)
        elif not self._is_at_begin:
            self._tail = self._tail[-_N_TAIL:]

    def _begin(self, text: str) -> None:
        """Follow the grammar of the whole answer up to the end of a head."""
        self._tail = (self._tail + text)[-_N_TAIL:]
        if text[-1:] not in self._head_ends:
            return
        for option in self._all(self._rules.first):
            before = _before(option.text, self._tail)
            if before is None:
                continue
            before = before.rstrip(_BLANKS)
            if not before or before.endswith(self._rules.before_head):  # the first head, or one behind reasoning
                self._enter(option.part)
                return

    def _between(self, text: str) -> None:
        """Follow the text behind a call, which nothing binds until it is clear what it begins."""
        self._begun += text
        if self._begun.strip(_BLANKS):
            self._choose(self._options, self._begun)

    def _head(self, text: str) -> None:
        self._begun += text
        self._choose(self._options, self._begun, is_bound=True)

    def _arguments(self, text: str) -> None:
        self._call += text
        if not text[-1:].isalnum() and self._sampler.is_complete():
            self.n_calls += 1
            written = _squeezed(self._call)
            self._is_repeating = written in self._made
            self._made.add(written)
            self._after_call()

    def _ended(self, text: str) -> None:
        """Take what follows where nothing binds the answer any more."""

    # Between stages

    def _choose(self, options: Sequence[_Option], begun: str, *, is_bound: bool = False) -> None:
        """Let one of `options` come, of which `begun` was written."""
        rests = [(rest_after(option.text, begun, is_loose=self._is_loose), option) for option in options]
        left = [(rest, option) for rest, option in rests if rest is not None]
        done = next((option for rest, option in left if not rest), None)
        if done is not None and done.part != _NO_MORE and (begun or not done.text):
            self._enter(done.part)
            return
        if not left:  # only where a sampler does not keep to its grammar
            self._free()
            return
        self._options, self._begun, self._step = [option for _, option in left], begun, self._head
        if not is_bound:
            grammar = texts_grammar([rest for rest, _ in left], is_loose=self._is_loose)
            self._sampler.bind(grammar, self._visible)
        self._force([rest for rest, _ in left])

    def _enter(self, part: int) -> None:
        """Begin a part, all of whose text is still to come."""
        rules = self._rules
        self.forced.clear()
        if part == _ANSWER:
            self._free()
        elif part != _LAST:
            self._call, self._step = f"{part} ", self._arguments
            self._sampler.bind(with_plain_values(rules.parts[part]), self._visible)
        elif rules.is_repeated and rules.goes_on and not (rules.begin or self._is_repeating):
            self._free()
        else:
            self._end()

    def _after_call(self) -> None:
        rules, self._is_loose = self._rules, False
        most = MAX_REQUIRED_CALLS if rules.begin else MAX_CALLS
        if self._is_bare:
            self._end()
        elif self._is_repeating or not rules.is_repeated or self.n_calls >= most:
            self._choose([_Option(rules.last, _LAST)], "") if rules.last else self._end()
        elif not rules.last and rules.goes_on and not rules.begin:
            self._free()
        elif rules.last or self._may_end or rules.begin:
            end = _Option(rules.last, _LAST) if rules.last else _Option("", _NO_MORE)
            self._options, self._begun, self._is_loose = [*self._all(rules.between), end], "", True
            self._step = self._between
            self._sampler.bind("")
        else:
            self._end()

    def _may_go_on(self, piece: bytes) -> bool:
        """Return whether a token with the text `piece` may come between calls: another call, or what closes them."""
        text, part = self._decoded(piece)
        if not (text or part):  # the end of the answer
            return not self._rules.last
        begun = self._begun + text
        if part:
            rests = (rest_after(option.text, begun, is_loose=True) for option in self._options)
            return any(rest.lstrip(_BLANKS).encode().startswith(part) for rest in rests if rest)
        return _fits(self._options, begun) and (len(begun) <= _MAX_BLANKS or bool(begun.strip(_BLANKS)))

    def _decoded(self, piece: bytes) -> tuple[str, bytes]:
        """Return the text of `piece` behind what was said, without saying it, and the bytes of a character that it
        only begins."""
        state = self._decoder.getstate()
        text, part = self._decoder.decode(piece), self._decoder.getstate()[0]
        self._decoder.setstate(state)
        return text, part

    def _closing(self, row: int) -> int:
        """Close the calls, and return the first token of that."""
        last = next((option for option in self._options if option.part == _LAST), None)
        if last is None:
            self._end()
        else:
            self._choose([last], "")
        if not self.forced:
            return self._sampler.sample(row)
        token = self.forced.popleft()
        self._sampler.accept(token)
        return token

    def _free(self) -> None:
        self._sampler.bind("")
        self._tail, self._is_at_begin, self._step = "", False, self._wait

    def _end(self) -> None:
        self._step = self._ended
        self._sampler.bind(_ENDING if self._may_end or self._rules.begin else "")

    def _force(self, rests: Sequence[str]) -> None:
        """Force the tokens of what all `rests` begin with. The last of them may be another where they go on."""
        begin, is_in_character = common_begin(rests), bool(self._decoder.getstate()[0])
        tokens = list(self._tokenize(begin)) if len(begin) > 1 and not (self.forced or is_in_character) else []
        if b"".join(map(self._piece, tokens)).decode("utf-8", "replace") == begin:
            self.forced.extend(tokens if all(rest == begin for rest in rests) else tokens[:-1])

    # Where a call begins

    def _may_follow(self, piece: bytes) -> bool:
        """Return whether a token with the text `piece` may come while the answer waits for a call."""
        if not self._is_at_begin and self._last_bytes.isdisjoint(piece):
            return True
        options, begun = self._opened(self._tail + self._decoded(piece)[0])
        return not options or _fits(options, begun)

    def _opened(self, tail: str) -> tuple[list[_Option], str]:
        """Return the options of a call that has begun in `tail`, and what was written of it; none without a call."""
        if self._is_at_begin:
            options, begun = self._opened_bare(tail)
            if options:
                return options, begun
        found = [(tail.find(opening), -len(opening), stands_for) for opening, stands_for in self._rules.openings]
        first = min((each for each in found if each[0] >= 0), default=None)
        if first is None:
            return [], ""
        index, length, stands_for = first
        for before in (self._rules.first, ""):
            ways = [way for way in self._first(before) if way.text.startswith(stands_for)]
            if ways:
                break
        return [_Option(way.text.removeprefix(stands_for), way.part) for way in ways], tail[index - length :]

    def _opened_bare(self, tail: str) -> tuple[list[_Option], str]:
        """Return the options of a call that the text begins with, and may go on as in no other way."""
        begun, rules = tail.lstrip(_BLANKS), self._rules
        is_open = not begun
        for before in dict.fromkeys((rules.first, "")):
            for head in rules.heads if begun[:1] in rules.bare else ():
                text, n_committed = before + head.text, len(before) + head.n_committed
                end = _end_of(text[:n_committed], begun)
                if end is not None:
                    self._is_bare = not before
                    return [_Option(text[n_committed:], head.part)], begun[end:]
                is_open = is_open or _squeezed(text).startswith(_squeezed(begun))
        self._is_at_begin = is_open
        return [], ""

    def _first(self, before: str) -> list[_Option]:
        """Return all that may stand in the place of the first head, behind the text `before`."""
        return [*self._all(before), *(_Option(text, _ANSWER) for text in self._rules.answers)]

    def _all(self, before: str) -> list[_Option]:
        """Return the heads of all calls behind the text `before`."""
        return [_Option(numbered(before + head.text, self.n_calls), head.part) for head in self._rules.heads]

    def _behind_thought(self, text: str) -> str:
        """Return the part of `text` behind reasoning, which may be ended by the begin of a call."""
        index, closing = max(((text.rfind(closing), closing) for closing in self._closings), default=(-1, ""))
        if index < 0:
            return ""
        is_opening = any(opening.startswith(closing) for opening, _ in self._rules.openings)
        return text[index:] if is_opening else text[index + len(closing) :]


def _fits(options: Sequence[_Option], begun: str) -> bool:
    """Return whether one of `options` begins with `begun`, behind the opening of a call."""
    return any(rest_after(option.text, begun, is_loose=True) is not None for option in options)


def _before(text: str, tail: str) -> str | None:
    """Return what stands before `text` at the end of `tail`, None where it does not stand there."""
    for n_blanks in range(text.count(" ") + 1):
        begin = len(tail) - len(text) + n_blanks
        if begin >= 0 and rest_after(text, tail[begin:]) == "":
            return tail[:begin]
    return None


def _end_of(text: str, begun: str) -> int | None:
    """Return where `text` ends in `begun`, whatever blanks both have; None where it does not begin with it."""
    wanted = iter(_squeezed(text))
    character = next(wanted, None)
    for index, other in enumerate(begun):
        if character is None:
            return index
        if other.isspace():
            continue
        if other != character:
            return None
        character = next(wanted, None)
    return len(begun) if character is None else None


def _squeezed(text: str) -> str:
    return "".join(text.split())
