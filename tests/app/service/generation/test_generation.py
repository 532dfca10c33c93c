from __future__ import annotations

from app.common.answer_text import NO_REASONING, ReasoningTags
from app.engine.messages import Finished, Output
from app.engine.request import FinishReason, Timings, TokenLogprob, Usage
from app.service.generation.generation import Answer, Delta, answer_parser

END = Finished("a", FinishReason.STOP, Usage(), Timings())
TAGS = ReasoningTags("<think>", "</think>")


def _entry(piece: bytes) -> TokenLogprob:
    return TokenLogprob(piece, -1.0, (), 0, 0)


def test_an_answer_without_reasoning_streams_as_it_comes() -> None:
    answer = Answer(2, answer_parser(NO_REASONING, None))
    assert answer.add(Output("a", "Hi", 1)) == Delta(index=2, text="Hi", n_tokens=1)
    assert answer.add(END) is None
    assert (answer.text, answer.reasoning, answer.end) == ("Hi", "", END)


def test_reasoning_and_answer_are_separated_without_tags() -> None:
    answer = Answer(0, answer_parser(TAGS, None))
    deltas = [answer.add(Output("a", text, n)) for n, text in enumerate(("<th", "ink>so", " </thi", "nk>", "\nYes"), 1)]
    assert deltas == [
        None,
        Delta(index=0, reasoning="so", n_tokens=2),
        None,
        None,
        Delta(index=0, text="Yes", n_tokens=5),
    ]
    assert (answer.reasoning, answer.text) == ("so", "Yes")


def test_held_back_text_comes_with_the_end() -> None:
    answer = Answer(0, answer_parser(TAGS, None))
    assert answer.add(Output("a", "<thi", 1)) is None
    assert answer.add(END) == Delta(index=0, text="<thi", n_tokens=1)


def test_probabilities_wait_for_their_text() -> None:
    answer = Answer(0, answer_parser(TAGS, None))
    first, second = _entry(b"<th"), _entry(b"e")
    assert answer.add(Output("a", "<th", 1, (first,))) is None
    delta = answer.add(Output("a", "e", 2, (second,)))
    assert delta == Delta(index=0, text="<the", logprobs=(first, second), n_tokens=2)
    assert answer.logprobs == [first, second]


def test_a_token_without_text_is_sent_for_its_probability() -> None:
    answer = Answer(0, answer_parser(NO_REASONING, None))
    assert answer.add(Output("a", "", 1, (_entry(b""),))) == Delta(index=0, logprobs=(_entry(b""),), n_tokens=1)


def test_the_tokens_of_reasoning_are_counted_by_its_share_of_each_piece() -> None:
    answer = Answer(0, answer_parser(TAGS, None))
    for n_tokens, text in ((2, "<think>so"), (5, "and"), (8, " on</think>Yes"), (9, "!")):
        answer.add(Output("a", text, n_tokens))
    assert answer.add(END) is None
    assert answer.n_reasoning_tokens == 2 + 3 + round(3 * len(" on") / len(" onYes"))
    plain = Answer(0, answer_parser(NO_REASONING, None))
    plain.add(Output("a", "Yes", 1))
    assert plain.n_reasoning_tokens == 0
