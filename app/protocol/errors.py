"""Errors that the engine and the service raise and their clients see again.

    UserError
    ├── RequestError              a request that cannot be served as asked
    │   ├── ContextOverflowError  more tokens than the context holds
    │   └── NoTemplateError       a chat with a model that has no chat template
    ├── ServiceError              the local service cannot be reached or started
    │   └── ForeignServiceError   what listens on its port is somebody else's
    └── EngineError
        ├── UnfitError            a model that runs slowly or not at all needs the user's consent
        └── JobDiedError          a job's process ended without saying why

A client of the service also sees the errors of model files and checkpoints: importing this module registers them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import EngineError, ErrorInfo, UserError, registered

_ALSO_REGISTERED = (CheckpointError, ModelFileError)


@registered
class UnfitError(EngineError):
    """A model of which only a part, or nothing, fits where it is fast; it loads only with the user's consent."""


@registered
class JobDiedError(EngineError):
    """A job's process was killed, or ended otherwise without an error of its own."""


@registered
class RequestError(UserError):
    """A request whose parameters or prompt cannot be served. `param` is the field at fault, as a client of OpenAI's API
    calls it, where that is known; only the service that refuses a request knows it."""

    param = ""


@registered
class ContextOverflowError(RequestError):
    """The prompt and the answer do not fit the context; nothing was truncated. `n_prompt_tokens` and `n_ctx` are in
    tokens; `remedy` is the usual one by default."""

    def __init__(self, n_prompt_tokens: int, n_ctx: int, remedy: str = "") -> None:
        super().__init__(
            f"The prompt has {n_prompt_tokens} tokens and the context holds {n_ctx}.",
            remedy or "Shorten it, start a new chat, or load the model with a larger --ctx.",
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx

    def details(self) -> Mapping[str, int]:
        return {"n_prompt_tokens": self.n_prompt_tokens, "n_ctx": self.n_ctx}

    @classmethod
    def from_info(cls, info: ErrorInfo) -> Self:
        return cls(info.details["n_prompt_tokens"], info.details["n_ctx"], info.remedy)


@registered
class NoTemplateError(RequestError):
    """A chat with a model that has no chat template: a base model, which only continues text."""


@registered
class ServiceError(UserError):
    """The local service cannot be reached, started or bound to its port."""


@registered
class ForeignServiceError(ServiceError):
    """What listens on the port is not for this client: another program, or the service of another user, data folder,
    version or key. No prompt was sent to it."""
