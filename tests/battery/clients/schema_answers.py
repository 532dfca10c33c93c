"""Does every answer fit its schema or grammar, and is each bad one refused? Random ones, in four dialects.

Run: `uv run python tests/battery/clients/schema_answers.py MODEL.gguf [--cases 1000] [--seed 1]`. Of the cases 5 in 10
are good schemas, 2 good grammars, 2 schemas with one random fault, 1 something hostile. An answer that ends by itself
must fit, as jsonschema or the grammar's own parts judge; what is good must be answered, what is hostile refused with a
400 and a cause, each within a minute, and the worker must be the same process all the time. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema
from rich.table import Table

from tests.battery.clients.random_schemas import (
    HOSTILE_GRAMMARS,
    HOSTILE_SCHEMAS,
    Matches,
    random_grammar,
    random_schema,
    spoilt_schema,
)
from tests.battery.tally import finish
from tests.bench.report import show
from tests.bench.served import Served, serve

__all__ = ["Case", "Shape", "fault_of"]

_N_CTX, _N_TOKENS = 1024, 400
_TIMEOUT_S = 60.0
_REFUSED = 400
_DRAFTS = (jsonschema.Draft202012Validator, jsonschema.Draft7Validator, jsonschema.Draft4Validator)


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked for: a `schema`, or a `grammar` of the texts that it `matches`; `kind` says what should be."""

    kind: str
    schema: Any = None
    grammar: str = ""
    matches: Matches | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a dialect takes a case, and where its answer has the text and whether it ended by itself."""

    path: str
    fields: Callable[[Case], dict[str, Any]]
    text: Callable[[Any], str]
    has_ended: Callable[[Any], bool]


_MESSAGES = {"messages": [{"role": "user", "content": "Say something."}]}


def _chat_fields(case: Case) -> dict[str, Any]:
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": case.schema}}}
    return {**_MESSAGES, "max_tokens": _N_TOKENS, **({"grammar": case.grammar} if case.grammar else form)}


def _completion_fields(case: Case) -> dict[str, Any]:
    form = {"grammar": case.grammar} if case.grammar else {"json_schema": case.schema}
    return {"prompt": "Say something.", "n_predict": _N_TOKENS, **form}


SHAPES: Mapping[str, Shape] = {
    "openai": Shape(
        "/v1/chat/completions",
        _chat_fields,
        lambda reply: reply["choices"][0]["message"]["content"] or "",
        lambda reply: reply["choices"][0]["finish_reason"] == "stop",
    ),
    "llama.cpp": Shape(
        "/completion",
        _completion_fields,
        lambda reply: reply["content"],
        lambda reply: reply["stop_type"] in ("eos", "word"),
    ),
    "ollama": Shape(
        "/api/chat",
        lambda case: {**_MESSAGES, "stream": False, "format": case.schema, "options": {"num_predict": _N_TOKENS}},
        lambda reply: reply["message"]["content"],
        lambda reply: reply["done_reason"] == "stop",
    ),
    "responses": Shape(
        "/v1/responses",
        lambda case: {
            "input": "Say something.",
            "max_output_tokens": _N_TOKENS,
            "store": False,
            "text": {"format": {"type": "json_schema", "name": "it", "schema": case.schema}},
        },
        lambda reply: "".join(part["text"] for item in reply["output"] for part in item["content"]),
        lambda reply: reply["status"] == "completed",
    ),
}
_BAD_BYTES = re.compile("\ufffd{1,4}")
_WITH_GRAMMAR = ("openai", "llama.cpp")


def random_case(chance: random.Random) -> Case:
    """Draw a case."""
    kind = chance.choice(["schema"] * 5 + ["grammar"] * 2 + ["spoilt schema"] * 2 + ["hostile"])
    if kind == "schema":
        return Case(kind, random_schema(chance))
    if kind == "spoilt schema":
        return Case(kind, spoilt_schema(chance))
    if kind == "grammar":
        grammar, matches = random_grammar(chance)
        return Case(kind, grammar=grammar, matches=matches)
    if chance.random() < 0.5:
        name = chance.choice(tuple(HOSTILE_GRAMMARS))
        return Case(kind, grammar=HOSTILE_GRAMMARS[name], name=name)
    name = chance.choice(tuple(HOSTILE_SCHEMAS))
    return Case(kind, HOSTILE_SCHEMAS[name], name=name)


def fault_of(case: Case, status: int, reply: Any, shape: Shape) -> str:
    """Return what is wrong with the `reply` to a case, or nothing."""
    if status == _REFUSED:
        if case.kind in ("schema", "grammar"):
            return f"it was refused: {reply}"
        error = reply.get("error") if isinstance(reply, dict) else None
        cause = error.get("message") if isinstance(error, dict) else error
        return "" if cause and isinstance(cause, str) else f"it was refused without a cause: {reply}"
    if status != httpx.codes.OK:
        return f"it was answered with {status}: {str(reply)[:300]}"
    if case.kind == "hostile":
        return f"it was accepted: {shape.text(reply)[:80]!r}"
    return "" if not shape.has_ended(reply) else _misfit(case, shape.text(reply))


def _misfit(case: Case, text: str) -> str:
    if case.matches:
        # bytes of no character, which llama.cpp's grammar takes for one, are as many replacement characters in the text
        return "" if case.matches(_BAD_BYTES.sub("\ufffd", text)) else f"{text!r} does not match"
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"{text!r} is no JSON: {error}"
    if (validator := _validator(case.schema)) is None:
        return ""  # a keyword that limits nothing there, such as the length of a list, may have any value
    try:
        misfit = next(validator.iter_errors(value), None)
    except TypeError:  # a reference leads to what its draft knows no keyword for, and nobody has checked
        return ""
    return f"{text!r} does not fit: {misfit.message[:200]}" if misfit else ""


def _validator(schema: Any) -> Any:
    """Return the validator of the newest draft that `schema` is of; a keyword that is null is as good as none."""
    for written in (schema, _without_nulls(schema)):
        for draft in _DRAFTS:
            if not any(draft(draft.META_SCHEMA).iter_errors(written)):
                return draft(written)
    return None


def _without_nulls(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_nulls(value) for key, value in schema.items() if value is not None or key == "const"}
    return [_without_nulls(value) for value in schema] if isinstance(schema, list) else schema


def attempt(served: Served, case: Case, dialect: str, seed: int) -> tuple[str, str]:
    """Return how a case ended, and what is wrong with that, or nothing."""
    shape = SHAPES[dialect]
    body = {**shape.fields(case), "seed": seed, "temperature": 1.5}
    if dialect == "ollama":
        body["options"] |= {"seed": body.pop("seed"), "temperature": body.pop("temperature")}
    if dialect == "responses":
        del body["seed"]
    try:
        response = served.http.post(shape.path, json=body, timeout=_TIMEOUT_S)
        reply = response.json()
    except (httpx.HTTPError, ValueError) as error:
        return "failed", f"no answer: {error!r}"
    is_cut = response.status_code == httpx.codes.OK and not shape.has_ended(reply)
    return "cut off" if is_cut else str(response.status_code), fault_of(case, response.status_code, reply, shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of the engine (1)")
    options = parser.parse_args()
    chance, seen, n_failed = random.Random(options.seed), Counter[tuple[str, str]](), 0
    with serve(options.model, 0, "--ctx", str(_N_CTX), "--threads", str(options.threads)) as served:
        worker = served.worker
        for number in range(options.cases):
            case = random_case(chance)
            dialect = chance.choice(_WITH_GRAMMAR if case.grammar else tuple(SHAPES))
            ended, fault = attempt(served, case, dialect, options.seed + number)
            seen[case.kind, ended] += 1
            if not worker.is_running():
                fault, worker = f"{fault}; the worker died", served.worker
            if fault:
                n_failed += 1
                what = case.name or json.dumps(case.schema)[:600] if not case.grammar else case.name or case.grammar
                print(f"case {number}, {dialect}, {case.kind}: {fault}\n  {what}", flush=True)
    made = Table("kind", "ended with", "cases", box=None, pad_edge=False)
    for (kind, ended), count in sorted(seen.items()):
        made.add_row(kind, ended, str(count))
    show(made)
    finish(options.cases, n_failed, options.seed)


if __name__ == "__main__":
    main()
