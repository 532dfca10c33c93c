"""Errors in the form of LM Studio's SDK: a title, a suggestion, and for a missing model what its clients display.

Source: lmstudio-js 2.0.0, `serializedLMSExtendedErrorSchema` and `errorDisplayDataSchema`; the Python SDK 1.5.0 raises
LMStudioModelNotFoundError for the code "generic.noModelMatchingQuery".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict

from app.library.local.resolve import UnknownModelError
from app.service.http.errors import openai_error
from quantizer.system.errors import UserError

_N_SAMPLES = 12


class SdkError(TypedDict):
    """An error; `cause` would be a stack of calls, which nobody needs."""

    title: str
    rootTitle: str
    suggestion: NotRequired[str]
    errorData: NotRequired[dict[str, Any]]
    displayData: NotRequired[dict[str, Any]]


class NotFoundError(UnknownModelError):
    """A model that is not here, with the data that clients display."""

    def __init__(self, cause: str, remedy: str, display: Mapping[str, Any]) -> None:
        super().__init__(cause, remedy)
        self.display = dict(display)


def no_model_for(query: Mapping[str, Any], error: UserError, loaded: Sequence[str]) -> NotFoundError:
    """Return the error for a model that was asked for by its properties."""
    sample = {"loadedModelsSample": list(loaded[:_N_SAMPLES]), "totalLoadedModels": len(loaded)}
    display = {"code": "generic.noModelMatchingQuery", "query": dict(query), **sample}
    return NotFoundError(error.cause, error.remedy, display)


def no_model_with_path(path: str, error: UserError, present: Sequence[str]) -> NotFoundError:
    """Return the error for a model that was to be loaded."""
    sample = {"availablePathsSample": list(present[:_N_SAMPLES]), "totalModels": len(present)}
    return NotFoundError(error.cause, error.remedy, {"code": "generic.pathNotFound", "path": path, **sample})


def sdk_error(error: UserError) -> SdkError:
    """Return `error` without folders of this machine."""
    fields = openai_error(error)["error"]
    sent: SdkError = {"title": fields["cause"], "rootTitle": fields["cause"], "errorData": {"code": fields["code"]}}
    if fields["remedy"]:
        sent["suggestion"] = fields["remedy"]
    if isinstance(error, NotFoundError):
        sent["displayData"] = error.display
    return sent
