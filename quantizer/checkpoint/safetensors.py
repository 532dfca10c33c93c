"""A Hugging Face checkpoint folder: its safetensors headers and its JSON files, read and checked.

Owns the trust in a folder that came from elsewhere: shard names that stay inside it, headers that fit their files, JSON
of bounded size and depth. Pickles are refused. Independent of architectures.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from quantizer.checkpoint.config import CheckpointError
from quantizer.checkpoint.pending_shards import NO_PENDING, PendingFile
from quantizer.convert.source_model import FileTensor
from quantizer.gguf.gguf_reader import ByteSource, ModelFileError, open_local
from quantizer.gguf.tensor_types import TensorType, tensor_type_named
from quantizer.system.faults import remedy_for
from quantizer.system.files import read_regular

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_SINGLES = (_WHOLE, "gptq_model-*.safetensors")  # the second is AutoGPTQ's
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library itself
_MAX_JSON_BYTES = 256 << 20
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# the types of weights and, ggml's number -1, those that only parts of quantized weights, or masks, are stored in
STORED_TYPES = {name: tensor_type_named(name) for name in ("F32", "F16", "BF16", "I8", "I32", "I64")} | {
    name: TensorType(-1, name, 1, 1, is_quantized=True) for name in ("BOOL", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0")
}
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,200}\.safetensors")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder's tensors by name, in ggml order of dimensions, its parsed config.json, and its files' metadata."""

    folder: Path
    config: dict[str, Any]
    tensors: Mapping[str, FileTensor]
    metadata: Mapping[str, str] = field(default_factory=dict)


def read_checkpoint(folder: Path, pending: Mapping[str, PendingFile] = NO_PENDING) -> Checkpoint:
    """Read config.json and every safetensors header in `folder`; no weights yet. Files that are `pending`, by name, may
    be missing. Raises CheckpointError naming what is missing or wrong."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder.", "Name a checkpoint folder or a .gguf file.")
    config = read_object(folder / "config.json")
    tensors: dict[str, FileTensor] = {}
    metadata: dict[str, str] = {}
    for shard in _shards(folder, pending):
        shard_tensors, shard_metadata = _read_shard(shard, pending.get(shard.name))
        metadata |= shard_metadata
        for name, tensor in shard_tensors.items():
            if name in tensors:
                raise CheckpointError(f"The tensor {name} is in two shards.", "Download the checkpoint again.")
            tensors[name] = tensor
    return Checkpoint(folder, config, tensors, metadata)


def read_weights(folder: Path, name: str, checkpoint: Path | None = None) -> dict[str, FileTensor]:
    """Return the tensors of one file in `folder`, which may lie in a `checkpoint`; unread. Raises CheckpointError."""
    if not (folder / name).exists():
        raise _no_safetensors(folder)
    return _read_shard(_inside(folder, name, checkpoint), None)[0]


def read_json(path: Path) -> Any:
    """Parse a JSON file of bounded size. Raises CheckpointError when it is missing, too large or not JSON."""
    try:
        return _parse(read_regular(path, _MAX_JSON_BYTES).decode("utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no {path.name} in {path.parent}.", "Download the whole checkpoint.") from error
    except OSError as error:
        remedy = remedy_for(error, "Check its permissions.")
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.", remedy) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is not valid JSON.", "Download the checkpoint again.") from error


def read_object(path: Path) -> dict[str, Any]:
    """Parse a JSON file that holds an object. Raises CheckpointError as `read_json` does, and for anything else."""
    return as_object(read_json(path), path.name)


def as_object(value: object, noun: str, remedy: str = "Download the checkpoint again.") -> dict[str, Any]:
    """Return `value` itself. Raises CheckpointError when it is not an object."""
    if not isinstance(value, dict):
        raise CheckpointError(f"{noun} is not an object.", remedy)
    return value


def _shards(folder: Path, pending: Mapping[str, PendingFile]) -> list[Path]:
    # transformers takes a whole file before shards, whose index may be a leftover
    is_whole = (folder / _WHOLE).exists() and not pending
    if (folder / _INDEX).exists() and not is_whole:
        index = read_json(folder / _INDEX)
        weight_map = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise CheckpointError(f"{_INDEX} has no weight map.", "Download the checkpoint again.")
        names = sorted(set(weight_map.values()))
        return [folder / name if name in pending else _inside(folder, name) for name in names]
    for name in pending:
        return [folder / name]
    for path in (path for pattern in _SINGLES for path in folder.glob(pattern)):
        return [_inside(folder, path.name)]
    raise _no_safetensors(folder)


def _no_safetensors(folder: Path) -> CheckpointError:
    if folder.is_dir() and any(path.suffix in PICKLES for path in folder.iterdir()):
        return CheckpointError(
            f"{folder.name} holds PyTorch pickles; loading one runs whatever code it contains.",
            "Get the safetensors version of this model.",
        )
    return CheckpointError(f"There are no .safetensors files in {folder}.", "Download the whole checkpoint.")


def _inside(folder: Path, name: str, checkpoint: Path | None = None) -> Path:
    """Return the path of a shard that an index names; the name is untrusted, so it must be a plain one. A link may
    point anywhere the hub's cache keeps its files, which lies beside the folder; the target must be a file."""
    if not _SHARD_NAME.fullmatch(name):
        raise CheckpointError(
            f"The index points outside the checkpoint folder: {name!r}.", "Download the checkpoint again."
        )
    path = folder / name
    if not path.is_file():
        raise CheckpointError(f"The shard {name} is missing.", "Download the whole checkpoint.")
    target, root = path.resolve(), (checkpoint or folder).resolve()
    # in the hub's cache a link leads from snapshots/<revision> to blobs
    is_inside = target.is_relative_to(root) or target.parent == root.parent.parent / "blobs"
    if path.is_symlink() and not is_inside:
        raise CheckpointError(
            f"The shard {name} is a symlink out of the checkpoint folder.", "Copy the file into the folder."
        )
    return path


