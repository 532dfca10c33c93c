"""libmtmd as a `MediaEncoder`: a projector beside a loaded model turns decoded pictures and sounds into embeddings.

libmtmd tokenizes the text and each picture of a prompt apart, so what one picture becomes does not depend on its
prompt; projectors for which it does are refused before they are loaded. Files are decoded by a `MediaDecoder`, never by
libmtmd. Source: mtmd_tokenizer in tools/mtmd/mtmd.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ctypes import c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.common.media_formats import MediaFormat, MediaKind, format_of
from app.engine.llama.devices import gpu_address
from app.engine.llama.eval_callback import Tensor, ggml_ops
from app.engine.llama.native import ggml_function, lib, load_error, mtmd, native_log
from app.engine.media.chunks import Embeddings, MediaChunk, MediaDecoder, MediaLayout
from app.engine.request import MediaInput
from app.protocol.errors import RequestError
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import EngineError

_PIECE_NODES = 32  # of a graph, computed before it can be interrupted: a transformer's layer or two
# Of graphs that generate sound, thousands of small nodes before some that take a tenth of a second each, a piece has as
# many as take about this long.
_PIECE_S = 0.05
_MAX_PIECE_NODES = 64
_I32 = 26  # ggml_type@0.3.36
_N_LAYOUTS = 4  # whose decoded content stays in memory
_REMEDY = "See `localllm show`, or name another projector with --projector."
_NO_TOKENS = "The picture or sound is too small: it becomes no tokens.", "Send a larger picture or a longer sound."


class EncodingGuard:
    """The callback of libmtmd's graphs: an encoding can be interrupted, and no lookup leaves its table. A projector has
    tables by position, and a large picture more positions than the table of a wrong or hostile file: ggml (0.3.36) ends
    the process on such a lookup. So each is checked before it is computed, but in graphs that generate sound: libmtmd
    bounds what those look up. Must exist as long as the projector."""

    def __init__(self) -> None:
        self.callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        self._interrupted = threading.Event()
        self._n_nodes, self._is_bounded = 0, False
        self._n_piece, self._piece_begun_s = _PIECE_NODES, 0.0
        self.has_overrun = False  # whether the last encoding looked up a row that no table has: its result is wrong
        self._failure: Exception | None = None
        self._get_rows = ggml_ops("GET_ROWS")["GET_ROWS"]
        self._read = ggml_function("ggml_backend_tensor_get", None, c_void_p, c_void_p, c_size_t, c_size_t)
        self._write = ggml_function("ggml_backend_tensor_set", None, c_void_p, c_void_p, c_size_t, c_size_t)

    @property
    def is_interrupted(self) -> bool:
        """Whether the last encoding was interrupted and its result is incomplete."""
        return self._interrupted.is_set()

    def begin(self, *, is_only_begun: bool = False, is_bounded: bool = False) -> None:
        """Guard another encoding; one that `is_only_begun` ends after its first node, one that `is_bounded` looks up
        what libmtmd has checked."""
        self._n_nodes, self.has_overrun, self._failure = 0, False, None
        self._is_bounded = is_bounded
        self._n_piece, self._piece_begun_s = _PIECE_NODES, time.perf_counter()
        if is_only_begun:
            self._interrupted.set()
        else:
            self._interrupted.clear()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def interrupt(self) -> None:
        self._interrupted.set()

    def _on_node(self, address: int, is_asking: bool, _data: object) -> bool:
        """Return whether a piece ends with a node, or, once that is computed, whether the next piece follows."""
        if not is_asking:
            if self._is_bounded:
                self._end_piece(time.perf_counter())
            return not self._interrupted.is_set()
        self._n_nodes += 1
        if self._is_bounded:  # reading a node takes longer than computing most of them
            return self._n_nodes >= self._n_piece or self._interrupted.is_set()
        try:
            node = ctypes.cast(address, ctypes.POINTER(Tensor)).contents
            if node.op == self._get_rows:
                self._keep_inside(node)
        except Exception as failure:  # an exception that crosses ctypes is lost, and native code goes on
            self._failure = failure
            self._interrupted.set()
        return self._n_nodes % _PIECE_NODES == 0 or self._interrupted.is_set()

    def _end_piece(self, now_s: float) -> None:
        """Let the next piece have fewer nodes than one that took long, and more than one that took no time."""
        took_s, self._piece_begun_s = now_s - self._piece_begun_s, now_s
        n_next = self._n_piece // 2 if took_s > _PIECE_S else 2 * self._n_piece
        self._n_piece = min(max(1, n_next), _MAX_PIECE_NODES)
        self._n_nodes = 0

    def _keep_inside(self, node: Tensor) -> None:
        """Let a lookup of a row that its table lacks read the first row instead. Rows that the graph computes itself
        are known only later; their tables are computed, too, and fit."""
        table, rows = node.src[0].contents, node.src[1]
        owner = rows.contents.view_src.contents if rows.contents.view_src else rows.contents
        wanted = np.empty(int(np.prod(rows.contents.ne)), np.int32)
        if owner.op or rows.contents.type != _I32 or not _is_contiguous(rows.contents):
            return
        self._read(rows, wanted.ctypes.data, 0, wanted.nbytes)
        is_outside = (wanted < 0) | (wanted >= table.ne[1])
        if is_outside.any():
            self.has_overrun = True
            wanted[is_outside] = 0
            self._write(rows, wanted.ctypes.data, 0, wanted.nbytes)


def _is_contiguous(tensor: Tensor) -> bool:
    n_bytes = 4
    for length, stride in zip(tensor.ne, tensor.nb, strict=True):
        if length > 1 and stride != n_bytes:
            return False
        n_bytes *= length
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorOptions:
    """How a projector runs: on the GPU that ggml calls `device`, or with `n_threads` on the processor. A picture
    becomes at most `max_tokens`, and a chunk that must be computed in one batch at most `max_whole_tokens`;
    `limits_tokens` makes libmtmd scale pictures down to that, where a projector allows it. `key` identifies its
    file. `n_embd` is the width of its embeddings, where the model is a vocabulary alone, which has none."""

    key: str
    n_threads: int
    max_tokens: int
    max_whole_tokens: int
    limits_tokens: bool = False
    device: str = ""
    n_embd: int = 0


class LlamaProjector:
    """A loaded projector; close it before its model, whose pointer it gets. It owns its decoder. One thread makes all
    calls but `close`. libmtmd's own functions take its `pointer`; each of their graphs is begun by its `guard`."""

    def __init__(self, path: Path, model: int, options: ProjectorOptions, decoder: MediaDecoder) -> None:
        """Load the validated projector at `path`. Raises EngineError with libmtmd's message, MemoryShortError without
        memory for it."""
        log = native_log()
        params = mtmd().mtmd_context_params_default()
        params.use_gpu = bool(options.device)
        if options.device:
            params.device = gpu_address(options.device)
        params.print_timings = False
        params.n_threads = options.n_threads
        self.guard = EncodingGuard()
        params.cb_eval = self.guard.callback
        if options.limits_tokens:
            params.image_max_tokens = options.max_whole_tokens
        self._options, self._decoder = options, decoder
        self._owned = ExitStack()
        self._owned.callback(decoder.close)
        self.pointer = mtmd().mtmd_init_from_file(os.fsencode(path), model, params)
        if not self.pointer:
            self.close()
            raise load_error(f"llama.cpp cannot load the projector {path.name}", log.last_lines(), _REMEDY)
        self._owned.callback(mtmd().mtmd_free, self.pointer)
        self._n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self._n_embd = options.n_embd or lib.llama_model_n_embd_inp(model)
        self._layouts: OrderedDict[bytes, _Chunks] = OrderedDict()  # by the file's SHA-256, the oldest first
        self._owned.callback(self._free_layouts)

    @property
    def sees(self) -> bool:
        return bool(mtmd().mtmd_support_vision(self.pointer))

    @property
    def hears(self) -> bool:
        return self.has_sound_encoder and not self.speaks

    @property
    def speaks(self) -> bool:
        return bool(mtmd().mtmd_gen_audio_get_info(self.pointer).type != mtmd().MTMD_GEN_AUDIO_TYPE_NONE)

    @property
    def has_sound_encoder(self) -> bool:
        """Whether it hears or, where it speaks, takes the sound of a voice to speak with."""
        return bool(mtmd().mtmd_support_audio(self.pointer))

    def layout(self, media: MediaInput) -> MediaLayout:
        data = media.data
        form = format_of(data)
        if not (self.hears if form.kind is MediaKind.SOUND else self.sees):
            takes = MediaKind.PICTURE if self.sees else MediaKind.SOUND
            cause = f"The model takes no {form.kind}s; a file of the prompt is a {form.kind} ({form})."
            raise RequestError(cause, f"Send {takes}s, or choose a model that takes {form.kind}s.")
        sha256 = hashlib.sha256(data).digest()
        if known := self._layouts.get(sha256):
            self._layouts.move_to_end(sha256)
            return known.layout
        with self.bitmap(data, form) as bitmap:
            chunks = self._tokenize(bitmap, form)
        try:
            layout = self._layout(chunks, sha256)
        except BaseException:
            mtmd().mtmd_input_chunks_free(chunks)
            raise
        self._layouts[sha256] = _Chunks(chunks, layout)
        if len(self._layouts) > _N_LAYOUTS:
            _, oldest = self._layouts.popitem(last=False)
            oldest.free()
        return layout

    def encode(self, chunk: MediaChunk) -> Embeddings:
        is_failed = self._run(chunk)
        if self.guard.is_interrupted:
            raise EngineError("The encoding of a picture or sound was interrupted.", "Send the request again.")
        if is_failed:
            cause = f"A picture or sound could not be encoded: {native_log().last_lines(1)}"
            raise EngineError(cause, "Try it again, or name another projector with --projector.")
        if self.guard.has_overrun:
            cause = "The picture or sound is too large for this projector."
            raise RequestError(cause, "Send a smaller or shorter one, or name another projector with --projector.")
        shape = (chunk.n_tokens, self._n_embd)
        embeddings = np.ctypeslib.as_array(mtmd().mtmd_get_output_embd(self.pointer), shape).copy()
        if not np.isfinite(embeddings).all():
            cause = "The projector computed NaN or infinite embeddings."
            raise EngineError(cause, "Name another projector with --projector.")
        return embeddings

    def try_to_speak(self, voice: MediaInput) -> None:
        """Encode `voice`, generate a frame from a hidden state, and decode it to samples; an unfit projector ends the
        process here. Raises EngineError where libmtmd cannot."""
        native, silence = mtmd(), (ctypes.c_float * self._n_embd)()
        self.guard.begin(is_bounded=True)
        given, made = native.mtmd_gen_inp_default(self.pointer), native.mtmd_gen_out()
        given.embd = silence
        is_failed = bool(native.mtmd_gen_audio_process(self.pointer, ctypes.byref(given), ctypes.byref(made)))
        if not is_failed:
            codes, feats = made.codes[: made.n_codes], made.feats[: made.n_feats]  # the next call overwrites them
            given = native.mtmd_gen_inp_default(self.pointer)
            given.type = native.MTMD_GEN_PROCESS_TYPE_GEN_WAV
            given.codes, given.n_codes = (ctypes.c_int32 * len(codes))(*codes), len(codes)
            given.feats, given.n_feats = (ctypes.c_float * len(feats))(*feats), len(feats)
            is_failed = bool(native.mtmd_gen_audio_process(self.pointer, ctypes.byref(given), ctypes.byref(made)))
        if not is_failed and self.has_sound_encoder:
            form = format_of(voice.data)
            with self.bitmap(voice.data, form) as bitmap:
                chunks = self._tokenize(bitmap, form)
            pointers = (native.mtmd_input_chunks_get(chunks, i) for i in range(native.mtmd_input_chunks_size(chunks)))
            is_sound = native.MTMD_INPUT_CHUNK_TYPE_AUDIO
            sounds = [each for each in pointers if native.mtmd_input_chunk_get_type(each) == is_sound]
            is_failed = not sounds or bool(native.mtmd_encode_chunk(self.pointer, sounds[0]))
            native.mtmd_input_chunks_free(chunks)
        if is_failed:
            raise EngineError(f"The projector cannot speak: {native_log().last_lines(1)}", _REMEDY)

    def try_to_encode(self, chunk: MediaChunk) -> None:
        """Build the graph of a chunk and compute its first node; an unfit projector ends the process here."""
        self._run(chunk, is_only_begun=True)

    def interrupt(self) -> None:
        self.guard.interrupt()

    def close(self) -> None:
        self._owned.close()

    def _run(self, chunk: MediaChunk, *, is_only_begun: bool = False) -> bool:
        """Compute the graph of a chunk; return whether libmtmd failed. Raises KeyError if its content was dropped."""
        found = (known.find(chunk.content_id) for known in self._layouts.values())
        if not (pointer := next(filter(None, found), 0)):
            raise KeyError(chunk.content_id)
        self.guard.begin(is_only_begun=is_only_begun)
        is_failed = bool(mtmd().mtmd_encode_chunk(self.pointer, pointer))
        self.guard.check()
        return is_failed

    @contextmanager
    def bitmap(self, data: bytes, form: MediaFormat, max_s: float = math.inf) -> Iterator[int]:
        """Give the decoded file as libmtmd takes it, of a sound its first `max_s` seconds."""
        if form.kind is MediaKind.PICTURE:
            picture = self._decoder.picture(data)
            rgb = ctypes.cast(ctypes.c_char_p(picture.rgb), ctypes.POINTER(ctypes.c_uint8))
            bitmap = mtmd().mtmd_bitmap_init(picture.width, picture.height, rgb)  # copies them
        else:
            rate = mtmd().mtmd_get_audio_sample_rate(self.pointer)
            samples = self._decoder.sound(data, rate).samples
            n_samples = min(len(samples), int(min(max_s, len(samples)) * rate))
            pointer = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            bitmap = mtmd().mtmd_bitmap_init_from_audio(n_samples, pointer)
        try:
            yield bitmap
        finally:
            mtmd().mtmd_bitmap_free(bitmap)

    def _tokenize(self, bitmap: int, form: MediaFormat) -> int:
        """Return the native chunks of one picture or sound without any text; the caller frees them."""
        marker = mtmd().mtmd_default_marker()
        text = mtmd().mtmd_input_text(marker, len(marker), False, True)
        chunks = mtmd().mtmd_input_chunks_init()
        bitmaps = (ctypes.c_void_p * 1)(bitmap)
        if mtmd().mtmd_tokenize(self.pointer, chunks, ctypes.byref(text), bitmaps, 1):
            mtmd().mtmd_input_chunks_free(chunks)
            cause = f"The projector cannot take this {form.kind}: {native_log().last_lines(1)}"
            raise RequestError(cause, f"Send another {form.kind}.")
        return int(chunks)

    def _layout(self, chunks: int, sha256: bytes) -> MediaLayout:
        """Return the layout of native chunks. Raises RequestError if it is too long, ModelFileError for a projector of
        another vocabulary."""
        pointers = [
            mtmd().mtmd_input_chunks_get(chunks, index) for index in range(mtmd().mtmd_input_chunks_size(chunks))
        ]
        n_tokens = sum(mtmd().mtmd_input_chunk_get_n_tokens(pointer) for pointer in pointers)
        if n_tokens > self._options.max_tokens:
            cause = f"A picture or sound takes {n_tokens:,} tokens and the context has {self._options.max_tokens:,}."
            raise RequestError(cause, "Send a smaller picture or a shorter sound, or use a longer --ctx.")
        parts = [self._part(pointer, sha256, index) for index, pointer in enumerate(pointers)]
        if not any(isinstance(part, MediaChunk) for part in parts):
            raise RequestError(*_NO_TOKENS)
        return MediaLayout(tuple(part for part in parts if part != ()))

    def _part(self, pointer: int, sha256: bytes, index: int) -> tuple[int, ...] | MediaChunk:
        if mtmd().mtmd_input_chunk_get_type(pointer) == mtmd().MTMD_INPUT_CHUNK_TYPE_TEXT:
            return self._tokens(pointer)
        n_tokens = mtmd().mtmd_input_chunk_get_n_tokens(pointer)
        is_causal = not mtmd().mtmd_decode_use_non_causal(self.pointer, pointer)
        if n_tokens == 0:
            raise RequestError(*_NO_TOKENS)
        if not is_causal and n_tokens > self._options.max_whole_tokens:
            raise RequestError(
                f"The picture must be computed in one batch of {n_tokens} tokens and the micro-batch has "
                f"{self._options.max_whole_tokens}.",
                "Use a larger micro-batch, a shorter --ctx, or another model.",
            )
        limit = self._options.max_whole_tokens if self._options.limits_tokens else 0
        settings = f"{self._options.key}/{limit}/{self._n_embd}".encode()  # all that embeddings depend on
        return MediaChunk(
            hashlib.sha256(b"%s/%d/%s" % (settings, index, sha256)).hexdigest(),
            n_tokens,
            mtmd().mtmd_input_chunk_get_n_pos(pointer),
            is_causal,
            self._positions(pointer, n_tokens),
        )

    def _tokens(self, pointer: int) -> tuple[int, ...]:
        """Return the tokens of a text chunk: the marks around a picture or sound, or a tile."""
        n_tokens = ctypes.c_size_t()
        found = mtmd().mtmd_input_chunk_get_tokens_text(pointer, ctypes.byref(n_tokens))
        tokens = tuple(found[: n_tokens.value]) if n_tokens.value else ()
        if all(0 <= token < self._n_vocab for token in tokens):
            return tokens
        cause = "The projector marks pictures or sounds with tokens that the model's vocabulary lacks."
        raise ModelFileError(cause, "Name the projector that belongs to the model.")

    def _positions(self, pointer: int, n_tokens: int) -> NDArray[np.int32] | None:
        """Return time, height and width of each token of a picture under M-RoPE, None where they count up."""
        picture = mtmd().mtmd_input_chunk_get_tokens_image(pointer)
        if not picture or not mtmd().mtmd_decode_use_mrope(self.pointer):
            return None
        found = (mtmd().mtmd_image_tokens_get_decoder_pos(picture, 0, index) for index in range(n_tokens))
        positions = np.array([(each.t, each.y, each.x) for each in found], np.int64)
        if (positions == np.arange(n_tokens)[:, None]).all():
            return None
        n_positions = mtmd().mtmd_input_chunk_get_n_pos(pointer)
        if positions.min() < 0 or positions.max() >= max(1, n_positions):
            raise ModelFileError("The projector gives positions outside of its picture.", _REMEDY)
        return positions.astype(np.int32)

    def _free_layouts(self) -> None:
        while self._layouts:
            self._layouts.popitem()[1].free()


@dataclass(frozen=True, slots=True, eq=False)
class _Chunks:
    """Native chunks with the decoded content, and their layout."""

    pointer: int
    layout: MediaLayout

    def find(self, content_id: str) -> int:
        """Return the native chunk with this content, 0 without one."""
        media = (part for part in self.layout.parts if isinstance(part, MediaChunk))
        chunks = range(mtmd().mtmd_input_chunks_size(self.pointer))
        pointers = (mtmd().mtmd_input_chunks_get(self.pointer, index) for index in chunks)
        text = mtmd().MTMD_INPUT_CHUNK_TYPE_TEXT
        encoded = (each for each in pointers if mtmd().mtmd_input_chunk_get_type(each) != text)
        pairs = zip(encoded, media, strict=True)
        return next((int(pointer) for pointer, part in pairs if part.content_id == content_id), 0)

    def free(self) -> None:
        mtmd().mtmd_input_chunks_free(self.pointer)
