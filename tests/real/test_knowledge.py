"""Folders as knowledge with a real embedding model: what no word finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.client.service_client import ServiceClient
from app.knowledge.embedding import embed_passages
from app.knowledge.models import EmbedderIdentity
from app.knowledge.reading import read_folder
from app.knowledge.search import search
from app.knowledge.store import KnowledgeStore
from tests.app.running import RunningService

_TEXTS = {
    "cooking": "Simmer the bones with carrots and celery, then strain the broth.",
    "cycling": "The river path is flat and paved, so the whole family can ride it.",
    "weather": "Low pressure from the west brings heavy showers tomorrow.",
    "money": "Interest rates were raised by a quarter of a percentage point.",
}


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("How do I make soup?", "cooking"),
        ("Where can children go by bike?", "cycling"),
        ("Do I need an umbrella?", "weather"),
        ("What did the central bank decide?", "money"),
    ],
)
async def test_a_question_without_a_word_of_the_text_finds_it(
    minilm: RunningService, tmp_path: Path, question: str, name: str
) -> None:
    top = tmp_path / "top"
    top.mkdir()
    for each, text in _TEXTS.items():
        (top / f"{each}.txt").write_text(text)
    identity = EmbedderIdentity(minilm.model()["id"], 1)
    with KnowledgeStore(tmp_path / "data") as store:
        list(read_folder(store, store.add_folder(top)))
        store.use_embedder(identity)
        async with ServiceClient(minilm.url) as models:
            async for _ in embed_passages(store, models, identity):
                pass
            hits = (await search(tmp_path / "data", question, models)).hits
    assert hits[0].passage.path.stem == name
    assert hits[0].vector_rank == 1
