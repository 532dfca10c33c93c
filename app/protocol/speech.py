"""What is said aloud: how it is sampled, and the parts in which it comes."""

from __future__ import annotations

from dataclasses import dataclass

MAX_SEED = (1 << 32) - 2  # libmtmd takes the next one for none
MAX_VOICE_BYTES = 16 << 20  # of a sound that is a voice to speak with


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSampling:
    """How a model says a text. `language` is that of its speech, such as en or English; empty: English, or what the
    weights are for. The defaults are those that Qwen3-TTS was published with; Pocket-TTS has its own."""

    language: str = ""
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A sentence that was said: mono samples of 16 bits, little-endian. One that `is_cut` reached its longest time
    before the model ended it."""

    samples: bytes
    sample_rate: int
    text: str = ""
    is_cut: bool = False

    @property
    def length_s(self) -> float:
        return len(self.samples) / 2 / self.sample_rate
