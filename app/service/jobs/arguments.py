"""The options of a job: validated, described, and turned into the command line of the verb that does it.

`app.options.jobs` declares them. A service has no current folder, so every path must be absolute or in the library.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter

from app.library.local.model_files import ModelRef, id_of, model_output_path
from app.library.local.resolve import available, find_by_name
from app.options.jobs import (
    JOBS,
    BatchOptions,
    BenchOptions,
    EvalOptions,
    JobOptions,
    PullOptions,
    QuantizeOptions,
    TuneOptions,
    VerifyOptions,
    command_words,
    job_rows,
)
from app.options.option import MAX_TEXT, Kind
from app.protocol.errors import RequestError
from app.protocol.job import JobKind
from app.settings.settings import GUIDE, Settings
from quantizer.figures import format_figure, format_number
from quantizer.gguf.file_names import unsplit_name
from quantizer.gguf.tensor_types import DEFAULT_FILE_TYPE, DRAFT_COPY_TYPE, file_type_named
from quantizer.system.errors import UsageError

Resource: TypeAlias = Literal["network", "machine", "engine"]

_NEEDS_ROOT = "A service has no current folder."


@dataclass(frozen=True, slots=True)
class JobCommand:
    """The arguments of `localllm`. `folder`, if any, must be created before: the verb writes its new file there."""

    argv: tuple[str, ...]
    folder: Path | None = None


def options_of(kind: JobKind, data: Any) -> JobOptions:
    """Return the options of a saved job. Raises ValueError for invalid ones, such as those of another version."""
    return TypeAdapter(JOBS[kind]).validate_python(data)


def resources_of(options: JobOptions) -> frozenset[Resource]:
    if isinstance(options, PullOptions):
        return frozenset({"network", "machine"} if options.quantize else {"network"})
    if isinstance(options, BatchOptions):
        return frozenset({"engine"})
    return frozenset({"machine"})


def is_background(options: JobOptions) -> bool:
    """Return whether a job yields to all others: nobody waits for it."""
    return isinstance(options, QuantizeOptions) and options.as_draft


def title_of(options: JobOptions) -> str:
    """Return the title of the job in lists, with names instead of paths."""
    match options:
        case PullOptions(reference=reference, quantize=file_type):
            return f"Fetch {reference}" + (f" and make it {file_type}" if file_type else "")
        case QuantizeOptions(source=source, as_draft=True):
            return f"Copy {_short(source)} in {options.file_type or DRAFT_COPY_TYPE} as its draft"
        case QuantizeOptions(source=source):
            return f"Quantize {_short(source)} to {_target(options) or 'the usual type'}"
        case EvalOptions(model=model, against=against):
            return f"Evaluate {_short(model)}" + (f" against {_short(against)}" if against else "")
        case TuneOptions(model=model):
            return f"Tune {_short(model)}"
        case BenchOptions(model=model):
            return f"Measure how fast {_short(model)} answers"
        case BatchOptions(output=path):
            return f"Answer requests into {PurePath(path).name}"
        case VerifyOptions(model=model):
            return f"Verify {_short(model)}"
    raise AssertionError(options.kind)


def _target(options: QuantizeOptions) -> str:
    """Return the type, size, divergence or speed that is wanted, in a word."""
    if options.kld:
        return f"kld{format_number(options.kld)}"
    if options.speed:
        return f"{format_number(options.speed)}tps"
    if options.n_bytes:
        return f"{format_figure(options.n_bytes / 1e9, 4, has_commas=False)}GB"
    return options.file_type.upper()


def command_of(options: JobOptions, settings: Settings) -> JobCommand:
    """Return the command for `options`, reading the disk. Raises RequestError, ModelFileError."""
    for name, row in job_rows(options.kind).items():
        value = getattr(options, name)
        if error := row.range_error(value):
            raise RequestError(f"{name} {error}.", f"It is {value!r}.")
        texts = value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()
        if any("\0" in text or len(text) > MAX_TEXT for text in texts) or (row.is_required and not value):
            raise RequestError(f"{name} is not valid.", f"It takes up to {MAX_TEXT} characters, without NUL.")
        if row.kind is Kind.MODEL and value.startswith((".", "~")):
            raise RequestError(f"{value} is not an absolute path.", _NEEDS_ROOT)
        is_path = name == "text" or (isinstance(options, BatchOptions) and row.kind is Kind.PATH)
        if is_path and value and not Path(value).is_absolute():
            raise RequestError(f"{value} is not an absolute path.", _NEEDS_ROOT)
    if isinstance(options, BatchOptions) and not options.output.endswith(".jsonl"):  # as with quantize
        raise RequestError(f"{options.output or 'The output'} is no .jsonl file.", "Give a path that ends in .jsonl.")
    try:
        if isinstance(options, QuantizeOptions):
            return _quantize_command(options, settings)
    except UsageError as error:
        raise RequestError(error.cause, error.remedy) from error
    return JobCommand(command_words(options))


def _short(name: str) -> str:
    """Return the id of the model for the absolute path of a GGUF, the last part of another one; a name as it is."""
    path = PurePath(name)
    if not path.is_absolute() or not path.name:
        return name
    return id_of(path.name) if path.suffix == ".gguf" else path.name


def _quantize_command(options: QuantizeOptions, settings: Settings) -> JobCommand:
    if options.file_type:
        file_type_named(options.file_type)
    source = _source(options.source, settings)
    output = options.output
    if options.as_draft:  # into the cache
        return JobCommand(command_words(replace(options, source=str(source.path))))
    if not Path(output).is_absolute():
        stem = GUIDE if source.id == GUIDE else unsplit_name(source.path.name).removesuffix(".gguf")
        name = f"{stem}-{_target(options) or DEFAULT_FILE_TYPE}"
        ref = ModelRef(name, Path(f"{name}.gguf"), source.repo)
        output = str(model_output_path(ref, output, settings.models_dir))
    elif not output.endswith(".gguf"):  # a client must not replace other kinds of files
        raise RequestError(f"{output} is not a model name.", "Give a path that ends in .gguf.")
    path = GUIDE if source.id == GUIDE else str(source.path)
    return JobCommand(command_words(replace(options, source=path, output=output)), Path(output).parent)


def _source(name: str, settings: Settings) -> ModelRef:
    """Return the file or folder of `name`, with its repository if the library knows it."""
    path = Path(name)
    if not path.is_absolute():
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
