from __future__ import annotations

import re
import time

import pytest

from app.engine.grammar.gbnf import check_grammar
from app.protocol.errors import RequestError


@pytest.mark.parametrize(
    "grammar", ["root ::= " + "(" * 101 + '"a"' + ")" * 101, 'r ::= "a"\n' * 1001, 'root ::= "\0"', 'root ::= "\ud800"']
)
def test_a_grammar_that_would_hurt_is_refused(grammar: str) -> None:
    with pytest.raises(RequestError):
        check_grammar(grammar)


@pytest.mark.parametrize("element", [r"\ud800", r"\uDFFF", r"\U00110000", r"\U0000dabc"])
def test_an_escape_of_no_character_is_refused(element: str) -> None:
    for grammar in (f'root ::= "a{element}"', f"root ::= [a{element}-z]"):
        with pytest.raises(RequestError, match=f"contains {re.escape(element)}, which is not a character"):
            check_grammar(grammar)
    check_grammar(f'root ::= "a" # {element}')
    check_grammar(r'root ::= "\uD7FF\ue000\U0010FFFF" [^\x00-\x1f]')


@pytest.mark.parametrize("times", ["{5,2}", "{ 5 , 2 }", "{5 # a comment, 9}\n,2}", "{1}{3,1}", "?{2,0}"])
def test_an_end_below_the_begin_is_refused_for_llama_cpp_would_write_it_out_for_ever(times: str) -> None:
    with pytest.raises(RequestError, match="Name the smaller number first"):
        check_grammar(f'root ::= ("a"{times} "b")')


@pytest.mark.parametrize("times", ["{2001}", "{0,2001}", "{99999999999999999999}", "{1," + "9" * 5000 + "}"])
def test_more_repetitions_than_llama_cpp_counts_are_refused(times: str) -> None:
    with pytest.raises(RequestError, match="too often"):
        check_grammar(f'root ::= "a"{times}')


@pytest.mark.parametrize(
    "body",
    ['"' + "a" * 1000 + '"{501}', "[a]{0,2000}" * 251, '"' + "a" * 1000 + '"{20}{30}', "[" + "a-z" * 200 + "]{1000}"],
)
def test_repetitions_that_take_too_much_memory_when_written_out_are_refused(body: str) -> None:
    with pytest.raises(RequestError, match="amount to"):
        check_grammar(f"root ::= {body}")


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= ("yes" | "no") [.!]?',
        'root ::= "{5,2}" [{5,2}] # {5,2}\n',
        r'root ::= "\"{5,2}" [\]{5,2}]',
        'root ::= "a"{0} "b"{2,} "c"{2,5} "d"{2000}',
        "root ::= <{5,2}>",
        "root ::= " + "char{0,1000} " * 400 + "\nchar ::= [a-z]",
        'root ::= "a"{} "b"{,5} "c"{x}',
    ],
)
def test_an_ordinary_grammar_passes_and_a_malformed_one_is_left_to_llama_cpp(grammar: str) -> None:
    check_grammar(grammar)


@pytest.mark.parametrize("part", ["[", "<", '"\\', "[\\", '"', "{", "#", "{1"])
def test_what_is_not_closed_is_read_once(part: str) -> None:
    """The end of each was looked for from there on: 64 KiB of brackets took minutes of the processor."""
    begun_s = time.process_time()
    check_grammar(f"root ::= {part * (65_000 // len(part))}")
    assert time.process_time() - begun_s < 3
