"""Texts that drafts are looked up in, over HTTP, with a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.project_texts import corpora_bytes
from app.engine.request import Request, SamplingParams
from app.engine.speculative.project_lookup import CorpusLookup
from app.settings.private_files import CORPORA
from tests.app.engine.recording import Record, run
from tests.app.one_file_service import BASE, Service, serving

PROMPT = "Quote what the file says: "
CORPUS = "0123456789abcdef"
N_TOKENS = 300


@pytest.fixture
async def service(tmp_path: Path, tiny_model: Path) -> AsyncIterator[Service]:
    async with serving(tmp_path, tiny_model) as service:
        await service.models.default.ready()
        yield service


def written() -> str:
    """Return what the model answers."""
    record, greedy = Record(), SamplingParams(temperature=0.0)
    request = Request(request_id="a", prompt=PROMPT, sampling=greedy, max_tokens=N_TOKENS, ignore_eos=True)
    run(Engine(FakeBackend(n_ctx=4096, n_cells=4096), record), request)
    return record.text["a"]


async def answered(service: Service, **more: Any) -> str:
    body = {"model": BASE, "prompt": PROMPT, "max_tokens": N_TOKENS, "ignore_eos": True, "temperature": 0, **more}
    answer = await service.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


async def kept(service: Service, *texts: str, **more: Any) -> int:
    answer = await service.call("draft-texts", draft_corpus=CORPUS, texts=texts, **more)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["n_kept"])


async def n_looked_up(service: Service) -> int:
    """Return how many tokens were drafted from texts that were kept."""
    while (metrics := await service.models.default.engine.metrics()) is None:  # noqa: ASYNC110 - nobody notifies
        await asyncio.sleep(0.01)
    return metrics.counters.drafts[CorpusLookup.name].n_drafted


async def test_an_answer_that_quotes_a_text_is_drafted_from_it_and_stays_the_same(service: Service) -> None:
    text = written()
    assert await kept(service, f"The file begins. {text}", prompt_cache_key="chat") == 1
    await answered(service, prompt="What else?", max_tokens=1, draft_corpus=CORPUS)  # lets the text be read
    assert await answered(service, prompt_cache_retention="in_memory", draft_corpus=CORPUS) == text
    assert await n_looked_up(service) == 0
    await service.call("forget-prefixes", prompt_cache_keys=["memory"])  # and with it the answer before
    await answered(service, prompt="What else?", max_tokens=1, draft_corpus=CORPUS)
    assert await answered(service, draft_corpus=CORPUS) == text
    assert await n_looked_up(service) > 0
    folder = service.models.settings.cache_dir / CORPORA
    assert corpora_bytes(folder) > len(text)


async def test_they_go_with_their_conversation(service: Service) -> None:
    await kept(service, "one text of a file", prompt_cache_key="hers")
    await kept(service, "another text of a file", prompt_cache_key="his")
    await service.call("forget-prefixes", prompt_cache_keys=["hers"])
    folder = service.models.settings.cache_dir / CORPORA
    assert len([*folder.glob("*/*")]) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"texts": ["a"]},
        {"draft_corpus": "", "texts": ["a"]},
        {"draft_corpus": "a" * 201, "texts": ["a"]},
        {"draft_corpus": "a", "texts": "a"},
        {"draft_corpus": "a", "texts": ["a"] * 1001},
    ],
)
async def test_what_names_no_corpus_or_no_texts_is_refused(service: Service, body: dict[str, Any]) -> None:
    assert (await service.call("draft-texts", **body)).status_code == 400
    completion = {"model": BASE, "prompt": "a", "draft_corpus": "a" * 201}
    assert (await service.http.post("/v1/completions", json=completion)).status_code == 400
