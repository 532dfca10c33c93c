"""Errors as HTTP responses: a status, a code and a body in the form of the dialect, without folders of this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NotRequired, Protocol

from typing_extensions import TypedDict

from app.library.hub.access import HubError, NotOnHubError
from app.library.local.placement import NameTakenError
from app.library.local.resolve import UnknownModelError
from app.protocol.errors import ContextOverflowError, RequestError, ServiceError
from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import EngineError, ErrorInfo, StorageError, UsageError, UserError, redact_paths


class RefusedError(RequestError):
    """An HTTP request that is refused, with its status and error code, and what Anthropic's SDKs read besides."""

    def __init__(
        self, status: int, code: str, cause: str, remedy: str = "", details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(cause, remedy)
        self.status = status
        self.code = code
        self.anthropic_details = details or {}


class ErrorBody(Protocol):
    """How a dialect represents an error as JSON."""

    def __call__(self, error: UserError, *, hide_paths: bool = True) -> Mapping[str, object]: ...


class _CommonFields(TypedDict):
    message: str
    type: Literal["invalid_request_error", "server_error"]
    kind: str
    cause: str
    remedy: str
    details: dict[str, int]
    n_prompt_tokens: NotRequired[int]  # of a prompt that does not fit, and the context: llama-server's
    n_ctx: NotRequired[int]


class OpenAiErrorFields(_CommonFields):
    """`message` is cause and remedy, `param` the field at fault; `kind` is a class of the error tree."""

    code: str
    param: str | None


class OpenAiError(TypedDict):
    """An error in OpenAI's form, with the fields from which `app.client` restores it."""

    error: OpenAiErrorFields


class LlamaCppErrorFields(_CommonFields):
    """`code` is the status; the others are as in OpenAI's."""

    code: int


class LlamaCppError(TypedDict):
    """An error in llama-server's form, with our fields too."""

    error: LlamaCppErrorFields


LmStudioErrorType = Literal[
    "internal_error", "invalid_request", "job_not_found", "model_not_found", "not_implemented", "unknown"
]


class LmStudioErrorFields(TypedDict):
    """The type of an error and its message; `code` is OpenAI's."""

    type: LmStudioErrorType
    message: str
    code: str


class LmStudioError(TypedDict):
    """An error in the form of LM Studio's /api/v1."""

    error: LmStudioErrorFields


class OllamaError(TypedDict):
    """An error in Ollama's form."""

    error: str


AnthropicErrorType = Literal[
    "api_error",
    "authentication_error",
    "invalid_request_error",
    "not_found_error",
    "permission_error",
    "rate_limit_error",
    "request_too_large",
]


class AnthropicErrorFields(TypedDict):
    """The type of an error, its message, and what its clients read of some."""

    type: AnthropicErrorType
    message: str
    details: NotRequired[dict[str, Any]]


class AnthropicError(TypedDict):
    """An error in Anthropic's form."""

    type: Literal["error"]
    error: AnthropicErrorFields


BUG = ServiceError("The service has a bug.", "Its log has the details.")

# The first that fits counts.
_STATUS_AND_CODE: tuple[tuple[type[UserError], int, str], ...] = (
    (UnknownModelError, 404, "model_not_found"),
    (ContextOverflowError, 400, "context_length_exceeded"),
    (RequestError, 400, "invalid_request"),
    (ModelFileError, 400, "invalid_model"),
    (CheckpointError, 400, "invalid_checkpoint"),
    (UsageError, 400, "invalid_request"),
    (NameTakenError, 409, "model_exists"),
    (NotOnHubError, 404, "not_on_hub"),
    (HubError, 502, "hub_error"),
    (EngineError, 500, "engine_error"),
    (ServiceError, 500, "service_error"),
    (UserError, 500, "server_error"),
)

_ANTHROPIC_TYPES: dict[int, AnthropicErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}

_LMSTUDIO_TYPES: dict[str, LmStudioErrorType] = {
    "job_not_found": "job_not_found",
    "model_not_found": "model_not_found",
    "not_implemented": "not_implemented",
    "not_found": "unknown",
}

_MAY_NAME_PATHS = (ModelFileError, EngineError, StorageError, CheckpointError)


def status_of(error: UserError) -> int:
    return error.status if isinstance(error, RefusedError) else _row(error)[1]


def code_of(error: UserError) -> str:
    return error.code if isinstance(error, RefusedError) else _row(error)[2]


def openai_error(error: UserError, *, hide_paths: bool = True) -> OpenAiError:
    param = error.param if isinstance(error, RequestError) else ""
    return {"error": {"code": code_of(error), "param": param or None, **_common(error, hide_paths)}}


def llamacpp_error(error: UserError, *, hide_paths: bool = True) -> LlamaCppError:
    """Return llama.cpp's error body (source: llama-server's README, `code` is the status), with our fields too."""
    return {"error": {"code": status_of(error), **_common(error, hide_paths)}}


def lmstudio_error(error: UserError, *, hide_paths: bool = True) -> LmStudioError:
    """Return the error body of LM Studio's /api/v1 (source: its page on streaming events, version 0.4)."""
    kind: LmStudioErrorType = "invalid_request" if status_of(error) < 500 else "internal_error"
    kind = _LMSTUDIO_TYPES.get(code_of(error), kind)
    return {"error": {"type": kind, "message": message_of(error, hide_paths), "code": code_of(error)}}


def ollama_error(error: UserError, *, hide_paths: bool = True) -> OllamaError:
    """Return Ollama's error body, one text; its clients fail at any `error`, whatever its value."""
    return {"error": message_of(error, hide_paths)}


def anthropic_error(error: UserError, *, hide_paths: bool = True) -> AnthropicError:
    """Return Anthropic's error body (source: its API's page on errors). A prompt that is too long is told in the API's
    words, by which Claude Code knows that it has to compact."""
    status = status_of(error)
    usual: AnthropicErrorType = "invalid_request_error" if status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(status, usual)
    message = message_of(error, hide_paths)
    if isinstance(error, ContextOverflowError):
        message = f"prompt is too long: {error.n_prompt_tokens} tokens > {error.n_ctx} maximum. {error.remedy}"
    fields: AnthropicErrorFields = {"type": kind, "message": message}
    if isinstance(error, RefusedError) and error.anthropic_details:
        fields["details"] = dict(error.anthropic_details)
    return {"type": "error", "error": fields}


def message_of(error: UserError, hide_paths: bool) -> str:
    return _shown(error, hide_paths)(str(error))


def _shown(error: UserError, hide_paths: bool) -> Callable[[str], str]:
    return redact_paths if hide_paths and isinstance(error, _MAY_NAME_PATHS) else str


def _row(error: UserError) -> tuple[type[UserError], int, str]:
    return next(row for row in _STATUS_AND_CODE if isinstance(error, row[0]))


def _common(error: UserError, hide_paths: bool) -> _CommonFields:
    info, show = ErrorInfo.of(error), _shown(error, hide_paths)
    common: _CommonFields = {
        "message": message_of(error, hide_paths),
        "type": "invalid_request_error" if status_of(error) < 500 else "server_error",
        "kind": info.kind,
        "cause": show(info.cause),
        "remedy": show(info.remedy),
        "details": dict(info.details),
    }
    if isinstance(error, ContextOverflowError):
        common["n_prompt_tokens"], common["n_ctx"] = error.n_prompt_tokens, error.n_ctx
    return common
