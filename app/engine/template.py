"""Messages -> prompt with the model's own Jinja template, which is a stranger's program.

It runs sandboxed, and in a child process of its own (this module as `__main__`), since a sandbox bounds neither time
nor memory: `app.engine.template_process` ends the child when it takes too long. Owns the dialect of chat templates;
knows nothing of models or tokens.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["MAX_OUTPUT_CHARACTERS", "render"]

MAX_OUTPUT_CHARACTERS = 4 << 20
MAX_MEMORY_BYTES = 256 << 20


class TemplateFailure(jinja2.TemplateError):
    """The template itself refused the messages, by `raise_exception`."""


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Return `template` filled with `variables`: messages, add_generation_prompt, bos_token, eos_token, tools ...

    Raises jinja2.TemplateError, or whatever the stranger's expressions raise, and OverflowError past 4 Mi characters.
    """
    parts: list[str] = []
    n_characters = 0
    for part in _environment().from_string(template).generate(**variables):
        n_characters += len(part)
        if n_characters > MAX_OUTPUT_CHARACTERS:
            raise OverflowError(f"the prompt is longer than {MAX_OUTPUT_CHARACTERS} characters")
        parts.append(part)
    return "".join(parts)


def _environment() -> ImmutableSandboxedEnvironment:
    """Return the dialect in which chat templates are written (source: transformers, utils/chat_template_utils.py)."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().astimezone().strftime(pattern)
    return environment


def _to_json(value: object, indent: int | None = None, **_options: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateFailure(str(message))


def _limit_memory() -> None:
    """Let this process grow by at most 256 MiB, where the system can say so (not on Windows)."""
    if sys.platform == "win32":
        return
    import resource

    import psutil

    limit = psutil.Process().memory_info().vms + MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(line: str) -> dict[str, str]:
    job = json.loads(line)
    try:
        return {"text": render(job["template"], job["variables"])}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Answer one JSON line on stdin with one on stdout, until stdin ends."""
    _limit_memory()
    for line in sys.stdin:
        print(json.dumps(_answer(line)), flush=True)


if __name__ == "__main__":
    main()
