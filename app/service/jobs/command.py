"""From the arguments of a job to the command line of our own verb that does it.

Owns which paths it gets: absolute ones, or places in the library. Knows nothing of processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from app.library.local.model_files import ModelRef
from app.library.local.naming import model_output_path
from app.library.local.resolve import GUIDE, available, find_by_name
from app.protocol.job import JobKind
from app.service.jobs.arguments import (
    Arguments,
    BenchArguments,
    EvalArguments,
    PullArguments,
    QuantizeArguments,
    TuneArguments,
)
from app.settings.settings import Settings
from quantizer.errors import RequestError, UsageError
from quantizer.gguf.file_types import DEFAULT_FILE_TYPE, file_type_named
from quantizer.gguf.shards import unsplit_name

__all__ = ["JobCommand", "arguments_of", "command_of"]

_KINDS: dict[JobKind, type[Arguments]] = {
    kind.kind: kind for kind in (PullArguments, QuantizeArguments, TuneArguments, EvalArguments, BenchArguments)
}
_NEEDS_ROOT = "A service has no current folder."


@dataclass(frozen=True, slots=True)
class JobCommand:
    """The words behind `localllm`. `folder` is where the verb writes a new file and must be made before, if any."""

    argv: tuple[str, ...]
    folder: Path | None = None


def arguments_of(kind: JobKind, data: Any) -> Arguments:
    """Return the arguments that a kept job was started with. Raises ValueError for what is none of this version."""
    return TypeAdapter(_KINDS[kind]).validate_python(data)


def command_of(arguments: Arguments, settings: Settings) -> JobCommand:
    """Return the command for `arguments`; what is on the disk is looked at. Raises RequestError, ModelFileError."""
    try:
        match arguments:
            case QuantizeArguments():
                return _quantizing(arguments, settings)
            case TuneArguments() | BenchArguments():
                _check_path(arguments.model)
                return JobCommand(tuple(arguments.argv()))
            case EvalArguments():
                for path in (arguments.model, arguments.against):
                    _check_path(path)
                if arguments.text and not Path(arguments.text).is_absolute():
                    raise RequestError(f"{arguments.text} is no absolute path.", _NEEDS_ROOT)
                return JobCommand(tuple(arguments.argv()))
            case PullArguments():
                return JobCommand(tuple(arguments.argv()))
    except UsageError as error:
        raise RequestError(error.cause, error.remedy) from error
    raise AssertionError(f"{type(arguments).__name__} has no command")


def _quantizing(arguments: QuantizeArguments, settings: Settings) -> JobCommand:
    if arguments.file_type:
        file_type_named(arguments.file_type)
    source = _source(arguments.source, settings)
    for path in (arguments.imatrix, arguments.base):
        _check_path(path)
    wanted = arguments.output
    if not Path(wanted).is_absolute():
        name = f"{_stem(source)}-{arguments.target or DEFAULT_FILE_TYPE}"
        made = ModelRef(name, Path(f"{name}.gguf"), source.repo)
        wanted = str(model_output_path(made, wanted, settings.models_dir))
    elif not wanted.endswith(".gguf"):  # whoever may start jobs shall not replace files of any kind
        raise RequestError(f"{wanted} is no name for a model.", "Give a path that ends in .gguf.")
    path = GUIDE if source.id == GUIDE else str(source.path)
    return JobCommand(tuple(arguments.argv(path, wanted)), Path(wanted).parent)


def _source(name: str, settings: Settings) -> ModelRef:
    """Return the file or the folder that `name` means, with its repository where the library knows it."""
    path = Path(name)
    if not path.is_absolute():
        _check_path(name)
        return find_by_name(name, available(settings))
    checkpoints = settings.data_dir / "checkpoints"
    repo = path.relative_to(checkpoints).as_posix() if path.is_relative_to(checkpoints) else ""
    known = next((ref for ref in available(settings) if ref.path == path), None)
    return known or ModelRef(path.stem if _is_file(path) else path.name, path, repo if repo.count("/") == 1 else "")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long for a name
        return False


def _stem(source: ModelRef) -> str:
    if source.id == GUIDE:
        return GUIDE
    return unsplit_name(source.path.name).removesuffix(".gguf")


def _check_path(name: str) -> None:
    """Raise RequestError for a path that means nothing without a current folder."""
    if name.startswith((".", "~")):
        raise RequestError(f"{name} is no absolute path.", _NEEDS_ROOT)
