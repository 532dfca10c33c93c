"""What an empty chat shows."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from tui.chat_commands import EXAMPLES
from tui.places import PLACES

__all__ = ["Greeting"]


class Greeting(Static):
    """One line on what this is, questions that one key (or a click) sends, and the other places."""

    def __init__(self) -> None:
        examples = "\n".join(
            f"  [bold]F{number + 1}[/bold]  [@click=screen.command('example-{number}')]{example}[/]"
            for number, example in enumerate(EXAMPLES, start=1)
        )
        places = "   ".join(
            f"[bold]{place.key.upper()}[/bold] [@click=screen.command('go-{place.id}')]{place.title}[/]"
            for place in PLACES
            if place.key
        )
        super().__init__(
            Content.from_markup(
                "[bold]localllm[/bold]: chat with a language model on this machine, no network needed.\n\n"
                f"Type a question, or ask one of these:\n\n{examples}\n\n"
                f"  [bold]F1[/bold]  all keys and commands\n\n  {places}"
            )
        )
