"""Changes of a chat's settings by command: system prompt, options, template, presets; and the prompt library. Each
method returns the line to show. The next question stores the settings. Owns a chat's settings as text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from app.chat.conversation import ChatSettings, Scalar
from app.chat.presets import Presets, PromptLibrary, read_text, shipped_presets, shipped_prompts
from app.chat.sampling_options import (
    FILE_OPTIONS,
    MAX_OPTION_BYTES,
    TEMPLATE_MEANINGS,
    THINK_LEVELS,
    change_options,
    schema_of,
    split_changes,
    template_of,
    think_of,
    unusual_text,
    valid_options,
)
from app.chat.state import ChatState
from app.common.terminal import printable_line
from app.protocol.sampling import ModelSampling
from app.settings.settings import Settings
from quantizer.figures import format_number
from quantizer.system.errors import UserError

OWN_TEMPLATE = "model"  # as the argument of /template
_NOT_A_FILE = ("{", "::=", "\n")  # of a schema, or of a grammar

_OPTION_CHARACTERS = 60
_USUAL_OPTIONS = ("temperature", "top_k", "top_p", "min_p")
_NO_TOOLS = "It has no place for tools: the model is offered none."
_CLEAR = "clear"
_AUTO = "auto"
# What a model does that is not told, by its `thinks_by_default`.
_UNTOLD = {
    True: "Thinking: auto. This model thinks before it answers.",
    False: "Thinking: auto. This model answers at once; /think high makes it think first.",
    None: "Thinking: auto, as the model is used to.",
}


class SettingsEditor:
    """Edits the settings of the chat that `current` returns; presets and prompts are in `data_dir`."""

    def __init__(self, current: Callable[[], ChatState], data_dir: Path) -> None:
        self._current = current
        self._presets = Presets(data_dir)
        self._prompts = PromptLibrary(data_dir)

    @property
    def settings(self) -> ChatSettings:
        return self._current().conversation.settings

    @settings.setter
    def settings(self, settings: ChatSettings) -> None:
        self._current().conversation.settings = settings

    def _change_prompt(self, settings: ChatSettings) -> None:
        """Set settings that may take other tokens of each prompt, and measure the context with them."""
        chat = self._current()
        chat.begin_change()
        self.settings = settings
        chat.measure_branch()

    @property
    def sampling(self) -> ModelSampling | None:
        """What answers are sampled with that the chat does not set; None where that is not known."""
        return self._current().connection.state.sampling

    def _said(self, text: str) -> str:
        """Return `text` with what the model cannot take of it."""
        return " ".join([text, *self._current().new_refusals()])

    async def defaults(self, settings: Settings) -> ChatSettings:
        """Return the settings of a new chat. Raises UserError for a default preset that does not exist."""
        if not settings.preset:
            return ChatSettings(settings.system)
        preset = await asyncio.to_thread(self._presets.get, settings.preset)
        return replace(preset, system=preset.system or settings.system)

    def begin(self, defaults: ChatSettings) -> None:
        if not self._current().conversation.messages and self.settings == ChatSettings():
            self.settings = defaults

    def set_system_prompt(self, text: str) -> str:
        """Set the system prompt, remove it if `text` is "clear", or leave it if `text` is empty."""
        former = self.settings.system
        self._change_prompt(replace(self.settings, system="" if text.lower() == _CLEAR else text or former))
        if self.settings.system:
            return f"System prompt: {self.settings.system}\n/system {_CLEAR} removes it."
        return "The system prompt is removed." if former else "No system prompt is set."

    async def change_options(self, text: str) -> str:
        """Set options from text such as `temperature=0.2`. Raises UserError."""
        conversation = self._current().conversation  # another chat may be shown in the meantime
        options = await self._changed(conversation.settings.options, split_changes(text))
        conversation.settings = replace(conversation.settings, options=options)
        return self._said(_with_note(settings_line(conversation.settings, self.sampling), options))

    def set_thinking(self, text: str) -> str:
        """Set how much to think, "auto" for the model's own way; without a text, say how it is. Raises UsageError."""
        if text:
            level = "" if text.lower() == _AUTO else text
            options = change_options(self.settings.options, {"think": level})
            self.settings = replace(self.settings, options=options)
        level = think_of(self.settings.options)
        if not level:
            return _UNTOLD[self._current().connection.state.thinks_by_default]
        if level.isdecimal():
            return self._said(f"Thinking: at most {level} tokens before the answer.")
        return self._said("Thinking: off." if level == "off" else f"Thinking: {level}.")

    async def set_options(self, texts: Mapping[str, str], preset: str) -> str:
        """Replace the options by those in `texts`, and save them as a preset if that has a name. Raises UserError."""
        conversation = self._current().conversation
        settings = replace(conversation.settings, options=await self._changed({}, texts))
        if preset:
            await asyncio.to_thread(self._presets.save, preset, settings)
        conversation.settings = settings
        return self._said(_with_note(settings_line(settings, self.sampling), settings.options))

    async def use_preset(self, name: str) -> str:
        """Apply a preset, with this chat's system prompt if it has none; without a name, list the presets. Raises
        UserError."""
        if not name:
            return presets_text(await asyncio.to_thread(self._presets.all), shipped_presets())
        preset = await asyncio.to_thread(self._presets.get, name)
        system = preset.system or self.settings.system
        self._change_prompt(replace(preset, system=system, tools=self.settings.tools))
        line = f"{name}: {settings_line(self.settings, self.sampling)}"
        return self._said(_with_note(line, self.settings.options))

    def use_template(self, name: str) -> str:
        """Use a prompt template, "model" for the model's own; without a name, list them. Raises UsageError."""
        if not name:
            return templates_text(self.templates(), template_of(self.settings.options) or OWN_TEMPLATE)
        text = "" if name.lower() == OWN_TEMPLATE else name
        options = change_options(self.settings.options, {"template": text})
        self._change_prompt(replace(self.settings, options=options))
        if not text:
            return "The model's own template."
        note = f" {_NO_TOOLS}" if self.settings.tools.enabled else ""
        return f"Template: {name.lower()}, {TEMPLATE_MEANINGS[name.lower()]}.{note}"

    async def prompt(self, name: str) -> str:
        """Return a prompt of the library, or with a name such as `server/review what=this` of an MCP server. Raises
        UserError."""
        server, separator, rest = name.partition("/")
        tools = self._current().tools
        if separator and tools is not None:
            prompt, _, arguments = rest.partition(" ")
            return await tools.prompt(server, prompt, arguments.strip())
        return await asyncio.to_thread(self._prompts.get, name)

    async def list_prompts(self) -> str:
        own = await asyncio.to_thread(self._prompts.names)
        text = prompts_text(own, shipped_prompts(), self._prompts.folder)
        served = await self._server_prompts()
        return f"{text}\nOf MCP servers, with NAME=VALUE for their arguments: {', '.join(served)}." if served else text

    async def _server_prompts(self) -> list[str]:
        """Return the prompts of the servers of this chat, as far as they are known; starts none."""
        chat = self._current()
        names = {enabled.partition("/")[0] for enabled in self.settings.tools.enabled}
        if chat.tools is None or not names:
            return []
        servers = [each for each in await chat.tools.servers() if each.name in names]
        return [f"{server.name}/{prompt}" for server in servers for prompt in server.prompts]

    async def arguments_of(self, slash: str) -> Sequence[tuple[str, str]]:
        """Return what may follow a slash word, each with a note; nothing if that cannot be read."""
        try:
            found = await asyncio.to_thread(self.read_arguments, slash)
            served = await self._server_prompts() if slash == "prompt" else []
            return [*found, *((name, "of an MCP server") for name in served)]
        except UserError:  # the command itself reports it
            return ()

    def read_arguments(self, slash: str) -> Sequence[tuple[str, str]]:
        """Return what may follow a slash word, each with a note. Reads files. Raises UserError."""
        if slash == "prompt":
            own = self._prompts.names()
            return [*((name, "yours") for name in own), *((name, "") for name in shipped_prompts() if name not in own)]
        if slash == "preset":
            own_presets = self._presets.all()
            presets = {**own_presets, **{name: s for name, s in shipped_presets().items() if name not in own_presets}}
            return [(name, settings_line(settings)) for name, settings in presets.items()]
        if slash == "think":
            return [(level, "") for level in (*THINK_LEVELS, _AUTO)]
        return self.templates() if slash == "template" else ()

    def templates(self) -> Sequence[tuple[str, str]]:
        return [*TEMPLATE_MEANINGS.items(), (OWN_TEMPLATE, "the model's own template")]

    async def _changed(self, options: Mapping[str, Scalar], texts: Mapping[str, str]) -> dict[str, Scalar]:
        """Return `options` with the changed `texts`; a new schema is checked by the service. Raises UserError."""
        changed = change_options(options, await asyncio.to_thread(_with_files, texts))
        schema = schema_of(changed)
        if schema is not None and schema != schema_of(self.settings.options):
            await (await self._current().connection.service()).check_schema(schema)
        return changed


