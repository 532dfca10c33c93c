"""Drafts that are looked up in the texts of a project: files that earlier chats of its folder read.

Owns the index of such texts in the model's own tokens, and when it is made: beside the engine, in a thread of its own.
The files are `app.engine.project_texts`'s. Independent of which drafts pay.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from app.common.terminal import counted
from app.engine.loop.sequence import Sequence
from app.engine.project_texts import corpus_name, read_texts, text_digests
from app.engine.speculative.cost_model import CORPUS_MATCH_LENGTH, NO_ESTIMATE, DraftEstimate
from app.engine.speculative.draft_source import DraftRequest
from app.engine.speculative.suffix_index import NO_DRAFT, Draft
from quantizer.system.errors import UserError

# Of one corpus: its newest. Together with MAX_CORPORA it bounds what plans count in ENGINE_BYTES of
# `offload.footprint.model`: 12 bytes a token, and 60 of the one that is being indexed.
MAX_CORPUS_TOKENS = 1 << 18
MAX_CORPORA = 2  # in memory: one person's projects at one time
N_COMPARED_TOKENS = 32  # of a text, up to which places are told apart; longer matches are not more certain
# Of other documents and tests than those in a corpus of 250,000 tokens, every sixth token ended three that it has, and
# of ends of three or four tokens 0.1 to 0.4 went on as there.
MIN_MATCHED_TOKENS = 5
_MAX_PLACES = 64  # whose continuations are compared
_BORDER = 0xFFFF_FFFF  # behind each text; no token
_PIECE_CHARACTERS = 4_096  # tokenized at once: the tokenizers of some models recurse on runs of one character
_NICENESS = 10  # of the thread that makes indexes, on Linux: it waits for the engine

Tokens = npt.NDArray[np.uint32]
Tokenize = Callable[[str, bool, bool], list[int]]


@dataclass(frozen=True, slots=True)
class CorpusMatch:
    """The places `begin` to `end` in the order of an index after which the last `n_matched` tokens of a text occur."""

    n_matched: int = 0
    begin: int = 0
    end: int = 0


NO_MATCH = CorpusMatch()


class CorpusIndex:
    """A suffix array (Manber and Myers 1993) of `texts` read backwards, each a list of tokens, which finds the longest
    end of another text in them: 12 bytes a token where a `SuffixIndex` takes 500, for texts that do not grow. `find`
    takes O(log n): 16 µs for 250,000 tokens where nothing matches, 43 where something does. Suffixes are told apart by
    their first N_COMPARED_TOKENS."""

    def __init__(self, texts: Many[Many[int] | Tokens]) -> None:
        parts = [np.asarray(each, np.uint32) for text in texts for each in (text, (_BORDER,))]
        self._tokens: Tokens = np.concatenate(parts) if parts else np.zeros(0, np.uint32)
        backwards = self._tokens[::-1]
        self._order = _suffix_order(backwards, N_COMPARED_TOKENS)
        # As bytes, the most significant first: slices of them compare as the tokens do.
        self._backwards = backwards.astype(">u4").tobytes()

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def n_bytes(self) -> int:
        return self._tokens.nbytes + self._order.nbytes + len(self._backwards)

    def find(self, text: Many[int], n_least: int = 1) -> CorpusMatch:
        """Return where the longest end of `text` occurs, up to N_COMPARED_TOKENS and from `n_least` tokens of it on. A
        placeholder of a picture or sound, which is negative, occurs nowhere."""
        known = list(takewhile(lambda token: token >= 0, reversed(text[-N_COMPARED_TOKENS:])))
        key = np.asarray(known, ">u4").tobytes()
        places, backwards = self._order.data, self._backwards

        def begins(n_bytes: int) -> Callable[[int], bytes]:
            return lambda place: backwards[4 * place : 4 * place + n_bytes]

        next_place = bisect_left(places, key, key=begins(len(key)))
        neighbours = (begins(len(key))(place) for place in places[max(0, next_place - 1) : next_place + 1])
        n_matched = max((_n_common_bytes(key, each) // 4 for each in neighbours), default=0)
        if n_matched < n_least:  # in nearly every step of text that repeats nothing
            return NO_MATCH
        beginning = key[: 4 * n_matched]
        begin = bisect_left(places, beginning, key=begins(len(beginning)))
        end = bisect_right(places, beginning, lo=begin, key=begins(len(beginning)))
        return CorpusMatch(n_matched, begin, end)

    def continuation(self, match: CorpusMatch, n_tokens: int) -> Draft:
        """Return at most `n_tokens` that followed at a match: token by token the most frequent one, of equally frequent
        ones that of the latest text. Of many places a part is looked at."""
        n_places = match.end - match.begin
        chosen = np.linspace(match.begin, match.end - 1, min(n_places, _MAX_PLACES)).astype(np.intp)
        # A place is where the text ends, counted from the end of all: the next token is before it.
        places = np.sort(len(self._tokens) - self._order[chosen])
        tokens: list[int] = []
        chances: list[float] = []
        while len(tokens) < n_tokens and len(places) > 1:
            following = self._tokens[places]
            token, n_followed = Counter(reversed(following.tolist())).most_common(1)[0]
            if token == _BORDER:
                break
            tokens.append(token)
            chances.append(n_followed / len(places))
            places = places[following == token] + 1
        if len(places) == 1:
            rest = self._tokens[places[0] : places[0] + n_tokens - len(tokens)].tolist()
            tokens += takewhile(lambda token: token != _BORDER, rest)
        chances += [1.0] * (len(tokens) - len(chances))
        return Draft(tuple(tokens), tuple(chances), match.n_matched)


def _suffix_order(tokens: Tokens, n_compared: int) -> npt.NDArray[np.int32]:
    """Return the places of `tokens` in the order of what follows there, by prefix doubling up to `n_compared` tokens,
    a power of two: 0.2 s for 250,000."""
    n_tokens = len(tokens)
    order = np.argsort(tokens, kind="stable")
    ranks = np.unique(tokens, return_inverse=True)[1].astype(np.int64) + 1  # 0 is beyond the end
    shift = 1
    while shift < min(n_compared, n_tokens):
        following = np.zeros(n_tokens, np.int64)
        following[:-shift] = ranks[shift:]
        keys = ranks * (n_tokens + 1) + following
        order = np.argsort(keys, kind="stable")
        sorted_keys = keys[order]
        ranks = np.empty(n_tokens, np.int64)
        ranks[order] = np.concatenate(((1,), 1 + np.cumsum(sorted_keys[1:] != sorted_keys[:-1])))
        shift *= 2
    return order.astype(np.int32)


def _n_common_bytes(left: bytes, right: bytes) -> int:
    """Return how many bytes both begin with."""
    n_bytes = min(len(left), len(right))
    differs = int.from_bytes(left[:n_bytes]) ^ int.from_bytes(right[:n_bytes])
    return n_bytes - (differs.bit_length() + 7) // 8


class TextCorpora:
    """The indexes of a few corpora below `folder`, in the tokens of one model; `tokenize` is its tokenizer, which
    another thread may call. One thread makes them, at `prepare`; any thread gets them. `on_notice` is told of damaged
    files."""

    def __init__(self, folder: Path, tokenize: Tokenize, on_notice: Callable[[str], None] = lambda _text: None) -> None:
        self._folder = folder
        self._tokenize = tokenize
        self._on_notice = on_notice
        self._lock = threading.Lock()  # guards what follows
        # By owner and project, with the digests of the texts; the one used last at the end.
        self._indexes: dict[tuple[str, str], tuple[frozenset[str], CorpusIndex]] = {}
        self._n_cleared = 0
        self._waiting: queue.Queue[tuple[str, str] | None] = queue.Queue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def prepare(self, owner: str, project: str) -> None:
        """Let the index of a project be made, or made anew where its files have changed. Never waits."""
        if self._closing.is_set():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._make_indexes, name="corpus", daemon=True)
            self._thread.start()
        self._waiting.put((owner, project))

    def index_of(self, owner: str, project: str) -> CorpusIndex | None:
        """Return the index of a project, None before it is made and without any text."""
        with self._lock:
            found = self._indexes.get((owner, project))
        return None if found is None else found[1]

    @property
    def n_bytes(self) -> int:
        """The bytes of the indexes in memory."""
        with self._lock:
            return sum(index.n_bytes for _, index in self._indexes.values())

    def clear(self) -> None:
        """Drop the indexes, also one that is being made: texts of theirs were removed."""
        with self._lock:
            self._indexes.clear()
            self._n_cleared += 1

    def close(self) -> None:
        """End the thread, after which nothing is tokenized."""
        self._closing.set()
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()

    def _make_indexes(self) -> None:
        if sys.platform == "linux":
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while (place := self._waiting.get()) is not None and not self._closing.is_set():
            self._make_index(*place)
            self._waiting.task_done()

    def _make_index(self, owner: str, project: str) -> None:
        name, place = corpus_name(owner, project), (owner, project)
        digests = text_digests(self._folder, name)
        with self._lock:
            n_cleared, known = self._n_cleared, self._indexes.get(place)
            if known is not None and known[0] == digests:
                self._indexes[place] = self._indexes.pop(place)  # now the one used last
                return
        found = read_texts(self._folder, name)
        if found.n_damaged:
            files = counted(found.n_damaged, "damaged file")
            self._on_notice(f"Removed {files} of the text corpus that drafts are looked up in. Answers stay the same.")
        index = CorpusIndex(self._tokenized([*found.texts.values()]))
        with self._lock:
            if n_cleared != self._n_cleared or self._closing.is_set():  # some of the texts may be gone
                return
            self._indexes.pop(place, None)
            if len(index):
                self._indexes[place] = frozenset(found.texts), index
            while len(self._indexes) > MAX_CORPORA:
                del self._indexes[next(iter(self._indexes))]

    def _tokenized(self, texts: Many[str]) -> list[Tokens]:
        """Return the tokens of as many of the last `texts` as fit, each with its border."""
        found: list[Tokens] = []
        n_left = MAX_CORPUS_TOKENS
        for text in reversed(texts):
            tokens = np.zeros(0, np.uint32)
            for piece in _pieces(text):
                if len(tokens) >= n_left or self._closing.is_set():
                    break
                with suppress(UserError):  # what this tokenizer refuses it does not draft
                    tokens = np.append(tokens, np.asarray(self._tokenize(piece, False, False), np.uint32))
            if n_left <= 1:
                break
            found.append(tokens[: n_left - 1])
            n_left -= len(found[-1]) + 1
        return found[::-1]


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces to tokenize, which begin with lines where these are short."""
    begin = 0
    while begin < len(text):
        end = begin + _PIECE_CHARACTERS
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        yield text[begin:end]
        begin = end


