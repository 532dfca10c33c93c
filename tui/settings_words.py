"""How a chat is answered, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from app.chat.chat import ChatSettings
from app.chat.sampler import sampler_of

__all__ = ["presets_text", "settings_line"]


def settings_line(settings: ChatSettings) -> str:
    """Return one line: the sampler's options that are set, and the system prompt if there is one."""
    set_here = [f"{name} {value}" for name, value in sampler_of(settings.options).items()]
    sampler = ", ".join(set_here) or "the sampler is the model's own"
    return f"{sampler}; system prompt: {settings.system}" if settings.system else sampler


def presets_text(presets: Mapping[str, ChatSettings]) -> str:
    """Return the presets, a line each."""
    if not presets:
        return "There are no presets yet: /options in the full screen saves the first."
    return "\n".join(["/preset NAME, of these:", *(f"{name}: {settings_line(presets[name])}" for name in presets)])
