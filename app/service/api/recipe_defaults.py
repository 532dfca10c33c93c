"""Defaults from a model's recipe for the fields that a request leaves out, under every dialect's names.

Owns which parameter of a recipe is which field of a body. Knows nothing of where recipes are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, StrictInt, ValidationError

from app.library.local.recipe import Recipe
from app.service.api.fields import Body
from app.service.api.text_request import SamplingBody
from quantizer.errors import RequestError

__all__ = ["NO_LIMITS", "OptionsBody", "parse_parameters", "with_recipe_defaults"]

NO_LIMITS = (None, -1, -2)  # to the end of the answer, and to the end of the context
_LIMITS = ("num_predict", "n_predict", "max_completion_tokens", "max_tokens", "max_output_tokens")
_MOST_CELLS = 1 << 30  # llama.cpp counts them in 32 bits
_STOPS = ("stop_sequences", "stop")

AnyBody = TypeVar("AnyBody", bound=Body)


class OptionsBody(SamplingBody):
    """Ollama's options: sampling under llama-server's names; options of loading are ignored."""

    num_predict: int | None = None
    num_keep: int | None = None


class _RecipeOptions(OptionsBody):
    """The parameters of a recipe; `num_ctx` is the smallest context of the engine, 0 leaves it open."""

    num_ctx: Annotated[StrictInt, Field(ge=0, le=_MOST_CELLS)] | None = None


def parse_parameters(parameters: Mapping[str, Any]) -> OptionsBody:
    """Return `parameters`, checked. Raises RequestError for values out of range or of another kind."""
    try:
        options: OptionsBody = _RecipeOptions.model_validate(parameters)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise RequestError(f"The parameter {fault['loc'][0]}: {fault['msg']}.", "Correct it.") from None
    options.sampling()
    return options


def with_recipe_defaults(body: AnyBody, recipe: Recipe) -> AnyBody:
    """Return `body` with the parameters of `recipe` in fields that are not given. Raises as `parse_parameters`."""
    if not recipe.parameters:
        return body
    options = parse_parameters(recipe.parameters)
    defaults = {name: getattr(options, name) for name in SamplingBody.model_fields if name != "stop"}
    defaults["num_keep"] = defaults["n_keep"] = options.num_keep
    defaults |= _for_first(body, _STOPS, [*options.stop_strings()] or None)
    defaults |= _for_first(body, _LIMITS, None if options.num_predict in NO_LIMITS else options.num_predict)
    fields = type(body).model_fields
    missing = {name: value for name, value in defaults.items() if name in fields and getattr(body, name) is None}
    return body.model_copy(update={name: value for name, value in missing.items() if value is not None})


def _for_first(body: Body, names: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return `value` under the first of `names` that `body` has as a field, nothing where any of them is given."""
    own = [name for name in names if name in type(body).model_fields]
    is_given = any(getattr(body, name) is not None for name in own)
    return {own[0]: value} if own and not is_given else {}
