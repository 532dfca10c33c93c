"""A conversation across a restart of the server: `leave` keeps its text in a file, `back` goes on with it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

from app.bench.measurement import Figure, Measurement
from app.bench.workloads import Bench, SyntheticChat, Workload, cached_note
from quantizer.system.errors import UsageError

__all__ = ["restart_workloads"]

_TURNS = 5


def restart_workloads(file: Path | None) -> dict[str, Workload]:
    """Return the two workloads around a restart; they need the `file` that keeps the conversation."""

    async def leave(bench: Bench) -> AsyncGenerator[Figure, None]:
        chat = SyntheticChat.fresh(bench.prose)
        answers = [await chat.turn(bench.client, bench.prose) for _ in range(_TURNS)]
        _named(file).write_text(json.dumps(chat.messages), encoding="utf-8")
        yield Measurement("restart", "before, cold", "s", (answers[0].first_token_s,))

    async def back(bench: Bench) -> AsyncGenerator[Figure, None]:
        answer = await _kept(_named(file)).turn(bench.client, bench.prose)
        yield Measurement("restart", "next turn", "s", (answer.first_token_s,), cached_note([answer]))

    return {"leave": leave, "back": back}


def _named(file: Path | None) -> Path:
    if file is None:
        raise UsageError("There is no file for the conversation.", "Name one with --conversation.")
    return file


def _kept(file: Path) -> SyntheticChat:
    try:
        messages = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} holds no conversation: {error}", "Run `leave` first.") from error
    return SyntheticChat([{"role": str(message["role"]), "content": str(message["content"])} for message in messages])
