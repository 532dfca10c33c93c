"""What a request leaves out, as the recipe of its model has it: in every dialect's own words.

Owns which field of a body is meant by which parameter. Knows nothing of where recipes are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, StrictInt, ValidationError

from app.service.api.fields import Body
from app.service.api.sampling import SamplingBody
from quantizer.errors import RequestError

__all__ = ["NO_LIMITS", "OptionsBody", "completed", "parse_parameters"]

NO_LIMITS = (None, -1, -2)  # to the end of the answer, and to the end of the context
_LIMITS = ("num_predict", "n_predict", "max_completion_tokens", "max_tokens", "max_output_tokens")
_MOST_CELLS = 1 << 30  # llama.cpp counts them in 32 bits
_STOPS = ("stop_sequences", "stop")

AnyBody = TypeVar("AnyBody", bound=Body)


class OptionsBody(SamplingBody):
    """What Ollama calls as llama-server does keeps its name; how a model is loaded is not a request's to say here."""

    num_predict: int | None = None
    num_keep: int | None = None


class _RecipeOptions(OptionsBody):
    """A recipe says of its context what the engine is to have at least; 0 leaves it open."""

    num_ctx: Annotated[StrictInt, Field(ge=0, le=_MOST_CELLS)] | None = None


def parse_parameters(parameters: Mapping[str, Any]) -> OptionsBody:
    """Return `parameters`, checked. Raises RequestError for values out of range or of another kind."""
    try:
        options = _RecipeOptions.model_validate(parameters)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise RequestError(f"The parameter {fault['loc'][0]}: {fault['msg']}.", "Correct it.") from None
    options.sampling()
    return options


def completed(body: AnyBody, parameters: Mapping[str, Any]) -> AnyBody:
    """Return `body` with `parameters` where it says nothing. Raises RequestError as `parse_parameters` does."""
    if not parameters:
        return body
    options = parse_parameters(parameters)
    told = {name: getattr(options, name) for name in SamplingBody.model_fields if name != "stop"}
    told["num_keep"] = told["n_keep"] = options.num_keep
    told |= _in_first(body, _STOPS, [*options.stop_strings()] or None)
    told |= _in_first(body, _LIMITS, None if options.num_predict in NO_LIMITS else options.num_predict)
    fields = type(body).model_fields
    missing = {name: value for name, value in told.items() if name in fields and getattr(body, name) is None}
    return body.model_copy(update={name: value for name, value in missing.items() if value is not None})


def _in_first(body: Body, names: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return `value` under the first of `names` that `body` has, nothing where the body has said it under any."""
    own = [name for name in names if name in type(body).model_fields]
    is_said = any(getattr(body, name) is not None for name in own)
    return {own[0]: value} if own and not is_said else {}
