"""The small widgets of the chat screen: notices, errors, the greeting of an empty chat."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from app.chat.rounds import RoundLimitError
from app.common.terminal import counted, printable, printable_line
from app.protocol.errors import ContextOverflowError, ServiceError, UnfitError
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import UserError
from tui.chat.commands import EXAMPLES
from tui.commands import FEATURES

_KEYS: dict[type[UserError], str] = {
    ContextOverflowError: "/compact shortens the chat; of an attached text, edit the question and Alt+P or /part"
    " searches in it or takes a part; Ctrl+N starts a new chat.",
    ModelFileError: "F6 lists local models; Ctrl+R retries.",
    RoundLimitError: "Ctrl+G lets it go on; /tools rounds NUMBER changes how often it may call tools.",
    UnfitError: "F6 lists other models; Ctrl+R retries.",
}
_MAX_WAITING = 3  # lines
_WAITING_HINT = "sent after this answer; Up in the empty prompt takes the last one back"


class Notice(Static):
    """A quiet line: a notice of the engine, or the result of a command."""

    def __init__(self, text: str, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(f"· {printable(text)}", markup=False, id=id)


class RepetitionNotice(Notice):
    """Said of an answer that goes on; removed when it has ended."""

    def __init__(self) -> None:
        super().__init__("The answer repeats itself: Esc stops it.")


class DeletionNotice(Notice):
    """How many messages were deleted, and the way to bring them back."""

    def __init__(self, n_messages: int) -> None:
        super().__init__("")
        self.update(
            Content.from_markup(
                f"· Deleted {n_messages} message{'s' if n_messages > 1 else ''}: "
                "[@click=screen.command('undo')]Undo[/], [bold]Alt+U[/bold] or /undo"
            )
        )


class ErrorPanel(Static):
    """Cause, remedy and the key to continue, one per line. After an answer, a lost service `is_reopened` by the app."""

    def __init__(self, error: UserError, *, has_text: bool = False, is_reopened: bool = False) -> None:
        lines = (error.cause, error.remedy, _KEYS.get(type(error), "Ctrl+R retries."))
        if is_reopened and type(error) is ServiceError:
            lines = (error.cause, "The connection is opened again by itself.", "Ctrl+R asks again.")
        super().__init__("\n".join(printable(line) for line in lines if line), markup=False)
        title = "The answer is incomplete" if has_text else "No answer"
        self.border_title = "The model waits for you" if isinstance(error, RoundLimitError) else title


class Greeting(Static):
    """The content of an empty chat: what localllm is, questions sent by one key or click, and the other features."""

    def __init__(self) -> None:
        examples = "\n".join(
            f"  [$text-accent]F{number + 1}[/]   [@click=screen.command('example-{number}')]{example}[/]"
            for number, example in enumerate(EXAMPLES, start=1)
        )
        others = [("go-" + feature.id, feature.key.upper(), feature.title) for feature in FEATURES if feature.key]
        links = [
            f"[$text-accent]{key:<4}[/] [@click=screen.command('{command}')]{title:<10}[/]"
            for command, key, title in (*others, ("help", "F1", "Help"), ("quit", "Ctrl+Q", "Quit"))
        ]
        rows = ("  " + "   ".join(links[begin : begin + 4]) for begin in range(0, len(links), 4))
        super().__init__(
            Content.from_markup(
                "[bold $bright]Chat with a language model on this machine.[/] Nothing leaves it.\n\n"
                f"[$text-muted]Type a question, or ask one of these:[/]\n{examples}\n\n"
                "[$text-muted]Or go to:[/]\n" + "\n".join(rows)
            )
        )


class NewTextLine(Static):
    """How much came below what is seen; a click goes there. Its row is there while it has something to say."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.display = False

    def show(self, n_lines: int | None) -> None:
        words = "new text" if n_lines is None else counted(n_lines, "new line")
        text = f"↓ {words} · Ctrl+End"
        self.update(text, layout=len(text) != len(str(self.content)))  # it is as wide as its text
        self.display = n_lines != 0

    async def on_click(self) -> None:
        await self.run_action("screen.command('to-end')")


class WaitingQuestions(Static):
    """The questions that wait for the running answer, one per line; a click takes the last one back."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.display = False
        self._questions: list[str] = []

    def show(self, questions: list[str]) -> None:
        if questions == self._questions:
            return
        self._questions = questions
        n_more = len(questions) - _MAX_WAITING
        lines = [f"waiting: {printable_line(question)}" for question in questions[:_MAX_WAITING]]
        if n_more > 0:
            lines.append(f"and {n_more} more")
        self.update("\n".join([*lines, _WAITING_HINT] if lines else []))
        self.display = bool(lines)

    async def on_click(self) -> None:
        await self.run_action("screen.command('take-back')")


class OtherQuestions(Static):
    """The chats that are not shown and wait for a decision about a tool, in one line; a click opens the first."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.display = False

    def show(self, titles: list[str]) -> None:
        others = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        first = printable_line(titles[0]) if titles else ""
        text = f"! “{first}”{others} asks whether a tool may run: Alt+A goes there" if titles else ""
        if text != self.content:  # each update lays the screen out
            self.update(text)
            self.display = bool(titles)

    async def on_click(self) -> None:
        await self.run_action("screen.command('answer-approval')")
