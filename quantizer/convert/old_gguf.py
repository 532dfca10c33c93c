"""GGUFs of older programs, brought up to date: what llama.cpp has since given up or reads worse.

Experts of Mixtral and Grok that are tensors of their own become one tensor for each layer. Q4_0 whose rows were laid
out for a certain processor becomes Q4_0. A vocabulary that does not name its pre-tokenizer gets the name that its
merges identify: fine-tunes add tokens, but no merges. DeepSeek's keys and values, which were one matrix, become two, so
that the cache holds what both are computed of. Every change is a warning. Sources: ggml's repack.cpp, which
interleaves rows as such files did; the vocabularies that llama.cpp keeps for its tests.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from quantizer.convert.derived_tensors import StackedTensor
from quantizer.convert.source_model import RearrangedTensor, RenamedTensor, SourceModel, SourceTensor
from quantizer.gguf.gguf_reader import ARRAY, ModelFileError
from quantizer.gguf.header import Entry, encode_entry
from quantizer.gguf.tensor_types import INTERLEAVED_ROWS, TensorType, tensor_type_named
from quantizer.gguf.validation import SEPARATE_EXPERT
from quantizer.write.dtype_conversion import to_float32


def upgraded(model: SourceModel) -> SourceModel:
    """Return a model read from a GGUF as llama.cpp reads models today; the same where nothing is outdated. Written as
    the type that it has, it loses nothing. Raises ModelFileError for experts that are incomplete or of several types,
    and for rows that cannot be interleaved."""
    current = model
    for step in (_with_pretokenizer, _with_joined_experts, _with_plain_rows, _with_cached_latents):
        current = step(current)
    if current is model:
        return model
    stored = next((_number(entry) for entry in model.entries if entry.key == "general.file_type"), None)
    return replace(current, kept_file_type=_PLAIN_FILE_TYPES.get(stored, stored))


# general.file_type of files in interleaved Q4_0 -> of Q4_0
_PLAIN_FILE_TYPES: dict[int | None, int] = dict.fromkeys((33, 34, 35), 2)
_MODEL, _PRE, _MERGES = "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.merges"
_ARRAY_HEAD_BYTES = 12  # element type and count
# SHA-256 of the merges -> architectures of files from before the name was stored, and llama.cpp's name
_KNOWN_MERGES: dict[str, tuple[frozenset[str], str]] = {
    "e890c0c2588710c48f1323345dbad79a0218df8793580cd5045047d308fe2d42": (frozenset({"command-r"}), "command-r"),
    "bba29864f94060b326cdafad1ab85c514959da87457d9795a519ea8d957f3ce4": (frozenset({"llama"}), "deepseek-coder"),
    "b9cb618623c197992e0d213395d8d86c9485aaa22825e467e9bf4b1faf32d3f7": (
        frozenset({"llama", "deepseek", "deepseek2"}),
        "deepseek-llm",
    ),
    "3b61792696adbacbbe200be5d3268f040521278c6954f329089235cf2bcfa740": (frozenset({"falcon"}), "falcon"),
    "dca569b10de5f0a468dfe0d780bc5db55facb46b3bfbd8c29c9a18d3df1cac41": (frozenset({"gpt2", "phi2"}), "gpt-2"),
    "bc7902105e960847d1c182de11e5ebd8f69434eb5f1584135d67d1aef13b3868": (
        frozenset({"gptneox", "mpt", "olmo", "stablelm"}),
        "mpt",
    ),
    "44546c8009a5993ff850e2288dbd2b0213643cd224445cd9c8c6bf452112d669": (frozenset({"llama"}), "llama-bpe"),
    "907981a313a6e78ef2223229042674a39cd4995ee4c4ed40a31b58754e82c26c": (
        frozenset({"qwen", "qwen2", "qwen2moe"}),
        "qwen2",
    ),
    "8d4f7b0bf9c947a0f6cc09a367ca4c8bf0a6da86518efe5dce0cd2f365619573": (frozenset({"refact"}), "refact"),
    "17a2c3357d047aa2bd31949766b3f6929f3c703c9e73cb6dc962334954fdf63e": (
        frozenset({"starcoder", "starcoder2"}),
        "starcoder",
    ),
}


def _with_pretokenizer(model: SourceModel) -> SourceModel:
    entries = {entry.key: entry for entry in model.entries}
    stored = _text(entries.get(_PRE))
    if _text(entries.get(_MODEL)) != "gpt2" or stored not in ("", "default"):
        return model
    merges = entries.get(_MERGES)
    is_list = merges is not None and merges.type_id == ARRAY
    sha256 = hashlib.sha256(merges.payload[_ARRAY_HEAD_BYTES:]).hexdigest() if merges and is_list else ""
    architectures, name = _KNOWN_MERGES.get(sha256, (frozenset(), ""))
    if model.shape.architecture not in architectures:
        what = "The file does not name its pre-tokenizer, and its merges match no known vocabulary"
        return (
            model if stored else _noted(model, f"{what}: llama.cpp uses its default, which may split text differently.")
        )
    what = f"named {stored!r}" if stored else "missing"
    others = (entry for entry in model.entries if entry.key != _PRE)
    changed = replace(model, entries=(*others, encode_entry(_PRE, name, "str")))
    return _noted(changed, f"The pre-tokenizer was {what}; its merges identify it as {name!r}.")


def _text(entry: Entry | None) -> str:
    return entry.payload[8:].decode("utf-8", "replace") if entry else ""


def _noted(model: SourceModel, warning: str) -> SourceModel:
    return replace(model, warnings=(*model.warnings, warning))


def _with_joined_experts(model: SourceModel) -> SourceModel:
    """Return the model with its experts in one tensor for each layer, at the place of the first."""
    experts: dict[str, dict[int, SourceTensor]] = defaultdict(dict)
    kept: dict[str, int] = {}  # the names of tensors to write, and the file that each lies in
    stops = list(accumulate(model.shard_counts or [len(model.tensors)]))
    plain: dict[str, SourceTensor] = {}
    for index, tensor in enumerate(model.tensors):
        match = SEPARATE_EXPERT.fullmatch(tensor.name)
        name = f"{match['kind']}_exps.weight" if match else tensor.name
        kept.setdefault(name, next(shard for shard, stop in enumerate(stops) if index < stop))
        if match:
            experts[name][int(match["number"])] = tensor
        else:
            plain[name] = tensor
    if not experts:
        return model
    joined = plain | {name: _joined(name, parts, model.shape.n_experts) for name, parts in experts.items()}
    counts = Counter(kept.values())
    changed = replace(
        model,
        tensors=[joined[name] for name in kept],
        shard_counts=tuple(counts[shard] for shard in range(len(stops)) if counts[shard]),
    )
    n_parts = len(model.tensors) - len(plain)
    return _noted(changed, f"{n_parts} separately stored experts are merged into {len(experts)} tensors.")


def _joined(name: str, parts: dict[int, SourceTensor], n_experts: int) -> SourceTensor:
    numbers = sorted(parts)
    first = parts[numbers[0]]
    is_alike = all((part.shape, part.stored) == (first.shape, first.stored) for part in parts.values())
    if numbers != list(range(n_experts or len(parts))) or not is_alike:
        raise ModelFileError(
            f"{name} has {len(parts)} of {n_experts} experts, or experts of different types.",
            "Convert the model again from its checkpoint.",
        )
    return StackedTensor(name, tuple(parts[number] for number in numbers))


def _with_plain_rows(model: SourceModel) -> SourceModel:
    tensors = [
        InterleavedTensor(tensor, tensor.name) if tensor.stored.name in INTERLEAVED_ROWS else tensor
        for tensor in model.tensors
    ]
    names = sorted({tensor.stored.name for tensor in model.tensors} & set(INTERLEAVED_ROWS))
    if not names:
        return model
    n_changed = sum(isinstance(tensor, InterleavedTensor) for tensor in tensors)
    return _noted(
        replace(model, tensors=tensors),
        f"{n_changed} tensors in {' and '.join(names)}, which llama.cpp no longer supports, become Q4_0 without loss.",
    )


_SCALE_BYTES, _CODE_BYTES = 2, 16
_SIGNS = np.uint8(0x88)  # what such files flip in each pair of codes


@dataclass(frozen=True, slots=True)
class InterleavedTensor(RenamedTensor):
    """Q4_0 in the order of a matrix, of an origin that interleaves the blocks of some rows."""

    def __post_init__(self) -> None:
        n_rows, _ = INTERLEAVED_ROWS[self.origin.stored.name]
        if len(self.shape) < 2 or self.shape[1] % n_rows:
            raise ModelFileError(
                f"The number of rows of {self.name} is not a multiple of {n_rows}.", "Download the file again."
            )

    @property
    def stored(self) -> TensorType:
        return tensor_type_named("Q4_0")

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        n_rows, n_run = INTERLEAVED_ROWS[self.origin.stored.name]
        row_bytes = self.stored.row_bytes(self.shape[0])
        left = b""
        for slab in self.origin.slabs(-(-rows_per_slab // n_rows) * n_rows):
            left += _plain_rows(slab, n_rows, n_run, row_bytes)
            whole = len(left) // (row_bytes * rows_per_slab) * row_bytes * rows_per_slab
            yield from (left[start:stop] for start, stop in pairwise(range(0, whole + 1, row_bytes * rows_per_slab)))
            left = left[whole:]
        if left:
            yield left


def _plain_rows(data: bytes, n_rows: int, n_run: int, row_bytes: int) -> bytes:
    """Return rows of Q4_0: of each `n_rows`, all scales of a block come first, then codes in runs of `n_run` bytes."""
    n_blocks = row_bytes // (_SCALE_BYTES + _CODE_BYTES)
    groups = np.frombuffer(data, np.uint8).reshape(-1, n_blocks, n_rows * (_SCALE_BYTES + _CODE_BYTES))
    scales = groups[..., : n_rows * _SCALE_BYTES].reshape(-1, n_blocks, n_rows, _SCALE_BYTES)
    runs = groups[..., n_rows * _SCALE_BYTES :].reshape(-1, n_blocks, _CODE_BYTES // n_run, n_rows, n_run)
    codes = runs.swapaxes(2, 3).reshape(*scales.shape[:-1], _CODE_BYTES) ^ _SIGNS
    return np.concatenate([scales, codes], axis=-1).swapaxes(1, 2).tobytes()


_FUSED = re.compile(r"(blk\.\d{1,6}\.attn_)kv_b\.weight")
_HEADS = ("attention.head_count", "attention.key_length", "attention.value_length", "rope.dimension_count")


def _with_cached_latents(model: SourceModel) -> SourceModel:
    """Return a DeepSeek model of before April 2025 with two matrices for what is computed of its cache."""
    fused = [tensor for tensor in model.tensors if _FUSED.fullmatch(tensor.name)]
    entries = {entry.key.removeprefix("deepseek2."): entry for entry in model.entries}
    if model.shape.architecture != "deepseek2" or not fused or "attention.key_length_mla" in entries:
        return model
    n_heads, key, value, rope = (_number(entries.get(name)) for name in _HEADS)
    latent, n_rows = fused[0].shape[0], n_heads * (key - rope + value)
    if not 0 < rope < key or not value or any(tensor.shape != (latent, n_rows) for tensor in fused):
        raise ModelFileError(f"The shape of {fused[0].name} contradicts the file's metadata.", "Download it again.")
    lengths = {
        "attention.head_count_kv": 1,
        "attention.key_length": latent + rope,
        "attention.value_length": latent,
        "attention.key_length_mla": key,
        "attention.value_length_mla": value,
    }
    rows = np.arange(n_rows).reshape(n_heads, -1)
    tensors: list[SourceTensor] = []
    for tensor in model.tensors:
        match = _FUSED.fullmatch(tensor.name)
        if match:
            keys, values = (f"{match[1]}{letter}_b.weight" for letter in "kv")
            tensors += [
                TurnedHeads(tensor, keys, n_heads, key - rope),
                RearrangedTensor(tensor, values, (latent, value, n_heads), rows[:, key - rope :].reshape(-1)),
            ]
        else:
            tensors.append(tensor)
    written = [encode_entry(f"deepseek2.{name}", number, "u32") for name, number in lengths.items()]
    changed = {entry.key for entry in written}
    return _noted(
        replace(
            model,
            entries=(*(entry for entry in model.entries if entry.key not in changed), *written),
            tensors=tensors,
            shard_counts=(),  # files of other lengths: one, unless a size is asked for
        ),
        f"The fused keys and values of {len(fused)} layers are split, which makes the KV cache much smaller.",
    )


def _number(entry: Entry | None) -> int:
    """Return a whole number of 32 bits, 0 for anything else."""
    return int.from_bytes(entry.payload, "little") if entry and len(entry.payload) == 4 else 0


@dataclass(frozen=True, slots=True)
class TurnedHeads(RenamedTensor):
    """The first `n_kept` rows of each of `n_heads` heads, with rows as columns, in float32; read whole."""

    n_heads: int
    n_kept: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n_kept, self.origin.shape[0], self.n_heads)

    @property
    def stored(self) -> TensorType:
        return tensor_type_named("F32")

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        n_columns, n_rows = self.origin.shape
        numbers = to_float32(b"".join(self.origin.slabs(n_rows)), self.origin.stored, n_columns)
        heads = numbers.reshape(self.n_heads, -1, n_columns)[:, : self.n_kept].swapaxes(1, 2).reshape(-1, self.n_kept)
        for start in range(0, len(heads), rows_per_slab):
            yield heads[start : start + rows_per_slab].tobytes()
