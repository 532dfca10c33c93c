"""The output of verbs: lines, tables, JSON, and the events of a verb that is a job of the service."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from app.common.terminal import printable
from app.protocol.codec import encode
from quantizer.system.errors import UserError
from quantizer.write.events import JobFailed, encode_event

if TYPE_CHECKING:
    from rich.table import Table


_WIDTH_COLUMNS = 140  # where the output is no terminal


def print_json(value: object) -> None:
    click.echo(json.dumps(encode(value)))


def print_result(value: object, lines: Iterable[str], *, wants_json: bool) -> None:
    """Print what a verb returns: `value` as JSON, or its `lines`."""
    if wants_json:
        print_json(value)
    else:
        print_lines(lines)


def print_lines(lines: Iterable[str]) -> None:
    """Print `lines` without control characters, each as soon as it is known."""
    for line in lines:
        click.echo(printable(line))


def styled(text: str, **style: Any) -> str:
    """Return `text` in a style of `click.style`, unless NO_COLOR is set or the terminal has no colours."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if is_plain else click.style(text, **style)


def print_table(table: Table) -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else _WIDTH_COLUMNS).print(table)


class JobEvents:
    """Sends lines to the service. Where the service is gone, this process exits at once."""

    def emit(self, **line: object) -> None:
        """Print one event; `event` is its kind."""
        try:
            click.echo(json.dumps(line))
        except OSError:
            os._exit(1)

    def failed(self, error: UserError) -> None:
        self.emit(**encode_event(JobFailed.of(error)))
