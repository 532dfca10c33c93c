"""The bar that names all places, the one that a person is in stressed."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from tui.places import PLACES

__all__ = ["PlaceBar"]


class PlaceBar(Static):
    """One row; a click on a name goes there, the key beside it too."""

    def __init__(self, here: str) -> None:
        names = (_name(place.id, place.title, place.key, is_here=place.id == here) for place in PLACES)
        super().__init__(Content.from_markup("  ".join(names)))


def _name(place_id: str, title: str, key: str, *, is_here: bool) -> str:
    if is_here:
        return f"[reverse] {title} [/reverse]"
    shown = f" [dim]{key.upper()}[/dim]" if key else ""
    return f"[@click=screen.command('go-{place_id}')]{title}[/]{shown}"
