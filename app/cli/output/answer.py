"""A line on stderr that says what is being waited for, written over until something comes.

One answer on the command line: asked for, printed as it comes, and what it cost.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

import click
from rich.cells import cell_len, set_cell_size

from app.client import Completed, GenerationOptions, Message, ModelStatus, RemoteEngine, ServiceClient, TextDelta
from app.terminal import printable, printable_line

__all__ = ["Answer", "AnswerPrinter", "BusyLine", "LoadingLine", "as_json", "ask", "dimmed", "stats_line"]

_ECHO = 2  # cells of what the terminal writes for Ctrl-C, behind the line


class BusyLine:
    """Shown where stderr is a terminal, and as long as one row of it at the most: a longer one could not be taken
    away."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._n_cells = 0

    def put(self, text: str) -> None:
        """Show `text` in place of what was shown."""
        if not self._is_terminal:
            return
        n_most = _row() - _ECHO
        line = printable_line(text)
        line = set_cell_size(line, n_most) if cell_len(line) > n_most else line
        n_cells = cell_len(line)
        click.echo(f"\r{line}{' ' * (min(self._n_cells, n_most) - n_cells)}", nl=False, err=True)
        self._n_cells = n_cells

    def clear(self) -> None:
        """Leave an empty line."""
        if self._n_cells:
            click.echo(f"\r{' ' * min(self._n_cells + _ECHO, _row())}\r", nl=False, err=True)
            self._n_cells = 0


def _row() -> int:
    """Cells of a row that may be written without the terminal going on to the next."""
    return shutil.get_terminal_size().columns - 1


class Piece(Protocol):
    """What came of an answer: text, and what was thought."""

    @property
    def text(self) -> str: ...

    @property
    def reasoning(self) -> str: ...


@dataclass(slots=True)
class Answer:
    """What has come of an answer so far; `completed` is None until, or unless, it is whole."""

    deltas: list[TextDelta] = field(default_factory=list)
    completed: Completed | None = None

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def reasoning(self) -> str:
        """What the model thought aloud before it answered."""
        return "".join(delta.reasoning for delta in self.deltas)


async def ask(
    client: ServiceClient | RemoteEngine,
    model_id: str,
    messages: Sequence[Message],
    options: GenerationOptions,
    answer: Answer,
    on_delta: Callable[[TextDelta], None],
) -> None:
    """Fill `answer`, telling `on_delta` each new piece. Cancelling this stops the answer and keeps what came."""
    async with aclosing(client.chat(messages, model_id, options)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                answer.deltas.append(event)
                on_delta(event)
            else:
                answer.completed = event


def dimmed(text: str) -> str:
    """Return `text` as a terminal shows it paler; as it is where a person wants no colours or the terminal has none."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if is_plain else click.style(text, dim=True)


class AnswerPrinter:
    """Prints one answer as it comes, and on stderr what is thought before it; the terminal obeys nothing in it."""

    def __init__(self) -> None:
        self._is_thinking = False

    def __call__(self, delta: Piece) -> None:
        if delta.reasoning:
            self._is_thinking = True
            click.echo(dimmed(printable(delta.reasoning)), nl=False, err=True)
        if delta.text:
            if self._is_thinking:
                self._is_thinking = False
                click.echo("\n", err=True)
            click.echo(printable(delta.text), nl=False)


def stats_line(completed: Completed) -> str:
    """Return one line: waiting time, rates, tokens, and what drafts saved where they did."""
    drafts = (
        f" · drafts {completed.n_accepted_tokens} of {completed.n_drafted_tokens} taken,"
        f" {completed.tokens_per_pass:.2f} tokens a pass, about {completed.saved_s:.2f} s saved"
    )
    return (
        f"first token {completed.time_to_first_token_s:.2f} s"
        f" · prefill {completed.prefill_tokens_per_s:.1f} tok/s"
        f" · decode {completed.decode_tokens_per_s:.1f} tok/s"
        f" · {completed.n_prompt_tokens} tokens in ({completed.n_cached_tokens} cached),"
        f" {completed.n_output_tokens} out{drafts if completed.n_accepted_tokens else ''} · {completed.finish_reason}"
    )


def as_json(model_id: str, text: str, completed: Completed, reasoning: str = "") -> dict[str, Any]:
    """Return the answer as one JSON object."""
    return {
        "text": text,
        "reasoning": reasoning,
        "finish_reason": completed.finish_reason,
        "usage": {
            "prompt_tokens": completed.n_prompt_tokens,
            "cached_tokens": completed.n_cached_tokens,
            "completion_tokens": completed.n_output_tokens,
            "drafted_tokens": completed.n_drafted_tokens,
            "accepted_tokens": completed.n_accepted_tokens,
        },
        "timings": {
            "time_to_first_token_ms": completed.time_to_first_token_s * 1000,
            "prompt_per_second": completed.prefill_tokens_per_s,
            "predicted_per_second": completed.decode_tokens_per_s,
            "tokens_per_pass": completed.tokens_per_pass,
            "draft_saved_ms": completed.saved_s * 1000,
        },
        "model": model_id,
    }


class LoadingLine:
    """Shows on stderr how far a model is loaded, where that is a terminal; says each notice once, wherever it goes."""

    def __init__(self) -> None:
        self._line = BusyLine()
        self._told: set[str] = set()

    def show(self, status: ModelStatus) -> None:
        if status.state == "loading":
            self._line.put(f"Loading {status.id}: {status.progress:.0%}")
        else:
            self._line.clear()
            self.tell(status.notices)

    def tell(self, notices: Sequence[str]) -> None:
        """Say those that were not said yet."""
        for notice in notices:
            if notice not in self._told:
                self._told.add(notice)
                click.echo(printable(notice), err=True)
