"""What an answer's tokens become: text in whole characters up to a stop string, log probabilities, the echoed prompt.

Owns what is held back (incomplete characters, possible stop strings, lines that may leave the block of code to fill
in), and when the log probabilities of held text are released.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.common.answer_text import partial_match_length
from app.engine.backend import Backend, Choice
from app.engine.request import Request, TokenLogprob


@dataclass(slots=True, eq=False)
class AnswerOutput:
    """What one answer has output so far. `logprobs` and `echo` are None unless the request asks for them; `unreported`
    are sampled tokens whose ids are yet to be output, if it wants them."""

    text: IncrementalDetokenizer
    logprobs: LogprobBuffer | None
    echo: Echo | None
    unreported: list[int] = field(default_factory=list)
    has_new_line: bool = False
    has_begun: bool = False  # something of the answer was output

    @classmethod
    def of(cls, request: Request, prompt: Sequence[int]) -> AnswerOutput:
        text = request.prompt if isinstance(request.prompt, str) else None
        return cls(
            IncrementalDetokenizer(request.stop, request.n_indent),
            None if request.n_logprobs is None else LogprobBuffer(),
            Echo(text, prompt, request.n_logprobs) if request.echo else None,
        )


class IncrementalDetokenizer:
    """Text of one answer as it grows, without incomplete characters and what may begin a stop string or a line indented
    by less than `n_indent`. Invalid UTF-8 becomes U+FFFD. Of `n_decoded` characters `n_shown` were returned;
    `stopped_by` is the stop string that ended the text, if any."""

    def __init__(self, stop: Sequence[str] = (), n_indent: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._indentation = Indentation(n_indent)
        self._holds_nothing = not (stop or n_indent)
        self._held = ""
        self.is_stopped = False
        self.stopped_by = ""
        self.n_decoded = 0
        self.n_shown = 0

    @property
    def end(self) -> int:
        """The end of the last piece's text, in characters, including an incomplete one."""
        pending, _ = self._decoder.getstate()
        return self.n_decoded + bool(pending)

    def begin_at(self, n_characters: int) -> None:
        """Count characters from `n_characters` on, the length of an echoed prompt."""
        self.n_decoded = self.n_shown = n_characters

    def push(self, piece: bytes) -> str:
        """Return the text to show after `piece`. Sets `is_stopped` if the answer ends with it."""
        text = self._decode(piece, is_final=False)
        if self._holds_nothing:
            self.n_shown += len(text)
            return text
        self._held += text
        return self._release(is_final=False)

    def finish(self) -> str:
        """Return the text held back, at the end of an answer that no stop string ended."""
        self._held += self._decode(b"", is_final=True)
        return self._release(is_final=True)

    def _decode(self, piece: bytes, *, is_final: bool) -> str:
        text = self._decoder.decode(piece, final=is_final)
        self.n_decoded += len(text)
        return text

    def _release(self, *, is_final: bool) -> str:
        ends = [(index, text) for text in self._stop if (index := self._held.find(text)) >= 0]
        if (dedent := self._indentation.end(self._held)) is not None:
            ends.append((dedent, ""))
        if ends:
            self.is_stopped = True
            end, self.stopped_by = min(ends)
            shown, self._held = self._held[:end], ""
        else:
            n_doubtful = max(partial_match_length(self._held, self._stop), self._indentation.n_undecided(self._held))
            split = len(self._held) - (0 if is_final else n_doubtful)
            shown, self._held = self._held[:split], self._held[split:]
        self.n_shown += len(shown)
        return shown


class Indentation:
    """Minimum indentation, in blanks and tabs, of all lines but the first; empty lines are exempt."""

    def __init__(self, n_least: int) -> None:
        less = f"\n[ \t]{{0,{n_least - 1}}}"
        self._dedent = re.compile(rf"{less}(?=[^ \t\r\n])") if n_least else None
        self._undecided = re.compile(rf"{less}\Z") if n_least else None

    def end(self, text: str) -> int | None:
        """Return the end of the text before the first line that is indented less, None without such a line."""
        found = self._dedent.search(text) if self._dedent else None
        return found.start() if found else None

    def n_undecided(self, text: str) -> int:
        """Return how many of the last characters of `text` may begin a line that is indented less."""
        found = self._undecided.search(text) if self._undecided else None
        return len(text) - found.start() if found else 0


LOWEST_LOGPROB = -9999.0  # instead of -infinity, as in OpenAI's API; JSON has no infinity


TokenScore: TypeAlias = tuple[float, tuple[tuple[int, bytes, float], ...]]  # of a token, and of the likeliest


def score(backend: Backend, row: int, token: int, n_top: int) -> TokenScore:
    """Return the log probability of `token` in `row`, and the `n_top` likeliest tokens: id, text, log probability."""
    logits = backend.logits(row)
    highest = logits.max()
    log_sum = float(highest) + float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))

    def logprob(other: int) -> float:
        return max(float(logits[other]) - log_sum, LOWEST_LOGPROB)

    rivals = ((other, backend.label(other), logprob(other)) for other in most_likely(logits, n_top))
    return logprob(token), tuple(rivals)


