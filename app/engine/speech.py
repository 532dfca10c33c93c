"""Speaking: the interface of a model that says sentences aloud, and the queue of texts for it.

Two implementations ship: `app.engine.llama` and `app.engine.fake`. The queue computes one frame of one sentence between
the steps of everything else, so that a text can be left at any moment; texts take turns by the sentence. Independent of
native code, and of how a text is cut into sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.engine.messages import Failed, Finished, Speak, Spoken
from app.engine.request import FinishReason, MediaInput, Timings, Usage
from app.protocol.errors import RequestError
from app.protocol.speech import SpeechSampling
from quantizer.gguf.header import Header
from quantizer.gguf.projector_header import SPEAKING_ARCHITECTURES
from quantizer.system.errors import ErrorInfo, UserError

MAX_VOICE_S = 30.0  # of a sound that is a voice to speak with; Pocket-TTS takes no more
SPEECH_N_CTX = 2048  # tokens: a sentence of 900 bytes, 30 s of a voice, and as many frames as a sentence may have
_LEAST_S, _S_PER_CHARACTER = 5.0, 0.4  # slow speech, and slow syllables of which a character is one
_MAX_FRAMES = 512  # of a sentence; source: tools/tts/tts.cpp as vendored in llama-cpp-python 0.3.36

Event = Spoken | Finished | Failed


class InterruptedSpeechError(Exception):
    """The sentence that was being said is lost, for `Speaker.interrupt` was called meanwhile."""


@dataclass(frozen=True, slots=True)
class SpeakerFacts:
    """What all sounds of a speaker have: samples a second, and how many of them a frame has."""

    sample_rate: int
    frame_samples: int


class Speaker(Protocol):
    """A model that says one sentence at a time. All calls but `interrupt` come from one thread."""

    @property
    def facts(self) -> SpeakerFacts: ...

    def begin(self, sentence: str, voice: MediaInput | None, sampling: SpeechSampling) -> int:
        """Begin to say `sentence`, in the `voice` of a sound, in place of one that is not ended; return its tokens.
        Raises RequestError for what this model cannot say, EngineError, and as `step`."""

    def step(self) -> bool:
        """Compute a frame; return whether the sentence has ended, perhaps without a frame. Raises EngineError,
        InterruptedSpeechError."""

    def samples(self) -> NDArray[np.float32]:
        """Return what was said of the sentence, which ends it: mono, from -1 to 1. Raises as `step`."""

    def interrupt(self) -> None:
        """End the computation that runs, if one does, within some milliseconds."""


@dataclass(slots=True, eq=False)
class _Text:
    """A text of which `n_said` sentences were said, and of the next one `n_frames`, if it `is_begun`."""

    message: Speak
    n_said: int = 0
    n_frames: int = 0
    is_begun: bool = False
    n_prompt: int = 0
    n_output: int = 0
    is_cut: bool = False  # a sentence reached its limit

    @property
    def sentence(self) -> str:
        return self.message.sentences[self.n_said]

    def begin_again(self) -> None:
        self.n_frames, self.is_begun = 0, False


class SpeechQueue:
    """A queue of Speak messages for a `speaker`, None where the model has none. Each submitted message gets a Spoken
    for each sentence and ends with Finished, or with Failed, unless it is aborted."""

    def __init__(self, speaker: Speaker | None, emit: Callable[[Event], None]) -> None:
        self._speaker = speaker
        self._emit = emit
        self._texts: list[_Text] = []  # the one that is being said first
        self._aborted: set[str] = set()  # that the reading thread has seen, until the engine's thread does

    @property
    def is_idle(self) -> bool:
        return not self._texts

    def submit(self, message: Speak) -> None:
        """Queue `message`, or emit Failed where the model does not speak."""
        if self._speaker is None:
            error = RequestError("This model does not speak.", "Ask one that does, such as Qwen3-TTS with its mmproj.")
            self._emit(Failed(message.request_id, ErrorInfo.of(error)))
            return
        self._texts.append(_Text(message))

    def interrupt(self, request_id: str) -> None:
        """End what is computed for a message that is going to be aborted; may be called from any thread."""
        texts = self._texts[:1]
        self._aborted.add(request_id)
        if self._speaker is not None and texts and texts[0].message.request_id == request_id:
            self._speaker.interrupt()

    def abort(self, request_id: str) -> None:
        """Drop a message; nothing more is emitted for it."""
        self._aborted.discard(request_id)
        self._texts = [text for text in self._texts if text.message.request_id != request_id]

    def step(self) -> None:
        """Begin the next sentence, or compute a frame of it."""
        if not self._texts or self._speaker is None:
            return
        text = self._texts[0]
        if text.message.request_id in self._aborted:
            return  # its Abort is on the way
        try:
            if not text.is_begun:
                message = text.message
                text.n_prompt += self._speaker.begin(text.sentence, message.voice, message.sampling)
                text.is_begun = True
            else:
                self._compute_frame(text, self._speaker)
        except InterruptedSpeechError:
            text.begin_again()  # another one was meant, if this is not aborted in a moment
        except UserError as error:
            self._texts.remove(text)
            self._emit(Failed(text.message.request_id, ErrorInfo.of(error)))

    def _compute_frame(self, text: _Text, speaker: Speaker) -> None:
        has_ended = speaker.step()
        text.n_frames += 1
        is_full = text.n_frames >= max_frames(text.sentence, speaker.facts)
        if not (has_ended or is_full):
            return
        samples = speaker.samples()
        data = (np.clip(samples, -1.0, 1.0) * 32767).astype("<i2").tobytes()  # as llama.cpp's write_wav16
        rate = speaker.facts.sample_rate
        text.n_output += text.n_frames
        text.is_cut = text.is_cut or not has_ended
        self._emit(Spoken(text.message.request_id, text.n_said, data, rate, is_cut=not has_ended))
        text.n_said += 1
        text.begin_again()
        self._texts.remove(text)
        if text.n_said < len(text.message.sentences):
            self._texts.append(text)  # the others come first next time
            return
        usage = Usage(n_prompt_tokens=text.n_prompt, n_output_tokens=text.n_output)
        reason = FinishReason.LENGTH if text.is_cut else FinishReason.STOP
        self._emit(Finished(text.message.request_id, reason, usage, Timings()))


def is_speaker(header: Header) -> bool:
    """Return whether the model of `header` was made to say texts aloud, and nothing else."""
    return header.architecture in SPEAKING_ARCHITECTURES


def max_frames(sentence: str, facts: SpeakerFacts) -> int:
    """Return how many frames of a sentence are computed at most: a model that misses its end would go on for ever."""
    longest_s = _LEAST_S + _S_PER_CHARACTER * len(sentence)
    return min(_MAX_FRAMES, int(longest_s * facts.sample_rate / facts.frame_samples))
