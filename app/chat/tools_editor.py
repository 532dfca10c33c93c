"""Changes of a chat's tools by command or from a list: switches, folders, rules, rounds; and what the tools cost. Owns
reading the typed forms. Each method returns the line to show. The next question stores the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.chat.state import ChatState
from app.chat.tool_switches import (
    ALL,
    enabled_tools,
    is_on,
    names_of,
    summary,
    switched,
    tools_text,
    with_folder,
    with_rounds,
    without_folder,
    without_rule,
)
from app.common.terminal import printable_line
from app.tools.approval import KNOWLEDGE, ToolSettings
from app.tools.backend import ToolBackend
from app.tools.tool import ServerStatus
from quantizer.system.errors import UsageError, UserError

_FORMS = "/tools on NAME, off NAME, folder PATH, drop PATH, trust PATH, distrust PATH, rounds NUMBER or forget NUMBER."
KNOWLEDGE_MODES = ("off", "on", "auto")
KNOWLEDGE_FORMS = (
    ("add", "a folder of documents"),
    ("update", "read what changed"),
    ("rm", "forget a folder"),
    ("on", "the model searches when it needs to"),
    ("auto", "search before each question"),
    ("off", "search nothing"),
)
_FILES = "files"  # the built-in server that needs a folder


class ToolsEditor:
    """Edits the tools of the chat that `current` returns; `tools` are those of the window. Typed paths are relative to
    `folder`."""

    def __init__(self, current: Callable[[], ChatState], tools: ToolBackend, folder: Path) -> None:
        self._current = current
        self._tools = tools
        self._folder = folder

    @property
    def settings(self) -> ToolSettings:
        return self._current().conversation.settings.tools

    async def servers(self, *, start: bool = False) -> Sequence[ServerStatus]:
        """Return all servers; with `start` all are asked for their tools, else those of which a tool is on."""
        if self.settings.enabled and not start:
            await self._tools.offered(self.settings)
        return await self._tools.servers(start=start)

    async def n_tokens(self, servers: Sequence[ServerStatus]) -> int | None:
        """Return how many tokens of each prompt the tools that are on take, and note it with the chat; None where the
        engine does not say it."""
        chat = self._current()
        definitions = [tool.definition for tool in enabled_tools(chat.offered_settings, servers)]
        n_tokens = None if definitions else 0
        if definitions and chat.connection.state.phase == "ready":
            with suppress(UserError):  # another engine may not count them
                client = await chat.connection.client()
                n_tokens = await client.count_tool_tokens(definitions, chat.connection.state.model)
        chat.expect_tools(definitions, n_tokens)
        return n_tokens

    async def run(self, text: str) -> str:
        """Do what follows /tools, without a text list the tools. Raises UserError."""
        word, _, rest = text.strip().partition(" ")
        rest = rest.strip()
        if not word:
            servers = await self.servers()
            return tools_text(self.settings, servers, await self.n_tokens(servers))
        forms: dict[str, Callable[[str], Awaitable[str]]] = {
            "on": partial(self._switch_all, is_switched_on=True),
            "off": partial(self._switch_all, is_switched_on=False),
            "folder": self.add_folder,
            "drop": self.drop_folder,
            "trust": partial(self._trust, is_trusted=True),
            "distrust": partial(self._trust, is_trusted=False),
            "rounds": self._set_rounds,
            "forget": self._forget,
        }
        if word.lower() not in forms or not rest:
            raise UsageError(f"/tools {text} is not known.", _FORMS)
        return await forms[word.lower()](rest)

    async def switch(self, name: str, *, is_switched_on: bool) -> str:
        """Switch a server or a tool. Raises UsageError for an unknown name."""
        chat, known = self._current(), await self._tools.servers()
        await self.n_tokens(known)  # of the tools that the chat was counted with
        chat.begin_change()
        self._change(lambda settings: switched(settings, known, name, is_switched_on=is_switched_on))
        servers = await self.servers()
        problems = [printable_line(each.problem) for each in servers if each.problem and is_on(self.settings, each)]
        note = summary(self.settings, servers, await self.n_tokens(servers))
        chat.measure_branch()
        if any(each.partition("/")[0] == _FILES for each in self.settings.enabled) and not self.settings.folders:
            here = printable_line(str(self._folder))
            problems.append(f"They have no folder yet: /tools folder . names {here}.")
        return " ".join([note, *problems, *chat.new_refusals()])

    async def search_folders(self, mode: str) -> str:
        """Let answers use the folders of knowledge: "on", by the model's calls where it takes tools; "auto", before
        each question, whatever the model; or "off". Raises UsageError for another mode, and where no folder was
        added."""
        if mode not in KNOWLEDGE_MODES:
            raise UsageError(f"{mode} is not known.", "/knowledge on, off or auto.")
        if mode != "off" and KNOWLEDGE not in names_of(await self._tools.servers()):
            raise UsageError("No folder was added as knowledge.", "/knowledge add FOLDER adds one.")
        if self.settings.has_knowledge or mode != "off":
            await self.switch(KNOWLEDGE, is_switched_on=mode != "off")
        chat = self._current()
        chat.begin_change()
        self._change(lambda settings: replace(settings, searches_first=mode == "auto"))
        await self.n_tokens(await self.servers())
        chat.measure_branch()
        if mode == "off":
            return "This chat does not search your folders."
        if chat.searches_first:
            return "Your folders are searched before each question of this chat."
        return "The model searches your folders when a question of this chat needs them; auto: before each question."

    @property
    def knowledge_mode(self) -> str:
        """How answers of the chat use the folders of knowledge: one of KNOWLEDGE_MODES."""
        return "off" if not self.settings.has_knowledge else "auto" if self.settings.searches_first else "on"

    async def add_folder(self, path: str) -> str:
        """Let tools read and write below a folder. Raises UsageError for a path that is none."""
        folder = await asyncio.to_thread(self._absolute, path)
        if not await asyncio.to_thread(Path(folder).is_dir):
            raise UsageError(f"There is no folder {path}.", "Give one that exists.")
        self._change(lambda settings: with_folder(settings, folder))
        return self._folders_text()

    async def drop_folder(self, path: str) -> str:
        """Take a folder from the tools. Raises UsageError for one that they do not have."""
        folder = path if path in self.settings.folders else await asyncio.to_thread(self._absolute, path)
        self._change(lambda settings: without_folder(settings, folder))
        return self._folders_text()

    async def _trust(self, path: str, *, is_trusted: bool) -> str:
        """Let models be told what AGENTS.md and the skills of a folder say, or not any more, in every chat that is in
        it. Raises UsageError for a path that is none."""
        from app.tools.trust import trusted_folders

        folder = Path(await asyncio.to_thread(self._absolute, path))
        if is_trusted and not await asyncio.to_thread(folder.is_dir):
            raise UsageError(f"There is no folder {path}.", "Give one that exists.")
        trusted = trusted_folders()
        await asyncio.to_thread(trusted.trust if is_trusted else trusted.distrust, folder)
        shown = printable_line(str(folder))
        if not is_trusted:
            return f"Skills and AGENTS.md of {shown} are not used."
        return f"Skills and AGENTS.md of {shown} are used where localllm is started there: /tools on skills."

    async def forget_rule(self, index: int) -> str:
        """Remove a decision, counted from 0. Raises UsageError for one that does not exist."""
        self._change(lambda settings: without_rule(settings, index))
        return "It is asked about again."

    async def arguments(self, folders_here: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Return what may follow /tools, each with a note; `folders_here` are offered as folders."""
        servers = await self._tools.servers()
        names = names_of(servers)
        notes = {server.name: printable_line(server.origin) for server in servers}
        offered = [(f"{word} {name}", notes.get(name, "")) for word in ("on", "off") for name in names]
        dropped = [(f"drop {printable_line(folder)}", "") for folder in self.settings.folders]
        folders = [(f"{word} {each}", "") for word in ("folder", "trust") for each in folders_here]
        return [*offered, (f"off {ALL}", ""), *dropped, *folders]

    # One for each typed form

    async def _switch_all(self, names: str, *, is_switched_on: bool) -> str:
        text = ""
        for name in names.replace(",", " ").split():
            text = await self.switch(name, is_switched_on=is_switched_on)
        return text

    async def _set_rounds(self, text: str) -> str:
        self._change(lambda settings: with_rounds(settings, text))
        return f"An answer has at most {self.settings.max_rounds} rounds of calls, then you are asked."

    async def _forget(self, number: str) -> str:
        if not (number.isascii() and number.isdecimal()):
            raise UsageError(f"{number} is not the number of a rule.", "/tools lists them.")
        return await self.forget_rule(int(number) - 1)

    def _change(self, change: Callable[[ToolSettings], ToolSettings]) -> None:
        conversation = self._current().conversation
        conversation.settings = replace(conversation.settings, tools=change(conversation.settings.tools))

    def _absolute(self, path: str) -> str:
        try:
            return str((self._folder / Path(path.strip().strip("'\"")).expanduser()).resolve())
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"{path} is not a path.", "Give that of a folder.") from error

    def _folders_text(self) -> str:
        folders = ", ".join(map(printable_line, self.settings.folders))
        return f"Tools read and write in: {folders}" if folders else "Tools have no folder."
