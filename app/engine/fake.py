"""A deterministic model without native code, for tests and for work on everything around the engine.

Its vocabulary is the 256 bytes and an end token; the next token depends on every token before it, so a wrong cache
shows at once. Backend and embedder follow the rules of llama.cpp's and assert where llama.cpp would abort; the loader
reports progress, can be cancelled and refuses a model that is to be unfit.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Choice, Chunk, DecodeStatus, State, holds_window
from app.engine.embedding import EmbedderFacts, Pooling, Vector
from app.engine.load.loading import LoadedEngine, LoadListener
from app.engine.loop.sampling import check_biases
from app.engine.media.chunks import is_placeholder, placeholder_tokens
from app.engine.media.fake import FakeEncoder, fake_embeddings
from app.engine.media.media_queue import MediaQueue
from app.engine.media.media_store import MediaStore
from app.engine.messages import BackendFacts, Load, Truncation, UnfitPolicy
from app.engine.request import Adapter, AdapterSet, MediaInput, SamplingParams
from app.engine.speculative.cost_model import StepCost
from app.engine.speech import InterruptedSpeechError, SpeakerFacts
from app.protocol.errors import UnfitError
from app.protocol.speech import SpeechSampling
from quantizer.system.errors import EngineError

END = 256
_ADAPTER_UNIT = 1000  # a cell's adapters are encoded as a multiple of it
_SAY_TAG = re.compile(rb"<say>(.+?)</say>", re.DOTALL)
_NOISE_TAG = re.compile(rb"<noise>([0-9]{1,6})</noise>")
_LETTERS = b"etaoinshrdlu etaoinshrdlu etaoinshrdlu,.\n"
_N_DIMENSIONS = 8
_BATCH_ANSWERS = 32  # at once
_N_PARTS = 10  # of loading


@dataclass(slots=True, eq=False)
class _Cell:
    """A token in the cache; sequences that share it reference the same object."""

    token: int


class FakeBackend:
    """A `Backend` whose answers are letters chosen by a hash. Each decode takes at least `step_s` seconds. A prompt
    with <say>TEXT</say> is answered with the last such TEXT, one with <noise>N</noise> with N letters that depend on
    the whole prompt and match no draft. One token in `end_every` ends the answer. Most others depend on the last two
    tokens only, so that text repeats and drafts are accepted, the rest on all previous tokens."""

    def __init__(
        self,
        n_ctx: int = 4096,
        n_cells: int = 8192,
        n_sequences: int = 4,
        n_batch: int = 512,
        step_s: float = 0.0,
        end_every: int = 200,
        supports_truncation: bool = True,
        adapters: Sequence[Adapter] = (),
        n_window: int = 0,
        n_rollback: int = 0,
        has_attention: bool = True,
    ) -> None:
        n_seq_max = 2 * n_sequences
        self.has_copies = False
        self.facts = BackendFacts(
            description="fake",
            n_vocab=END + 1,
            n_ctx=n_ctx,
            n_ctx_train=n_ctx,
            n_cells=n_cells,
            n_sequences=n_sequences,
            n_seq_max=n_seq_max,
            truncation=Truncation(
                has_states=not supports_truncation,
                n_window=n_window,
                n_rollback=n_rollback,
                n_holds=0 if supports_truncation else n_sequences,
            ),
            n_batch=n_batch,
            n_ubatch=n_batch,
            supports_shift=supports_truncation and not n_window,
            passes_over_cells=True,
            has_attention=has_attention,
            n_parameters=0,
            model_bytes=0,
            adapters=tuple(adapters),
        )
        self._adapter_code = 0
        self._cells: list[list[_Cell]] = [[] for _ in range(n_seq_max)]
        self._first_held = [0] * n_seq_max
        self._n_overlaid = [0] * n_seq_max
        self._held: dict[int, list[_Cell]] = {}  # the least recently held first
        self._n_removable: dict[int, int] = {}  # by sequence: last tokens whose states are still there
        self._rows: dict[int, list[int]] = {}
        self._step_s = step_s
        self._end_every = end_every
        self._interrupted = threading.Event()

    @property
    def n_cells_used(self) -> int:
        return len({id(cell) for cells in self._cells for cell in cells})

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:  # noqa: ARG002
        return list(text.encode("utf-8", "replace"))

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < END else b""

    def label(self, token: int) -> bytes:
        return self.piece(token) or b"<end>"

    def is_eog(self, token: int) -> bool:
        return token == END

    def new_sampler(
        self,
        params: SamplingParams,
        ignore_eos: bool,
        history: Sequence[int] = (),
        visible: Collection[int] = (),  # noqa: ARG002
    ) -> FakeSampler:
        check_biases(params, self.facts.n_vocab)
        return FakeSampler(self, params, ignore_eos, history)

    def new_bindable_sampler(
        self, params: SamplingParams, ignore_eos: bool, history: Sequence[int] = ()
    ) -> FakeSampler:
        return self.new_sampler(params, ignore_eos, history)

    def set_adapters(self, adapters: AdapterSet) -> None:
        """Make cells, and what depends on them, different under every adapter set."""
        self._adapter_code = _ADAPTER_UNIT * zlib.crc32(repr(adapters).encode()) if adapters else 0

    def set_threads(self, n_threads: int) -> None:
        """Compute as before: there are no threads."""

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        n_tokens = sum(len(chunk.tokens) for chunk in chunks)
        assert 0 < n_tokens <= self.facts.n_batch, "the batch fits n_batch"
        _check_media(chunks, self.facts.n_ubatch)
        if not self._has_room(n_tokens):
            return DecodeStatus.NO_SLOT
        if self._step_s and self._interrupted.wait(self._step_s):
            self._interrupted.clear()
            return DecodeStatus.INTERRUPTED
        self._forget_all_outside_windows()
        self._rows = {}
        row = 0
        n_free = self.facts.truncation.n_rejected_freely([len(chunk.tokens) for chunk in chunks])
        for chunk in chunks:
            self._n_removable[chunk.sequence_id] = min(n_free, len(chunk.tokens) - 1)
            cells = self._cells[chunk.sequence_id]
            assert chunk.position == len(cells), "a sequence is computed without gaps"
            first_held = self._first_held[chunk.sequence_id]
            assert holds_window(first_held, chunk.position, self.facts.n_window), "the window is held"
            code = self._adapter_code // _ADAPTER_UNIT
            assert all(cell.token // _ADAPTER_UNIT == code for cell in cells[-1:]), "a sequence has one adapter set"
            for index, token in enumerate(chunk.tokens):
                # A placeholder, too, becomes a number below the unit of adapters.
                held = END + 1 + token % (_ADAPTER_UNIT - END - 1) if is_placeholder(token) else token
                cells.append(_Cell(held + self._adapter_code))
                if index >= len(chunk.tokens) - chunk.n_logits:
                    self._rows[row] = [cell.token for cell in cells]
                row += 1
        return DecodeStatus.DONE

    def _has_room(self, n_tokens: int) -> bool:
        n_most = self.facts.n_cells - n_tokens
        n_held = sum(map(len, self._cells))  # shared cells count more than once, which takes long to find out
        return not self.facts.has_attention or n_held <= n_most or self.n_cells_used <= n_most

    def share_cells(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        source, target = self._cells[source_id], self._cells[target_id]
        assert begin <= len(target), "a sequence has no gaps"
        assert end <= len(source), "shared cells exist"
        assert [cell.token for cell in target[begin:end]] in ([], [cell.token for cell in source[begin:end]])
        assert self.facts.supports_truncation or (begin == 0 and end == len(source)), (
            "this model shares only whole sequences"
        )
        if not self.facts.supports_truncation:
            self._forget_states(target_id)
            self._n_removable.pop(source_id, None)
        is_new, first_held = not target, max(begin, self._first_held[source_id])
        assert begin == 0 or first_held == begin, "shared cells are held"
        assert is_new or self._first_held[target_id] <= end, "a sequence is held without gaps"
        target[begin:end] = source[begin:end]
        self._first_held[target_id] = first_held if is_new else min(first_held, self._first_held[target_id])

    def first_held(self, sequence_id: int) -> int:
        return self._first_held[sequence_id]

    def _forget_all_outside_windows(self) -> None:
        """Forget what llama.cpp may overwrite: cells that no later token of their only sequence attends to."""
        if not self.facts.n_window:
            return
        n_holders = Counter(id(cell) for cells in self._cells for cell in cells)
        for sequence_id, cells in enumerate(self._cells):
            first_in_window = max(0, len(cells) - self.facts.n_window + 1)
            own = [position for position in range(first_in_window) if n_holders[id(cells[position])] == 1]
            self._first_held[sequence_id] = max(self._first_held[sequence_id], 1 + max(own, default=-1))

    def overlay(self, source_id: int, target_id: int) -> None:
        n_tokens = len(self._cells[source_id])
        assert self.facts.supports_truncation or n_tokens == len(self._cells[target_id]), "a state has one position"
        self._n_overlaid[target_id] += n_tokens

    def n_attended(self, sequence_id: int) -> int:
        return len(self._cells[sequence_id]) + self._n_overlaid[sequence_id]

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        cells = self._cells[sequence_id]
        if n_tokens == 0:
            self._n_overlaid[sequence_id] = 0
        if not self.facts.supports_truncation:
            return self._truncate_states(sequence_id, n_tokens)
        is_held = holds_window(self._first_held[sequence_id], n_tokens, self.facts.n_window)
        n_left = n_tokens if is_held else 0
        del cells[n_left:]
        if not cells:
            self._first_held[sequence_id] = 0
        return len(cells)

    def hold(self, sequence_id: int) -> None:
        if self.facts.supports_truncation:
            return
        self._n_removable.pop(sequence_id, None)
        self._held.pop(sequence_id, None)
        if len(self._held) == self.facts.truncation.n_holds:
            del self._held[next(iter(self._held))]
        self._held[sequence_id] = list(self._cells[sequence_id])

    def _truncate_states(self, sequence_id: int, n_tokens: int) -> int:
        cells, held = self._cells[sequence_id], self._held.get(sequence_id)
        n_removed = len(cells) - n_tokens
        if n_removed <= 0:
            return len(cells)
        if n_tokens and n_removed <= self._n_removable.pop(sequence_id, 0):
            del cells[n_tokens:]
            if held is not None and len(held) > n_tokens:
                del self._held[sequence_id]
            return n_tokens
        is_held = held is not None and 0 < len(held) <= n_tokens
        self._cells[sequence_id] = list(held) if held is not None and is_held else []
        if not is_held:
            self._forget_states(sequence_id)
        return len(self._cells[sequence_id])

    def _forget_states(self, sequence_id: int) -> None:
        self._held.pop(sequence_id, None)
        self._n_removable.pop(sequence_id, None)

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:
        cells = self._cells[sequence_id]
        others = {id(cell) for other, held in enumerate(self._cells) if other != sequence_id for cell in held}
        assert self.facts.supports_shift, "this model's tokens can move"
        assert not any(id(cell) in others for cell in cells[n_keep + n_discard :]), "a cell has one position"
        del cells[n_keep : n_keep + n_discard]

    def state_bytes(self, sequence_id: int) -> int:
        return len(self.save_state(sequence_id))

    def save_state(self, sequence_id: int) -> bytearray:
        tokens = self.tokens(sequence_id)
        return bytearray(json.dumps([self._first_held[sequence_id], *tokens]).encode())

    def restore_state(self, sequence_id: int, state: State) -> bool:
        assert not self._cells[sequence_id], "a state is restored into an empty sequence"
        self._forget_states(sequence_id)
        first_held, *tokens = json.loads(bytes(state))
        if not self._has_room(len(tokens)):
            return False
        self._cells[sequence_id] = [_Cell(token) for token in tokens]
        self._first_held[sequence_id] = first_held
        return True

    def prepare_checkpoints(self) -> None:
        pass

    def save_checkpoint(self, sequence_id: int) -> bytearray:
        return bytearray(json.dumps(self.tokens(sequence_id)).encode())

    def restore_checkpoint(self, sequence_id: int, source_id: int | None, n_tokens: int, checkpoint: State) -> bool:
        tokens = json.loads(bytes(checkpoint))
        assert (source_id is not None) == self.facts.has_attention, "cells come from a sequence that has some"
        assert source_id == sequence_id or not self._cells[sequence_id], "a checkpoint is restored into an empty place"
        cells = [_Cell(token) for token in tokens] if source_id is None else self._cells[source_id][:n_tokens]
        assert [cell.token for cell in cells] == tokens, "cells and states are of the same tokens"
        self._cells[sequence_id] = cells
        self._first_held[sequence_id] = max(0, len(cells) - self.facts.n_window) if self.facts.n_window else 0
        self._forget_states(sequence_id)
        return True

    def logits(self, row: int) -> NDArray[np.float32]:
        """Return logits that depend on the history, with the greedy choice above the others."""
        chance = _chance("logits", self._rows[row])
        logits = np.array([chance.uniform(-5.0, 0.0) for _ in range(self.facts.n_vocab)], np.float32)
        for ignore_eos in (False, True):
            logits[self.choose(row, "", ignore_eos)] = 1.0
        return logits

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        self._cells = []

    def tokens(self, sequence_id: int) -> list[int]:
        return [cell.token for cell in self._cells[sequence_id]]

    def choose(self, row: int, salt: str, ignore_eos: bool) -> int:
        """Return the next token after the history of `row`, which must have logits."""
        return self.choose_after(self._rows[row], salt, ignore_eos)

    def choose_after(self, history: list[int], salt: str, ignore_eos: bool) -> int:
        chance = _chance(salt, history)
        if not ignore_eos and chance.randrange(self._end_every) == 0:
            return END
        depends_on_all = chance.randrange(8) == 0
        return (chance if depends_on_all else _chance(salt, history[-2:])).choice(_LETTERS)


def _check_media(chunks: Sequence[Chunk], n_ubatch: int) -> None:
    """Assert that pictures and sounds come as llama.cpp needs them, with the embeddings of their own tokens."""
    for chunk in chunks:
        media = chunk.media
        placeholders = [token for token in chunk.tokens if is_placeholder(token)]
        if media is None:
            assert not placeholders, "placeholders come with embeddings"
            continue
        whole, end = media.chunk, media.begin + len(chunk.tokens)
        assert len(chunks) == 1, "a picture is a batch of its own"
        assert list(chunk.tokens) == placeholder_tokens(whole)[media.begin : end], "tokens are the chunk's"
        expected = fake_embeddings(whole, media.embeddings.shape[1])[media.begin : end]
        assert np.array_equal(media.embeddings, expected), "embeddings are those of these tokens"
        assert whole.is_causal or len(chunk.tokens) == whole.n_tokens <= n_ubatch, "it is computed as a whole"


def _chance(salt: str, tokens: list[int]) -> random.Random:
    return random.Random(hashlib.blake2b(repr((salt, tokens)).encode(), digest_size=8).digest())


def _scripted(prompt: bytes) -> list[int]:
    """Return the answer that `prompt` prescribes, if any."""
    if texts := _SAY_TAG.findall(prompt):
        return [*texts[-1], END]
    if lengths := _NOISE_TAG.findall(prompt):
        return [*random.Random(prompt).choices(_LETTERS, k=int(lengths[-1])), END]
    return []


def _n_said_after(scripted: list[int], n_said: int, forced: list[int]) -> int:
    """Return where a script goes on: behind the longest end of `forced` that it has still to say."""
    rest, ending = bytes(scripted[n_said:-1]), bytes(forced)
    for begin in range(len(ending)):
        if (found := rest.find(ending[begin:])) >= 0:
            return n_said + found + len(ending) - begin
    return n_said


class FakeSampler:
    """A sampler that is greedy or salted by its seed, unless the prompt prescribes the answer. A prescribed answer goes
    on behind what ends its thought early, as a model does that understands it."""

    def __init__(self, backend: FakeBackend, params: SamplingParams, ignore_eos: bool, history: Sequence[int]) -> None:
        self._backend = backend
        self._salt = "" if params.is_greedy else str(params.seed)
        self._ignore_eos = ignore_eos
        self._scripted = _scripted(bytes(token for token in history if 0 <= token < END))
        self._n_said = 0  # of the script
        self._forced: list[int] = []  # tokens since the last sample
        self.bound: list[str] = []  # grammars in turn

    def sample(self, row: int) -> int:
        token = self._next(row)
        self._n_said += bool(self._scripted)
        return token

    def choice(self, row: int) -> Choice:
        """Return the next token, and where it is not greedy another that is half as likely."""
        token = self._next(row)
        if not self._salt:
            return Choice(np.array([token], np.int32), np.ones(1))
        return Choice(np.array([token, (token + 1) % END], np.int32), np.array([2 / 3, 1 / 3]))

    def foresee(self, logits: NDArray[np.float32], n_ahead: int) -> None:
        """Return None: letters are not chosen by logits."""

    def _next(self, row: int) -> int:
        if not self._scripted:
            return self._backend.choose(row, self._salt, self._ignore_eos)
        if self._forced:
            self._n_said = _n_said_after(self._scripted, self._n_said, self._forced)
            self._forced = []
        return self._scripted[min(self._n_said, len(self._scripted) - 1)]

    def accept(self, token: int) -> None:
        self._forced.append(token)

    def sample_other(self, row: int, refused: Collection[int]) -> int:
        return next(token for token in range(END) if token not in refused) if refused else self.sample(row)

    def bind(self, grammar: str, visible: Collection[int] = ()) -> None:
        """Note the grammar, which what is said does not depend on."""
        del visible
        self.bound.append(grammar)

    def is_complete(self) -> bool:
        return False  # it reads no grammar

    def close(self) -> None:
        """Do nothing."""


class FakeEmbedder:
    """An `Embedder` over the bytes of texts: a token's vector is random, drawn from the tokens up to it."""

    def __init__(
        self,
        n_ctx: int = 256,
        n_batch: int = 64,
        n_sequences: int = 8,
        pooling: Pooling = Pooling.MEAN,
        can_split: bool = True,
    ) -> None:
        n_dimensions = 1 if pooling is Pooling.RANK else _N_DIMENSIONS
        self.facts = EmbedderFacts(
            n_ctx, n_batch if can_split else max(n_batch, n_ctx), n_sequences, n_dimensions, pooling, can_split
        )
        self._cells: dict[int, list[int]] = {}

    @property
    def n_cells_used(self) -> int:
        return sum(len(cells) for cells in self._cells.values())

    def pair(self, query: str, document: str) -> list[int]:
        return list(f"{query}\n{document}".encode("utf-8", "replace"))

    def compute(self, chunks: Sequence[Chunk]) -> Vector:
        assert 0 < sum(len(chunk.tokens) for chunk in chunks) <= self.facts.n_batch, "the batch fits n_batch"
        assert len({chunk.sequence_id for chunk in chunks}) == len(chunks), "each text is in a batch once"
        assert all(0 <= chunk.sequence_id < self.facts.n_sequences for chunk in chunks), "each text has a place"
        return np.stack([self._pooled(chunk) for chunk in chunks])

    def set_threads(self, n_threads: int) -> None:
        """Compute as before: there are no threads."""

    def forget(self, sequence_id: int) -> None:
        self._cells.pop(sequence_id, None)

    def close(self) -> None:
        self._cells = {}

    def _pooled(self, chunk: Chunk) -> Vector:
        cells = self._cells.setdefault(chunk.sequence_id, [])
        assert chunk.position == len(cells), "a text is computed without gaps"
        vectors = []
        for token in chunk.tokens:
            cells.append(token)
            vectors.append(np.random.default_rng(cells).normal(size=self.facts.n_dimensions).astype(np.float32))
        if self.facts.pooling is Pooling.MEAN:
            mean: Vector = np.mean(vectors, axis=0, dtype=np.float32)
            return mean
        return vectors[0] if self.facts.pooling is Pooling.CLS else vectors[-1]