def score_choice(backend: Backend, choice: Choice, token: int, n_top: int) -> TokenScore:
    """Return the same as `score` of what the samplers left: no token without a chance is among the likeliest."""
    logprobs = np.log(np.maximum(choice.probabilities, np.finfo(np.float64).tiny))
    found = logprobs[choice.tokens == token]
    rivals = zip(choice.tokens[:n_top].tolist(), logprobs[:n_top].tolist(), strict=True)
    top = tuple((other, backend.label(other), logprob) for other, logprob in rivals)
    return float(found[0]) if len(found) else LOWEST_LOGPROB, top


def most_likely(logits: NDArray[np.float32], n_tokens: int) -> list[int]:
    """Return the ids of the `n_tokens` most likely tokens, the likeliest first, equal ones by id."""
    if n_tokens <= 1:
        return [int(logits.argmax())][:n_tokens]
    n_tokens = min(n_tokens, len(logits))
    edge = np.partition(logits, -n_tokens)[-n_tokens]
    ids = np.flatnonzero(logits >= edge)
    return [int(token) for token in ids[np.argsort(-logits[ids], kind="stable")][:n_tokens]]


class LogprobBuffer:
    """Log probabilities of tokens whose text is not shown yet. Positions are in characters of the answer."""

    def __init__(self) -> None:
        self._entries: deque[tuple[int, TokenLogprob]] = deque()

    def add(self, entry: TokenLogprob, end: int) -> None:
        """Add `entry`, to be released when the answer is shown up to the character `end`."""
        self._entries.append((end, entry))

    def release(self, n_shown: int) -> tuple[TokenLogprob, ...]:
        """Return and remove the entries of the first `n_shown` characters; those of a stop string never come."""
        released = []
        while self._entries and self._entries[0][0] <= n_shown:
            released.append(self._entries.popleft()[1])
        return tuple(released)


class EchoedText:
    """Text of a prompt, token by token, in characters. One given as text is reproduced exactly, whatever its tokenizer
    changed; one given as tokens is detokenized."""

    def __init__(self, prompt: str | None) -> None:
        self._prompt = None if prompt is None else prompt.encode("utf-8", "replace")
        self._n_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.n_characters = 0

    def push(self, piece: bytes, label: bytes) -> str:
        """Return the text of a token with the bytes `piece`; a special token is written as `label`."""
        return self._decode(piece if self._prompt is None else self._next(self._prompt, piece, label))

    def finish(self) -> str:
        return self._decode(b"" if self._prompt is None else self._prompt[self._n_bytes :], is_final=True)

    def _next(self, prompt: bytes, piece: bytes, label: bytes) -> bytes:
        """Return the bytes of `prompt` for a token, none if the tokenizer added it. It may put a blank before a text;
        bytes that it changed are matched by length."""
        spellings = (piece, label, piece.removeprefix(b" "))
        found = (spelling for spelling in spellings if spelling and prompt.startswith(spelling, self._n_bytes))
        n_bytes = len(next(found, piece.removeprefix(b" ")))
        begin, self._n_bytes = self._n_bytes, min(len(prompt), self._n_bytes + n_bytes)
        return prompt[begin : self._n_bytes]

    def _decode(self, data: bytes, *, is_final: bool = False) -> str:
        text = self._decoder.decode(data, final=is_final)
        self.n_characters += len(text)
        return text


class Echo:
    """Echo of the prompt `tokens`, given as the text `prompt` or None. Unless `n_top` is None it includes log
    probabilities with that many alternatives a token; the first token has none."""

    def __init__(self, prompt: str | None, tokens: Sequence[int], n_top: int | None) -> None:
        self._tokens = tuple(tokens)
        self._n_top = n_top
        self._n_emitted = 0
        self._text = EchoedText(prompt)

    @property
    def is_scoring(self) -> bool:
        """Whether all tokens computed next need logits."""
        return self._n_top is not None and self._n_emitted < len(self._tokens)

    @property
    def n_reusable(self) -> int:
        """The number of tokens that may be taken from the cache: their logits are done, or not requested."""
        return max(0, self._n_emitted - 1) if self.is_scoring else len(self._tokens)

    @property
    def n_characters(self) -> int:
        return self._text.n_characters

    def advance(self, backend: Backend, row: int, begin: int, n_tokens: int) -> tuple[str, tuple[TokenLogprob, ...]]:
        """Return the text and log probabilities to emit after `n_tokens` from position `begin` on were computed. Their
        logits, if requested, begin at `row` of the batch. The last token's logits are the answer's."""
        if self._n_emitted == len(self._tokens):
            return "", ()
        end = min(len(self._tokens), begin + n_tokens + 1) if self.is_scoring else len(self._tokens)
        text: list[str] = []
        entries: list[TokenLogprob] = []
        while self._n_emitted < end:
            token, offset = self._tokens[self._n_emitted], self._text.n_characters
            piece, label = backend.piece(token), backend.label(token)
            text.append(self._text.push(piece, label))
            if self._n_top is not None:
                row_before = row - begin + self._n_emitted - 1
                logprob, rivals = score(backend, row_before, token, self._n_top) if self._n_emitted else (None, ())
                entries.append(TokenLogprob(piece or label, logprob, rivals, offset, token))
            self._n_emitted += 1
        if self._n_emitted == len(self._tokens):
            text.append(self._text.finish())
        return "".join(text), tuple(entries)
