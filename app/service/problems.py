"""Errors as HTTP clients see them: a status, a code and a body in the shape of the surface that was called.

Owns which error is which status and what a client may not be told. Knows nothing of routes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from app.library.resolve import UnknownModelError
from quantizer import errors
from quantizer.errors import (
    ContextOverflowError,
    EngineError,
    ModelFileError,
    RequestError,
    ServiceError,
    UserError,
    kind_of,
)

__all__ = [
    "BUG",
    "ErrorBody",
    "RefusedError",
    "anthropic_error",
    "code_of",
    "llamacpp_error",
    "message_of",
    "ollama_error",
    "openai_error",
    "status_of",
    "without_paths",
]


class RefusedError(RequestError):
    """An HTTP request that is not let in: its status and the code that names why."""

    def __init__(self, status: int, code: str, cause: str, remedy: str = "") -> None:
        super().__init__(cause, remedy)
        self.status = status
        self.code = code


class ErrorBody(Protocol):
    """How a surface words an error as JSON."""

    def __call__(self, error: UserError, *, hide_paths: bool = True) -> dict[str, Any]: ...


BUG = ServiceError("The service failed at something it should be able to do.", "Its log has the details.")

# The first that fits counts.
_STATUS_AND_CODE: tuple[tuple[type[UserError], int, str], ...] = (
    (UnknownModelError, 404, "model_not_found"),
    (ContextOverflowError, 400, "context_length_exceeded"),
    (RequestError, 400, "invalid_request"),
    (ModelFileError, 400, "invalid_model"),
    (EngineError, 500, "engine_error"),
    (ServiceError, 500, "service_error"),
    (UserError, 500, "server_error"),
)

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}

# What tells of this machine's folders: an absolute path of either system, up to its last separator.
_FOLDERS = re.compile(r"(?<![\w./:\\])(?:[A-Za-z]:[\\/]|\\\\|~?/)(?:[^\s'\"/\\][^'\"/\\\n]*[/\\])*(?=[^\s/\\])")
_MAY_NAME_PATHS = (ModelFileError, EngineError, errors.StorageError, errors.CheckpointError)


def status_of(error: UserError) -> int:
    """Return the HTTP status of `error`."""
    return error.status if isinstance(error, RefusedError) else _row(error)[1]


def code_of(error: UserError) -> str:
    """Return the machine-readable name of what went wrong."""
    return error.code if isinstance(error, RefusedError) else _row(error)[2]


def without_paths(text: str) -> str:
    """Return `text` with absolute paths cut to their last part."""
    return _FOLDERS.sub("", text)


def openai_error(error: UserError, *, hide_paths: bool = True) -> dict[str, Any]:
    """Return OpenAI's error body, with the fields from which `app.client` builds the error again."""
    return {"error": {"code": code_of(error), "param": None, **_common(error, hide_paths)}}


def llamacpp_error(error: UserError, *, hide_paths: bool = True) -> dict[str, Any]:
    """Return llama.cpp's error body (source: llama-server's README, `code` is the status), with our fields too."""
    return {"error": {"code": status_of(error), **_common(error, hide_paths)}}


def ollama_error(error: UserError, *, hide_paths: bool = True) -> dict[str, Any]:
    """Return Ollama's error body, one text; its clients throw at any `error`, whatever it holds."""
    return {"error": message_of(error, hide_paths)}


def anthropic_error(error: UserError, *, hide_paths: bool = True) -> dict[str, Any]:
    """Return Anthropic's error body (source: its API's page on errors)."""
    status = status_of(error)
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message_of(error, hide_paths)}}


def message_of(error: UserError, hide_paths: bool) -> str:
    """Return cause and remedy, without the folders of this machine where they are to be hidden."""
    return _shown(error, hide_paths)(str(error))


def _shown(error: UserError, hide_paths: bool) -> Callable[[str], str]:
    return without_paths if hide_paths and isinstance(error, _MAY_NAME_PATHS) else str


def _row(error: UserError) -> tuple[type[UserError], int, str]:
    return next(row for row in _STATUS_AND_CODE if isinstance(error, row[0]))


def _common(error: UserError, hide_paths: bool) -> dict[str, Any]:
    show = _shown(error, hide_paths)
    return {
        "message": message_of(error, hide_paths),
        "type": "invalid_request_error" if status_of(error) < 500 else "server_error",
        "kind": kind_of(error),
        "cause": show(error.cause),
        "remedy": show(error.remedy),
        "details": _details(error),
    }


def _details(error: UserError) -> Mapping[str, int]:
    if isinstance(error, ContextOverflowError):
        return {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
    return {}
