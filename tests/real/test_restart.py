"""What a real model has computed is on disk after the service ends, and the next one goes on from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import RunningService
from tests.real.texts import TEXTS

pytestmark = pytest.mark.slow

# By which way caches are saved: a model whose cells may be cut anywhere, and one with sliding windows.
MODELS = ("smollm_file", "gemma_file")


@pytest.mark.parametrize("model", MODELS)
def test_a_prompt_is_reused_after_a_restart_and_answered_as_before(
    request: pytest.FixtureRequest, start_real: Callable[..., RunningService], tmp_path: Path, model: str
) -> None:
    path: Path = request.getfixturevalue(model)
    settings = {"model": str(path), "ctx": "2048", "cache_dir": str(tmp_path / "cache"), "save_prefixes": "true"}
    prompt = "\n".join([*TEXTS.values()] * 3)
    before, answer = _restarted(start_real, settings, prompt)
    again, other = _restarted(start_real, settings, prompt)
    assert before == 0
    assert again > 500
    assert answer[0]["id"] == other[0]["id"]
    assert answer[0]["logprob"] == pytest.approx(other[0]["logprob"], abs=0.3)


def test_a_longer_chat_goes_on_from_the_shorter_one_after_a_restart(
    start_real: Callable[..., RunningService], tmp_path: Path, smollm_file: Path
) -> None:
    settings = {"model": str(smollm_file), "ctx": "2048", "cache_dir": str(tmp_path / "cache"), "save_prefixes": "true"}
    prompt = "\n".join([*TEXTS.values()] * 3)
    _restarted(start_real, settings, prompt)
    n_cached, _ = _restarted(start_real, settings, prompt + "\nAnd what came after that was a surprise:")
    assert n_cached > 500


def test_a_second_chat_about_a_document_reads_only_its_question_also_after_a_restart(
    start_real: Callable[..., RunningService], tmp_path: Path, smollm_file: Path
) -> None:
    settings = {"model": str(smollm_file), "ctx": "2048", "cache_dir": str(tmp_path / "cache"), "save_prefixes": "true"}
    document = "report.txt:\n```\n" + "\n".join([*TEXTS.values()] * 3) + "\n```\n\n"

    def asked(service: RunningService, question: str, **key: str) -> tuple[int, str]:
        parts = [{"type": "text", "text": document}, {"type": "text", "text": question}]
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 12, "temperature": 0, **key}
        response = service.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        n_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["usage"]["prompt_tokens"] - n_cached, answer["choices"][0]["message"]["content"]

    first = start_real(**settings)
    n_read, _ = asked(first, "What is it about?", prompt_cache_key="one")
    in_memory = asked(first, "Who may have written it?", prompt_cache_retention="in_memory")
    first.let_end()
    first.wait_for_end()
    second = start_real(**settings)
    from_disk = asked(second, "Who may have written it?", prompt_cache_key="two")
    second.let_end()
    second.wait_for_end()
    assert n_read > 500
    assert in_memory[0] < 30
    assert from_disk == in_memory


def _restarted(
    start: Callable[..., RunningService], settings: dict[str, str], prompt: str
) -> tuple[int, list[dict[str, Any]]]:
    """Start a service, ask it once, end it; return how much of the prompt was cached, and the answer's tokens."""
    service = start(**settings)
    body = {"prompt": prompt, "n_predict": 4, "temperature": 0, "n_probs": 1}
    response = service.http.post("/completion", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    service.let_end()
    service.wait_for_end()
    return answer["timings"]["cache_n"], answer["completion_probabilities"]
