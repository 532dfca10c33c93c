"""Everything that can be done with the messages of a chat.

Owns names, keys and words. What a command does is a method of the screen, seen here as `MessageActions`.
"""

from __future__ import annotations

from typing import Any, Protocol

from tui.commands import Command, CommandTable

__all__ = ["MESSAGE_COMMANDS", "MessageActions"]


class MessageActions(Protocol):
    """What the commands need of the chat screen."""

    async def answer_again(self) -> None: ...

    async def select_step(self, n_steps: int) -> None: ...

    async def step_to_version(self, n_steps: int) -> None: ...

    def edit(self) -> None: ...

    async def go_on(self) -> None: ...

    async def delete(self) -> None: ...

    async def undo(self) -> None: ...

    def toggle_thoughts(self) -> None: ...

    def copy_message(self) -> None: ...

    def copy_code(self, number: str) -> None: ...


MESSAGE_COMMANDS: CommandTable[Any] = CommandTable(
    (
        Command[MessageActions](
            id="select-up",
            title="Select the message above",
            tooltip="Go up to a message: its keys are shown below it",
            keys="ctrl+up,alt+up",
            run=lambda chat, _: chat.select_step(-1),
        ),
        Command[MessageActions](
            id="select-down",
            title="Select the message below",
            tooltip="Go down to a message, and from the last one to the prompt",
            keys="ctrl+down,alt+down",
            run=lambda chat, _: chat.select_step(1),
        ),
        Command[MessageActions](
            id="edit",
            title="Edit a question",
            tooltip="Put a question in other words; the former stays as a version",
            keys="e",
            slash="edit",
            has_priority=False,
            run=lambda chat, _: chat.edit(),
        ),
        Command[MessageActions](
            id="again",
            title="Answer the selected message again",
            tooltip="Make another version of the selected answer",
            keys="r",
            has_priority=False,
            is_listed=False,
            run=lambda chat, _: chat.answer_again(),
        ),
        Command[MessageActions](
            id="continue",
            title="Continue the answer",
            tooltip="Write an answer on that was stopped or cut",
            keys="ctrl+g",
            slash="continue",
            run=lambda chat, _: chat.go_on(),
        ),
        Command[MessageActions](
            id="version-left",
            title="Earlier version",
            tooltip="Show an earlier version of the selected message",
            keys="left",
            has_priority=False,
            run=lambda chat, _: chat.step_to_version(-1),
        ),
        Command[MessageActions](
            id="version-right",
            title="Later version",
            tooltip="Show a later version of the selected message",
            keys="right",
            has_priority=False,
            run=lambda chat, _: chat.step_to_version(1),
        ),
        Command[MessageActions](
            id="delete",
            title="Delete the selected message",
            tooltip="Delete the selected message with all that follows it",
            keys="delete,backspace",
            has_priority=False,
            run=lambda chat, _: chat.delete(),
        ),
        Command[MessageActions](
            id="undo",
            title="Undo the deletion",
            tooltip="Bring back what was deleted just now",
            keys="ctrl+z",
            slash="undo",
            run=lambda chat, _: chat.undo(),
        ),
        Command[MessageActions](
            id="copy-message",
            title="Copy the selected message",
            tooltip="Put the selected message on the clipboard",
            keys="y",
            has_priority=False,
            run=lambda chat, _: chat.copy_message(),
        ),
        Command[MessageActions](
            id="copy-code",
            title="Copy a code block",
            tooltip="Put one of the message's code blocks on the clipboard",
            keys="c",
            slash="code",
            argument="NUMBER",
            has_priority=False,
            run=lambda chat, number: chat.copy_code(number),
        ),
        Command[MessageActions](
            id="thoughts",
            title="Open or fold thoughts",
            tooltip="Read what the model thought before the answer",
            keys="t",
            slash="thoughts",
            has_priority=False,
            run=lambda chat, _: chat.toggle_thoughts(),
        ),
    )
)
