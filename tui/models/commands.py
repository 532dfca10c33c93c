"""The command table of the models screen.

Owns ids, keys and texts. The implementations are methods of the screen, typed as `ModelActions`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from tui.commands import Command, CommandTable

__all__ = ["MODEL_COMMANDS", "ModelActions"]


class ModelActions(Protocol):
    """The methods of the models screen that its commands call; most act on the selected row."""

    def choose(self) -> Awaitable[None]: ...

    def focus_search(self) -> None: ...

    def show_card(self) -> Awaitable[None]: ...

    def quantize(self) -> Awaitable[None]: ...

    def import_model(self) -> Awaitable[None]: ...

    def remove_model(self) -> Awaitable[None]: ...

    def load_or_unload(self) -> Awaitable[None]: ...

    def toggle_keep_alive(self) -> Awaitable[None]: ...

    def cancel(self) -> Awaitable[None]: ...

    def rescan(self) -> None: ...


def _of_row(
    command_id: str, title: str, keys: str, tooltip: str, run: Any, *, is_shown: bool = True
) -> Command[ModelActions]:
    """Return a command whose keys are letters: they apply only while the list has the focus."""
    return Command[ModelActions](
        id=command_id, title=title, keys=keys, tooltip=tooltip, run=run, has_priority=False, is_shown=is_shown
    )


MODEL_COMMANDS: CommandTable[Any] = CommandTable(
    (
        _of_row(
            "choose",
            "Chat/download",
            "enter",
            "Chat with the model; a remote one is downloaded in the background",
            lambda models, _: models.choose(),
        ),
        _of_row(
            "search",
            "Search",
            "slash,ctrl+f",
            "Search local models and the hub",
            lambda m, _: m.focus_search(),
        ),
        _of_row("card", "Info", "c", "Show the model's metadata", lambda m, _: m.show_card()),
        _of_row(
            "quantize",
            "Quantize",
            "q",
            "Quantize the model to a type or a size; runs as a job",
            lambda m, _: m.quantize(),
        ),
        _of_row(
            "import",
            "Import",
            "i",
            "Link another program's model into the library",
            lambda m, _: m.import_model(),
        ),
        _of_row(
            "remove",
            "Remove",
            "d,delete",
            "Remove the model after confirmation",
            lambda m, _: m.remove_model(),
        ),
        _of_row(
            "load",
            "Load",
            "u",
            "Load the model, or unload it to free its memory",
            lambda m, _: m.load_or_unload(),
        ),
        _of_row(
            "keep",
            "Keep",
            "k",
            "Keep the model loaded, or unload it after ten idle minutes",
            lambda m, _: m.toggle_keep_alive(),
            is_shown=False,
        ),
        _of_row("cancel", "Stop", "x", "Stop the download; partial data is kept", lambda m, _: m.cancel()),
        _of_row(
            "look-again",
            "Refresh",
            "ctrl+r",
            "Rescan the disk and free memory",
            lambda m, _: m.rescan(),
            is_shown=False,
        ),
    )
)
