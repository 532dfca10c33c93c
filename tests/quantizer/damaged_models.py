"""Model files with one thing wrong each, by family: what a converter must refuse, and refuse in a sentence."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from quantizer.gguf.gguf_reader import ArrayRef
from quantizer.gguf.header import Entry, Header, OutputTensor, encode_entry, encode_header, read_header
from quantizer.gguf.tensor_types import TENSOR_TYPES, file_type_named
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.gguf_files import tiny_llama

__all__ = ["Damage", "Originals", "damages"]

_HUGE = (1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
_SIZES = ("block_count", "embedding_length", "attention.head_count", "context_length", "feed_forward_length")


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing wrong: `write` makes the model in an empty folder and returns the path to name."""

    family: str
    what: str
    write: Callable[[Path], Path]


@dataclass(frozen=True, slots=True)
class Originals:
    """Sound models to damage, which are the controls too: a GGUF, the same in shards, a checkpoint folder."""

    gguf: Path
    shards: tuple[Path, ...]
    checkpoint: Path

    @classmethod
    def make(cls, folder: Path) -> Originals:
        """Write the three of them into `folder`."""
        model = tiny_llama(folder / "tiny.gguf")
        (folder / "split").mkdir()
        planned = plan(model, file_type_named("F16"), folder / "split" / "m.gguf", PlanOptions(max_shard_bytes=150_000))
        execute(planned, 1, False, lambda _event: None)
        checkpoint = TinyLlama(n_layers=1, n_shards=2).write(folder / "checkpoint")
        return cls(model, tuple(shard.path for shard in planned.shards), checkpoint)


def damages(originals: Originals, n_each: int, seed: int = 1) -> Iterator[Damage]:
    """Yield `n_each` damages of every family. The same seed gives the same ones."""
    for number, (family, make) in enumerate(_FAMILIES.items()):
        chance = random.Random(seed * 1000 + number)
        for index in range(n_each):
            what, write = make(originals, chance)
            yield Damage(family, f"{index}: {what}", write)


_Damaged = tuple[str, Callable[[Path], Path]]


def _file(data: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "m.gguf").write_bytes(data)
        return folder / "m.gguf"

    return write


def _header(originals: Originals, chance: random.Random) -> _Damaged:
    data = bytearray(originals.gguf.read_bytes())
    end = read_header(originals.gguf).data_offset
    kind = chance.choice(("magic", "version", "tensors", "entries", "cut", "cut data", "swapped"))
    match kind:
        case "magic":
            data[chance.randrange(4)] ^= chance.randrange(1, 256)
        case "version":
            data[4:8] = struct.pack("<I", chance.choice((0, 1, 4, 99, 1 << 24, 3 << 24)))
        case "tensors" | "entries":
            at = 8 if kind == "tensors" else 16
            data[at : at + 8] = struct.pack("<Q", chance.choice(_HUGE))
        case "cut":
            del data[chance.randrange(end) :]
        case "cut data":
            del data[chance.randrange(end, len(data) - 32) :]
        case "swapped":
            data = bytearray(data[:4] + data[4:8][::-1] + data[8:])
    return kind, _file(bytes(data))


def _key_values(originals: Originals, chance: random.Random) -> _Damaged:
    header = read_header(originals.gguf)
    data = bytearray(originals.gguf.read_bytes())
    key, field = chance.choice(list(header.fields.items()))
    if isinstance(field.value, ArrayRef) and chance.random() < 0.7:
        at, values = field.start + 4, _HUGE
        if chance.random() < 0.5:
            data[field.start : field.start + 4] = struct.pack("<I", chance.choice((13, 99, 1 << 31)))
            return f"{key}: elements of no type", _file(bytes(data))
    elif isinstance(field.value, str):
        at, values = field.start, _HUGE
    else:
        data[field.start - 4 : field.start] = struct.pack("<I", chance.choice((13, 64, 1 << 31)))
        return f"{key}: of no type", _file(bytes(data))
    data[at : at + 8] = struct.pack("<Q", chance.choice(values))
    return f"{key}: longer than the file", _file(bytes(data))


