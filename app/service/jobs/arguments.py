"""The validated arguments of each kind of job, and the command line of the verb that does it.

Owns names, ranges and options, and that every path is absolute or in the library. Independent of processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from app.library.local.model_files import ModelRef
from app.library.local.naming import id_of, model_output_path
from app.library.local.resolve import GUIDE, available, find_by_name
from app.protocol.errors import RequestError
from app.protocol.job import JobKind
from app.settings.settings import Settings
from quantizer.gguf.file_names import unsplit_name
from quantizer.gguf.tensor_types import DEFAULT_FILE_TYPE, file_type_named
from quantizer.system.errors import UsageError

Resource: TypeAlias = Literal["network", "machine"]
Text: TypeAlias = Annotated[str, Field(strict=True, max_length=4096, pattern=r"^[^\x00]*$")]
Name: TypeAlias = Annotated[str, Field(strict=True, min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
Count: TypeAlias = Annotated[int, Field(ge=0, le=1 << 24)]
Bytes: TypeAlias = Annotated[int, Field(ge=0, lt=10**15)]
Threads: TypeAlias = Annotated[int, Field(ge=0, le=4096)]

_NEEDS_ROOT = "A service has no current folder."
_OPTIONS = {  # where an option is not called like its field
    "limit_bytes_per_s": "limit-rate",
    "n_bytes": "size",
    "tensor_types": "tensor",
    "max_shard_bytes": "max-shard-size",
}


class Arguments(BaseModel):
    """Arguments of one kind of job. 0 or an empty text leaves the choice to the verb; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: ClassVar[JobKind]
    positional: ClassVar[tuple[str, ...]] = ("model",)

    @property
    def title(self) -> str:
        """The title of the job in lists, with names instead of paths."""
        raise NotImplementedError

    @property
    def resources(self) -> frozenset[Resource]:
        """What the job needs for itself."""
        return frozenset({"machine"})

    def argv(self) -> tuple[str, ...]:
        """Return the command line, without the program's name."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        positional = [values.pop(name) for name in self.positional]
        options = [word for name, value in values.items() for word in _option(name, value)]
        return (self.kind, "--json", *options, "--", *filter(None, positional))


def _short(name: str) -> str:
    """Return the id of the model for the absolute path of a GGUF, the last part of another one; a name as it is."""
    path = PurePath(name)
    if not path.is_absolute() or not path.name:
        return name
    return id_of(path.name) if path.suffix == ".gguf" else path.name


def _option(name: str, value: object) -> list[str]:
    """Return an option in one word, so that a value that begins with a dash stays a value."""
    option = f"--{_OPTIONS.get(name) or name.replace('_', '-')}"
    if isinstance(value, tuple):
        return [f"{option}={item}" for item in value]
    if not value:
        return []
    return [option] if value is True else [f"{option}={value}"]


class PullArguments(Arguments):
    """`reference` is what `localllm pull` takes: org/repo, org/repo:Q4_K_M, org/repo/file.gguf, a URL, or a name of
    the catalogue. `quantize` makes a GGUF of that type of a checkpoint; `no_head` leaves out the model's draft head.
    `projector` is the type of what lets it see or hear, or none."""

    kind = "pull"
    positional = ("reference",)
    reference: Name
    quantize: Text = ""
    remove_checkpoint: bool = False
    overwrite: bool = False
    limit_bytes_per_s: Bytes = 0
    connections: Annotated[int, Field(ge=1, le=16)] = 4
    no_head: bool = False
    projector: Text = ""

    @property
    def title(self) -> str:
        return f"Fetch {self.reference}" + (f" and make it {self.quantize}" if self.quantize else "")

    @property
    def resources(self) -> frozenset[Resource]:
        return frozenset({"network", "machine"} if self.quantize else {"network"})


class QuantizeArguments(Arguments):
    """`source` is a model's name, `guide`, or the absolute path of a GGUF or of a checkpoint's folder.

    `output` is an absolute path, or a name in the library (NAME, PUBLISHER/REPO or PUBLISHER/REPO/NAME), by default
    next to its source. `file_type`, `n_bytes` (at most that size) and `kld` (at most that divergence in nats a token)
    exclude each other.
    """

    kind = "quantize"
    positional = ("source", "file_type")
    source: Name
    file_type: Text = ""
    output: Text = ""
    n_bytes: Bytes = 0
    kld: Annotated[float, Field(gt=0, lt=1e6)] | None = None
    tensor_types: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    output_type: Text = ""
    embedding_type: Text = ""
    imatrix: Text = ""
    base: Text = ""
    max_shard_bytes: Bytes = 0
    threads: Threads = 0
    overwrite: bool = False
    allow_nan: bool = False

    @property
    def title(self) -> str:
        return f"Quantize {_short(self.source)} to {self.target or 'the usual type'}"

    @property
    def target(self) -> str:
        """The type, size or divergence that is wanted, in a word."""
        if self.kld:
            return f"kld{self.kld:g}"
        return f"{self.n_bytes / 1e9:.4g}GB" if self.n_bytes else self.file_type.upper()


class TuneArguments(Arguments):
    """`model` is a name, `guide`, or the absolute path of a GGUF."""

    kind = "tune"
    model: Name
    threads: Threads = 0

    @property
    def title(self) -> str:
        return f"Tune {_short(self.model)}"


class EvalArguments(Arguments):
    """`model` and `against` are names, `guide`, or absolute paths of GGUFs; `text` is the absolute path of a text."""

    kind = "eval"
    model: Name
    against: Text = ""
    text: Text = ""
    ctx: Count = 0
    chunks: Count = 0
    threads: Threads = 0

    @property
    def title(self) -> str:
        return f"Evaluate {_short(self.model)}" + (f" against {_short(self.against)}" if self.against else "")


class BenchArguments(Arguments):
    """`model` is a name, `guide`, or the absolute path of a GGUF; `only` are workloads, separated by commas."""

    kind = "bench"
    model: Name
    only: Text = ""
    runs: Annotated[int, Field(ge=1, le=100)] = 3
    ctx: Count = 0
    threads: Threads = 0

    @property
    def title(self) -> str:
        return f"Measure how fast {_short(self.model)} answers"


_KINDS: dict[JobKind, type[Arguments]] = {
    kind.kind: kind for kind in (PullArguments, QuantizeArguments, TuneArguments, EvalArguments, BenchArguments)
}


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
        stem = GUIDE if source.id == GUIDE else unsplit_name(source.path.name).removesuffix(".gguf")
        name = f"{stem}-{arguments.target or DEFAULT_FILE_TYPE}"
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


def _check_path(name: str) -> None:
    """Raise RequestError for a path relative to the current folder."""
    if name.startswith((".", "~")):
        raise RequestError(f"{name} is not an absolute path.", _NEEDS_ROOT)
