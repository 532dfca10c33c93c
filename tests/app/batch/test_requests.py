from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.batch.requests import BatchFileError, each_request, read_requests
from quantizer.system.errors import UsageError

CHAT = "/v1/chat/completions"


def line(custom_id: str, text: str = "hello", url: str = CHAT, **changes: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}]}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **changes}


def encoded(*lines: dict[str, Any]) -> list[bytes]:
    return [json.dumps(each).encode() + b"\n" for each in lines]


def ids(*lines: dict[str, Any]) -> list[str]:
    return [request.custom_id for request in read_requests("f", encoded(*lines))]


def test_requests_with_the_same_beginning_follow_one_another_in_the_order_of_the_file() -> None:
    assert ids(line("1", "B 1"), line("2", "A 9"), line("3", "B 0"), line("4", "A 9")) == ["2", "4", "3", "1"]


def test_models_are_not_mixed() -> None:
    def of(custom_id: str, model: str, text: str) -> dict[str, Any]:
        return line(custom_id, body={"model": model, "messages": [{"role": "user", "content": text}]})

    assert ids(of("1", "a", "x"), of("2", "b", "x"), of("3", "a", "y"), of("4", "b", "y")) == ["1", "3", "2", "4"]


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        (b"{", "invalid_json_line", "not JSON"),
        (b"[]", "invalid_json_line", "JSON object"),
        (b"[" * 100_000, "invalid_json_line", "not JSON"),
        (b'{"custom_id": "1", "body": NaN}', "invalid_json_line", "NaN"),
        (b'{"custom_id": "\\ud800"}', "invalid_json_line", "not JSON"),
        (b"\xff\xfe", "invalid_json_line", "not JSON"),
        (json.dumps(line("1")).encode(), "duplicate_custom_id", "line 1"),
        *(
            (json.dumps(line("2") | change).encode(), code, words)
            for change, code, words in [
                ({"custom_id": ""}, "invalid_custom_id", "1 to 512"),
                ({"custom_id": 7}, "invalid_custom_id", "1 to 512"),
                ({"custom_id": "x" * 513}, "invalid_custom_id", "1 to 512"),
                ({"method": "GET"}, "invalid_method", "POST"),
                ({"url": "/v1/moderations"}, "invalid_url", "/v1/embeddings"),
                ({"url": ["/v1/embeddings"]}, "invalid_url", "/v1/embeddings"),
                ({"url": "/v1/embeddings"}, "mismatched_endpoint", CHAT),
                ({"body": "text"}, "invalid_body", "object"),
                ({"body": {"stream": True}}, "invalid_body", "stream"),
                ({"body": {"background": True}}, "invalid_body", "background"),
                ({"priority": 1}, "unknown_parameter", "priority"),
            ]
        ),
    ],
)
def test_a_broken_line_is_named_by_its_number(wrong: bytes, code: str, words: str) -> None:
    with pytest.raises(BatchFileError) as raised:
        read_requests("in.jsonl", [*encoded(line("1")), b"\n", wrong], url=CHAT)
    (fault,) = raised.value.faults
    assert (fault.number, fault.code) == (3, code)
    assert words in fault.message
    assert str(raised.value).startswith("in.jsonl, line 3: ")


def test_several_broken_lines_are_counted() -> None:
    with pytest.raises(BatchFileError, match=r"line 1: .* 1 more lines are wrong") as raised:
        read_requests("f", [b"1\n", *encoded(line("1")), b"2\n"])
    assert [fault.number for fault in raised.value.faults] == [1, 3]


@pytest.mark.parametrize("lines", [[], [b"\n"], [b"\xef\xbb\xbf\n"]])
def test_a_file_without_requests_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(UsageError, match="no requests"):
        read_requests("f", lines)


def test_a_byte_order_mark_is_none_of_the_first_line() -> None:
    (data,) = encoded(line("1"))
    assert len(read_requests("f", [b"\xef\xbb\xbf" + data])) == 1


def test_the_id_of_a_request_changes_with_all_that_is_asked() -> None:
    def id_of(*lines: dict[str, Any], **options: str) -> str:
        return read_requests("f", encoded(*lines), **options)[0].request_id

    same = id_of(line("1"))
    assert id_of({**line("1"), "body": dict(reversed(line("1")["body"].items()))}) == same
    others = [id_of(line("2")), id_of(line("1", "other")), id_of(line("1", url="/v1/responses"))]
    assert len({same, *others, id_of(line("1"), model="m")}) == 5


def test_one_model_replaces_that_of_every_line() -> None:
    (request,) = read_requests("f", encoded(line("1", body={"model": "gpt-4o", "messages": []})), model="mine")
    assert request.body["model"] == "mine"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.text(max_size=3)), max_size=20))
def test_every_line_is_asked_once(wanted: list[tuple[str, str]]) -> None:
    lines = [
        line(str(number), body={"model": model, "messages": [{"role": "user", "content": text}]})
        for number, (model, text) in enumerate(wanted)
    ]
    found = ids(*lines) if lines else []
    assert sorted(found) == sorted(str(number) for number in range(len(lines)))


def test_requests_are_read_one_by_one_until_a_line_is_wrong() -> None:
    taken: list[int] = []

    def lines() -> Iterator[bytes]:
        for number, content in enumerate([*encoded(line("b"), line("a")), b"wrong\n", *encoded(line("c"))], 1):
            taken.append(number)
            yield content

    requests = each_request("f", lines())
    for number, custom_id in ((1, "b"), (2, "a")):
        assert next(requests)[1].custom_id == custom_id
        assert taken[-1] == number
    with pytest.raises(BatchFileError, match="line 3"):
        next(requests)
    assert taken[-1] == 4, "all that is wrong is said"


def test_a_line_of_more_parts_than_a_request_may_have_is_wrong_by_its_number() -> None:
    line = b'{"custom_id": "a", "url": "/v1/embeddings", "body": {"input": [' + b"[]," * 100_001 + b"0]}}"

    with pytest.raises(BatchFileError, match=r"line 1: This has .* a request has at most 100,000"):
        list(each_request("a.jsonl", [line]))
