"""The bar that names all places, the one that a person is in stressed."""

from __future__ import annotations

from collections.abc import Mapping

from textual.content import Content
from textual.widgets import Static

from tui.places import PLACES

__all__ = ["PlaceBar"]


class PlaceBar(Static):
    """One row; a click on a name goes there, the key beside it too. `keys` are a person's own, by command."""

    def __init__(self, here: str, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._here = here
        self.show(keys)

    def show(self, keys: Mapping[str, str]) -> None:
        """Show the keys beside the names as they are now."""
        names = (
            _name(place.id, place.title, keys.get(f"go-{place.id}", place.key), is_here=place.id == self._here)
            for place in PLACES
        )
        self.update(Content.from_markup("  ".join(names)))


def _name(place_id: str, title: str, key: str, *, is_here: bool) -> str:
    if is_here:
        return f"[reverse] {title} [/reverse]"
    shown = f" [dim]{key.upper()}[/dim]" if key else ""
    return f"[@click=screen.command('go-{place_id}')]{title}[/]{shown}"
