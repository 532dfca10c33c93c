"""The root of localllm's error tree, and the form in which an error crosses processes.

    LocalllmError
    └── UserError(cause, remedy)      something that the user can act on; exit status 1
        ├── UsageError                the command was called wrongly; exit status 2
        ├── StorageError              disk full, no permission, output in the way
        ├── EngineError               the native engine refused, or its process died
        │   └── WrongProcessorError   llama.cpp was built for another processor
        ├── ModelFileError            quantizer.gguf.gguf_reader: a GGUF that is missing, broken or hostile
        ├── CheckpointError           quantizer.checkpoint.config: a checkpoint folder that cannot be converted
        ├── SoundDeviceError          app.sound.devices: a microphone or loudspeaker that is absent, busy or refuses
        ├── ToolError                 app.tools.mcp.config: a server of tools that cannot be started, or died
        └── RequestError …            app.protocol.errors: what the engine and the service refuse

Each class lives in the room that raises it; those that cross processes are `@registered` and travel by their name.
Anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self, TypeVar

_LONGEST = 2_000  # characters of a cause or a remedy; llama.cpp's last words are within it


class LocalllmError(Exception):
    """Root of every error that localllm raises on purpose."""


class UserError(LocalllmError):
    """An error with a cause and a remedy, both plain sentences without a final newline."""

    exit_status = 1

    def __init__(self, cause: str, remedy: str = "") -> None:
        # What a file or another program calls something may be a megabyte, and every log and screen shows it.
        cause, remedy = (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…" for text in (cause, remedy))
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        # A cause that ends with the words of a library, such as llama.cpp's, has no full stop.
        is_open = bool(self.remedy) and self.cause[-1:].isalnum()
        return f"{self.cause}{'.' if is_open else ''} {self.remedy}".rstrip()

    def details(self) -> Mapping[str, int]:
        """Return what besides its sentences crosses processes; `from_info` gets it back."""
        return {}

    @classmethod
    def from_info(cls, info: ErrorInfo) -> Self:
        return cls(info.cause, info.remedy)


_registry: dict[str, type[UserError]] = {}
_E = TypeVar("_E", bound=type[UserError])


def registered(kind: _E) -> _E:
    """Let errors of this class cross processes as themselves; a subclass without this crosses as its nearest parent."""
    _registry[kind.__name__] = kind
    return kind


registered(UserError)


@registered
class UsageError(UserError):
    """Wrong use: an option, argument or combination that makes no sense."""

    exit_status = 2


@registered
class StorageError(UserError):
    """The disk or its permissions prevent reading or writing."""


@registered
class EngineError(UserError):
    """The native engine refused, or a child process died; the cause has its last output."""


@registered
class WrongProcessorError(EngineError):
    """llama.cpp has instructions that this processor lacks; nothing that runs a model works until it is built anew."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as it crosses processes: `kind` is the name of a registered class, `details` are that class's own."""

    kind: str
    cause: str
    remedy: str = ""
    details: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, error: UserError) -> ErrorInfo:
        """Describe `error` by the nearest registered class."""
        kind = next(kind.__name__ for kind in type(error).__mro__ if _registry.get(kind.__name__) is kind)
        return cls(kind, error.cause, error.remedy, error.details())

    def error(self) -> UserError:
        """Return the error again; of a kind that this process does not know an EngineError."""
        return _registry.get(self.kind, EngineError).from_info(self)


# Up to the last separator. A folder may have spaces within, but a colon ends the path: compilers write file.c:12.
_FOLDERS = re.compile(
    r"(?<![\w./:<\\])(?:[A-Za-z]:[\\/]|\\\\|~?/)"
    r"(?:[^\s'\"/\\:](?:[^'\"/\\:\n]*[^\s'\"/\\:])?[/\\])*(?=[^\s/\\])"
)


def redact_paths(text: str) -> str:
    """Return `text` with absolute paths cut to their last part."""
    return _FOLDERS.sub("", text)
