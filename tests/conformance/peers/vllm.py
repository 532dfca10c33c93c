"""vLLM's OpenAI-compatible server, beside what it shares with OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.conformance.row import ABSENT, MODEL, Ask, Row

_CHAT, _TEXT = "POST /v1/chat/completions", "POST /v1/completions"
_HELLO: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "messages": [{"role": "user", "content": "hello"}]}
_PROMPT: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "prompt": "hello"}
_SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
_FORMS = "docs, Structured Outputs"
_OLD_FORMS = "docs 0.9, Structured Outputs"


def _form_rows() -> Iterator[Row]:
    forms: dict[str, Any] = {
        "json": _SCHEMA,
        "regex": r"\w+@\w+\.com",
        "choice": ["positive", "negative"],
        "grammar": 'root ::= "yes" | "no"',
        "json_object": True,
    }
    for name, value in forms.items():
        for path, body in ((_CHAT, _HELLO), (_TEXT, _PROMPT)):
            yield Row(
                name=f"structured_outputs.{name} is honoured at {path}",
                ask=Ask(path, {**body, "structured_outputs": {name: value}}),
                source=_FORMS,
                holds={"choices.0.finish_reason": str, "warnings": ABSENT},
            )
        if name != "json_object":
            yield Row(
                name=f"guided_{name} is honoured",
                ask=Ask(_CHAT, {**_HELLO, f"guided_{name}": value}),
                source=_OLD_FORMS,
                holds={"choices.0.finish_reason": str, "warnings": ABSENT},
            )
    wrong: dict[str, dict[str, Any]] = {
        "two forms of an answer": {"json": _SCHEMA, "regex": "a+"},
        "a choice of nothing": {"choice": []},
        "a regular expression that does not end": {"regex": "(a"},
    }
    for name, form in wrong.items():
        yield Row(
            name=f"{name} is an error",
            ask=Ask(_CHAT, {**_HELLO, "structured_outputs": form}),
            source="vllm/sampling_params.py, StructuredOutputsParams",
            status=400,
            holds={"error.message": str},
        )


ROWS: tuple[Row, ...] = tuple(_form_rows())