def _with_note(line: str, options: Mapping[str, Scalar]) -> str:
    return " ".join(filter(None, (unusual_text(options), line)))


def _with_files(texts: Mapping[str, str]) -> dict[str, str]:
    """Return `texts` where a file's name stands for its content. Raises UserError."""
    return {
        name: read_text(Path(text.strip().removeprefix("@")).expanduser(), MAX_OPTION_BYTES)
        if name in FILE_OPTIONS and text.strip() and not any(sign in text for sign in _NOT_A_FILE)
        else text
        for name, text in texts.items()
    }


# Settings as text


def settings_line(settings: ChatSettings, sampling: ModelSampling | None = None) -> str:
    """Return one line: the options that are set, what an answer is sampled with besides by `sampling` (None where the
    engine or a model that answers later decides that), and the system prompt if there is one."""
    texts = {name: printable_line(str(value)) for name, value in valid_options(settings.options).items()}
    most = _OPTION_CHARACTERS
    set_here = [f"{name} {text if len(text) <= most else f'{text[: most - 1]}…'}" for name, text in texts.items()]
    defaults = f"by default {_defaults_text(sampling, texts)}" if sampling else "the model's own sampling"
    line = "; ".join(filter(None, (", ".join(set_here), "" if set_here and not sampling else defaults)))
    return f"{line}; system prompt: {settings.system}" if settings.system else line


