"""A context and a projector that speak, as a `Speaker`: libmtmd's helper for generated sound, in steps that are ours.

The helper owns the prompt, which it makes of rows of the embeddings and not of tokens, what it decodes with them, and
the codes or latents between a hidden state and samples. The loop is the engine's: sampling, the number of frames, and
when to stop. Source: tools/mtmd/mtmd-helper-gen.cpp and tools/tts/tts.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.common.media_formats import MediaKind, format_of
from app.engine.llama.native import lib, mtmd, native_log, prompt_bytes, tokenize
from app.engine.llama.projector import LlamaProjector
from app.engine.llama.samplers import LlamaSampler
from app.engine.request import MediaInput, SamplingParams
from app.engine.speech import MAX_VOICE_S, InterruptedSpeechError, SpeakerFacts
from app.protocol.errors import RequestError
from app.protocol.speech import SpeechSampling
from quantizer.system.errors import EngineError

_SEQUENCE = 0  # the only one: a model that speaks answers nothing else
_LAST = -1  # row of a batch
_NO_TOKEN = -1  # LLAMA_TOKEN_NULL
_FRAME_S = 0.08  # of both kinds
_PROMPT_STEP = 64  # tokens
_REMEDY = "Get the model and its mmproj file again, or choose another one."

NewSampler = Callable[[SamplingParams, tuple[int, ...]], LlamaSampler]  # from parameters and banned tokens


class LlamaSpeaker:
    """A `Speaker` over a context, which nothing else computes with, and its projector; close it before both."""

    def __init__(self, context: int, projector: LlamaProjector, new_sampler: NewSampler, n_outputs: int = 0) -> None:
        """`n_outputs` is how many tokens of a batch may have logits, 0 for all."""
        # A context with embeddings makes logits of all tokens, which of 64 and a vocabulary of 155,000 are 40 MB.
        self._n_prompt_step = min(n_outputs or _PROMPT_STEP, _PROMPT_STEP, lib.llama_n_batch(context))
        self._context, self._projector, self._new_sampler = context, projector, new_sampler
        model = lib.llama_get_model(context)
        self._vocab, self._n_embd = lib.llama_model_get_vocab(model), lib.llama_model_n_embd(model)
        info = mtmd().mtmd_gen_audio_get_info(projector.pointer)
        self.facts = SpeakerFacts(info.sample_rate, round(info.sample_rate * _FRAME_S))
        self._has_codes = info.type == mtmd().MTMD_GEN_AUDIO_TYPE_QWEN3TTS  # Pocket-TTS has latents: nothing to sample
        self._owned = ExitStack()
        lib.llama_set_embeddings(context, True)  # the helper continues hidden states
        self._helper = mtmd().mtmd_helper_gen_audio_init(context, projector.pointer)
        self._owned.callback(mtmd().mtmd_helper_gen_audio_free, self._helper)
        n_suppressed = ctypes.c_int32()
        suppressed = lib.llama_vocab_get_suppress_tokens(self._vocab, ctypes.byref(n_suppressed))
        self._suppressed = tuple(suppressed[: n_suppressed.value]) if n_suppressed.value else ()
        self._sampler: LlamaSampler | None = None
        self._state: Any = None  # the hidden state of the last frame
        self._token = _NO_TOKEN
        self._seed: int | None = None
        # At its first text the helper copies all embeddings, for a second or so that nothing interrupts.
        self._set_input(b"a", None, SpeechSampling())

    def begin(self, sentence: str, voice: MediaInput | None, sampling: SpeechSampling) -> int:
        if voice is not None and not self._projector.has_sound_encoder:
            raise RequestError("This model has one voice only: its mmproj file takes no other.", "Leave voice out.")
        if voice is not None and format_of(voice.data).kind is not MediaKind.SOUND:
            raise RequestError(
                "The voice is not a sound.", "Give a WAV, MP3, FLAC or Ogg Vorbis file of a few seconds."
            )
        # Special tokens would be parsed, and end the prompt early or fake its parts.
        data = prompt_bytes(sentence.replace("<", " "))
        self._seed_draws(sampling.seed)
        lib.llama_memory_seq_rm(lib.llama_get_memory(self._context), _SEQUENCE, -1, -1)
        self._projector.guard.begin(is_bounded=True)
        with self._bitmap(voice) as bitmap:
            is_failed = self._set_input(data, bitmap, sampling)
        self._check(is_failed, "The sentence or its voice could not be read")
        while (left := mtmd().mtmd_helper_gen_audio_step_prompt(self._helper, self._n_prompt_step)) > 0:
            self._check(False, "")  # whether it was interrupted meanwhile
        self._check(left < 0, "The sentence could not be computed")
        if self._sampler is not None:
            self._sampler.close()
        params = SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=sampling.seed,
        )
        self._sampler = self._new_sampler(params, self._suppressed) if self._has_codes else None
        self._go_on_from(lib.llama_get_embeddings_ith(self._context, _LAST))
        return len(tokenize(self._vocab, sentence, add_special=False, parse_special=False))

    def step(self) -> bool:
        has_ended, state = ctypes.c_bool(), ctypes.POINTER(ctypes.c_float)()
        self._projector.guard.begin(is_bounded=True)
        is_failed = mtmd().mtmd_helper_gen_audio_step_gen(
            self._helper, self._token, self._state, ctypes.byref(state), ctypes.byref(has_ended)
        )
        self._check(is_failed, "A frame could not be computed")
        if has_ended.value or not state:
            return True
        self._go_on_from(state)
        return False

    def samples(self) -> NDArray[np.float32]:
        rate, n_bytes, n_samples = ctypes.c_int32(), ctypes.c_size_t(), ctypes.c_int64()
        data = ctypes.POINTER(ctypes.c_char)()
        self._projector.guard.begin(is_bounded=True)
        is_failed = mtmd().mtmd_helper_gen_audio_get_output(
            self._helper, *map(ctypes.byref, (rate, data, n_bytes, n_samples))
        )
        self._check(is_failed, "Samples could not be computed")
        if not n_samples.value:
            return np.zeros(0, np.float32)
        samples = np.frombuffer(ctypes.string_at(data, n_bytes.value), np.float32)
        if not np.isfinite(samples).all():
            raise EngineError("The model computed NaN or infinite samples.", _REMEDY)
        return samples

    def interrupt(self) -> None:
        self._projector.guard.interrupt()

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
        self._owned.close()

    def _set_input(self, data: bytes, bitmap: int | None, sampling: SpeechSampling) -> bool:
        """Give the helper a text and the sound of a voice; return whether it failed."""
        given = mtmd().mtmd_helper_gen_audio_inp(
            seq_id=_SEQUENCE,
            prompt=data,
            prompt_len=len(data),
            speaker_ref=bitmap,
            lang=sampling.language.lower().encode(),
            top_k=1 if sampling.temperature == 0 else sampling.top_k,
            top_p=sampling.top_p,
            seed=sampling.seed,
            out_type=mtmd().MTMD_HELPER_GEN_AUDIO_OUTTYPE_PCM,
        )
        return bool(mtmd().mtmd_helper_gen_audio_set_input(self._helper, ctypes.byref(given)))

    def _bitmap(self, voice: MediaInput | None) -> Any:
        if voice is None:
            return nullcontext()
        return self._projector.bitmap(voice.data, format_of(voice.data), MAX_VOICE_S)

    def _go_on_from(self, state: Any) -> None:
        """Let the next frame continue the hidden `state`, and sample its first code. Raises EngineError where the state
        is not finite: libmtmd would look up a code that no table has, which ends the process."""
        if not np.isfinite(np.ctypeslib.as_array(state, (self._n_embd,))).all():
            raise EngineError("The model computed a hidden state of NaN or infinity.", _REMEDY)
        self._state = state
        self._token = _NO_TOKEN if self._sampler is None else self._sampler.sample(_LAST)

    def _seed_draws(self, seed: int) -> None:
        """Let the draws of a sentence begin anew. libmtmd goes on with them where the seed is that of the last one, so
        that the same text would sound otherwise each time: a frame that nobody hears is drawn with another."""
        if seed == self._seed:
            given, made = mtmd().mtmd_gen_inp_default(self._projector.pointer), mtmd().mtmd_gen_out()
            given.embd, given.seed = (ctypes.c_float * self._n_embd)(), seed ^ 1
            self._projector.guard.begin(is_bounded=True)
            is_failed = mtmd().mtmd_gen_audio_process(self._projector.pointer, *map(ctypes.byref, (given, made)))
            self._check(is_failed, "A frame could not be computed")
        self._seed = seed

    def _check(self, is_failed: bool, what: str) -> None:
        """Raise the error of a call that failed or was interrupted."""
        if self._projector.guard.is_interrupted:
            raise InterruptedSpeechError
        if is_failed:
            raise EngineError(f"{what}: {native_log().last_lines(1)}", "Use a context of 2,048 tokens or more (--ctx).")
