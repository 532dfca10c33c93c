"""Drafts from the texts of a project, in the engine's loop over the fake model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.project_texts import corpus_name, keep_texts
from app.engine.request import FinishReason, Request, SamplingParams
from app.engine.speculative.cost_model import StepCost
from app.engine.speculative.project_lookup import CorpusLookup, TextCorpora
from tests.app.engine.recording import Record, run

OWNER, PROJECT = "me", "project"
CHEAP = {1: 1.0, 64: 1.1}  # of a step by its tokens: every likely draft pays


@pytest.fixture
def corpora(tmp_path: Path) -> Iterator[TextCorpora]:
    made = TextCorpora(tmp_path, FakeBackend(n_sequences=1).tokenize)
    yield made
    made.close()


def request(name: str, prompt: str, n_tokens: int = 60, seed: int | None = None, **more: object) -> Request:
    sampling = SamplingParams(temperature=0.0) if seed is None else SamplingParams(temperature=0.8, seed=seed)
    return Request(  # type: ignore[arg-type]
        request_id=name, prompt=prompt, sampling=sampling, max_tokens=n_tokens, ignore_eos=True, owner=OWNER, **more
    )


def engine_of(record: Record, corpora: TextCorpora | None, **backend: int) -> Engine:
    return Engine(FakeBackend(n_ctx=400, n_cells=1600, **backend), record, step_cost=StepCost(CHEAP), corpora=corpora)


def written(prompt: str) -> str:
    """Return what the model answers to `prompt`."""
    record = Record()
    run(engine_of(record, None), request("a", prompt))
    return record.text["a"]


def prepare(corpora: TextCorpora, folder: Path, *texts: str) -> None:
    keep_texts(folder, corpus_name(OWNER, PROJECT), "chat", texts)
    corpora.prepare(OWNER, PROJECT)
    corpora._waiting.join()


def test_an_answer_that_quotes_a_text_of_the_project_takes_fewer_steps(corpora: TextCorpora, tmp_path: Path) -> None:
    prepare(corpora, tmp_path, "At the top of a file. " + written("Quote it: "))
    passes = {}
    for corpus in ("", PROJECT):
        record = Record()
        engine = engine_of(record, corpora)
        run(engine, request("a", "Quote it: ", corpus=corpus))
        passes[corpus] = record.finished["a"].usage.n_passes
        assert record.text["a"] == written("Quote it: ")
        assert bool(engine.counters.drafts[CorpusLookup.name].n_accepted) == bool(corpus)
    assert passes[PROJECT] < passes[""] / 2


def test_the_texts_are_read_when_a_request_arrives(corpora: TextCorpora, tmp_path: Path) -> None:
    keep_texts(tmp_path, corpus_name(OWNER, PROJECT), "chat", ["a text of this project"])
    engine = engine_of(Record(), corpora)
    engine.submit(request("a", "Quote it: ", corpus=PROJECT))
    corpora._waiting.join()
    assert corpora.index_of(OWNER, PROJECT) is not None
    engine.close()


def test_what_is_forgotten_is_drafted_no_more(corpora: TextCorpora, tmp_path: Path) -> None:
    prepare(corpora, tmp_path, written("Quote it: "))
    record = Record()
    engine = engine_of(record, corpora)
    engine.forget(["chat"])
    for path in tmp_path.glob("*/*"):
        path.unlink()
    run(engine, request("a", "Quote it: ", corpus=PROJECT))
    assert engine.counters.drafts[CorpusLookup.name].n_drafted == 0


_N_QUICK = 10
SEEDS = [pytest.param(seed, marks=() if seed < _N_QUICK else pytest.mark.slow) for seed in range(100)]


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_are_the_same_with_and_without_texts(seed: int, corpora: TextCorpora, tmp_path: Path) -> None:
    """Random arrivals and aborts, greedy and with a seed, over texts of which parts are what the model will write."""
    chance = random.Random(seed)
    prompts = [f"{chance.choice(('Say', 'Quote', 'Edit'))} {number}: " for number in chance.sample(range(20), 6)]
    texts = []
    for prompt in chance.sample(prompts, 4):
        text = written(prompt)
        cut = chance.randrange(len(text))
        texts.append(chance.choice((text, text[cut:], text[:cut] + "other words" + text[cut:], "words alone " * 9)))
    prepare(corpora, tmp_path, *texts)
    wanted = [
        request(str(number), prompt, chance.randrange(1, 90), chance.choice((None, 7)), corpus=PROJECT)
        for number, prompt in enumerate(prompts)
    ]
    plain, drafted = Record(), Record()
    run(engine_of(plain, None), *wanted)
    engine = engine_of(drafted, corpora, n_sequences=chance.choice((1, 3)))
    aborted = chance.sample(prompts, 2)
    for each in wanted:
        engine.submit(each)
        for _ in range(chance.randrange(1, 8)):
            engine.step()
        if str(each.prompt) in aborted:
            engine.abort(each.request_id)
    run(engine)
    assert not drafted.failed
    for name, finished in drafted.finished.items():
        if finished.reason is FinishReason.ABORTED:
            assert plain.text[name].startswith(drafted.text[name])
        else:
            assert drafted.text[name] == plain.text[name]
