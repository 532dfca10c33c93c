"""The text on the screen of an app under test."""

from __future__ import annotations

from typing import Any

from textual._context import visible_screen_stack
from textual.app import App

__all__ = ["screen_text"]


def screen_text(app: App[Any]) -> str:
    """Return everything on the screen, row by row, with what is seen of the screens beneath."""
    # Textual asks this variable for them, and keeps what it has drawn: without them the app would go on without them.
    visible_screen_stack.set(app._background_screens)
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())
