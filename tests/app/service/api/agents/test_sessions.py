"""Sessions of coding agents, thirty turns each, in which everything happens that ended one before.

They read a picture that no model here sees, need more context than there is, name a model that nobody has, lose the
model between two turns (`ollama stop`), and have an answer cut at its limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from tests.app.conftest import CHAT_TEMPLATE
from tests.app.one_file_service import BASE, Service, serving, until
from tests.app.service.api.agents.sessions import AGENTS, IS_PICTURE, Aider, ClaudeCode, OpenCode, say
from tests.quantizer.gguf_files import tiny_llama

N_TURNS = 30
PICTURE, UNLOADED, UNKNOWN, LARGE, CUT = 5, 9, 13, 17, 21  # the turns in which that happens
LARGE_LETTERS = 12_000
END = "It snows."


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained on a million tokens, so that only memory limits its context."""

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template(CHAT_TEMPLATE)
        writer.kv_data[0]["llama.context_length"].value = 1 << 20

    return tiny_llama(tmp_path_factory.mktemp("long") / "long.gguf", edit)


def _n_ctx(service: Service) -> int:
    facts = service.models.default.engine.status.facts
    return facts.n_ctx if facts else 0


async def _unload(service: Service) -> None:
    """Unload as `ollama stop` does, and wait for it."""
    answer = await service.http.post("/api/generate", json={"model": BASE, "keep_alive": 0})
    assert answer.json()["done_reason"] == "unload"
    await until(lambda: service.models.default.engine.status.state == "unloaded")


def _result(text: str, turn: int) -> str:
    return f"{'x' * LARGE_LETTERS}\n{text}" if turn == LARGE else text


@pytest.mark.slow
@pytest.mark.parametrize("kind", AGENTS, ids=[kind.name for kind in AGENTS])
async def test_thirty_turns_end_without_an_error(kind: type, tmp_path: Path, long_model: Path) -> None:
    agent: Any = kind(BASE)
    has_tools = not isinstance(agent, Aider)
    async with serving(tmp_path, long_model, step_ms=0) as service:
        await service.models.default.ready()
        contexts = [_n_ctx(service)]
        wanted = [agent.read("1.txt")]
        agent.ask(say(*wanted) if has_tools else "<say>turn 1</say>")
        for turn in range(1, N_TURNS + 1):
            changes: dict[str, Any] = {}
            if turn == UNLOADED:
                await _unload(service)
            if turn == UNKNOWN:
                changes["model"] = agent.unknown_model
            if turn == CUT and has_tools:
                cut = await agent.answer(service.http, **{agent.size: 60})
                assert cut.is_cut
                agent.go_on(cut, [say(*wanted)] * max(1, len(cut.calls)))
            answer = await agent.answer(service.http, **changes)
            if _n_ctx(service) != contexts[-1]:
                contexts.append(_n_ctx(service))
            if turn == N_TURNS:
                break
            if has_tools:
                assert [call for _, call in answer.calls] == wanted, f"turn {turn}: {answer}"
                results = [IS_PICTURE] if turn == PICTURE else []
                wanted = [agent.read(f"{turn}.txt")]
                if turn + 1 == PICTURE:
                    wanted = [agent.read("picture.png"), *wanted]
                said = f"<say>{END}</say>" if turn + 1 == N_TURNS else say(*wanted)
                agent.go_on(answer, [*results, _result(said, turn)])
            else:
                assert answer.text == f"turn {turn}"
                said = END if turn + 1 == N_TURNS else f"turn {turn + 1}"
                agent.go_on(answer, [_result(f"<say>{said}</say>", turn)])
        assert (answer.text, answer.calls) == (END, [])
        assert contexts == sorted(set(contexts)), "a context only grows, and each is loaded once"
        assert len(contexts) > 1


@pytest.mark.parametrize("kind", [ClaudeCode, OpenCode], ids=["Claude Code", "opencode"])
async def test_the_title_of_a_session_comes_from_the_small_model_that_the_agent_knows(
    kind: type, tmp_path: Path, tiny_model: Path
) -> None:
    agent: Any = kind(BASE)
    async with serving(tmp_path, tiny_model, step_ms=0) as service:
        request = agent.small
        body = {**request["body"], "model": agent.unknown_model, "max_tokens": 200}
        answer = await service.http.post(request["path"], json=body, headers=request["headers"])
        assert answer.status_code == 200, answer.text
