"""Keys as they are written for people."""

from __future__ import annotations

_NAMES = {
    "escape": "Esc",
    "pageup": "Page Up",
    "pagedown": "Page Down",
    "delete": "Del",
    "slash": "/",
    "underscore": "_",
}


def format_keys(keys: str) -> str:
    """Return Textual's key names in display form: `ctrl+j,shift+enter` is Ctrl+J, Shift+Enter."""
    pressed = (key.split("+") for key in keys.split(",") if key)
    return ", ".join("+".join(_NAMES.get(part, part.capitalize()) for part in parts) for parts in pressed)
