"""What a person types in an editor after a slash: the commands of a chat that make sense there, and what they do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from acp.schema import AvailableCommand, AvailableCommandInput, TextContentBlock, UnstructuredCommandInput

from app.acp.updates import said
from app.chat.attachments.parsing import fenced
from app.chat.conversation import MessageContent
from app.chat.presets import VARIABLE
from app.chat.steps import undone_text
from app.common.terminal import printable_paste
from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from app.acp.prompt import Block
    from app.acp.session import EditorSession

Outcome: TypeAlias = str | Callable[[], object]
"""What a command says, or what it lets the chat answer."""


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command; `hint` names what follows it, "" for nothing. `run` raises UserError."""

    description: str
    hint: str
    run: Callable[[EditorSession, str], Awaitable[Outcome]]


async def _model(session: EditorSession, typed: str) -> Outcome:
    names = await session.models.names()
    if not typed:
        marked = (f"{'*' if name == session.model_name else '-'} {name}" for name in names)
        return "\n".join(("Models:", *marked)) if names else f"{session.model_name} answers."
    session.model, session.model_name = await session.models.find(typed)
    return f"{session.model_name} answers from now on."


async def _tools(session: EditorSession, text: str) -> Outcome:
    return await session.edit_tools(text)


async def _think(session: EditorSession, level: str) -> Outcome:
    return session.settings_editor.set_thinking(level)


async def _system(session: EditorSession, text: str) -> Outcome:
    return session.settings_editor.set_system_prompt(text)


async def _options(session: EditorSession, text: str) -> Outcome:
    return await session.settings_editor.change_options(text)


async def _preset(session: EditorSession, name: str) -> Outcome:
    return await session.settings_editor.use_preset(name)


async def _prompt(session: EditorSession, text: str) -> Outcome:
    """Ask a text of the library, whose placeholders are filled with the lines that follow its name, the last one with
    all that are left; or a prompt of an MCP server, which is shown first: its words are the server's."""
    name, _, rest = text.strip().partition(" ")
    if not name:
        return await session.settings_editor.list_prompts()
    if "/" in name:
        served = printable_paste(await session.settings_editor.prompt(text.strip()))
        await session.tell(said(f"{fenced(served)}\n\n"))
        return lambda: session.chat.ask(MessageContent(role="user", content=served))
    prompt = await session.settings_editor.prompt(name)
    placeholders = VARIABLE.findall(prompt)
    values = rest.strip().split("\n", max(0, len(placeholders) - 1)) if rest.strip() else []
    if len(values) < len(placeholders):
        missing = placeholders[len(values)]
        lines = " and ".join(placeholders)
        raise UsageError(f"{missing} is not filled in.", f"Write after /prompt {name} a line each: {lines}.")
    for placeholder, value in zip(placeholders, values, strict=False):
        prompt = prompt.replace(placeholder, value, 1)
    question = MessageContent(role="user", content="\n\n".join(filter(None, (prompt, *values[len(placeholders) :]))))
    return lambda: session.chat.ask(question)


async def _compact(session: EditorSession, focus: str) -> Outcome:
    return lambda: session.chat.compact(focus)


async def _undo(session: EditorSession, _: str) -> Outcome:
    step = await session.chat.undo_step()
    return "There is nothing to take back." if step is None else undone_text(step)


async def _redo(session: EditorSession, _: str) -> Outcome:
    step = await session.chat.redo_step()
    return "Nothing was taken back, or the chat went on since." if step is None else "Did it again."


async def _retry(session: EditorSession, _: str) -> Outcome:
    if not session.chat.conversation.branch:
        raise UsageError("There is no question yet.", "Ask one.")
    return session.chat.answer_again


async def _continue(session: EditorSession, _: str) -> Outcome:
    answer = session.chat.conversation.unfinished_answer
    if answer is None:
        raise UsageError("There is no unfinished answer.", "Ask something.")
    return lambda: session.chat.continue_answer(answer)


COMMANDS: Mapping[str, SlashCommand] = {
    "model": SlashCommand("Answer with another model; without NAME, list the models", "NAME", _model),
    "tools": SlashCommand("Switch tools: on NAME, off NAME, folder PATH, or the list of them", "CHANGE", _tools),
    "think": SlashCommand("How much to think: off, low, medium, high, a number of tokens, or auto", "LEVEL", _think),
    "system": SlashCommand("Set the system prompt of this chat; `clear` removes it", "TEXT", _system),
    "options": SlashCommand("Set samplers, stop strings, a JSON schema and other options", "NAME=VALUE", _options),
    "preset": SlashCommand("Apply a preset; without NAME, list the presets", "NAME", _preset),
    "prompt": SlashCommand("Ask a prompt of the library, with TEXT in its place; without NAME, list the prompts",
                           "NAME TEXT", _prompt),
    "compact": SlashCommand("Summarise the older messages now; TEXT says what to keep in mind", "TEXT", _compact),
    "undo": SlashCommand("Take back the last step of the model's work, with the files it changed", "", _undo),
    "redo": SlashCommand("Do again what was taken back last, files included", "", _redo),
    "retry": SlashCommand("Answer the last question again; the former answer is kept", "", _retry),
    "continue": SlashCommand("Continue an answer that was stopped, cut off, or paused after many calls", "", _continue),
}  # fmt: skip


def available_commands() -> list[AvailableCommand]:
    return [
        AvailableCommand(name=name, description=command.description, input=_input(command.hint))
        for name, command in COMMANDS.items()
    ]


def _input(hint: str) -> AvailableCommandInput | None:
    return AvailableCommandInput(UnstructuredCommandInput(hint=hint)) if hint else None


def command_line(blocks: Sequence[Block]) -> tuple[SlashCommand, str] | None:
    """Return the command that a prompt is, and what follows it; None for a question. `/etc/hosts` is none. Raises
    UsageError for an unknown command."""
    first = blocks[0] if blocks else None
    if not isinstance(first, TextContentBlock) or not first.text.lstrip().startswith("/"):
        return None
    text = "".join(block.text for block in blocks if isinstance(block, TextContentBlock)).strip()
    word, _, rest = text[1:].partition(" ") if " " in text.partition("\n")[0] else text[1:].partition("\n")
    if not word.isalpha():
        return None
    command = COMMANDS.get(word.lower())
    if command is None:
        raise UsageError(f"There is no command /{word[:40]}.", f"Commands: /{', /'.join(COMMANDS)}.")
    return command, rest.strip()
