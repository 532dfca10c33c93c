"""What a model reads besides text: pictures, sounds, both or neither.

Owns the words for it. Independent of how that is found out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Modality: TypeAlias = Literal["text", "image", "audio"]


@dataclass(frozen=True, slots=True)
class Senses:
    """Whether a model sees pictures and hears sounds."""

    sees: bool = False
    hears: bool = False

    @property
    def modalities(self) -> list[Modality]:
        """The kinds of content that the model reads."""
        media: dict[Modality, bool] = {"image": self.sees, "audio": self.hears}
        return ["text", *(kind for kind, is_read in media.items() if is_read)]

    @property
    def described(self) -> str:
        """What the model reads, as the end of a sentence."""
        words = {(False, False): "only text", (True, False): "text and pictures", (False, True): "text and sounds"}
        return words.get((self.sees, self.hears), "text, pictures and sounds")


TEXT_ONLY = Senses()
