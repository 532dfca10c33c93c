"""Ollama 0.13 and later: its docs/api.md, its types (api/types.go) and its clients."""

from __future__ import annotations

from typing import Any

from tests.conformance.row import ABSENT, MODEL, Ask, Row

_CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hello"}],
    "stream": False,
    "options": {"num_predict": 4},
}
_GENERATE: dict[str, Any] = {"model": MODEL, "prompt": "hello", "stream": False, "options": {"num_predict": 4}}
_DOCS = "docs/api.md"


def _is_some(found: Any) -> bool:
    return isinstance(found, int) and found > 0


_DURATIONS = dict.fromkeys(("total_duration", "load_duration", "prompt_eval_count", "eval_count"), _is_some)

ROWS: tuple[Row, ...] = (
    Row(
        name="a chat has its durations",
        ask=Ask("POST /api/chat", _CHAT),
        source=f"{_DOCS}, Generate a chat completion: load_duration, time spent in nanoseconds loading the model",
        holds={"done": True, "message.role": "assistant", "message.content": str, **_DURATIONS},
    ),
    Row(
        name="a prompt has its durations",
        ask=Ask("POST /api/generate", _GENERATE),
        source=f"{_DOCS}, Generate a completion",
        holds={"done": True, "response": str, **_DURATIONS},
    ),
    Row(
        name="vectors have their durations",
        ask=Ask("POST /api/embed", {"model": MODEL, "input": ["a", "b"]}),
        source=f"{_DOCS}, Generate embeddings",
        holds={"embeddings.1": list, "total_duration": _is_some, "load_duration": _is_some, "prompt_eval_count": int},
    ),
    Row(
        name="show leaves the vocabulary out",
        ask=Ask("POST /api/show", {"model": MODEL}),
        source=f"{_DOCS}, Show model information: verbose",
        holds={
            "details.format": "gguf",
            "model_info": lambda found: not found.get("tokenizer.ggml.tokens"),
        },
    ),
    Row(
        name="show with verbose has the vocabulary and the tensors",
        ask=Ask("POST /api/show", {"model": MODEL, "verbose": True}),
        source=f"{_DOCS}, Show model information: verbose, returns full data for verbose response fields",
        holds={
            "model_info": lambda found: isinstance(found["tokenizer.ggml.tokens"], list),
            "tensors.0": lambda found: {"name", "type", "shape"} <= found.keys(),
        },
    ),
    Row(
        name="the last line of a stream has the durations",
        ask=Ask("POST /api/chat", {**_CHAT, "stream": True}),
        source=f"{_DOCS}, Generate a chat completion, Streaming",
        holds={"-1.done": True, "-1.load_duration": _is_some, "0.done": False, "0.load_duration": ABSENT},
    ),
)
