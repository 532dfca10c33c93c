"""The command tables of the chat screen.

Owns ids, keys, slash words and texts. The implementations are methods of the screen, typed as `ChatActions`.
"""

from __future__ import annotations

from typing import Any, Protocol

from tui.commands import Command, CommandTable

__all__ = ["CHAT_COMMANDS", "EXAMPLES", "MESSAGE_COMMANDS", "ChatActions", "MessageActions"]


class MessageActions(Protocol):
    """The methods of the chat screen that commands on messages call."""

    async def answer_again(self) -> None: ...

    async def select_step(self, n_steps: int) -> None: ...

    async def step_to_version(self, n_steps: int) -> None: ...

    def edit(self) -> None: ...

    async def continue_answer(self) -> None: ...

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
            tooltip="Select the previous message: its keys appear below it",
            keys="ctrl+up,alt+up",
            run=lambda chat, _: chat.select_step(-1),
        ),
        Command[MessageActions](
            id="select-down",
            title="Select the message below",
            tooltip="Select the next message; after the last one, the prompt",
            keys="ctrl+down,alt+down",
            run=lambda chat, _: chat.select_step(1),
        ),
        Command[MessageActions](
            id="edit",
            title="Edit a question",
            tooltip="Edit a question; the former text stays as a version",
            keys="e",
            slash="edit",
            has_priority=False,
            run=lambda chat, _: chat.edit(),
        ),
        Command[MessageActions](
            id="again",
            title="Regenerate the selected answer",
            tooltip="Generate another version of the selected answer",
            keys="r",
            has_priority=False,
            is_listed=False,
            run=lambda chat, _: chat.answer_again(),
        ),
        Command[MessageActions](
            id="continue",
            title="Continue the answer",
            tooltip="Continue an answer that was stopped or cut off",
            keys="ctrl+g",
            slash="continue",
            run=lambda chat, _: chat.continue_answer(),
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
            tooltip="Delete the selected message and all that follow it",
            keys="delete,backspace",
            has_priority=False,
            run=lambda chat, _: chat.delete(),
        ),
        Command[MessageActions](
            id="undo",
            title="Undo the deletion",
            tooltip="Restore the deleted messages",
            keys="ctrl+z",
            slash="undo",
            run=lambda chat, _: chat.undo(),
        ),
        Command[MessageActions](
            id="copy-message",
            title="Copy the selected message",
            tooltip="Copy the selected message to the clipboard",
            keys="y",
            has_priority=False,
            run=lambda chat, _: chat.copy_message(),
        ),
        Command[MessageActions](
            id="copy-code",
            title="Copy a code block",
            tooltip="Copy one of the message's code blocks to the clipboard",
            keys="c",
            slash="code",
            argument="NUMBER",
            has_priority=False,
            run=lambda chat, number: chat.copy_code(number),
        ),
        Command[MessageActions](
            id="thoughts",
            title="Expand or collapse thoughts",
            tooltip="Show the model's reasoning before the answer",
            keys="t",
            slash="thoughts",
            has_priority=False,
            run=lambda chat, _: chat.toggle_thoughts(),
        ),
    )
)


EXAMPLES = ("What can you do?", "How do I quantize a model?", "Which keys does this app have?")


class ChatActions(MessageActions, Protocol):
    """The methods of the chat screen that its commands call."""

    def ask(self, question: str) -> None: ...

    async def stop_answer(self) -> None: ...

    async def new_chat(self) -> None: ...

    def copy_answer(self) -> None: ...

    async def set_system_prompt(self, text: str) -> None: ...

    async def edit_options(self, text: str) -> None: ...

    async def use_preset(self, name: str) -> None: ...

    def scroll_pages(self, n_pages: int) -> None: ...

    async def go_to_start(self) -> None: ...

    async def go_to_end(self) -> None: ...


CHAT_COMMANDS: CommandTable[Any] = CommandTable(
    (
        Command[ChatActions](
            id="stop",
            title="Stop the answer",
            tooltip="Stop the answer and keep its text; otherwise focus the prompt",
            keys="escape",
            slash="stop",
            run=lambda chat, _: chat.stop_answer(),
        ),
        Command[ChatActions](
            id="retry",
            title="Regenerate",
            tooltip="Regenerate the last answer; both versions are kept",
            keys="ctrl+r",
            slash="retry",
            run=lambda chat, _: chat.answer_again(),
        ),
        Command[ChatActions](
            id="new",
            title="New chat",
            tooltip="Start a new chat; this one stays in the history",
            keys="ctrl+n",
            slash="new",
            run=lambda chat, _: chat.new_chat(),
        ),
        Command[ChatActions](
            id="copy",
            title="Copy the last answer",
            tooltip="Copy the last answer to the clipboard",
            keys="ctrl+y",
            slash="copy",
            run=lambda chat, _: chat.copy_answer(),
        ),
        *MESSAGE_COMMANDS,
        Command[ChatActions](
            id="system",
            title="System prompt",
            tooltip="Set the system prompt of this chat; without TEXT, show it",
            slash="system",
            argument="TEXT",
            run=lambda chat, text: chat.set_system_prompt(text),
        ),
        Command[ChatActions](
            id="options",
            title="Sampling options",
            tooltip="Set temperature and other sampling options for this chat",
            slash="options",
            argument="NAME=VALUE",
            run=lambda chat, text: chat.edit_options(text),
        ),
        Command[ChatActions](
            id="preset",
            title="Presets",
            tooltip="Apply a preset; without NAME, list the presets",
            slash="preset",
            argument="NAME",
            run=lambda chat, name: chat.use_preset(name),
        ),
        Command[ChatActions](
            id="page-up",
            title="Scroll up",
            tooltip="Scroll towards earlier messages",
            keys="pageup",
            is_listed=False,
            run=lambda chat, _: chat.scroll_pages(-1),
        ),
        Command[ChatActions](
            id="page-down",
            title="Scroll down",
            tooltip="Scroll towards the latest message",
            keys="pagedown",
            is_listed=False,
            run=lambda chat, _: chat.scroll_pages(1),
        ),
        Command[ChatActions](
            id="to-start",
            title="Go to the first message",
            tooltip="Go to the first message of this chat",
            keys="ctrl+home",
            run=lambda chat, _: chat.go_to_start(),
        ),
        Command[ChatActions](
            id="to-end",
            title="Go to the last message",
            tooltip="Go to the last message and follow new text",
            keys="ctrl+end",
            run=lambda chat, _: chat.go_to_end(),
        ),
        Command[ChatActions](
            id="example-1",
            title=EXAMPLES[0],
            tooltip=f"Ask “{EXAMPLES[0]}”",
            keys="f2",
            is_listed=False,
            run=lambda chat, _: chat.ask(EXAMPLES[0]),
        ),
        Command[ChatActions](
            id="example-2",
            title=EXAMPLES[1],
            tooltip=f"Ask “{EXAMPLES[1]}”",
            keys="f3",
            is_listed=False,
            run=lambda chat, _: chat.ask(EXAMPLES[1]),
        ),
        Command[ChatActions](
            id="example-3",
            title=EXAMPLES[2],
            tooltip=f"Ask “{EXAMPLES[2]}”",
            keys="f4",
            is_listed=False,
            run=lambda chat, _: chat.ask(EXAMPLES[2]),
        ),
    )
)
