from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.engine.grammar.json_grammar import schema_grammar
from tests.patience import PATIENCE_S

REAL_MODEL = Path(__file__).with_name("real_model.py")
ONE_OF_TWO = 'root ::= ("ab" | "ba")*'  # a model of random weights hardly ever chooses so by itself
ALMOST_SURE = {"grammar": 'root ::= ("abcdefgh" | "abcdefgz"){30}'}
PARENTHESIS = ord("(")  # in this vocabulary a byte is its own id
PENALTIES = {"temperature": 0.0, "frequency_penalty": 2.0, "presence_penalty": 1.0}
LETTERS_ONLY = {**PENALTIES, "grammar": "root ::= [a-z ]{24}"}

STAGES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "default": {},
    "typical": {"typical_p": 0.5},
    "top-n-sigma": {"top_n_sigma": 1.0},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.0001, "min_p": 0.0},
    "dynamic temperature": {"dynatemp_range": 0.7, "dynatemp_exponent": 2.0},
    "mirostat 1": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 1.0},
    "biases": {"logit_bias": [[7, 5.0], [8, False]]},
    "all at once": {
        "typical_p": 0.9, "top_n_sigma": 3.0, "xtc_probability": 0.5, "dynatemp_range": 0.2, "dry_multiplier": 0.5,
        "repeat_penalty": 1.1,
    },
}  # fmt: skip
INSISTS = {"temperature": 0.0, "logit_bias": [[PARENTHESIS, 30.0]]}
DRY = {**INSISTS, "dry_multiplier": 100.0, "dry_penalty_last_n": -1}
RECORD = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "é\n", None]},
        "numbers": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        "note": {"type": "string", "maxLength": 4},
    },
    "required": ["kind", "numbers"],
}
CHAIN = {
    "$ref": "#/$defs/link",
    "$defs": {
        "link": {
            "type": "object",
            "properties": {
                "is_last": {"type": "boolean"},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/link"}]},
            },
            "required": ["is_last", "next"],
        }
    },
}
ECHOED = "The echo of a prompt: “its text”, and how likely it was. " * 12  # more than a batch of it
EVERY_CONSTRUCT = {
    "properties": {
        "a": {},
        'q"\t': {"type": "array", "items": {"type": ["string", "null"], "minLength": 2}, "minItems": 2},
        "é-]^": {"anyOf": [{"const": {"k": [1, "\u2028"]}}, {"type": "array", "maxItems": 0}]},
    },
    "required": ["a"],
    "additionalProperties": {"type": "number"},
}
SEEDS = range(4)
THOUGHT = {"opening": "<", "closings": [">"], "ending": "END>", "is_open": True, "max_tokens": 5}


def _json_case(schema: dict[str, Any], seed: int) -> dict[str, Any]:
    return {"sampling": {"seed": seed, "grammar": schema_grammar(schema)}, "max_tokens": 1500}


CASES: dict[str, dict[str, Any]] = {
    **{name: {"sampling": {"seed": 11, **sampling}} for name, sampling in STAGES.items()},
    **{f"record {seed}": _json_case(RECORD, seed) for seed in SEEDS},
    **{f"chain {seed}": _json_case(CHAIN, seed) for seed in SEEDS},
    "every construct": {**_json_case(EVERY_CONSTRUCT, 1), "max_tokens": 1},
    "any object": {"sampling": {"grammar": schema_grammar({"type": "object"})}, "max_tokens": 1},
    "default again": {"sampling": {"seed": 11}},
    "logprobs": {"sampling": {"temperature": 0.0, "repeat_penalty": 1.5}, "n_logprobs": 20},
    "after samplers": {"sampling": {"seed": 5, "top_k": 4, "min_p": 0.0}, "n_logprobs": 20, "after_samplers": True},
    "after samplers, greedy": {"sampling": {"temperature": 0.0}, "n_logprobs": 20, "after_samplers": True},
    "after samplers, grammar": {
        "sampling": {"seed": 3, "grammar": ONE_OF_TWO}, "n_logprobs": 20, "after_samplers": True,
    },
    "echo": {"sampling": {"temperature": 0.0}, "prompt": ECHOED, "echo": True, "n_logprobs": 3, "max_tokens": 1},
    "forced by a bias": {"sampling": {"seed": 1, "logit_bias": [[40, 1000.0]]}, "max_tokens": 5},
    "insisting": {"sampling": INSISTS, "max_tokens": 6},
    "dry": {"sampling": DRY, "max_tokens": 6},
    "dry, broken": {"sampling": {**DRY, "dry_sequence_breakers": ["("]}, "max_tokens": 6},
    "dry after a prompt": {"sampling": DRY, "max_tokens": 1, "prompt": "((((("},
    "bias outside": {"sampling": {"logit_bias": [[272, 1.0]]}},
    "penalties, chain first": {"sampling": LETTERS_ONLY},
    "penalties, grammar first": {"sampling": LETTERS_ONLY, "is_filtered_first": True},
    "grammar with drafts": {"sampling": {"seed": 3, **ALMOST_SURE}, "max_tokens": 60},
    "grammar without drafts": {"sampling": {"seed": 3, **ALMOST_SURE}, "max_tokens": 60, "drafts": False},
    "grammar, mirostat": {"sampling": {"seed": 3, "mirostat": 2, "grammar": ONE_OF_TWO}},
    "grammar that biases close": {
        "sampling": {"grammar": 'root ::= "a" "b"', "logit_bias": [[ord("b"), False]]},
    },
    "thought": {"sampling": {"seed": 11}, "reasoning": THOUGHT},
    "thought, greedy": {"sampling": PENALTIES, "reasoning": THOUGHT},
    "thought, grammar": {
        "sampling": {"seed": 3, "grammar": 'root ::= [a-z ]{5} "END>" [a-z]{3}'}, "reasoning": THOUGHT,
    },
    "thought that a grammar does not end": {"sampling": LETTERS_ONLY, "reasoning": THOUGHT},
    "grammar of a foreign letter": {"sampling": {"grammar": "root ::= \"é\" [α-ω]"}},
}  # fmt: skip


