"""`localllm ps`: the models of a running service, what they run with, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from app.cli.options import options
from app.cli.output.format import format_bytes, print_json, print_lines
from app.cli.resources import ask_service

if TYPE_CHECKING:
    from app.protocol.status import ModelStatus


@click.command(epilog="Example: localllm ps")
@options("wants_json")
def ps(wants_json: bool) -> None:
    """List the models of a running service: their state, their memory and the settings they run with.

    Each setting says who chose it: you (option), a measurement, with its figures (measured), the model, or nobody yet
    (default).
    """
    models = ask_service(lambda client: client.status()).models
    if wants_json:
        print_json(models)
    else:
        print_lines(line for model in models for line in _lines(model))


def _lines(model: ModelStatus) -> Iterator[str]:
    memory = f", {format_bytes(model.n_bytes)}" if model.n_bytes else ""
    running = f", {model.n_running} running" if model.n_running else ""
    context = f", {model.n_ctx:,} tokens of context" if model.n_ctx else ""
    yield f"{model.id}  {model.state}{context}{memory}{running}"
    yield from (f"  {setting.words}" for setting in model.settings)