def _tensors(originals: Originals, chance: random.Random) -> _Damaged:
    header = read_header(originals.gguf)
    tensors = [OutputTensor(tensor.name, tensor.shape, TENSOR_TYPES[tensor.type_id]) for tensor in header.tensors]
    index = chance.randrange(len(tensors))
    victim = tensors[index]
    kind = chance.choice(
        ("twice", "no name", "control characters", "long name", "huge", "flat", "integers", "odd type")
    )
    match kind:
        case "twice":
            tensors[index] = replace(victim, name=tensors[index - 1].name)
        case "no name":
            tensors[index] = replace(victim, name="")
        case "control characters":
            tensors[index] = replace(victim, name=f"\x1b[{index}m")
        case "long name":
            tensors[index] = replace(victim, name="x" * chance.randrange(64, 4000))
        case "huge":
            tensors[index] = replace(victim, shape=(victim.shape[0] << chance.randrange(20, 40), *victim.shape[1:]))
        case "flat":
            tensors[index] = replace(victim, shape=(*victim.shape, *[1] * 4))
        case "integers":
            tensors[index] = replace(victim, kind=TENSOR_TYPES[chance.choice((24, 25, 26, 27, 28))])
        case "odd type":
            return f"{victim.name}: no type", _file(
                _patched(header, index, -12, "<I", chance.choice((4, 5, 99, 1 << 31)))
            )
    return f"{victim.name}: {kind}", _file(_rebuilt(header, _entries(header), tensors))


def _offsets(originals: Originals, chance: random.Random) -> _Damaged:
    header = read_header(originals.gguf)
    index = chance.randrange(1, len(header.tensors))
    right = header.tensors[index].offset
    wrong = chance.choice((0, right - 32, right + 32, right + 1, *_HUGE))
    return f"{header.tensors[index].name} at {wrong}", _file(_patched(header, index, -8, "<Q", wrong))


def _vocabularies(originals: Originals, chance: random.Random) -> _Damaged:
    header = read_header(originals.gguf)
    prefix = "tokenizer.ggml."
    n_tokens = header.array_ref(f"{prefix}tokens").count
    changes: tuple[tuple[str, object, str], ...] = (
        ("tokens", [f"t{i}" for i in range(chance.randrange(n_tokens))], "str[]"),
        ("tokens", list(range(n_tokens)), "i32[]"),
        ("token_type", [1] * chance.randrange(n_tokens), "i32[]"),
        ("token_type", ["1"] * n_tokens, "str[]"),
        ("merges", ["a" * chance.randrange(1, 9)], "str[]"),
        ("merges", [1] * chance.randrange(1, 9), "i32[]"),
    )
    name, value, type_name = chance.choice(changes)
    return f"{name} {type_name}", _file(_changed(header, encode_entry(prefix + name, value, type_name)))


def _hyperparameters(originals: Originals, chance: random.Random) -> _Damaged:
    header = read_header(originals.gguf)
    architecture = header.architecture
    if chance.random() < 0.2:
        value = chance.choice(("", "\x1b[31m", "no such/thing", "x" * 99))
        return f"architecture {value!r}", _file(_changed(header, encode_entry("general.architecture", value, "str")))
    key = f"{architecture}.{chance.choice(_SIZES)}"
    wrong, type_name = chance.choice((((1 << 32) - 1, "u32"), (-1, "i32"), ("many", "str"), (0.5, "f32")))
    return f"{key} = {wrong}", _file(_changed(header, encode_entry(key, wrong, type_name)))


def _shards(originals: Originals, chance: random.Random) -> _Damaged:
    kind = chance.choice(("missing", "cut", "empty", "another", "later", "renamed", "count"))
    victim = chance.randrange(1, len(originals.shards))

    def write(folder: Path) -> Path:
        paths = [Path(shutil.copy(path, folder)) for path in originals.shards]
        match kind:
            case "missing":
                paths[victim].unlink()
            case "cut":
                data = paths[victim].read_bytes()
                paths[victim].write_bytes(data[: chance.randrange(len(data) - 64)])
            case "empty":
                paths[victim].write_bytes(b"")
            case "another":
                shutil.copy(paths[victim - 1], paths[victim])
            case "later":
                return paths[victim]
            case "renamed":
                return paths[0].rename(folder / "m.gguf")
            case "count":
                header = read_header(paths[0])
                count = chance.choice((len(paths) + 1, 60_000))
                paths[0].write_bytes(_changed(header, encode_entry("split.count", count, "u16")))
        return paths[0]

    return f"{kind} {victim}", write


