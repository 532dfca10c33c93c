"""A conversation at the terminal, line by line, for those who want no full screen.

Owns the prompt, the commands that begin with a slash, and what is remembered of the conversation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import click

from app.cli.answering import Answer, AnswerPrinter, ask, stats_line
from app.cli.prompts import multiline
from app.client import GenerationOptions, Message, ServiceClient
from quantizer.errors import ServiceError, UserError

__all__ = ["Repl"]

_PROMPT = ">>> "
_CONTINUATION = "... "
_HELP = '''/clear               forget the conversation
/set system TEXT     set the system prompt (no TEXT: none) and forget the conversation
/bye                 leave (Ctrl-D too)
/?                   this help
"""                  begins and ends a question of several lines
Ctrl-C               stops an answer and keeps what came of it'''


@dataclass(frozen=True, slots=True)
class _Leave(Exception):  # noqa: N818
    """The person wants to go."""


class Repl:
    """Asks `model_id` of `client` what the person types. `runner` carries the client's event loop."""

    def __init__(
        self,
        runner: asyncio.Runner,
        client: ServiceClient,
        model_id: str,
        options: GenerationOptions,
        *,
        system: str | None,
        shows_stats: bool,
    ) -> None:
        self._runner = runner
        self._client = client
        self._model_id = model_id
        self._options = options
        self._shows_stats = shows_stats
        self._messages = _opening(system)
        self._commands: Mapping[str, Callable[[str], None]] = {
            "/?": lambda _: click.echo(_HELP),
            "/help": lambda _: click.echo(_HELP),
            "/bye": self._leave,
            "/exit": self._leave,
            "/quit": self._leave,
            "/clear": self._clear,
            "/set": self._set,
        }

    def run(self) -> None:
        """Answer until the person leaves. Raises ServiceError when the service is gone."""
        _enable_line_editing()
        click.echo(f"{self._model_id}: ask away; /? for help, Ctrl-D to leave.", err=True)
        with contextlib.suppress(_Leave):
            while True:
                try:
                    self._handle(self._read())
                except KeyboardInterrupt:  # at the prompt, or when the answer had just ended: nothing is left to stop
                    click.echo()

    def _read(self) -> str:
        try:
            return multiline(input(_PROMPT), lambda: input(_CONTINUATION))
        except EOFError:
            click.echo()
            raise _Leave from None

    def _handle(self, line: str) -> None:
        if not line.strip():
            return
        word, _, rest = line.strip().partition(" ")
        if command := self._commands.get(word):
            command(rest.strip())
        elif word.startswith("/") and "\n" not in line and "/" not in word[1:]:
            click.echo(f"{word} is no command; /? lists them.", err=True)
        else:
            self._ask(line)

    def _ask(self, question: str) -> None:
        messages = [*self._messages, Message("user", question)]
        answer = Answer()
        try:
            self._runner.run(ask(self._client, self._model_id, messages, self._options, answer, AnswerPrinter()))
        except KeyboardInterrupt:
            click.echo(" [stopped]", nl=False, err=True)
        except ServiceError:
            raise
        except UserError as error:
            click.echo(f"Error: {error}", err=True)
        click.echo()
        if answer.text:
            self._messages = [*messages, Message("assistant", answer.text)]
        if self._shows_stats and answer.completed is not None:
            click.echo(stats_line(answer.completed), err=True)

    def _leave(self, _: str) -> None:
        raise _Leave

    def _clear(self, _: str) -> None:
        self._messages = [message for message in self._messages if message.role == "system"]
        click.echo("Forgotten.", err=True)

    def _set(self, what: str) -> None:
        name, _, text = what.partition(" ")
        if name != "system":
            click.echo("/set system TEXT is what can be set.", err=True)
            return
        self._messages = _opening(text.strip() or None)
        click.echo("Set; the conversation begins anew.", err=True)


def _opening(system: str | None) -> list[Message]:
    return [Message("system", system)] if system else []


def _enable_line_editing() -> None:
    """Importing readline gives `input` history and editing; Windows has its own."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