def _defaults_text(sampling: ModelSampling, given: Collection[str]) -> str:
    """Return the options that are not `given` as the model has them: the usual ones, and what others than us decide."""
    shown = {
        name: default
        for name, default in sampling.options.items()
        if name not in given and (name in _USUAL_OPTIONS or default.origin != "localllm")
    }
    return ", ".join(f"{name} {format_number(default.value)} ({default.origin})" for name, default in shown.items())


def presets_text(own: Mapping[str, ChatSettings], shipped: Mapping[str, ChatSettings]) -> str:
    """Return a list of the presets: the person's own, then those that ship and have no namesake."""
    lines = [f"{name}: {settings_line(own[name])}" for name in own]
    lines += [f"{name}: {settings_line(shipped[name])} (ships with localllm)" for name in shipped if name not in own]
    return "\n".join(["/preset NAME, one of:", *lines, "/options saves another."])


def templates_text(templates: Iterable[tuple[str, str]], chosen: str) -> str:
    lines = [f"{'•' if name == chosen else ' '} {name}: {meaning}" for name, meaning in templates]
    return "\n".join(["/template NAME, one of:", *lines])


def prompts_text(own: Sequence[str], shipped: Iterable[str], folder: Path) -> str:
    """Return a list of the prompts: the person's own, then those that ship and have no namesake."""
    lines = [*map(printable_line, own), *(f"{name} (ships with localllm)" for name in shipped if name not in own)]
    return "\n".join(["/prompt NAME, one of:", *lines, f"Yours are texts NAME.md or NAME.txt in {folder}."])
