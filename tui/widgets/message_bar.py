"""The line below a message: which of its versions is shown, and what can be done with it."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from app.chat.message import Role
from tui.code_blocks import code_blocks
from tui.conversation import Ending, Entry

__all__ = ["MessageBar"]

# Command and words, by who speaks; the key is the stressed letter's.
_ACTIONS: dict[Role, tuple[tuple[str, str], ...]] = {
    "user": (("edit", "[b]E[/b] edit"), ("delete", "[b]Del[/b]ete"), ("copy-message", "[b]Y[/b] copy")),
    "assistant": (
        ("again", "[b]R[/b] again"),
        ("delete", "[b]Del[/b]ete"),
        ("copy-message", "[b]Y[/b] copy"),
    ),
}
_GO_ON = ("continue", "[b]Ctrl+G[/b] continue")
_CODE = ("copy-code", "[b]C[/b]ode")
_THOUGHTS = ("thoughts", "[b]T[/b]houghts")
_OTHERS = (("delete", "[b]Del[/b]ete"), ("copy-message", "[b]Y[/b] copy"))


class MessageBar(Static):
    """Shown where there is something to say; each part can be clicked."""

    def show(self, entry: Entry, *, is_selected: bool) -> None:
        """Say what `entry` is, and if it is selected what its keys do."""
        parts = [_versions(entry)] if entry.n_versions > 1 else []
        if is_selected and not entry.is_running:
            actions = _ACTIONS.get(entry.message.role, _OTHERS)
            if entry.message.role == "assistant" and entry.ending is not Ending.COMPLETE:
                actions = (*actions, _GO_ON)
            if code_blocks(entry.message.content):
                actions = (*actions, _CODE)
            if entry.message.reasoning:
                actions = (*actions, _THOUGHTS)
            parts += [_link(command, words) for command, words in actions]
        self.update(Content.from_markup("  ".join(parts)))
        self.display = bool(parts)

    def on_click(self) -> None:
        """Select the message before what is clicked is done with the selected one."""
        if isinstance(self.parent, Widget):
            self.screen.set_focus(self.parent, scroll_visible=False)


def _versions(entry: Entry) -> str:
    left, right = _link("version-left", "‹"), _link("version-right", "›")
    return f"{left} {entry.version}/{entry.n_versions} {right}"


def _link(command: str, words: str) -> str:
    return f"[@click=screen.click('{command}')]{words}[/]"
