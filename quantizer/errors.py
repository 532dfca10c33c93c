"""The one error tree of localllm, in the lowest package so that every other can raise from it.

    LocalllmError
    └── UserError(cause, remedy)      something that the user can act on; exit status 1
        ├── UsageError                the command was called wrongly; exit status 2
        ├── ModelFileError            a GGUF that is missing, broken, hostile or not supported
        ├── CheckpointError           a checkpoint folder that cannot be converted
        ├── StorageError              disk full, no permission, output in the way
        ├── EngineError               the native engine refused, or its process died
        │   └── UnfitError            a model that runs slowly or not at all needs the user's consent
        ├── RequestError              a request that cannot be served as asked
        │   ├── ContextOverflowError  more tokens than the context holds
        │   └── NoTemplateError       a chat with a model that has no chat template
        ├── ServiceError              the local service cannot be reached or started
        └── ToolError                 a server of tools cannot be started, died, or does not do what it was asked

Anything else that escapes is a bug and keeps its traceback. Owns the tree, the form in which an error crosses processes
(`ErrorInfo`), and which part of a message names folders. Refuses to know who prints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "CheckpointError",
    "ContextOverflowError",
    "EngineError",
    "ErrorInfo",
    "LocalllmError",
    "ModelFileError",
    "NoTemplateError",
    "RequestError",
    "ServiceError",
    "StorageError",
    "ToolError",
    "UnfitError",
    "UsageError",
    "UserError",
    "redact_paths",
]


class LocalllmError(Exception):
    """Root of every error that localllm raises on purpose."""


class UserError(LocalllmError):
    """An error with a cause and a remedy, both plain sentences without a final newline."""

    exit_status = 1

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}".rstrip()


class UsageError(UserError):
    """Wrong use: an option, argument or combination that makes no sense."""

    exit_status = 2


class ModelFileError(UserError):
    """A model file that is missing, malformed, hostile or of an unsupported kind."""


class CheckpointError(UserError):
    """A checkpoint folder that cannot be read or converted."""


class StorageError(UserError):
    """The disk or its permissions prevent reading or writing."""


class EngineError(UserError):
    """The native engine refused or died; the cause has its last output."""


class UnfitError(EngineError):
    """A model of which only a part, or nothing, fits where it is fast; it loads only with the user's consent."""


class RequestError(UserError):
    """A request whose parameters or prompt cannot be served."""


class ContextOverflowError(RequestError):
    """The prompt and the answer do not fit the context; nothing was truncated.

    `n_prompt_tokens` and `n_ctx` are in tokens; `remedy` is the usual one by default.
    """

    def __init__(self, n_prompt_tokens: int, n_ctx: int, remedy: str = "") -> None:
        super().__init__(
            f"The prompt has {n_prompt_tokens} tokens and the context holds {n_ctx}.",
            remedy or "Shorten it, start a new chat, or load the model with a larger --ctx.",
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class NoTemplateError(RequestError):
    """A chat with a model that has no chat template: a base model, which only continues text."""


class ServiceError(UserError):
    """The local service cannot be reached, started or bound to its port."""


class ToolError(UserError):
    """A server of tools cannot be started, died, or does not do what it was asked."""


_PLAIN = (
    UserError,
    UsageError,
    ModelFileError,
    CheckpointError,
    StorageError,
    EngineError,
    RequestError,
    ServiceError,
    ToolError,
)
_KINDS: dict[str, type[UserError]] = {kind.__name__: kind for kind in (*_PLAIN, UnfitError, NoTemplateError)}


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as it crosses processes: `kind` is a class of this tree, `details` are a ContextOverflowError's."""

    kind: str
    cause: str
    remedy: str = ""
    details: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, error: UserError) -> ErrorInfo:
        """Describe `error` by the nearest class of this tree."""
        kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in __all__)
        details = {}
        if isinstance(error, ContextOverflowError):
            details = {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
        return cls(kind, error.cause, error.remedy, details)

    def error(self) -> UserError:
        """Return the error again; of an unknown kind an EngineError."""
        if self.kind == ContextOverflowError.__name__:
            return ContextOverflowError(self.details["n_prompt_tokens"], self.details["n_ctx"], self.remedy)
        return _KINDS.get(self.kind, EngineError)(self.cause, self.remedy)


# Up to the last separator. A folder may have spaces within, but a colon ends the path: compilers write file.c:12.
_FOLDERS = re.compile(
    r"(?<![\w./:<\\])(?:[A-Za-z]:[\\/]|\\\\|~?/)"
    r"(?:[^\s'\"/\\:](?:[^'\"/\\:\n]*[^\s'\"/\\:])?[/\\])*(?=[^\s/\\])"
)


def redact_paths(text: str) -> str:
    """Return `text` with absolute paths cut to their last part."""
    return _FOLDERS.sub("", text)
