"""A prompt that is told before its answer: its text, and how likely each of its tokens was after those before it.

Owns how far that has come and where in the text each token begins. Knows nothing of batches or of who is told.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence

from app.engine.backend import Backend
from app.engine.loop.logprobs import score
from app.engine.request import TokenLogprob

__all__ = ["Echo", "EchoedText"]


class EchoedText:
    """The text of a prompt, found again token by token, in characters.

    A prompt that came as text is told just as it came, whatever its tokenizer made of it; one of tokens reads as they
    do.
    """

    def __init__(self, prompt: str | None) -> None:
        self._prompt = None if prompt is None else prompt.encode("utf-8", "replace")
        self._n_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.n_characters = 0

    def push(self, piece: bytes, label: bytes) -> str:
        """Return what the text goes on with for a token that reads `piece`; a special one is written as `label`."""
        return self._decode(piece if self._prompt is None else self._next(self._prompt, piece, label))

    def finish(self) -> str:
        """Return what is left of the text."""
        return self._decode(b"" if self._prompt is None else self._prompt[self._n_bytes :], is_final=True)

    def _next(self, prompt: bytes, piece: bytes, label: bytes) -> bytes:
        """Return the bytes of `prompt` that a token stands for: none where the tokenizer added it.

        Tokenizers put a blank before a text; those that change letters are followed by length.
        """
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
    """What is told of the prompt `tokens`: its text (`prompt`, None where it came as tokens) and, unless `n_top` is
    None, its probabilities with so many rivals a token. The first token has none: nothing is before it.
    """

    def __init__(self, prompt: str | None, tokens: Sequence[int], n_top: int | None) -> None:
        self._tokens = tuple(tokens)
        self._n_top = n_top
        self._n_emitted = 0
        self._text = EchoedText(prompt)

    @property
    def is_scoring(self) -> bool:
        """Whether what is computed next must have logits, all of it."""
        return self._n_top is not None and self._n_emitted < len(self._tokens)

    @property
    def n_reusable(self) -> int:
        """Number of tokens that need not be computed again: their logits were seen, or are not asked for."""
        return max(0, self._n_emitted - 1) if self.is_scoring else len(self._tokens)

    @property
    def n_characters(self) -> int:
        """How long the text told so far is."""
        return self._text.n_characters

    def advance(self, backend: Backend, row: int, begin: int, n_tokens: int) -> tuple[str, tuple[TokenLogprob, ...]]:
        """Return what there is to tell of now that `n_tokens` from the position `begin` on are computed.

        Their logits begin at `row` of the batch, if they were asked for. The last token's are those of the answer.
        """
        if self._n_emitted == len(self._tokens):
            return "", ()
        end = min(len(self._tokens), begin + n_tokens + 1) if self.is_scoring else len(self._tokens)
        text: list[str] = []
        entries = tuple(self._entries(backend, row - begin, end, text))
        if self._n_emitted == len(self._tokens):
            text.append(self._text.finish())
        return "".join(text), entries

    def _entries(self, backend: Backend, row_of_first: int, end: int, text: list[str]) -> Iterator[TokenLogprob]:
        """Yield the entries of the tokens up to `end`, adding their text to `text`."""
        while self._n_emitted < end:
            token, offset = self._tokens[self._n_emitted], self._text.n_characters
            piece, label = backend.piece(token), backend.label(token)
            text.append(self._text.push(piece, label))
            if self._n_top is not None:
                row = row_of_first + self._n_emitted - 1
                logprob, rivals = score(backend, row, token, self._n_top) if self._n_emitted else (None, ())
                yield TokenLogprob(piece or label, logprob, rivals, offset)
            self._n_emitted += 1
