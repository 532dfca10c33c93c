"""How long a model may go on calling tools, and when it is told that it repeats itself."""

from __future__ import annotations

from app.protocol.chat import ToolCall
from app.tools.rounds import N_NOTED, N_STOPPED, StepKind, n_in_a_row, next_step, repeat_note


def call(arguments: str = '{"path": "a.txt"}', name: str = "read_file") -> ToolCall:
    return ToolCall("1", name, arguments)


def different(number: int) -> tuple[ToolCall, ...]:
    return (call(f'{{"path": "{number}"}}'),)


def test_rounds_go_on_below_the_limit_and_stop_at_it() -> None:
    rounds = [different(number) for number in range(3)]
    assert next_step(rounds, 4).is_allowed
    stopped = next_step(rounds, 3)
    assert stopped.kind is StepKind.LIMIT
    assert "3 rounds" in stopped.text


def test_a_person_who_lets_it_go_on_grants_as_many_rounds_again() -> None:
    rounds = [different(number) for number in range(5)]
    assert next_step(rounds, 3, n_granted=3).is_allowed
    assert next_step([*rounds, different(6)], 3, n_granted=3).kind is StepKind.LIMIT


def test_spaces_and_the_order_of_keys_do_not_make_a_call_another_one() -> None:
    calls = [call('{"a": 1, "b": [2]}'), call('{"b":[2],"a":1}'), call('{ "a" : 1, "b" : [ 2 ] }')]
    assert n_in_a_row(calls) == 3


def test_another_call_in_between_begins_the_count_anew() -> None:
    assert n_in_a_row([call(), call(), call("{}"), call()]) == 1
    assert n_in_a_row([call(), call(name="list_folder")]) == 1
    assert n_in_a_row([]) == 0


def test_arguments_that_are_no_json_are_compared_as_they_are() -> None:
    assert n_in_a_row([call("{"), call("{"), call("{ ")]) == 1
    assert n_in_a_row([call("[" * 100_000), call("[" * 100_000)]) == 2


def test_the_model_is_told_of_the_third_call_in_a_row_and_the_person_asked_at_the_sixth() -> None:
    assert repeat_note([call()] * (N_NOTED - 1)) == ""
    assert "3 times in a row" in repeat_note([call()] * N_NOTED)
    assert next_step([(call(),)] * (N_STOPPED - 1), 25).is_allowed
    asked = next_step([(call(),)] * N_STOPPED, 25)
    assert asked.kind is StepKind.REPEATING
    assert "read_file" in asked.text


def test_repeats_count_anew_once_the_person_let_it_go_on() -> None:
    assert next_step([(call(),)] * (N_STOPPED + 1), 25, n_granted=N_STOPPED).is_allowed
