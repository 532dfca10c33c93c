"""An error that a person can act on."""

from __future__ import annotations

from textual.widgets import Static

from app.terminal import printable
from quantizer.errors import ContextOverflowError, ModelFileError, UnfitError, UserError

__all__ = ["ErrorPanel"]

_KEYS: dict[type[UserError], str] = {
    ContextOverflowError: "Ctrl+N starts a new chat.",
    ModelFileError: "F6 shows the models that are here; Ctrl+R tries again.",
    UnfitError: "F6 shows other models; Ctrl+R tries again.",
}
_OTHER_KEYS = "Ctrl+R tries again."


class ErrorPanel(Static):
    """Cause, remedy and the key that leads on, each on a line of its own."""

    def __init__(self, error: UserError) -> None:
        lines = (error.cause, error.remedy, _KEYS.get(type(error), _OTHER_KEYS))
        super().__init__("\n".join(printable(line) for line in lines if line), markup=False)
        self.border_title = "No answer"
