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
            tooltip="Stop the answer and keep what came so far; else go back to the prompt",
            keys="escape",
            slash="stop",
            run=lambda chat, _: chat.stop_answer(),
        ),
        Command[ChatActions](
            id="retry",
            title="Answer again",
            tooltip="Answer the last question again; both answers are kept",
            keys="ctrl+r",
            slash="retry",
            run=lambda chat, _: chat.answer_again(),
        ),
        Command[ChatActions](
            id="new",
            title="New chat",
            tooltip="Start an empty chat; this one is kept",
            keys="ctrl+n",
            slash="new",
            run=lambda chat, _: chat.new_chat(),
        ),
        Command[ChatActions](
            id="copy",
            title="Copy the last answer",
            tooltip="Put the last answer on the clipboard",
            keys="ctrl+y",
            slash="copy",
            run=lambda chat, _: chat.copy_answer(),
        ),
        *MESSAGE_COMMANDS,
        Command[ChatActions](
            id="system",
            title="System prompt",
            tooltip="Tell the model how to behave in this chat; alone, show it",
            slash="system",
            argument="TEXT",
            run=lambda chat, text: chat.set_system_prompt(text),
        ),
        Command[ChatActions](
            id="options",
            title="Sampler options",
            tooltip="Set temperature and the like for this chat",
            slash="options",
            argument="NAME=VALUE",
            run=lambda chat, text: chat.edit_options(text),
        ),
        Command[ChatActions](
            id="preset",
            title="Presets",
            tooltip="Answer as a preset says; alone, list them",
            slash="preset",
            argument="NAME",
            run=lambda chat, name: chat.use_preset(name),
        ),
        Command[ChatActions](
            id="page-up",
            title="Scroll up",
            tooltip="Read what was said before",
            keys="pageup",
            is_listed=False,
            run=lambda chat, _: chat.scroll_pages(-1),
        ),
        Command[ChatActions](
            id="page-down",
            title="Scroll down",
            tooltip="Go towards the latest answer",
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
            tooltip="Go to the last message and follow what comes",
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