class FakeSpeaker:
    """A `Speaker` whose every fourth character is a frame of a tone, of a pitch that the text, the voice and the seed
    decide. A frame takes `step_s`."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.facts = SpeakerFacts(sample_rate=24_000, frame_samples=1920)
        self._step_s = step_s
        self._interrupted = threading.Event()
        self._hertz, self._n_frames, self._n_left = 0.0, 0, 0

    def begin(self, sentence: str, voice: MediaInput | None, sampling: SpeechSampling) -> int:
        self._interrupted.clear()
        heard = b"" if voice is None else voice.data
        self._hertz = 100.0 + zlib.crc32(repr((sentence, heard, sampling.seed)).encode()) % 400
        self._n_frames = self._n_left = -(-len(sentence) // 4)
        return len(sentence.encode())

    def step(self) -> bool:
        assert self._n_left > 0, "a sentence that has ended is not continued"
        if self._interrupted.wait(self._step_s):
            self._interrupted.clear()
            raise InterruptedSpeechError
        self._n_left -= 1
        return self._n_left == 0

    def samples(self) -> NDArray[np.float32]:
        n_samples = (self._n_frames - self._n_left) * self.facts.frame_samples
        tone: NDArray[np.float32] = np.sin(np.arange(n_samples, dtype=np.float32) * np.float32(self._hertz / 3820))
        return tone * np.float32(0.5)

    def interrupt(self) -> None:
        self._interrupted.set()


def fake_loader(step_s: float, load_s: float, *, is_unfit: bool) -> Callable[[Load, LoadListener], LoadedEngine]:
    """Return a loader of fake models that takes `load_s`, with steps of `step_s`. With a projector, whatever file it
    is, they take pictures and sounds, and speak. The loader raises UnfitError if the model `is_unfit` and the policy is
    to ask, EngineError when it is cancelled."""

    def new_media_queue(wake: Callable[[], None]) -> MediaQueue:  # keeps nothing on disk
        return MediaQueue(FakeEncoder(), MediaStore(Path("no folder"), max_disk_bytes=0), wake)

    def load(message: Load, listener: LoadListener) -> LoadedEngine:
        config = message.config
        if is_unfit and config.when_unfit is UnfitPolicy.ASK:
            raise UnfitError("Only 1 of 3 layers fit.", "What would help: a larger GPU.")
        for part in range(_N_PARTS):
            if not listener.on_progress(part / _N_PARTS):
                raise EngineError("Loading was stopped.", "Load the model again.")
            time.sleep(load_s / _N_PARTS)
        n_ctx = config.n_ctx or 4096
        adapters = [Adapter(name, path) for path, name in config.lora]
        backend = FakeBackend(n_ctx, 2 * n_ctx, config.n_sequences, step_s=step_s, adapters=adapters)
        has_projector = bool(config.projector_path)
        backend.facts = replace(backend.facts, sees=has_projector, hears=has_projector, speaks=has_projector)
        return LoadedEngine(
            backend,
            FakeEmbedder,
            StepCost(),
            None,
            lambda _work, _ratios: None,
            ExitStack(),
            new_media_queue=new_media_queue if has_projector else None,
            speaker=FakeSpeaker(step_s) if has_projector else None,
            new_batch_backend=lambda: FakeBackend(n_ctx, 4 * n_ctx, _BATCH_ANSWERS, step_s=step_s, adapters=adapters),
            n_batch_answers=_BATCH_ANSWERS,
            new_deterministic_backend=lambda: FakeBackend(n_ctx, n_ctx, 1, step_s=step_s, adapters=adapters),
        )

    return load
