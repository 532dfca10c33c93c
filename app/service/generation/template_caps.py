"""What a chat template can express, found by rendering it: system messages, tools, calls, reasoning.

Owns the probes and the memory of their results. Independent of HTTP and of how models write calls. Source of the names:
llama.cpp's common/jinja/caps.cpp (2026), which observes what a template reads; here what it writes counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import TypedDict

from app.common.answer_text import reasoning_tags_of
from app.protocol.chat import Message
from app.protocol.errors import RequestError
from app.service.generation.message_order import TAKES_ALL, TemplateOrder, measured_order, takes_system
from app.service.generation.thinking import Thinking

if TYPE_CHECKING:  # a model holds one of these
    from app.service.models.model_file import ModelFile
    from app.service.models.served_model import TemplateRenderer

MAX_REMEMBERED = 96  # results, a few of each template
_MARK, _OTHER_MARK = "localllmprobe", "localllmsecond"

Messages = Sequence[dict[str, Any]]


class TemplateCaps(TypedDict):
    """What a chat template can express."""

    supports_string_content: bool
    supports_typed_content: bool
    supports_system_role: bool
    supports_tools: bool
    supports_tool_calls: bool
    supports_parallel_tool_calls: bool
    supports_preserve_reasoning: bool
    supports_reasoning_effort: bool
    thinks_by_default: bool  # where a request does not say it; a template that leaves it to the model does not


NO_TEMPLATE_CAPS = cast("TemplateCaps", dict.fromkeys(TemplateCaps.__annotations__, False))


def _user(content: object = "x") -> dict[str, Any]:
    return {"role": "user", "content": content}


def _function(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}


def _called(*names: str, **more: str) -> dict[str, Any]:
    functions = [{"name": name, "arguments": {"a": "x"}} for name in names]
    calls = [{"id": "call00001", "type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": "", "tool_calls": calls, **more}


_RESULT = {"role": "tool", "name": "x", "tool_call_id": "call00001", "content": "x"}
_TOOLS = [_function("x")]
_PARTS = [{"type": "text", "text": _MARK}]
_SYSTEM = [{"role": "system", "content": _MARK}, _user()]
_ONE_CALL = [_user(), _called(_MARK), _RESULT]
_TWO_CALLS = [_user(), _called(_OTHER_MARK, _MARK), _RESULT, {**_RESULT, "tool_call_id": "call00002"}]
# Templates that drop the reasoning of earlier turns may keep that of a turn that still calls tools.
_REASONING = {"reasoning_content": _MARK, "thinking": _MARK}
_REASONED = (
    [_user(), {"role": "assistant", "content": "x", **_REASONING}, _user()],
    [_user(), _called("x", **_REASONING), _RESULT],
)


class TemplateProbe:
    """Finds what templates can express and in which order they take messages, each once."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[object, ...], Any] = OrderedDict()

    async def caps_of(self, file: ModelFile, renderer: TemplateRenderer) -> TemplateCaps:
        """Return what the template of `file` can express; nothing for a model without one."""
        if not file.chat_template:
            return NO_TEMPLATE_CAPS
        found: TemplateCaps = await self._once(
            ("caps", file.chat_template, file.tool_template), _Renderings(file, renderer).caps
        )
        return found

    async def thinks_by_default(self, file: ModelFile, renderer: TemplateRenderer) -> bool:
        """Return whether a model of the template of `file` thinks where a request does not say it."""
        measure = _Renderings(file, renderer).thinks_by_default
        return bool(await self._once(("thinks", file.chat_template), measure))

    async def takes_only_parts(self, file: ModelFile, renderer: TemplateRenderer) -> bool:
        """Return whether the template of `file` prints content in parts, and none that is a text.

        llama.cpp too gives such templates (SmolVLM, Idefics 3, LLaVA) one part of text, in which the markers of
        pictures are (source: its common/chat.cpp).
        """

        async def measured() -> bool:
            renderings = _Renderings(file, renderer)
            return not await renderings.shows_text(_MARK) and await renderings.shows_text(_PARTS)

        return bool(await self._once(("parts", file.chat_template), measured))

    async def order_of(
        self,
        file: ModelFile,
        render: Callable[[Sequence[Message]], Awaitable[str]],
        *,
        has_tools: bool,
        has_calls: bool,
    ) -> TemplateOrder:
        """Return in which order the template of `file` takes messages, beside tools or without; `render` renders
        them as a request with these would."""
        found: TemplateOrder = await self._once(
            ("order", has_tools, file.chat_template),
            lambda: measured_order(render, has_calls=has_calls, has_tools=has_tools),
        )
        return found

    async def plain_order_of(
        self, file: ModelFile, render: Callable[[Sequence[Message]], Awaitable[str]]
    ) -> TemplateOrder:
        """Return what the template of `file` takes, as far as it matters for questions and answers in turn."""
        return replace(
            TAKES_ALL, takes_system=await self._once(("system", file.chat_template), lambda: takes_system(render))
        )

    async def _once(self, key: tuple[object, ...], measure: Callable[[], Awaitable[Any]]) -> Any:
        if key not in self._found:
            self._found[key] = await measure()
            while len(self._found) > MAX_REMEMBERED:
                self._found.popitem(last=False)
        return self._found[key]


class _Renderings:
    """The texts that one template makes of messages; "" where it refuses them."""

    def __init__(self, file: ModelFile, renderer: TemplateRenderer) -> None:
        self._file = file
        self._renderer = renderer

    async def text(self, messages: Messages, tools: Messages | None = None, **variables: Any) -> str:
        template = self._file.for_chat(has_tools=tools is not None).chat_template
        own: dict[str, Any] = {"bos_token": self._file.bos_token, "eos_token": self._file.eos_token, "tools": tools}
        try:
            return await self._renderer.render(template, messages, **own, **variables)
        except RequestError:
            return ""

    async def shows_text(self, content: object) -> bool:
        """Return whether a question with `content` shows in the prompt as its text, not as the data of its parts."""
        text = await self.text([_user(content)])
        return _MARK in text and not any(f"{quote}type{quote}" in text for quote in "'\"")

    async def shows(self, messages: Messages, tools: Messages | None = None) -> bool:
        return _MARK in await self.text(messages, tools)

    async def caps(self) -> TemplateCaps:
        has_string, has_typed = await self.shows([_user(_MARK)]), await self.shows_text(_PARTS)
        if not (has_string or has_typed):  # a template that renders not even a question is not tried any further
            return NO_TEMPLATE_CAPS
        has_calls = await self.shows(_ONE_CALL, _TOOLS)
        by_effort = [Thinking(effort=effort).for_template(self._file.chat_template) for effort in ("low", "high")]
        low, high = [await self.text([_user()], **variables) for variables in by_effort]
        return {
            "supports_string_content": has_string,
            "supports_typed_content": has_typed,
            "supports_system_role": await self.shows(_SYSTEM),
            "supports_tools": await self.shows([_user()], [_function(_MARK)]),
            "supports_tool_calls": has_calls,
            "supports_parallel_tool_calls": has_calls and await self.shows(_TWO_CALLS, _TOOLS),
            "supports_preserve_reasoning": any([await self.shows(messages, _TOOLS) for messages in _REASONED]),
            "supports_reasoning_effort": low != high,
            "thinks_by_default": await self.thinks_by_default(),
        }

    async def thinks_by_default(self) -> bool:
        switched = [Thinking(is_on=is_on).for_template(self._file.chat_template) for is_on in (None, True, False)]
        usual, on, off = [await self.text([_user()], **variables) for variables in switched]
        return reasoning_tags_of(self._file.chat_template, usual).is_open or usual == on != off