class CorpusLookup:
    """Drafts from the texts of the project that a request names."""

    name = "project lookup"
    evidence = CORPUS_MATCH_LENGTH

    def __init__(self, corpora: TextCorpora) -> None:
        self._corpora = corpora
        self._found: dict[Sequence, tuple[int, CorpusIndex | None, CorpusMatch]] = {}  # with the tokens looked at

    def estimate(self, sequence: Sequence, n_max: int, n_answers: int) -> DraftEstimate:  # noqa: ARG002
        index, match = self._look_up(sequence)
        if index is None:
            return NO_ESTIMATE
        return sequence.drafting.acceptance[self.name].upper_bound(match.n_matched, n_max)

    def n_probe_tokens(self, sequence: Sequence) -> int:
        return int(self._look_up(sequence)[0] is not None)

    def propose(self, requests: Many[DraftRequest]) -> list[Draft]:
        drafts = []
        for request in requests:
            index, match = self._look_up(request.sequence)
            drafts.append(
                NO_DRAFT if index is None else index.continuation(match, request.n_tokens).of_source(self.name)
            )
        return drafts

    def release(self, sequence: Sequence) -> None:
        self._found.pop(sequence, None)

    def prepare(self, sequence: Sequence) -> None:
        """Let the corpus of an admitted sequence be read."""
        if project := sequence.request.corpus:
            self._corpora.prepare(sequence.request.owner, project)

    def clear(self) -> None:
        """Drop the texts, some of which were removed."""
        self._corpora.clear()
        self._found.clear()

    def _look_up(self, sequence: Sequence) -> tuple[CorpusIndex | None, CorpusMatch]:
        """Return where the text of `sequence` occurs in its corpus, no index where it does not."""
        request = sequence.request
        if not request.corpus:
            return None, NO_MATCH
        index, n_tokens = self._corpora.index_of(request.owner, request.corpus), len(sequence.tokens)
        if index is None:
            return None, NO_MATCH
        known = self._found.get(sequence)
        if known is None or known[0] != n_tokens or known[1] is not index:
            known = self._found[sequence] = (n_tokens, index, index.find(sequence.tokens, MIN_MATCHED_TOKENS))
        return (index, known[2]) if known[2].n_matched else (None, NO_MATCH)
