"""The guide's corpus: what is asked can be answered, what is held out was never asked, and chance can be repeated."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from assets.guide.conversation import Dialogue, converse
from assets.guide.copying import copying_turn, editing_turn
from assets.guide.infill import infill
from assets.guide.pycode import program
from assets.guide.samples import IGNORED, Sampler
from assets.guide.topics import CORPUS, expand, read_beyond, read_topics
from assets.guide.vocabulary import SPECIAL_TOKENS, load_tokenizer

HELD_OUT = (CORPUS / "heldout.md").read_text(encoding="utf-8")
SEEDS = range(50)


def test_every_answer_names_the_facts_it_is_graded_by() -> None:
    wrong = [topic.name for topic in read_topics().values() if not topic.facts or not topic.is_right(topic.answer)]
    assert not wrong


def test_every_topic_has_many_phrasings() -> None:
    rng = random.Random(1)
    poor = [t.name for t in read_topics().values() if len({t.ask(rng) for _ in range(200)}) < 3]
    assert not poor


def test_held_out_questions_name_known_topics() -> None:
    names = set(re.findall(r"^([\w-]+):$", HELD_OUT, re.MULTILINE))
    assert len(names) > 80
    assert names <= {*read_topics(), "beyond"}


@pytest.mark.slow
def test_held_out_questions_are_no_phrasing_of_the_corpus() -> None:
    asked = {_plain(text) for topic in read_topics().values() for p in set(topic.patterns) for text in _expansions(p)}
    rng, beyond = random.Random(1), read_beyond()
    asked |= {_plain(beyond.ask(rng)) for _ in range(50_000)}
    assert not asked & {_plain(question) for question in re.findall(r"^\? (.+)$", HELD_OUT, re.MULTILINE)}


def _plain(question: str) -> str:
    return question.lower().strip("?. ")


def _expansions(pattern: str) -> Iterator[str]:
    """Yield every text that a pattern can become."""
    group = re.search(r"\[([^\[\]]*)\]", pattern)
    if group is None:
        yield " ".join(pattern.split())
        return
    for option in group[1].split("|"):
        yield from _expansions(pattern[: group.start()] + option + pattern[group.end() :])


def test_held_out_passages_are_not_in_the_corpus() -> None:
    corpus = "".join(path.read_text(encoding="utf-8") for path in CORPUS.iterdir() if path.name != "passages.txt")
    passages = (CORPUS / "passages.txt").read_text(encoding="utf-8").split("\n---\n")
    assert not [passage for passage in passages if passage[:40] in corpus]


def test_an_answer_that_misses_a_fact_is_wrong() -> None:
    assert not read_topics()["keys"].is_right("Enter sends, and that is all.")


@pytest.mark.parametrize("pattern", ["plain", "[a|b]", "x [a|[b|c] d] y", "[|maybe] yes"])
def test_expanding_leaves_no_brackets(pattern: str) -> None:
    assert not {"[", "]", "|"} & set(expand(pattern, random.Random(3)))


def test_questions_beyond_the_guide_leave_no_slot_unfilled() -> None:
    beyond = read_beyond()
    assert not [question for seed in SEEDS if "{" in (question := beyond.ask(random.Random(seed)))]


def test_what_is_to_be_copied_stands_in_the_request() -> None:
    turns = [copying_turn(random.Random(seed), 30) for seed in SEEDS]
    assert all(turn.guide in turn.user for turn in turns)


def test_an_edit_changes_only_the_named_word() -> None:
    for seed in SEEDS:
        turn = editing_turn(random.Random(seed), 30)
        words = turn.guide.split()
        originals = turn.user.split()[-len(words) :]
        changed = {new for old, new in zip(originals, words, strict=True) if old != new}
        assert len({re.sub(r"^\W+|\W+$", "", word) for word in changed}) <= len(words) // 2


def test_a_file_is_its_prefix_middle_and_suffix() -> None:
    for seed in SEEDS:
        sample = infill(random.Random(seed))
        assert compile(sample.prefix + sample.middle + sample.suffix, "sample.py", "exec", flags=0x2000)
        assert sample.prompt().endswith("<|fim_middle|>")


def test_generated_programs_are_python() -> None:
    assert all(compile(program(random.Random(seed), 3), "sample.py", "exec", flags=0x2000) for seed in SEEDS)


def test_a_conversation_never_teaches_the_users_text() -> None:
    pieces = converse(Dialogue(random.Random(5), 20))
    for _ in range(60):
        text, is_learned = next(pieces)
        assert not (is_learned and "<|im_start|>" in text)


def test_an_answer_that_is_cut_short_does_not_teach_to_stop_there() -> None:
    pieces = converse(Dialogue(random.Random(5), 20))
    answers = {topic.answer for topic in read_topics().values()}
    for _ in range(200):
        text, is_learned = next(pieces)
        if is_learned and any(answer.startswith(text) and answer != text for answer in answers):
            assert next(pieces) == ("<|im_end|>\n", False)


def test_special_tokens_are_single_ids_in_order() -> None:
    tokenizer = load_tokenizer()
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))


@pytest.mark.parametrize("text", ["", "héllo wörld", "日本語 🙂", "\t\r\n  x", "1234567", "a\x00b"])
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = load_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("progress", [0.0, 0.2, 0.9])
def test_the_same_chance_draws_the_same_rows(progress: float) -> None:
    sampler = Sampler(load_tokenizer())
    first, again = (sampler.batch(6, 256, progress, random.Random("7")) for _ in range(2))
    assert first == again


def test_rows_have_the_requested_length_and_something_to_learn() -> None:
    for tokens, labels in Sampler(load_tokenizer()).batch(12, 256, 0.5, random.Random(2)):
        assert len(tokens) == len(labels) == 256
        assert any(label != IGNORED for label in labels)


def test_labels_are_the_next_tokens() -> None:
    for tokens, labels in Sampler(load_tokenizer()).batch(12, 256, 0.5, random.Random(4)):
        learned = [(tokens[i + 1], label) for i, label in enumerate(labels[:-1]) if label != IGNORED]
        assert all(token == label for token, label in learned)


def test_a_dialogue_may_be_of_whole_answers_from_the_corpus_alone() -> None:
    pieces = converse(Dialogue(random.Random(5), 20, share_cut=0.0, kind_weights=(80, 20, 0, 0, 0)))
    answers = {topic.answer for topic in read_topics().values()} | {read_beyond().answer}
    said = [text for text, is_learned in (next(pieces) for _ in range(200)) if is_learned]
    assert len(said) > 50
    assert {text.removesuffix("<|im_end|>") for text in said} <= answers
