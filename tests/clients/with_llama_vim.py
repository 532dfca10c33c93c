"""llama.vim's protocol: a session of its requests, sent as its curl does, each answer read as its script reads it.

The session in llama_vim.jsonl is ours, in the shape of llama.vim's requests: warm-ups of the ring of chunks,
keystrokes, the request ahead after a suggestion, and a window that moves on by a line.
"""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

GUIDE = os.environ["LOCALLLM_GUIDE_URL"]
SESSION = Path(__file__).with_name("llama_vim.jsonl")
# What it sends with every request: its key is empty unless one is set.
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer "}
NUMBERS = (
    *(
        f"timings/{part}_{unit}"
        for part in ("prompt", "predicted")
        for unit in ("n", "ms", "per_token_ms", "per_second")
    ),
    "tokens_cached",
)


def sent(body: dict[str, Any]) -> str:
    """Return the text of the answer to `body`."""
    request = urllib.request.Request(f"{GUIDE}/infill", json.dumps(body).encode(), HEADERS)
    with urllib.request.urlopen(request) as response:
        assert response.status == 200
        return str(response.read().decode())


def check(what: str, body: dict[str, Any]) -> dict[str, Any]:
    """Assert that llama.vim can read the answer to `body`, and return it."""
    text = sent(body)
    assert "\n" not in text, f"{what}: it joins what it gets line by line"
    answer: dict[str, Any] = json.loads(text)
    if body["n_predict"] == 0:
        assert answer == {}, f"{what}: a warm-up says nothing"
        return answer
    assert '"content":"' in text, f"{what}: it looks for this before it parses"
    assert isinstance(answer["content"], str), what
    for name in NUMBERS:
        assert isinstance(answer[name], int | float), f"{what}: {name}"
    assert answer["truncated"] is False, what
    assert answer["timings/predicted_n"] <= body["n_predict"], what
    return answer


session = [json.loads(line) for line in SESSION.read_text(encoding="utf-8").splitlines()]
answers = [check(step["what"], step["body"]) for step in session]
again = check("the last but one again", session[-2]["body"])
assert again["timings/prompt_n"] <= 16, "what was computed is there when it is asked again"