def _read_shard(path: Path, pending: PendingFile | None) -> tuple[dict[str, FileTensor], dict[str, str]]:
    try:
        source = pending or open_local(path)
        length = int.from_bytes(source.read(0, 8), "little")
        if not 2 <= length <= min(_MAX_HEADER_BYTES, source.n_bytes - 8):
            raise _broken(path, "its header does not fit the file")
        header = _parse(source.read(8, 8 + length).decode("utf-8"))
    except ModelFileError as error:
        raise CheckpointError(error.cause, error.remedy) from error
    except (ValueError, RecursionError) as error:
        raise _broken(path, "its header is not valid JSON") from error
    if not isinstance(header, dict):
        raise _broken(path, "its header is not an object")
    metadata = header.pop("__metadata__", None)
    texts = metadata.items() if isinstance(metadata, dict) else ()
    tensors = {name: _tensor(path, source, 8 + length, name, row) for name, row in header.items()}
    # without numbers: what training left of a weight that is not used, or is somewhere else
    tensors = {name: tensor for name, tensor in tensors.items() if 0 not in tensor.shape}
    sizes = ((tensor.start, tensor.stored.tensor_bytes(tensor.shape)) for tensor in tensors.values())
    spans = sorted((start, start + n_bytes) for start, n_bytes in sizes)
    if any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
        raise _broken(path, "two tensors overlap")
    return tensors, {key: value for key, value in texts if isinstance(value, str)}


def _tensor(path: Path, source: ByteSource, data_start: int, name: str, row: object) -> FileTensor:
    if not name.isprintable() or not isinstance(row, dict):
        raise _broken(path, "a tensor has an invalid name or entry")
    dtype = row.get("dtype")
    if not isinstance(dtype, str) or dtype not in STORED_TYPES:
        raise CheckpointError(
            f"The tensor {name!r} in {path.name} is stored as {str(dtype)[:32]}, which is not supported.",
            "Get the F32, F16 or BF16 version of this model.",
        )
    stored = STORED_TYPES[dtype]
    shape, offsets = _counts(row.get("shape")), _counts(row.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2:
        raise _broken(path, f"the tensor {name!r} has an invalid shape or invalid offsets")
    n_bytes = math.prod(shape) * stored.block_bytes
    if offsets[1] - offsets[0] != n_bytes or data_start + offsets[1] > source.n_bytes:
        raise _broken(
            path, f"the tensor {name!r} has offsets that do not match its size or the file (is it truncated?)"
        )
    return FileTensor(name, tuple(reversed(shape)) or (1,), stored, source, data_start + offsets[0])


def _counts(value: object) -> list[int] | None:
    """Return a list of at most five plausible sizes, or None; video models have five."""
    if not isinstance(value, list) or len(value) > 5 or not all(type(n) is int and 0 <= n < 1 << 48 for n in value):
        return None
    return value


def _parse(text: str) -> Any:
    """Parse JSON. Raises ValueError for keys that come twice and for text that UTF-8 cannot encode, RecursionError."""
    value = json.loads(text, object_pairs_hook=_no_duplicates)
    if _SURROGATE.search(text):  # a pair is a character, one alone is none
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key appears twice")
    return unique


def _broken(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path.name} is not a valid safetensors file: {what}.", "Download it again.")
