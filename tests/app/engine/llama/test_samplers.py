"""Grammars over the guide's vocabulary: asking about few tokens finds what asking about all would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from app.engine.grammar.json_grammar import schema_grammar

GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
WALK = Path(__file__).with_name("grammar_walk.py")
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
)


def test_the_tokens_that_a_grammar_allows_are_all_found() -> None:
    run = subprocess.run(
        [sys.executable, str(WALK), str(GUIDE)],
        input=json.dumps(GRAMMARS),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    walks = json.loads(run.stdout)
    assert [walk["differences"] for walk in walks] == [[]] * len(GRAMMARS)
    assert sum(walk["n_steps"] for walk in walks) > 100
