"""How soon is a completion there after a keystroke? A person types a line in a file, as llama.vim sends it.

Run: `uv run python tests/bench/service/keystrokes.py MODEL.gguf`, a model that fills in the middle (the guide does).
Before the first key the snippets of other files are sent as a warm-up; then each key asks anew, with a prefix that is
one character longer. Exits with 1 where one of the first tokens takes longer than 150 ms and the time of one decode.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from tests.bench.report import show
from tests.bench.served import Served, serve

MAX_WAIT_MS = 150.0
N_LINES_BEFORE, N_LINES_BEHIND, N_SNIPPET_CHARACTERS = 40, 30, 600
_FILE = Path(__file__)
_NEIGHBOURS = ("served.py", "soak.py", "report.py")
_LINE = "    wait_ms = (time.perf_counter() - begun_s) * 1000.0"  # what is typed, a line of this file


@dataclass(frozen=True, slots=True)
class Key:
    """What one keystroke cost: the whole request, the engine's part until its first token, tokens it computed."""

    wait_ms: float
    first_token_ms: float
    n_computed: int


def _session() -> dict[str, Any]:
    """Return what all requests of the session have in common."""
    lines = _FILE.read_text(encoding="utf-8").splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if line.startswith(_LINE))
    snippets = [(_FILE.parent / name).read_text(encoding="utf-8")[:N_SNIPPET_CHARACTERS] for name in _NEIGHBOURS]
    return {
        "input_prefix": "".join(lines[max(0, at - N_LINES_BEFORE) : at]),
        "input_suffix": "\n" + "".join(lines[at + 1 : at + 1 + N_LINES_BEHIND]),
        "input_extra": [{"filename": name, "text": text} for name, text in zip(_NEIGHBOURS, snippets, strict=True)],
        "model": "",
        "temperature": 0,
        "t_max_predict_ms": 500,
    }


def _ask(served: Served, session: dict[str, Any], typed: str) -> Key:
    begun_s = time.perf_counter()
    told = served.http.post("/infill", json={**session, "prompt": typed, "n_predict": 1}).raise_for_status().json()
    wait_ms = (time.perf_counter() - begun_s) * 1000.0
    return Key(wait_ms, told["timings"]["time_to_first_token_ms"], told["timings"]["prompt_n"])


def _typed(served: Served, session: dict[str, Any]) -> Iterator[Key]:
    warm_up = {**session, "prompt": "", "n_predict": 0, "samplers": [], "response_fields": [""]}
    assert served.http.post("/infill", json=warm_up).json() == {}
    for n_characters in range(1, len(_LINE)):
        yield _ask(served, session, _LINE[:n_characters])


def _decode_ms(served: Served, session: dict[str, Any]) -> float:
    told = served.http.post("/infill", json={**session, "n_predict": 32, "ignore_eos": True}).json()
    return 1000.0 / float(told["timings"]["predicted_per_second"])


def table(keys: list[Key], decode_ms: float) -> Table:
    """Return medians and the worst of all keystrokes."""
    made = Table("a keystroke", "median", "worst", box=None, pad_edge=False)
    made.add_row("ms until the answer", *_pair([key.wait_ms for key in keys]))
    made.add_row("ms of the engine until the first token", *_pair([key.first_token_ms for key in keys]))
    made.add_row("tokens computed", *_pair([float(key.n_computed) for key in keys]))
    made.add_row("ms of one decode", f"{decode_ms:.1f}", "")
    return made


def _pair(values: list[float]) -> tuple[str, str]:
    return f"{median(values):.1f}", f"{max(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, default=0, help="any free one, when not given")
    options = parser.parse_args()
    with serve(options.model, options.port) as served:
        keys = list(_typed(served, _session()))
        decode_ms = _decode_ms(served, _session())
    show(table(keys, decode_ms))
    sys.exit(1 if max(key.wait_ms for key in keys) > MAX_WAIT_MS + decode_ms else 0)


if __name__ == "__main__":
    main()
