"""Answers of a real model that have to match a schema or a grammar."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.app.running import RunningService
from tests.real.dialects import WITH_SCHEMA, Asked, ask

PET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
STRICT_TEXTS = {
    "a time": ({"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"}, r'"[0-2]\d:[0-5]\d"'),
    "a list": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
        r"\[(true|false|[\s,])+\]",
    ),
    "a constant": ({"const": "Žluťoučký 🙂"}, '"Žluťoučký 🙂"'),
    "a choice": ({"anyOf": [{"type": "null"}, {"type": "number", "maximum": 5}]}, r"null|-?[\d.eE+-]+"),
}


@pytest.mark.parametrize("dialect", WITH_SCHEMA)
def test_an_answer_matches_its_schema(smollm: RunningService, dialect: str) -> None:
    pet = json.loads(ask(smollm.http, dialect, Asked("Describe a pet.", schema=PET, max_tokens=120)).text)
    assert set(pet) == {"name", "age", "kind"}
    assert 1 <= len(pet["name"]) <= 20
    assert pet["age"] in range(31)
    assert pet["kind"] in {"cat", "dog"}


@pytest.mark.parametrize("name", STRICT_TEXTS)
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_answers_match_schemas_that_bind_every_letter(smollm: RunningService, name: str, temperature: float) -> None:
    schema, pattern = STRICT_TEXTS[name]
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    body = {"max_tokens": 60, "temperature": temperature, "seed": 5, "response_format": form}
    messages = [{"role": "user", "content": "Answer something."}]
    answer = smollm.http.post("/v1/chat/completions", json=body | {"messages": messages}).json()
    text = answer["choices"][0]["message"]["content"].strip()
    json.loads(text)
    assert re.fullmatch(pattern, text)


def test_an_answer_that_must_be_json_is_an_object(smollm: RunningService) -> None:
    body = {"response_format": {"type": "json_object"}, "max_tokens": 200, "temperature": 0}
    messages = [{"role": "user", "content": "Give me a JSON object with the capital of France."}]
    answer = smollm.http.post("/v1/chat/completions", json=body | {"messages": messages}).json()
    choice = answer["choices"][0]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    else:
        assert choice["message"]["content"].lstrip().startswith("{")


def test_a_grammar_binds_a_base_model(gemma: RunningService) -> None:
    body = {"prompt": "The answer is", "grammar": 'root ::= " " ("yes" | "no") "."', "n_predict": 8, "temperature": 0}
    assert gemma.http.post("/completion", json=body).json()["content"] in {" yes.", " no."}
