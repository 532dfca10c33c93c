"""The one error tree of localllm. It lives in the lowest room so that every room can raise from it.

    LocalllmError
    └── UserError(cause, remedy)      something a person can act on; exit status 1
        ├── UsageError                the command was called wrongly; exit status 2
        ├── ModelFileError            a GGUF that is missing, broken, hostile or not supported
        ├── CheckpointError           a checkpoint folder that cannot be converted
        ├── StorageError              disk full, no permission, output in the way
        ├── EngineError               the native engine refused, or its process died
        │   └── UnfitError            a model that runs slowly or not at all here waits for a yes
        ├── RequestError              a request that cannot be served as asked
        │   └── ContextOverflowError  more tokens than the context holds
        └── ServiceError              the local service cannot be reached or started

Anything else that escapes is a bug and keeps its traceback. This module knows nothing of who prints.

What of a message tells of a machine's folders: absolute paths, cut to their last part.

Owns what such a path looks like, of either system. Knows nothing of who is told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = [
    "CheckpointError",
    "ContextOverflowError",
    "EngineError",
    "LocalllmError",
    "ModelFileError",
    "RequestError",
    "ServiceError",
    "StorageError",
    "UnfitError",
    "UsageError",
    "UserError",
    "kind_of",
    "rebuild",
    "redact_paths",
]


class LocalllmError(Exception):
    """Root of every error that localllm raises on purpose."""


class UserError(LocalllmError):
    """An error with a cause and a way out, both plain sentences without a final newline."""

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
    """The disk or its permissions stand in the way."""


class EngineError(UserError):
    """The native engine refused or died; the cause carries its last words."""


class UnfitError(EngineError):
    """A model of which only a part fits where it is fast, or none: it is not loaded before somebody agrees."""


class RequestError(UserError):
    """A request whose parameters or prompt cannot be served."""


class ContextOverflowError(RequestError):
    """The prompt and the answer do not fit the context; nothing was truncated.

    `n_prompt_tokens` and `n_ctx` are in tokens.
    """

    def __init__(self, n_prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(
            f"The prompt has {n_prompt_tokens} tokens and the context holds {n_ctx}.",
            "Shorten it, start a new chat, or load the model with a larger --ctx.",
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class ServiceError(UserError):
    """The local service cannot be reached, started or bound to its port."""


_KINDS: dict[str, type[UserError]] = {
    kind.__name__: kind
    for kind in (
        UserError,
        UsageError,
        ModelFileError,
        CheckpointError,
        StorageError,
        EngineError,
        UnfitError,
        RequestError,
        ServiceError,
    )
}


def kind_of(error: UserError) -> str:
    """Return the name of the nearest class of this tree, by which another process can `rebuild` the error."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in __all__)


def rebuild(kind: str, cause: str, remedy: str, details: Mapping[str, int]) -> UserError:
    """Return the error that another process described; `details` are a ContextOverflowError's two counts."""
    if kind == ContextOverflowError.__name__:
        return ContextOverflowError(details["n_prompt_tokens"], details["n_ctx"])
    return _KINDS.get(kind, EngineError)(cause, remedy)


# Up to the last separator. A folder may have spaces within, but a colon ends the path: compilers write file.c:12.
_FOLDERS = re.compile(
    r"(?<![\w./:<\\])(?:[A-Za-z]:[\\/]|\\\\|~?/)"
    r"(?:[^\s'\"/\\:](?:[^'\"/\\:\n]*[^\s'\"/\\:])?[/\\])*(?=[^\s/\\])"
)


def redact_paths(text: str) -> str:
    """Return `text` with absolute paths cut to their last part."""
    return _FOLDERS.sub("", text)