def _with_false_as_ban(case: dict[str, Any]) -> dict[str, Any]:
    biases = case["sampling"].get("logit_bias", ())
    banned = [[token, float("-inf") if bias is False else bias] for token, bias in biases]
    return {**case, "sampling": {**case["sampling"], "logit_bias": banned}}


@pytest.fixture(scope="module")
def answers(tiny_model: Path) -> dict[str, dict[str, Any]]:
    cases = json.dumps({name: _with_false_as_ban(case) for name, case in CASES.items()})
    run = subprocess.run(
        [sys.executable, str(REAL_MODEL), str(tiny_model)],
        input=cases,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr
    answered: dict[str, dict[str, Any]] = json.loads(run.stdout)
    return answered


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_is_built_and_samples(answers: dict[str, Any], name: str) -> None:
    assert answers[name]["error"] == ""
    assert len(answers[name]["tokens"]) == 24


@pytest.mark.parametrize("name", sorted(set(STAGES) - {"greedy", "default"}))
def test_every_stage_changes_what_is_chosen(answers: dict[str, Any], name: str) -> None:
    assert answers[name]["tokens"] != answers["default"]["tokens"]


def test_the_same_seed_gives_the_same_tokens(answers: dict[str, Any]) -> None:
    assert answers["default again"]["tokens"] == answers["default"]["tokens"]


def test_an_echoed_prompt_has_the_log_probabilities_of_an_evaluation(answers: dict[str, Any]) -> None:
    echoed = answers["echo"]
    first, *others, of_answer = echoed["logprobs"]
    assert (first[1], echoed["text"].startswith(ECHOED), len(others)) == (None, True, len(echoed["likelihoods"]))
    assert [logprob for _, logprob, _ in others] == pytest.approx(echoed["likelihoods"], abs=1e-3)
    assert all(len(top) == 3 and logprob <= top[0] for _, logprob, top in (*others, of_answer))


def test_log_probabilities_are_the_models_own_for_every_token(answers: dict[str, Any]) -> None:
    answer = answers["logprobs"]
    pieces = b"".join(bytes(piece) for piece, _, _ in answer["logprobs"])
    assert len(answer["logprobs"]) == len(answer["tokens"])
    assert pieces.decode("utf-8", "replace") == answer["text"]
    for _, logprob, top in answer["logprobs"]:
        assert top == sorted(top, reverse=True)
        assert logprob <= top[0]
        assert 0 < sum(map(math.exp, top)) < 1


def test_log_probabilities_after_the_samplers_are_those_of_what_is_left(answers: dict[str, Any]) -> None:
    sampled = answers["after samplers"]
    assert len(sampled["logprobs"]) == len(sampled["tokens"])
    for _, logprob, top in sampled["logprobs"]:
        assert (len(top), logprob in top, top == sorted(top, reverse=True)) == (4, True, True)
        assert sum(map(math.exp, top)) == pytest.approx(1)
    assert {(logprob, *top) for _, logprob, top in answers["after samplers, greedy"]["logprobs"]} == {(0, 0)}
    first = answers["after samplers, grammar"]["logprobs"][0]
    assert 2 <= len(first[2]) <= 3  # of the two letters and the end that the grammar allows
    assert sum(map(math.exp, first[2])) == pytest.approx(1)


def test_a_large_bias_forces_its_token_and_a_ban_excludes_it(answers: dict[str, Any]) -> None:
    assert answers["forced by a bias"]["tokens"] == [40] * 5
    assert 8 not in answers["biases"]["tokens"]


def test_dry_ends_a_repetition_unless_it_is_broken(answers: dict[str, Any]) -> None:
    assert answers["insisting"]["text"] == answers["dry, broken"]["text"] == "(" * 6
    assert answers["dry"]["text"].startswith("((")
    assert answers["dry"]["text"] != "(" * 6


def test_what_the_prompt_repeats_counts_for_dry(answers: dict[str, Any]) -> None:
    assert answers["dry after a prompt"]["tokens"] != [PARENTHESIS]


def test_a_bias_of_a_token_outside_the_vocabulary_is_an_error(answers: dict[str, Any]) -> None:
    assert answers["bias outside"]["error"] == "logit_bias contains token 272; the vocabulary has 272 tokens."


def test_choosing_before_filtering_leaves_the_penalties_as_filtering_first_does(answers: dict[str, Any]) -> None:
    first, second = answers["penalties, chain first"], answers["penalties, grammar first"]
    assert first["tokens"] == second["tokens"]
    assert re.fullmatch("[a-z ]{24}", first["text"])
    assert len(set(first["text"])) > 8


def test_a_grammar_gives_the_same_tokens_with_and_without_drafts(answers: dict[str, Any]) -> None:
    drafted, plain = answers["grammar with drafts"], answers["grammar without drafts"]
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["n_accepted"] > plain["n_accepted"] == 0


def test_a_grammar_applies_under_mirostat_too(answers: dict[str, Any]) -> None:
    assert re.fullmatch("(ab|ba)+[ab]?", answers["grammar, mirostat"]["text"])


def test_a_grammar_whose_only_token_is_banned_is_an_error_and_no_crash(answers: dict[str, Any]) -> None:
    assert answers["grammar that biases close"]["error"] == "The grammar allows no token of this model here."


@pytest.mark.parametrize("seed", SEEDS)
def test_a_model_under_a_schema_writes_json_that_satisfies_it(answers: dict[str, Any], seed: int) -> None:
    record = json.loads(answers[f"record {seed}"]["text"])
    assert record["kind"] in ("a", "é\n", None)
    assert all(isinstance(number, int) for number in record["numbers"])
    assert len(record["numbers"]) <= 2
    assert len(record.get("note", "")) <= 4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_model_under_a_recursive_schema_writes_json_that_satisfies_it(answers: dict[str, Any], seed: int) -> None:
    link = json.loads(answers[f"chain {seed}"]["text"])
    while link is not None:
        assert set(link) == {"is_last", "next"}
        assert isinstance(link["is_last"], bool)
        link = link["next"]


@pytest.mark.parametrize("name", ["every construct", "any object"])
def test_what_the_grammars_of_json_are_made_of_is_understood(answers: dict[str, Any], name: str) -> None:
    assert answers[name]["error"] == ""
    assert answers[name]["text"] == "{"


def test_a_grammar_spans_characters_of_several_tokens(answers: dict[str, Any]) -> None:
    text = answers["grammar of a foreign letter"]["text"]
    assert text[0] == "é"
    assert "α" <= text[1] <= "ω"
    assert len(text) == 2


FOUR_AT_A_TIME = """
import sys
from pathlib import Path
from app.engine.backend import Chunk
from app.engine.messages import EngineConfig
from app.engine.llama import LlamaModel
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST

model = LlamaModel(Path(sys.argv[1]), ON_HOST, False, lambda _fraction: True)
backend = model.context(EngineConfig(n_ctx=256, n_batch=4), RuntimeSettings(1, False, False))
assert backend.facts.n_seq_max > 4
print(backend.decode([Chunk(0, 0, [1, 2, 3, 4], 4)]).name)
backend.close()
model.close()
"""


@pytest.mark.slow
def test_a_batch_may_be_smaller_than_the_number_of_sequences(tiny_model: Path) -> None:
    command = [sys.executable, "-c", FOUR_AT_A_TIME, str(tiny_model)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (run.returncode, run.stdout) == (0, "DONE\n"), run.stderr


def test_every_kind_of_sampler_records_the_tokens_that_end_a_thought(answers: dict[str, Any]) -> None:
    for name in ("thought", "thought, greedy"):
        answer = answers[name]
        assert "END>" in answer["text"]
        assert (len(answer["tokens"]), answer["error"]) == (24, "")
    assert answers["thought"]["tokens"][:5] == answers["default"]["tokens"][:5]
    assert re.fullmatch("[a-z ]{5}END>[a-z]{3}", answers["thought, grammar"]["text"])
    assert "does not allow reasoning to end" in answers["thought that a grammar does not end"]["error"]
