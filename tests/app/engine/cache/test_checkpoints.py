from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.engine.cache.kv_cache import plan_checkpoints
from app.engine.cache.state_store import StateStore
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.request import IN_MEMORY, Request, SamplingParams
from tests.app.engine.recording import Record, run

GREEDY = SamplingParams(temperature=0.0)
SYSTEM = "You are a careful and honest assistant. " * 4
KINDS: list[dict[str, Any]] = [
    {"supports_truncation": False},
    {"supports_truncation": False, "has_attention": False},
    {"n_window": 20},
]


class Chats:
    """An engine whose model cannot be truncated everywhere, and how much of each prompt it had cached."""

    def __init__(self, folder: Path, **kind: Any) -> None:
        self.store = StateStore(folder)
        self.record = Record()
        self.backend = FakeBackend(**kind)
        self.engine = Engine(self.backend, self.record, self.store)
        self._n_asked = 0

    def ask(self, prompt: str, *branches: int, n_tokens: int = 40, conversation: str = "") -> int:
        """Return how many tokens of `prompt` were cached; check the answer against one without any cache."""
        name = str(self._n_asked)
        self._n_asked += 1
        wanted = Request(
            request_id=name,
            prompt=prompt,
            sampling=GREEDY,
            max_tokens=n_tokens,
            ignore_eos=True,
            branches=branches,
            conversation=conversation,
        )
        self.engine.submit(wanted)
        run(self.engine)
        fresh = Record()
        alone = Engine(FakeBackend(supports_truncation=False), fresh)
        alone.submit(wanted)
        run(alone)
        assert self.record.text[name] == fresh.text[name]
        return self.record.finished[name].usage.n_cached_tokens

    @property
    def said(self) -> str:
        return self.record.text[str(self._n_asked - 1)]

    def close(self) -> None:
        while self.engine.save_idle_sequence():
            pass
        self.engine.close()
        self.store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_another_chat_continues_after_the_system_prompt(tmp_path: Path, kind: dict[str, Any]) -> None:
    chats = Chats(tmp_path, **kind)
    assert chats.ask(SYSTEM + "What is a fox?", len(SYSTEM)) == 0
    assert chats.ask(SYSTEM + "Name three rivers.", len(SYSTEM)) == len(SYSTEM)
    chats.close()


@pytest.mark.parametrize("kind", KINDS)
def test_another_chat_about_a_document_reads_only_its_question_also_after_a_restart(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    read = SYSTEM + "report.txt: the fox lives in the wood, and the wolf does not. " * 3
    chats = Chats(tmp_path, **kind)
    assert chats.ask(read + "What is it about?", len(SYSTEM), len(read)) == 0
    assert chats.ask(read + "Who wrote it, and when?", len(SYSTEM), len(read)) == len(read)
    chats.close()
    again = Chats(tmp_path, **kind)
    assert again.ask(read + "Is it long?", len(SYSTEM), len(read)) == len(read)
    again.close()


@pytest.mark.parametrize("kind", [*KINDS, {}])
def test_a_document_that_private_chats_have_read_too_is_on_disk_for_the_others(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    read = SYSTEM + "report.txt: the fox lives in the wood, and the wolf does not. " * 3
    places = len(SYSTEM), len(read)
    chats = Chats(tmp_path, **kind)
    chats.ask(read + "What is it about?", *places, conversation=IN_MEMORY)
    assert chats.ask(read + "By whom is it?", *places, conversation="one") == len(read)
    assert chats.ask(read + "Is it of this year?", *places, conversation=IN_MEMORY) == len(read)
    chats.close()
    again = Chats(tmp_path, **kind)
    assert again.ask(read + "Has it figures?", *places, conversation="two") == len(read)
    again.close()


@pytest.mark.parametrize("kind", KINDS)
def test_where_two_prompts_part_is_learned_without_messages(tmp_path: Path, kind: dict[str, Any]) -> None:
    chats = Chats(tmp_path, **kind)
    assert chats.ask(SYSTEM + "What is a fox?") == 0
    assert chats.ask(SYSTEM + "Name three rivers.") == 0
    assert chats.ask(SYSTEM + "Say hello.") == len(SYSTEM)
    chats.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_message_continues_before_it_and_the_next_turn_after_the_answer(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    chats = Chats(tmp_path, **kind)
    first = SYSTEM + "What is a fox, and where does it live in winter?"
    chats.ask(first, len(SYSTEM))
    history = first + chats.said
    assert chats.ask(history + "And a wolf, if there are any around here?", len(history)) == len(history) - 1
    assert chats.ask(history + "In one sentence, please, with no more words.", len(history)) == len(history) - 1
    chats.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_chats_go_on_after_others_took_all_places_and_after_a_restart(tmp_path: Path, kind: dict[str, Any]) -> None:
    chats = Chats(tmp_path, **kind)
    first = SYSTEM + "What is a fox, and where does it live in winter?"
    chats.ask(first, len(SYSTEM))
    history = first + chats.said
    for number in range(12):
        chats.ask(f"{number} " * 60)
    assert chats.ask(history + "Shorter!", len(SYSTEM), len(history)) >= len(history) - 1
    chats.close()
    again = Chats(tmp_path, **kind)
    assert again.ask(history + "Longer!", len(SYSTEM), len(history)) >= len(history) - 1
    assert again.ask(SYSTEM + "Name three rivers.", len(SYSTEM)) == len(SYSTEM)
    again.close()


def test_the_cells_of_a_chat_are_on_disk_once_whatever_its_checkpoints(tmp_path: Path) -> None:
    chats = Chats(tmp_path, supports_truncation=False)
    prompt = SYSTEM
    for _ in range(4):
        chats.ask(prompt, len(SYSTEM), len(prompt))
        prompt += chats.said + "And what else is there to say about it, in your opinion?"
    chats.close()
    again = StateStore(tmp_path)
    tokens = chats.backend.tokenize(prompt, True, True)
    assert len(again.checkpoints(tokens)) >= 4
    assert len(list(tmp_path.iterdir())) == 1 + len(again.checkpoints(tokens))
    again.close()


def test_checkpoints_are_planned_where_they_save_more_than_they_cost() -> None:
    assert plan_checkpoints([100, 10, 120], n_cached=0, n_prompt=140) == (100, 140)
    assert plan_checkpoints([100], n_cached=90, n_prompt=110) == ()
    assert plan_checkpoints([], n_cached=0, n_prompt=400) == (399,)
    assert plan_checkpoints([500], n_cached=0, n_prompt=400) == (399,)
    assert plan_checkpoints([100], n_cached=0, n_prompt=400, min_end_tokens=300) == (100, 400)
    assert plan_checkpoints([100], n_cached=0, n_prompt=400, min_end_tokens=301) == (100,)
