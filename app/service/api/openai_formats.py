"""OpenAI's `response_format` -> the grammar that an answer must keep.

Owns the three forms and the fields of each; llama-server's `schema` beside "json_object" is one of them. Knows nothing
of how a schema becomes a grammar.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from app.engine.json_grammar import any_object_grammar, schema_grammar
from app.service.api.bodies import Body
from quantizer.errors import RequestError

__all__ = ["ResponseFormat"]


class _Part(Body):
    schema_: Any = Field(None, alias="schema")


class ResponseFormat(_Part):
    """What an answer is to be: text, any JSON object, or JSON that satisfies a schema."""

    type: str = "text"
    json_schema: _Part | None = None

    def grammar(self) -> str:
        """Return the grammar in GBNF, "" for text. Raises RequestError for a type or a schema that is not served."""
        if self.type == "text":
            return ""
        if self.type == "json_object":
            return any_object_grammar() if self.schema_ is None else schema_grammar(self.schema_)
        if self.type != "json_schema":
            cause = f"response_format {self.type[:40]!r} is not served."
            raise RequestError(cause, "Use json_object or json_schema, or describe the output in `grammar` (GBNF).")
        if self.json_schema is None or self.json_schema.schema_ is None:
            raise RequestError("response_format has no json_schema.schema.", "Give the schema of the answer.")
        return schema_grammar(self.json_schema.schema_)
