"""Messages → prompt with the model's own Jinja template, which is untrusted code.

It runs in a sandbox, in a child process of its own (this module as `__main__`), since a sandbox limits neither time nor
memory: `app.engine.chat_template.template_process` kills a child that takes too long. Owns the dialect of chat
templates; independent of models and tokens.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quantizer.system.memory_limit import limit_growth

MAX_OUTPUT_CHARACTERS = 4 << 20
MAX_MEMORY_BYTES = 256 << 20
_MAX_COMPILED = 8  # templates; to compile one takes 15 ms (median of 66), to render it again 0.1 ms


class _Arguments(dict[str, Any]):
    """The arguments of a call: an object for templates that index it, JSON for those that print it."""

    def __str__(self) -> str:
        return _to_json(self)

    def __add__(self, text: str) -> str:
        return f"{self}{text}"

    def __radd__(self, text: str) -> str:
        return f"{text}{self}"


class _NoContent(str):
    """The content of a message that has none: empty where templates print it, `none` where they test it."""

    __slots__ = ()


class _Generation(Extension):
    """{% generation %} marks the output of the model for training; here only its body matters."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateFailure(jinja2.TemplateError):
    """The template itself rejected the messages, by `raise_exception`."""


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Return `template` filled with `variables`: messages, add_generation_prompt, bos_token, eos_token, tools ...
    Raises jinja2.TemplateError, whatever the expressions of the template raise, and OverflowError past 4 Mi
    characters."""
    try:
        return _rendered(template, variables)
    except TypeError:
        if variables.get("tools", ()) is not None:
            raise
        # Templates made for tools iterate over them: Command R+, Hermes 2 Pro and 3.
        return _rendered(template, {**variables, "tools": []})


def _rendered(template: str, variables: Mapping[str, Any]) -> str:
    parts: list[str] = []
    n_characters = 0
    variables = {
        # FireFunction v2's names for the tools and the day, and that of Llama 3.1 to 3.3, which else believe in 26 July
        # 2024 (source: llama.cpp, common/chat.cpp). The time would change the begin of each prompt.
        "functions": _to_json(variables.get("tools") or [], indent=2),
        "datetime": _now("%b %d %Y"),
        "date_string": _now("%d %b %Y"),
        **variables,
        "messages": [_prepared(message) for message in variables.get("messages", ())],
    }
    for part in _compiled(template).generate(**variables):
        n_characters += len(part)
        if n_characters > MAX_OUTPUT_CHARACTERS:
            raise OverflowError(f"the prompt is longer than {MAX_OUTPUT_CHARACTERS} characters")
        parts.append(part)
    return "".join(parts)


@lru_cache(_MAX_COMPILED)
def _compiled(template: str) -> jinja2.Template:
    """Return the template as code, each in an environment of its own; it keeps nothing of what it rendered. Source of
    the environment: transformers, utils/chat_template_utils.py."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _to_json
    # Jinja escapes what is added to a text that is "safe": the JSON of Functionary 3.1 would have &#34; in it.
    environment.filters["safe"] = str
    environment.tests["none"] = lambda value: value is None or isinstance(value, _NoContent)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _now
    return environment.from_string(template)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _prepared(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message whose content and calls templates may use in more than one form."""
    message = dict(message)
    if message.get("content", "") is None:
        message["content"] = _NoContent()
    if "tool_calls" in message:
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _Arguments(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return message


class _Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox in which lists may grow and shrink, as in Kimi K2's template: all belong to this one rendering."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        is_of_list = isinstance(obj, list) and attr in ("append", "pop")
        return is_of_list or super().is_safe_attribute(obj, attr, value)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson`, its options in the order of transformers' (utils/chat_template_utils.py@5.24.0), with which
    models were trained; Jinja's own takes only an indent, and escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=list,  # filters make generators
    )


def _raise_exception(message: object) -> NoReturn:
    raise TemplateFailure(str(message))


def main() -> None:
    """Reply to each JSON line on stdin with one on stdout, until stdin ends."""
    limit_growth(MAX_MEMORY_BYTES)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            reply = {"text": render(job["template"], job["variables"])}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
