"""The command of a job: the arguments of its verb, with every path absolute or in the library.

Independent of processes.
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
    """The arguments of `localllm`. `folder`, if any, must be created before: the verb writes its new file there."""

    argv: tuple[str, ...]
    folder: Path | None = None


def arguments_of(kind: JobKind, data: Any) -> Arguments:
    """Return the arguments of a saved job. Raises ValueError for invalid ones, such as those of another version."""
    return TypeAdapter(_KINDS[kind]).validate_python(data)


def command_of(arguments: Arguments, settings: Settings) -> JobCommand:
    """Return the command for `arguments`, reading the disk. Raises RequestError, ModelFileError."""
    try:
        match arguments:
            case QuantizeArguments():
                return _quantize_command(arguments, settings)
            case TuneArguments() | BenchArguments():
                _check_path(arguments.model)
            case EvalArguments():
                for path in (arguments.model, arguments.against):
                    _check_path(path)
                if arguments.text and not Path(arguments.text).is_absolute():
                    raise RequestError(f"{arguments.text} is not an absolute path.", _NEEDS_ROOT)
    except UsageError as error:
        raise RequestError(error.cause, error.remedy) from error
    return JobCommand(arguments.argv())


def _quantize_command(arguments: QuantizeArguments, settings: Settings) -> JobCommand:
    if arguments.file_type:
        file_type_named(arguments.file_type)
    source = _source(arguments.source, settings)
    for path in (arguments.imatrix, arguments.base):
        _check_path(path)
    output = arguments.output
    if not Path(output).is_absolute():
        name = f"{_stem(source)}-{arguments.target or DEFAULT_FILE_TYPE}"
        ref = ModelRef(name, Path(f"{name}.gguf"), source.repo)
        output = str(model_output_path(ref, output, settings.models_dir))
    elif not output.endswith(".gguf"):  # a client must not replace other kinds of files
        raise RequestError(f"{output} is not a model name.", "Give a path that ends in .gguf.")
    path = GUIDE if source.id == GUIDE else str(source.path)
    argv = arguments.model_copy(update={"source": path, "output": output}).argv()
    return JobCommand(argv, Path(output).parent)


def _source(name: str, settings: Settings) -> ModelRef:
    """Return the file or folder of `name`, with its repository if the library knows it."""
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
    """Raise RequestError for a path relative to the current folder."""
    if name.startswith((".", "~")):
        raise RequestError(f"{name} is not an absolute path.", _NEEDS_ROOT)
