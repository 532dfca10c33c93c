"""What each kind of job is told, checked: the arguments of our own verbs.

Owns names, ranges and the words of the command line. Knows nothing of processes or of what is on the disk.
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
Word: TypeAlias = Annotated[str, Field(strict=True, max_length=4096, pattern=r"^[^\x00]*$")]
Name: TypeAlias = Annotated[str, Field(strict=True, min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
Threads: TypeAlias = Annotated[int, Field(ge=0, le=4096)]

_Argv: TypeAlias = list[str]


class Arguments(BaseModel):
    """Arguments of one kind of job. 0 or an empty text leaves the choice to the verb; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: ClassVar[JobKind]

    @property
    def title(self) -> str:
        """What a list calls the job."""
        raise NotImplementedError

    @property
    def resources(self) -> frozenset[Resource]:
        """What of the machine it takes to itself."""
        return frozenset({"machine"})


class PullArguments(Arguments):
    """`reference` is what `localllm pull` takes: org/repo, org/repo:Q4_K_M, org/repo/file.gguf, a URL, or a name of
    the catalogue. `quantize` makes a GGUF of that type of a checkpoint."""

    kind = "pull"
    reference: Name
    quantize: Word = ""
    remove_checkpoint: bool = False
    overwrite: bool = False
    limit_bytes_per_s: Annotated[int, Field(ge=0, lt=10**15)] = 0
    connections: Annotated[int, Field(ge=1, le=16)] = 4

    @property
    def title(self) -> str:
        return f"Fetch {self.reference}" + (f" and make it {self.quantize}" if self.quantize else "")

    @property
    def resources(self) -> frozenset[Resource]:
        return frozenset({"network", "machine"} if self.quantize else {"network"})

    def argv(self) -> _Argv:
        """Return the command line."""
        return [
            "pull",
            "--json",
            *_option("--quantize", self.quantize),
            *_flag("--remove-checkpoint", self.remove_checkpoint),
            *_flag("--overwrite", self.overwrite),
            *_option("--limit-rate", self.limit_bytes_per_s),
            f"--connections={self.connections}",
            *("--", self.reference),
        ]


class QuantizeArguments(Arguments):
    """`source` is a model's name, `guide`, or the absolute path of a GGUF or of a checkpoint's folder.

    `output` is an absolute path, or a name in the library (NAME, PUBLISHER/REPO or PUBLISHER/REPO/NAME); without one it
    lies there beside its source's name. `file_type`, `n_bytes` (at most so many) and `kld` (at most so many nats a
    token) exclude each other.
    """

    kind = "quantize"
    source: Name
    file_type: Word = ""
    output: Word = ""
    n_bytes: Annotated[int, Field(ge=0, lt=10**15)] = 0
    kld: Annotated[float, Field(gt=0, lt=1e6)] | None = None
    tensor_types: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    output_type: Word = ""
    embedding_type: Word = ""
    imatrix: Word = ""
    base: Word = ""
    max_shard_bytes: Annotated[int, Field(ge=0, lt=10**15)] = 0
    threads: Threads = 0
    overwrite: bool = False
    allow_nan: bool = False

    @property
    def title(self) -> str:
        return f"Quantize {self.source} to {self.target or 'the usual type'}"

    @property
    def target(self) -> str:
        """What is to come of it, in a word: a type, a size or a divergence."""
        if self.kld:
            return f"kld{self.kld:g}"
        return f"{self.n_bytes / 1e9:.4g}GB" if self.n_bytes else self.file_type.upper()

    def argv(self, source: str, output: str) -> _Argv:
        """Return the command line that makes the file `output` of the file or folder `source`."""
        return [
            "quantize",
            "--json",
            *_option("--output", output),
            *_option("--size", self.n_bytes),
            *_option("--kld", self.kld or ""),
            *(f"--tensor={rule}" for rule in self.tensor_types),
            *_option("--output-type", self.output_type),
            *_option("--embedding-type", self.embedding_type),
            *_option("--imatrix", self.imatrix),
            *_option("--base", self.base),
            *_option("--max-shard-size", self.max_shard_bytes),
            *_option("--threads", self.threads),
            *_flag("--overwrite", self.overwrite),
            *_flag("--allow-nan", self.allow_nan),
            *("--", source, *([self.file_type] if self.file_type else [])),
        ]


class TuneArguments(Arguments):
    """`model` is a name, `guide`, or the absolute path of a GGUF."""

    kind = "tune"
    model: Name
    threads: Threads = 0

    @property
    def title(self) -> str:
        return f"Tune {self.model}"

    def argv(self) -> _Argv:
        """Return the command line."""
        return ["tune", "--json", *_option("--threads", self.threads), *("--", self.model)]


class EvalArguments(Arguments):
    """`model` and `against` are names, `guide`, or absolute paths of GGUFs; `text` is the absolute path of a text."""

    kind = "eval"
    model: Name
    against: Word = ""
    text: Word = ""
    ctx: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    chunks: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    threads: Threads = 0

    @property
    def title(self) -> str:
        return f"Evaluate {self.model}" + (f" against {self.against}" if self.against else "")

    def argv(self) -> _Argv:
        """Return the command line."""
        return [
            "eval",
            "--json",
            *_option("--against", self.against),
            *_option("--text", self.text),
            *_option("--ctx", self.ctx),
            *_option("--chunks", self.chunks),
            *_option("--threads", self.threads),
            *("--", self.model),
        ]


class BenchArguments(Arguments):
    """`model` is a name, `guide`, or the absolute path of a GGUF; `only` is the work to do, separated by commas."""

    kind = "bench"
    model: Name
    only: Word = ""
    runs: Annotated[int, Field(ge=1, le=100)] = 3
    ctx: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    threads: Threads = 0

    @property
    def title(self) -> str:
        return f"Measure how fast {self.model} answers"

    def argv(self) -> _Argv:
        """Return the command line."""
        return [
            "bench",
            "--json",
            *_option("--only", self.only),
            f"--runs={self.runs}",
            *_option("--ctx", self.ctx),
            *_option("--threads", self.threads),
            *("--", self.model),
        ]


def _option(name: str, value: str | float) -> _Argv:
    """An option in one word: a value that begins with a dash stays a value."""
    return [f"{name}={value}"] if value else []


def _flag(name: str, is_set: bool) -> _Argv:
    return [name] if is_set else []
