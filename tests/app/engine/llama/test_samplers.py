"""Asking about few tokens of the guide's vocabulary finds what asking about all would: of grammars and of chains."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.engine.grammar.json_grammar import schema_grammar
from app.engine.llama.samplers import likeliest
from tests.patience import PATIENCE_S

GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
WALK = Path(__file__).with_name("grammar_walk.py")
TEXTS = Path(__file__).with_name("grammar_texts.py")
CHOICES = Path(__file__).with_name("sampler_choices.py")
PARTS = {
    "code": {"type": "string", "pattern": r'^[A-Z]{2}(-\d+|[^\w"]+|)$'},
    "part": {"type": "number", "exclusiveMinimum": -0.25, "maximum": 12.5},
    "whole": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
    "either": {"anyOf": [{"$ref": "#/$defs/left out"}, {"prefixItems": [{"type": "null"}, {}]}]},
}
LEFT_OUT = {"left out": {"properties": {"itself": {"$ref": "#/$defs/left out"}, "a": {"not": {}}}}}
GRAMMARS = (
    schema_grammar({"properties": PARTS, "required": [*PARTS], "$defs": LEFT_OUT}),
    schema_grammar({"type": "object"}),
    schema_grammar({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}),
    'root ::= ("yes" | "no") "."',
    "root ::= [α-ω漢]{20}",
    'root ::= [^"]+',
    "root ::= <[70]> <[4000]> <[200]> <[130]>",
    'root ::= <|im_start|> "a<b" <|fim_middle|> [0-9]+',
    "root ::= !<[70]> !<|im_start|>+",
    'root ::= "<|im_start|>" ("<" [|] "im_end|>")* # <[5]>',
)


@pytest.mark.slow
def test_the_tokens_that_a_grammar_allows_are_all_found() -> None:
    run = subprocess.run(
        [sys.executable, str(WALK), str(GUIDE)],
        input=json.dumps(GRAMMARS),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr
    walks = json.loads(run.stdout)
    assert [walk["differences"] for walk in walks] == [[]] * len(GRAMMARS)
    assert sum(walk["n_steps"] for walk in walks) > 100


def _texts(grammar: str, *arguments: str) -> list[str]:
    command = [sys.executable, str(TEXTS), *arguments]
    run = subprocess.run(command, input=grammar, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr
    return [bytes.fromhex(text).decode() for text in json.loads(run.stdout)]


@pytest.mark.slow
def test_what_a_grammar_allows_is_whole_characters_although_tokens_are_bytes(tiny_model: Path) -> None:
    texts = _texts("root ::= [^\\x00-\\x7f]{3}", str(tiny_model), "60")
    assert {len(text) for text in texts} == {3}


SUFFIX = "<|fim_suffix|>"  # token 5 of the guide, which is no output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grammar", "visible", "text"),
    [
        (f'root ::= "{SUFFIX}"', (), SUFFIX),
        (f'root ::= "{SUFFIX}"', ("5",), SUFFIX),
        (f'root ::= {SUFFIX} "a" # "', (), "a"),
        ('root ::= <[5]> "a"', (), "a"),
    ],
)
def test_a_special_token_is_no_text_of_a_grammar_unless_clients_get_it_or_the_grammar_asks_for_the_token(
    grammar: str, visible: Sequence[str], text: str
) -> None:
    assert set(_texts(grammar, str(GUIDE), "20", *visible)) == {text}


LOGITS = arrays(
    np.float32, st.integers(256, 2000), elements=st.floats(-9, 9, width=32) | st.just(-np.inf), fill=st.just(0.5)
)


@given(LOGITS, st.integers(1, 12))
def test_the_likeliest_tokens_are_among_those_found(logits: np.ndarray, n: int) -> None:
    found = likeliest(logits, n)
    nth = np.sort(logits)[-n]
    assert set(np.flatnonzero(logits > nth)) <= set(found)
    assert np.sum(logits[found] >= nth) >= n
    assert found.tolist() == sorted(set(found.tolist()))


def test_few_tokens_are_found_in_a_large_vocabulary() -> None:
    logits = np.random.default_rng(1).standard_normal(248_320).astype(np.float32)
    assert len(likeliest(logits, 40)) < 60


@pytest.mark.parametrize("n", [9, 40, 128])
@pytest.mark.parametrize("n_vocab", [128_256, 151_936, 262_147])
def test_all_tokens_down_to_the_smallest_that_is_found_are_found_in_a_large_vocabulary(n_vocab: int, n: int) -> None:
    rng = np.random.default_rng(n)
    logits = rng.standard_normal(n_vocab).astype(np.float32).round(1)  # many are equal
    logits[rng.integers(0, n_vocab, 1000)] = -np.inf
    found = likeliest(logits, n)
    assert len(found) >= n
    assert np.array_equal(found, np.flatnonzero(logits >= logits[found].min()))


@pytest.mark.parametrize("n", [1, 2])
def test_where_logits_are_not_numbers_none_are_found(n: int) -> None:
    assert not len(likeliest(np.full(1000, np.nan, np.float32), n))


@pytest.fixture(scope="module")
def choices() -> dict[str, dict[str, list[Any]]]:
    run = subprocess.run([sys.executable, str(CHOICES), str(GUIDE)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr
    found: dict[str, dict[str, list[Any]]] = json.loads(run.stdout)
    return found


@pytest.mark.slow
def test_chains_choose_the_same_of_few_candidates_as_of_all(choices: dict[str, dict[str, list[Any]]]) -> None:
    assert {name: n_equal for name, (_, n_equal) in choices["equal"].items()} == {
        name: n for name, (n, _) in choices["equal"].items()
    }


def test_tokens_are_drawn_as_often_as_their_chances_say(choices: dict[str, dict[str, list[Any]]]) -> None:
    for name, (chances, shares, n_others) in choices["drawn"].items():
        assert n_others == 0, name
        assert sum(chances) == pytest.approx(1), name
        assert chances == sorted(chances, reverse=True), name
        assert shares == pytest.approx(chances, abs=0.04), name  # five standard deviations of 4,000 draws
    assert choices["drawn"]["greedy"][0] == [1]
