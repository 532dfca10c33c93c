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


_TOKENS = "docs 0.11, Tokenizer API"
_LM_EVAL = "lm-eval 0.4.13, local-completions, as recorded"


def _are_logprobs(found: Any) -> bool:
    """Whether the first token has none, and each other one of the prompt and of the answer has one."""
    return found[0] is None and len(found) == 6 and all(value <= 0 for value in found[1:])


def _token_rows() -> Iterator[Row]:
    """What lm-eval asks a server for: whether it can tokenize, tokens of texts, and how likely they are."""
    yield Row(
        name="what a tokenizer is like",
        ask=Ask("GET /tokenizer_info"),
        source=_LM_EVAL,
        holds={"": lambda found: "eos_token" in found and found["eos_token"] != "", "model_max_length": int},
    )
    yield Row(
        name="a tokenized prompt",
        ask=Ask("POST /tokenize", {"prompt": "test", "add_special_tokens": False}),
        source=_LM_EVAL,
        holds={"tokens.0": int, "count": int, "max_model_len": int, "content": ABSENT},
    )
    yield Row(
        name="a tokenized prompt with its texts",
        ask=Ask("POST /tokenize", {"model": MODEL, "prompt": "test", "return_token_strs": True}),
        source=_TOKENS,
        holds={"token_strs": lambda found: "test" in "".join(found)},
    )
    yield Row(
        name="a tokenized chat",
        ask=Ask("POST /tokenize", {"model": MODEL, "messages": _HELLO["messages"], "add_generation_prompt": True}),
        source=_TOKENS,
        holds={"tokens.0": int, "count": lambda found: found > 5},
    )
    yield Row(
        name="tokens are text again",
        ask=Ask("POST /detokenize", {"tokens": "${0.tokens}"}),
        first=(Ask("POST /tokenize", {"prompt": "naïve 🤗", "add_special_tokens": False}),),
        source=_LM_EVAL,
        holds={"prompt": "naïve 🤗"},
    )
    scored = {"model": MODEL, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    yield Row(
        name="how likely token ids are, and one more",
        ask=Ask(_TEXT, {**scored, "prompt": [[72, 101, 108, 108, 111]]}),
        source=_LM_EVAL,
        holds={"choices.0.logprobs.token_logprobs": _are_logprobs, "choices.0.logprobs.top_logprobs.5": dict},
    )
    yield Row(
        name="how likely several lists of token ids are",
        ask=Ask(_TEXT, {**scored, "prompt": [[72, 101, 108, 108, 111], [119, 111, 114, 108, 100]]}),
        source=_LM_EVAL,
        holds={
            "choices.*.index": [0, 1],
            "choices.0.logprobs.token_logprobs": _are_logprobs,
            "choices.1.logprobs.token_logprobs": _are_logprobs,
        },
    )
    asked = {"model": MODEL, "max_tokens": 16, "temperature": 0, "stop": ["\n", "<|im_end|>"], "seed": 1234}
    yield Row(
        name="an answer to token ids up to a text",
        ask=Ask(_TEXT, {**asked, "prompt": [[72, 101, 108, 108, 111]]}),
        source=_LM_EVAL,
        holds={"choices.0.text": str, "choices.0.finish_reason": str},
    )


ROWS: tuple[Row, ...] = (*_form_rows(), *_token_rows())
