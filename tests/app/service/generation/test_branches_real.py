"""Chats that share a system prompt, with models that cannot be truncated everywhere, by the engine that people have."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.running import RunningService

pytestmark = pytest.mark.slow

SYSTEM = "You are a careful assistant, and you answer in few words. " * 20


@pytest.mark.parametrize("shape", ["tiny-gemma3", "tiny-lfm2"])
def test_another_chat_continues_after_the_system_prompt(
    start_service: Callable[..., RunningService], tmp_path: Path, shape: str
) -> None:
    model = tmp_path / f"{shape}.gguf"
    subprocess.run([sys.executable, "tests/bench/models/make_model.py", shape, "F16", model], check=True)
    service = start_service(engine="llama", model=str(model), cache_dir=str(tmp_path / "cache"), idle_tune="false")

    def n_cached(question: str) -> tuple[int, int]:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        response = service.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4})
        assert response.status_code == 200, response.text
        usage = response.json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    assert n_cached("What is a fox?")[0] == 0
    n_shared, n_prompt = n_cached("Name three rivers of the north.")
    assert n_prompt - 60 < n_shared < n_prompt - 1
