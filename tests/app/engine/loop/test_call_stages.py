"""Answers whose calls are bound, of the fake: it says what the prompt prescribes, whatever binds it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.engine.fake import FakeBackend, FakeSampler
from app.engine.grammar.call_rules import CALL_NUMBER, CallHead, CallRules
from app.engine.loop.call_stages import MAX_REQUIRED_CALLS
from app.engine.loop.core import Engine
from app.engine.request import ReasoningBudget, Request, SamplingParams
from app.engine.speculative.cost_model import StepCost
from tests.app.engine.recording import Record, run

RULES = CallRules(
    heads=(CallHead('<call>{"walk":', 0), CallHead('<call>{"stop":', 1), CallHead(f'<call>{{"go{CALL_NUMBER}":', 2)),
    parts=('root ::= "1}</call>"\n', 'root ::= "2}</call>"\n', 'root ::= "3}</call>"\n'),
    openings=(("<call>", "<call>"),),
    is_repeated=True,
    goes_on=True,
)
THOUGHT = ReasoningBudget(opening="<think>", closings=("</think>",), ending="</think>")


class BoundBackend(FakeBackend):
    """Keeps its samplers, whose grammars are complete once their text is said."""

    samplers: list[BoundFake]

    def new_bindable_sampler(self, *arguments: Any, **options: Any) -> BoundFake:
        self.samplers = [*getattr(self, "samplers", ()), BoundFake(self, *arguments, *options.values())]
        return self.samplers[-1]


class BoundFake(FakeSampler):
    said = ""

    def sample(self, row: int) -> int:
        token = super().sample(row)
        self.said += chr(token) if token < 256 else ""
        return token

    def accept(self, token: int) -> None:
        super().accept(token)
        self.said += chr(token)

    def is_complete(self) -> bool:
        return self.said.endswith("}</call>")


def answered(said: str, rules: CallRules = RULES, **changes: Any) -> tuple[str, list[str], Record, BoundBackend]:
    """Return what was said, the grammars that bound it, and how."""
    backend, record = BoundBackend(), Record()
    engine = Engine(backend, record, step_cost=StepCost({1: 1.0, 64: 1.01}), clock=lambda: 0.0)
    sampling = SamplingParams(temperature=0.0, calls=rules)
    engine.submit(replace(Request(request_id="a", prompt=f"<say>{said}</say>", sampling=sampling), **changes))
    run(engine)
    return record.text["a"], backend.samplers[0].bound, record, backend


def test_free_text_binds_nothing() -> None:
    text, bound, *_ = answered("No <cal and no call> at all.")
    assert text == "No <cal and no call> at all."
    assert bound == []


def test_a_call_binds_by_its_head_and_its_arguments_and_frees_the_text_behind_it() -> None:
    said = 'Well. <call>{"walk":1}</call> and <call>{"stop":2}</call>!'
    text, bound, *_ = answered(said)
    assert text == said
    heads = [grammar for grammar in bound if "walk" in grammar]
    assert len(heads) == 2
    assert [grammar[:8] for grammar in bound] == ["root ::="] * 2 + [""] + ["root ::="] * 2 + [""]
    assert bound[1].startswith(RULES.parts[0])
    assert bound[4].startswith(RULES.parts[1])


HEADED = replace(
    RULES,
    heads=(CallHead(">>>walk\n", 0), CallHead(">>>stop\n", 1)),
    openings=((">>>walk\n", ">>>walk\n"), (">>>stop\n", ">>>stop\n")),
    begun=">>>",
    answers=(">>>all\n",),
    goes_on=False,
)


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ("all\nWell, >>> and >>>.", []),
        ("walk\n1}</call>", [0]),
        ("all\nI go.>>>stop\n2}</call>", [1]),
        ("walk\n1}</call>>>>stop\n2}</call>", [0, 1]),
    ],
)
def test_an_answer_whose_header_the_prompt_begins_is_bound_at_once(said: str, parts: list[int]) -> None:
    text, bound, *_ = answered(said, HEADED)
    assert text == said
    assert all(word in bound[0] for word in ("walk", "stop", "all")), "one of the names, or the answer's"
    found = [part for grammar in bound for part, text in enumerate(RULES.parts) if grammar.startswith(text)]
    assert found == parts


def test_what_can_be_written_in_one_way_only_is_computed_in_one_step() -> None:
    only = replace(RULES, heads=(CallHead('<call>{"a_tool_with_a_long_name_of_its_own":', 0),))
    said = 'So: <call>{"a_tool_with_a_long_name_of_its_own":1}</call>.'
    text, _, record, _ = answered(said, only, max_draft_tokens=0)
    usage = record.finished["a"].usage
    assert text == said
    assert usage.n_passes < len(said) - 30
    assert usage.n_drafted_tokens == 0, "it is no guess"


def test_a_call_in_a_thought_is_none() -> None:
    said = '<think>a <call>{"walk":1}</call></think><call>{"stop":2}</call>'
    text, bound, *_ = answered(said, reasoning=THOUGHT)
    assert text == said
    assert len([grammar for grammar in bound if "walk" in grammar]) == 1


def test_a_call_may_end_a_thought() -> None:
    budget = replace(THOUGHT, closings=("</think>", "<call>"))
    _, bound, *_ = answered('<think>a <call>{"stop":2}</call>', reasoning=budget)
    assert bound[1].startswith(RULES.parts[1])


def test_a_thought_that_is_cut_may_be_followed_by_a_call() -> None:
    budget = replace(THOUGHT, max_tokens=6)
    text, bound, *_ = answered('<think>a <call> and so on</think><call>{"stop":2}</call>', reasoning=budget)
    assert "</think><call>" in text
    assert [grammar for grammar in bound if grammar.startswith(RULES.parts[1])]


def test_calls_are_counted_in_their_text() -> None:
    said = '<call>{"stop":2}</call><call>{"go1":3}</call>'
    text, bound, *_ = answered(said)
    assert text == said
    assert [grammar for grammar in bound if grammar.startswith(RULES.parts[2])]


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_single_call_ends_the_answer_if_it_may_end(ignore_eos: bool) -> None:
    alone = replace(RULES, is_repeated=False)
    _, bound, *_ = answered('<call>{"stop":2}</call> <call>', alone, ignore_eos=ignore_eos, max_tokens=40)
    assert bound[2:] == ([""] if ignore_eos else ['root ::= ""\n'])


def test_an_answer_that_must_call_is_bound_from_its_begin() -> None:
    must = replace(RULES, begin='root ::= "<call>{\\"stop\\":"\n', before_head=("</think>",))
    said = '<think>so</think> <call>{"stop":2}</call>'
    _, bound, *_ = answered(said, must, reasoning=THOUGHT)
    assert bound[0].startswith(must.begin)
    assert bound[1].startswith(RULES.parts[1])
    assert bound[2:] == [""], "whether it calls again is for the model to say"
    numbers = [f'<call>{{"stop":{number}}}</call>' for number in range(MAX_REQUIRED_CALLS + 3)]
    _, bound, *_ = answered("".join(numbers), must)
    assert len([grammar for grammar in bound if grammar.startswith(must.parts[1])]) == MAX_REQUIRED_CALLS
    assert bound[-1] == 'root ::= ""\n'


@pytest.mark.parametrize("begin", ["", 'root ::= "<call>{\\"stop\\":"\n'])
@pytest.mark.parametrize("last", ["", "]"])
def test_an_answer_that_makes_a_call_twice_ends(begin: str, last: str) -> None:
    rules = replace(RULES, begin=begin, last=last)
    said = '<call>{"stop":2}</call><call>{"stop":3}</call><call>{"stop":2}</call>'
    _, bound, *_ = answered(said + f'{last}<call>{{"stop":4}}</call>', rules)
    assert len([grammar for grammar in bound if grammar.startswith(rules.parts[1])]) == 3
    assert bound[-1] == 'root ::= ""\n'


@pytest.mark.parametrize(
    ("behind", "closes"),
    [(" Well.", True), ("\n\n\n\n\n\n\n\n\n\n<call>", True), ("\n<call>", False), ("é", True), ("\n｜", True)],
)
def test_whether_another_call_follows_is_said_by_the_model(behind: str, closes: bool) -> None:
    must = replace(RULES, begin='root ::= "<call>{\\"stop\\":"\n', between="\n")
    _, bound, *_ = answered(f'<call>{{"stop":2}}</call>{behind}{{"walk":1}}</call>', must)
    assert bound[2] == "", "no grammar has a say"
    assert (bound[3] == 'root ::= ""\n') == closes


@pytest.mark.parametrize(
    ("behind", "closes"), [("\n｜call｜", False), ("｜call｜", False), ("\né", True), ("〈", True)]
)
def test_a_character_that_has_only_begun_is_one_that_calls_begin_with(behind: str, closes: bool) -> None:
    heads = tuple(replace(head, text=head.text.replace("<call>", "｜call｜")) for head in RULES.heads)
    must = replace(
        RULES,
        heads=heads,
        openings=(("｜call｜", "｜call｜"),),
        begin='root ::= "｜call｜{\\"stop\\":"\n',
        between="\n",
    )
    _, bound, *_ = answered(f'｜call｜{{"stop":2}}</call>{behind}{{"walk":1}}</call>', must)
    assert (bound[3] == 'root ::= ""\n') == closes


def test_answers_of_one_request_are_bound_each_by_itself() -> None:
    backend, record = BoundBackend(), Record()
    engine = Engine(backend, record, clock=lambda: 0.0)
    sampling = SamplingParams(temperature=0.0, calls=RULES)
    wanted = Request(request_id="a", prompt='<say><call>{"stop":2}</call></say>', sampling=sampling)
    for each in wanted.variants(3):
        engine.submit(each)
    run(engine)
    assert [len(sampler.bound) for sampler in backend.samplers] == [3, 3, 3]


def test_a_stop_string_ends_an_answer_within_a_call() -> None:
    text, *_ = answered('Well. <call>{"walk":1}</call>', stop=('"walk',))
    assert text == "Well. <call>{"
