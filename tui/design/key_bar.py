"""The last row of every screen: the keys that matter now, each with a word; a click does what the key does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from tui.design.key_names import format_keys

if TYPE_CHECKING:
    from textual.dom import DOMNode
    from textual.events import Click
    from textual.screen import Screen

_GAP = 3  # cells between two keys
_HELP = "f1"


@dataclass(frozen=True, slots=True)
class KeyHint:
    """A key, as it is shown, with a word. `action` runs in the namespace `node`; without one the key is of the widget
    that has the focus, and a click types it."""

    key: str
    word: str
    action: str = ""
    node: DOMNode | None = None
    is_enabled: bool = True


@runtime_checkable
class HintingScreen(Protocol):
    """A screen that says itself which keys matter now."""

    def key_hints(self) -> Iterable[KeyHint]: ...


class KeyBar(Widget):
    """As many keys as there is room for, in the order of the screen's bindings, and help at the end. Textual's footer
    makes a widget for each key anew whenever the focus changes, a third of the time in which a screen opens."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-bar--key", "key-bar--word", "key-bar--disabled"}
    DEFAULT_CSS = """
    KeyBar {
        dock: bottom;
        height: 1;
        width: 1fr;
        padding: 0 1;
        background: $panel;
        text-wrap: nowrap;
    }
    KeyBar > .key-bar--key { color: $text-accent; }
    KeyBar > .key-bar--word { color: $text-muted; }
    KeyBar > .key-bar--disabled { color: $faint; }
    KeyBar:nocolor > .key-bar--key { text-style: bold; }
    """
    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__()
        self._hints: tuple[KeyHint, ...] = ()

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self.show())
        self.call_after_refresh(self.show)

    def show(self) -> None:
        """Show the keys that matter now; without a change draw nothing."""
        screen = self.screen
        hints = tuple(screen.key_hints()) if isinstance(screen, HintingScreen) else tuple(_shown_bindings(screen))
        if hints != self._hints:
            self._hints = hints
            self.refresh()

    def render(self) -> Content:
        return Content(" " * _GAP).join(map(self._part, self._fitting()))

    def _fitting(self) -> list[KeyHint]:
        """Return the keys that there is room for. The last one, help, stays."""
        n_left = self.content_size.width
        *others, last = self._hints or (KeyHint("", ""),)
        n_left -= _cells(last)
        fitting = []
        for hint in others:
            n_left -= _cells(hint) + _GAP
            if n_left < 0:
                break
            fitting.append(hint)
        return [*fitting, last]

    def _part(self, hint: KeyHint) -> Content:
        key, word = (
            self.get_visual_style(f"key-bar--{each if hint.is_enabled else 'disabled'}") for each in ("key", "word")
        )
        return Content.assemble((hint.key, key), " ", (hint.word, word))

    async def on_click(self, event: Click) -> None:
        event.stop()
        begin = self.styles.padding.left
        for hint in self._fitting():
            if begin <= event.x < begin + _cells(hint):
                await self._press(hint)
                return
            begin += _cells(hint) + _GAP

    async def _press(self, hint: KeyHint) -> None:
        if not hint.is_enabled:
            self.app.bell()
        elif hint.action:
            await self.app.run_action(hint.action, hint.node)
        else:
            self.app.simulate_key(hint.key.lower())


def _cells(hint: KeyHint) -> int:
    return cell_len(hint.key) + 1 + cell_len(hint.word)


def _shown_bindings(screen: Screen[object]) -> Iterable[KeyHint]:
    """Yield the bindings that are to be shown, one key for each action, help at the end."""
    seen: set[str] = set()
    for key, active in screen.active_bindings.items():
        binding = active.binding
        if binding.show and binding.action not in seen and key != _HELP:
            seen.add(binding.action)
            shown = format_keys(key).lower()
            yield KeyHint(shown, binding.description.lower(), binding.action, active.node, active.enabled)
    yield KeyHint(_HELP, "help")
