"""The {{placeholders}} in texts of the library: which are left when such a text is sent. No widgets: the chat in the
scrollback has them too."""

from __future__ import annotations

from app.chat.presets import VARIABLE
from quantizer.system.errors import UsageError


class UnfilledError(UsageError):
    """A text was sent in which `placeholder` is not filled in."""

    def __init__(self, placeholder: str) -> None:
        super().__init__(f"{placeholder} is not filled in.", "Enter again sends it so.")
        self.placeholder = placeholder


class Templates:
    """Knows the placeholders of the texts that were put into one prompt: only of those is it sure that they are not the
    question itself, which may be about Jinja."""

    def __init__(self) -> None:
        self._placeholders: set[str] = set()
        self._held_back = ""

    def add(self, text: str) -> None:
        self._placeholders.update(VARIABLE.findall(text))

    def unfilled(self, text: str) -> UnfilledError | None:
        """Return the fault of a text that is sent with a placeholder, once: sent again unchanged, it has none."""
        left = [each for each in VARIABLE.findall(text) if each in self._placeholders]
        must_hold_back = bool(left) and text != self._held_back
        self._held_back = text if must_hold_back else ""
        return UnfilledError(left[0]) if must_hold_back else None