def _safetensors(originals: Originals, chance: random.Random) -> _Damaged:
    kind = chance.choice(("length", "json", "dtype", "shape", "offsets", "cut", "depth"))

    def write(folder: Path) -> Path:
        path = _copied(originals, folder) / "model-00001-of-00002.safetensors"
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        victim = header[chance.choice([name for name in header if name != "__metadata__"])]
        match kind:
            case "length":
                path.write_bytes(chance.choice(_HUGE).to_bytes(8, "little") + data[8:])
                return path.parent
            case "json":
                path.write_bytes(data[:8] + b"{" * length + data[8 + length :])
                return path.parent
            case "cut":
                path.write_bytes(data[: chance.randrange(len(data))])
                return path.parent
            case "dtype":
                victim["dtype"] = chance.choice(("F64", "I3", "", None, 7, "BOOL"))
            case "shape":
                victim["shape"] = chance.choice(([-1, 2], [1 << 50, 2], "all", [[1]], [0], [1] * 99))
            case "offsets":
                victim["data_offsets"] = chance.choice(([0], [8, 0], [0, 1 << 50], [-8, 8], None, ["0", "8"]))
            case "depth":
                victim["shape"] = json.loads("[" * 900 + "]" * 900)
        encoded = json.dumps(header).encode()
        path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data[8 + length :])
        return path.parent

    return kind, write


def _folders(originals: Originals, chance: random.Random) -> _Damaged:
    bad_names = ("../m.safetensors", "/etc/passwd", "C:\\m.safetensors", "a\0b.safetensors", "m.bin", "", "..")
    changes: tuple[tuple[str, str, object], ...] = (
        *(("model.safetensors.index.json", "weight_map", {"w": name}) for name in bad_names),
        ("model.safetensors.index.json", "weight_map", chance.choice(([], None, {"w": 7}))),
        ("config.json", "architectures", chance.choice((["NoSuchModel"], [], None, "LlamaForCausalLM", [7]))),
        ("config.json", "num_hidden_layers", chance.choice((0, -1, 1 << 40, "many", 2.5, None))),
        ("config.json", "num_attention_heads", chance.choice((0, -4, 3, "many"))),
        ("config.json", "hidden_size", chance.choice((0, -256, 128, 1 << 40, "wide"))),
        ("config.json", "intermediate_size", chance.choice((0, 1 << 40, "wide"))),
        ("tokenizer.json", "model", chance.choice(({}, None, [], {"type": "NoSuchModel"}, {"type": "BPE"}))),
    )
    name, key, value = chance.choice(changes)

    def write(folder: Path) -> Path:
        copy = _copied(originals, folder)
        document = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps({**document, key: value}))
        return copy

    return f"{name} {key} {value!r:.40}", write


_FAMILIES: dict[str, Callable[[Originals, random.Random], _Damaged]] = {
    "headers": _header,
    "key-values": _key_values,
    "tensors": _tensors,
    "offsets": _offsets,
    "vocabularies": _vocabularies,
    "hyperparameters": _hyperparameters,
    "shards": _shards,
    "safetensors": _safetensors,
    "folders": _folders,
}


def _copied(originals: Originals, folder: Path) -> Path:
    return Path(shutil.copytree(originals.checkpoint, folder / "model"))


def _entries(header: Header) -> list[Entry]:
    read = header.source.read
    return [Entry(key, field.type_id, read(field.start, field.stop)) for key, field in header.fields.items()]


def _changed(header: Header, entry: Entry) -> bytes:
    """The file with one entry in place of the one of the same key."""
    tensors = [OutputTensor(tensor.name, tensor.shape, TENSOR_TYPES[tensor.type_id]) for tensor in header.tensors]
    return _rebuilt(header, [*(item for item in _entries(header) if item.key != entry.key), entry], tensors)


def _rebuilt(header: Header, entries: list[Entry], tensors: list[OutputTensor]) -> bytes:
    data = header.source.read(header.data_offset, header.file_bytes)
    return encode_header(entries, tensors) + data


def _patched(header: Header, index: int, at: int, form: str, value: int) -> bytes:
    """The file with a number written `at` bytes from the end of the row of the tensor at `index`."""
    data = bytearray(header.source.read(0, header.file_bytes))
    name = header.tensors[index].name.encode()
    row = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    start = row + 4 + 8 * len(header.tensors[index].shape) + 12 + at
    data[start : start + struct.calcsize(form)] = struct.pack(form, value)
    return bytes(data)
