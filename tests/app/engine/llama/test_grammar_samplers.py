"""Calls of a real model with random weights and the bytes as its tokens, sampled, read and checked in a child."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.llama.grammar_samplers import FirstCharacters
from tests.battery.tally import Tally, read_tally

ROOT = Path(__file__).parents[4]


@pytest.mark.slow
@pytest.mark.parametrize("formats", ["hermes,qwen3-coder,gemma-4", "lfm2,llama-3,kimi-k2,gpt-oss"])
def test_every_call_parses_and_fits_its_schema(tiny_model: Path, formats: str) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.battery.clients.tool_calls",
        str(tiny_model),
        "--answers",
        "12",
        "--formats",
        formats,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert read_tally(done.stdout) == Tally(12, 0, 1), done.stdout + done.stderr


TEXTS = st.text("aéμ漢😀", min_size=1, max_size=4)
CUTS = st.builds(lambda text, cut: text.encode()[cut:][:5], TEXTS, st.integers(0, 3))
PIECES = st.lists(st.one_of(TEXTS.map(str.encode), CUTS, st.binary(max_size=3)), max_size=60)


@given(PIECES, st.sets(TEXTS, max_size=5), st.sets(st.integers(0, 59), max_size=3))
def test_every_allowed_token_is_possible(pieces: list[bytes], texts: set[str], ends: set[int]) -> None:
    def allows(token: int) -> bool:
        """Return whether a grammar of some texts allows a token: one of them begins with it."""
        return any(text.encode().startswith(pieces[token]) for text in texts)

    ends = {token for token in ends if token < len(pieces)}
    characters = FirstCharacters(pieces, ends)
    always = np.array(sorted(ends), np.int32)
    possible = characters.possible(np.array([allows(token) for token in characters.probes], bool), always)
    assert {token for token in range(len(pieces)) if allows(token)} | ends <= set(possible.tolist())
    assert sorted(set(possible.tolist())) == possible.tolist()


def test_one_token_stands_for_all_that_begin_like_it() -> None:
    characters = FirstCharacters([b"a", b"ab", b"abc", b"b", b"ba", b"\xc3", b"<end>"], ends=[6])
    assert characters.probes.tolist() == [0, 3, 5, 6]
    allowed = np.array([True, False, False, True])
    assert characters.possible(allowed, np.array([3], np.int32)).tolist() == [0, 1, 2, 3, 6]


def test_parts_of_characters_are_not_whole() -> None:
    characters = FirstCharacters(["é".encode(), b"\xc3", b"\xa9", b"a\xc3"], ends=[])
    assert [characters.is_whole(token) for token in range(4)] == [True, False, False, False]
