"""A context that grows, by the engine that people have, with this machine's memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from tests.app.conftest import CHAT_TEMPLATE
from tests.app.running import RunningService
from tests.quantizer.gguf_files import tiny_llama

pytestmark = pytest.mark.slow

USUAL = 8192


def _long(writer: gguf.GGUFWriter) -> None:
    writer.add_chat_template(CHAT_TEMPLATE)
    writer.kv_data[0]["llama.context_length"].value = 4 * USUAL


def test_a_longer_prompt_reloads_the_model_and_reuses_what_was_computed_before(
    start_service: Callable[..., RunningService], tmp_path: Path
) -> None:
    model = tiny_llama(tmp_path / "long.gguf", _long)
    service = start_service(engine="llama", model=str(model), cache_dir=str(tmp_path / "cache"), idle_tune="false")
    assert service.model()["n_ctx"] == USUAL
    usages = []
    for n_letters in (USUAL // 2, USUAL):  # about as many tokens: the vocabulary is of bytes
        body = {"max_tokens": 3, "messages": [{"role": "user", "content": "x" * n_letters}]}
        answer = service.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        usages.append(answer.json()["usage"])
    assert service.model()["n_ctx"] == 2 * USUAL
    assert "--ctx 16384" in answer.json()["warnings"][0]
    assert usages[1]["prompt_tokens"] > USUAL
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] > 0.9 * usages[0]["prompt_tokens"]
