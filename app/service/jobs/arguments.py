"""The validated arguments of each kind of job, and the command line of the verb that does it.

Owns names, ranges and options. Independent of processes and of the disk.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from app.protocol.job import JobKind

__all__ = [
    "Arguments",
    "BenchArguments",
    "EvalArguments",
    "PullArguments",
    "QuantizeArguments",
    "Resource",
    "TuneArguments",
]

Resource: TypeAlias = Literal["network", "machine"]
Text: TypeAlias = Annotated[str, Field(strict=True, max_length=4096, pattern=r"^[^\x00]*$")]
Name: TypeAlias = Annotated[str, Field(strict=True, min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
Count: TypeAlias = Annotated[int, Field(ge=0, le=1 << 24)]
Bytes: TypeAlias = Annotated[int, Field(ge=0, lt=10**15)]
Threads: TypeAlias = Annotated[int, Field(ge=0, le=4096)]

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
        """The title of the job in lists."""
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
    the catalogue. `quantize` makes a GGUF of that type of a checkpoint."""

    kind = "pull"
    positional = ("reference",)
    reference: Name
    quantize: Text = ""
    remove_checkpoint: bool = False
    overwrite: bool = False
    limit_bytes_per_s: Bytes = 0
    connections: Annotated[int, Field(ge=1, le=16)] = 4

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
        return f"Quantize {self.source} to {self.target or 'the usual type'}"

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
        return f"Tune {self.model}"


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
        return f"Evaluate {self.model}" + (f" against {self.against}" if self.against else "")


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
        return f"Measure how fast {self.model} answers"
