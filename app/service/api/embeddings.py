"""What the routes for vectors of all dialects share: how many inputs a request may have, their forms, the numbers."""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, StrictInt, StrictStr

from app.protocol.errors import RequestError
from app.service.api.fields import Body
from app.service.models.served_model import ServedModel

MAX_INPUTS = 2048  # OpenAI's limit, for every dialect
FLOAT32 = struct.Struct("<f")
InputIds = Annotated[list[StrictInt], Field(min_length=1)]
_MixedIds = Annotated[list[StrictInt | StrictStr], Field(min_length=1)]


class TextPartBody(Body):
    type: Literal["text"]
    text: StrictStr


class PartsInputBody(Body):
    """An input in parts, as a message has them; pictures and sounds have no vectors here."""

    content: Annotated[list[TextPartBody], Field(min_length=1)]


class PromptInputBody(Body):
    prompt_string: StrictStr
    multimodal_data: Annotated[list[StrictStr], Field(max_length=0)] | None = None  # pictures have no vectors here


# llama-server's further forms: texts among token ids, and objects. OpenAI's are text and token ids alone.
_Object: TypeAlias = PartsInputBody | PromptInputBody
_Several = Annotated[list[StrictStr | _MixedIds | _Object], Field(min_length=1, max_length=MAX_INPUTS)]
Inputs: TypeAlias = StrictStr | InputIds | _Several | _MixedIds | _Object


async def inputs_of(value: Any, model: ServedModel) -> list[str | tuple[int, ...]]:
    """Return the inputs: a text, a list with a token id in it, an object, or several of these in a list. Raises
    RequestError for token ids beside lists."""
    is_one = not isinstance(value, list) or any(isinstance(item, int) for item in value)
    return [await _input_of(item, model) for item in ([value] if is_one else value)]


async def _input_of(item: Any, model: ServedModel) -> str | tuple[int, ...]:
    if isinstance(item, PromptInputBody):
        return item.prompt_string
    if isinstance(item, PartsInputBody):
        return "".join(part.text for part in item.content)
    if isinstance(item, str):
        return item
    tokens: list[int] = []
    for index, part in enumerate(item):
        if isinstance(part, str):  # the model's first token is added where the input begins with text
            with model.in_use() as engine:
                tokens += await engine.tokenize(part, add_special=index == 0, parse_special=True)
        elif isinstance(part, int):
            tokens.append(part)
        else:
            raise RequestError("The input has token ids beside lists.", "Send each input as a list of its own.")
    return tuple(tokens)


def as_floats(vector: bytes) -> list[float]:
    return [value for (value,) in FLOAT32.iter_unpack(vector)]
