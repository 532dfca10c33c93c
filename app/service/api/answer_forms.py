"""The fields by which clients demand the form of an answer: those of vLLM, SGLang and llama-server, which OpenAI's
`response_format` is beside. Exactly one of them may be given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field, StrictBool, StrictStr

from app.engine.grammar.answer_format import AnswerFormat, ChoiceFormat, PatternFormat
from app.engine.grammar.json_grammar import ANY_OBJECT, JsonFormat
from app.protocol.errors import RequestError
from app.service.api.fields import Body


class StructuredOutputs(Body):
    """vLLM's `structured_outputs` (source: StructuredOutputsParams in its sampling_params.py), which outlines sends."""

    json_: Any = Field(None, alias="json")
    regex: StrictStr | None = None
    choice: list[StrictStr] | None = None
    grammar: StrictStr | None = None
    json_object: StrictBool | None = None
    structural_tag: Any = None
    whitespace_pattern: StrictStr | None = None
    disable_any_whitespace: StrictBool | None = None
    disable_additional_properties: StrictBool | None = None


class AnswerFormBody(Body):
    """The form of an answer in any of these fields; None means not given."""

    grammar: StrictStr | None = None  # GBNF: llama-server's
    json_schema: Any = None  # llama-server's and SGLang's
    regex: StrictStr | None = None  # SGLang's
    ebnf: StrictStr | None = None  # SGLang's
    structured_outputs: StructuredOutputs | None = None  # vLLM's
    guided_json: Any = None  # vLLM's before 0.12
    guided_regex: StrictStr | None = None
    guided_choice: list[StrictStr] | None = None
    guided_grammar: StrictStr | None = None
    guided_whitespace_pattern: StrictStr | None = None

    def demanded_grammar(self) -> str:
        """Return the GBNF of the answer, "" for none. Raises RequestError where several forms are given."""
        forms = self._forms()
        return str(next((forms[name] for name in _GRAMMARS if name in forms), ""))

    def demanded_format(self, response_format: AnswerFormat | None = None) -> AnswerFormat | None:
        """Return the form that is demanded otherwise than by a grammar: `response_format`, or that of the other
        fields. Raises RequestError where several are given, and for what is not supported."""
        forms = self._forms()
        if response_format is not None and forms:
            raise _several("response_format", next(iter(forms)))
        for name, value in forms.items():
            if name in _SCHEMAS:
                return JsonFormat(_parsed(name, value))
            if name in _PATTERNS:
                return PatternFormat(value)
            if name in _CHOICES:
                return ChoiceFormat(tuple(value))
            if name in _OBJECTS:
                return ANY_OBJECT
        return response_format

    def _forms(self) -> Mapping[str, Any]:
        """Return the only form that is given, by its field."""
        outer: dict[str, Any] = {name: getattr(self, name) for name in AnswerFormBody.model_fields}
        inner = outer.pop("structured_outputs")
        if inner is not None:
            values = {info.alias or name: getattr(inner, name) for name, info in type(inner).model_fields.items()}
            outer |= {f"structured_outputs.{name}": value for name, value in values.items()}
        given = {name: value for name, value in outer.items() if value not in (None, False, "")}
        if refused := next((name for name in given if name in _REFUSED), None):
            raise RequestError(f"{refused} is not supported.", "Leave it out: blanks between values are few anyway.")
        if len(given) > 1:
            raise _several(*list(given)[:2])
        return given


_GRAMMARS = ("grammar", "ebnf", "guided_grammar", "structured_outputs.grammar")
_SCHEMAS = ("json_schema", "guided_json", "structured_outputs.json")
_PATTERNS = ("regex", "guided_regex", "structured_outputs.regex")
_CHOICES = ("guided_choice", "structured_outputs.choice")
_OBJECTS = ("structured_outputs.json_object",)
_REFUSED = (
    "guided_whitespace_pattern",
    "structured_outputs.structural_tag",
    "structured_outputs.whitespace_pattern",
    "structured_outputs.disable_any_whitespace",
    "structured_outputs.disable_additional_properties",
)


def _several(one: str, other: str) -> RequestError:
    return RequestError(f"Both {one} and {other} say what the answer looks like.", "Send only one of them.")


def _parsed(name: str, schema: Any) -> Any:
    """Return a JSON schema, which some clients send as the text of one."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name} is a text that is not JSON: {error}.", "Send the schema as an object.") from None
