"""An error says which field is at fault, and what of it, also where several types are allowed."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, StrictInt, StrictStr, ValidationError

from app.protocol.errors import RequestError
from app.service.http.field_faults import invalid_fields, name_field


class Part(BaseModel):
    type: str
    text: StrictStr | None = None


class Example(BaseModel):
    input: StrictStr | Annotated[list[StrictStr], Field(max_length=3)] | list[StrictInt]
    content: StrictStr | list[Part] | None = None
    n: int = 1


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"input": ["a"] * 4}, "input", "at most 3 items"),
    ({"input": 5}, "input", "valid string or a valid list"),
    ({"input": ["a", "b", 5]}, "input[2]", "valid string"),
    ({"input": [1, 2, "c"]}, "input[2]", "valid integer"),
    ({"input": "a", "content": [{"type": "text", "text": 5}]}, "content[0].text", "valid string"),
    ({"input": "a", "content": [{"text": "x"}]}, "content[0].type", "required"),
    ({"input": "a", "content": {"type": "text"}}, "content", "valid string or a valid list"),
    ({"n": "many", "input": "a"}, "n", "integer"),
    ({}, "input", "required"),
]


@pytest.mark.parametrize(("fields", "param", "words"), FAULTS)
def test_the_fault_is_that_of_the_type_that_fits_best(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ValidationError) as invalid:
        Example.model_validate(fields)
    error = invalid_fields(invalid.value, fields)
    assert error.param == param
    assert words in error.cause


@pytest.mark.slow
def test_a_hundred_thousand_values_of_another_type_are_one_fault() -> None:
    with pytest.raises(ValidationError) as invalid:
        Example.model_validate(fields := {"input": ["a"] * 100_000})
    assert "at most 3 items" in invalid_fields(invalid.value, fields).cause


@pytest.mark.parametrize(
    ("cause", "param"), [("n is 9.", "n"), ("n: no.", "n"), ("There are 9.", ""), ("top_k is 9.", ""), ("nothing.", "")]
)
def test_a_cause_that_begins_with_a_field_of_the_request_names_it(cause: str, param: str) -> None:
    error = RequestError(cause)
    name_field(error, {"n", "nothing"})
    assert error.param == param
