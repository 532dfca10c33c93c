"""Damages the vocabularies inside GGUFs in many ways, and lets every reader and llama.cpp take each mutant.

    uv run python tests/battery/damage/fuzz_vocabulary.py [--mutations 500] [--seed 1]

The files have a tokenizer of each kind. A mutant must be refused by all readers, or by none: then llama.cpp, in a
process of its own, must load or refuse its vocabulary, turn all tokens into text and hostile texts into tokens, and
not die. Seeded.
"""

from __future__ import annotations

import argparse
import collections
import random
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantizer.gguf.gguf_reader import ARRAY, SCALAR_FORMATS, STRING, ArrayRef
from quantizer.gguf.header import Entry, Header, OutputTensor, encode_header, read_header
from quantizer.gguf.tensor_types import TENSOR_TYPES, file_type_named
from quantizer.write.quantize_plan import plan
from tests.battery.damage.fuzz_checkpoint import checkpoints, write_header
from tests.battery.damage.gguf_readers import GgufReaders, disagreement
from tests.battery.damage.vocabularies import VocabularyChild
from tests.battery.tally import finish

_PREFIX = "tokenizer.ggml."
_MODELS = ("llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "gemma4", "x", "")
_TEXTS = (b"", b"\0", b"\xff\xfe", b" ", b"a b", b"<0x41>", b"<0xZZ>", b"[EMPTY_3]", b"\n", b"x" * 70_000, "▁".encode())
_NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7, -1, 1 << 31, (1 << 32) - 1)
_FLOATS = (0.0, -1e30, 1e30, float("nan"), float("inf"), -float("inf"))


@dataclass(frozen=True, slots=True)
class _File:
    """The parts of a file that is damaged: metadata as encoded, arrays of text decoded, and what follows them."""

    header: Header
    entries: dict[str, Entry]

    @classmethod
    def read(cls, path: Path) -> _File:
        header = read_header(path)
        read = header.source.read
        entries = {key: Entry(key, item.type_id, read(item.start, item.stop)) for key, item in header.fields.items()}
        return cls(header, entries)

    def write(self, path: Path, entries: Sequence[Entry]) -> None:
        tensors = [OutputTensor(row.name, row.shape, TENSOR_TYPES[row.type_id]) for row in self.header.tensors]
        head = encode_header(entries, tensors)
        with path.open("wb") as file:
            file.write(head)
            file.truncate(len(head) + self.header.file_bytes - self.header.data_offset)


def damaged(file: _File, chance: random.Random) -> tuple[str, list[Entry]]:
    """Return what was done to the vocabulary of `file`, one or two things, and its new metadata."""
    entries, done = dict(file.entries), []
    for _ in range(chance.choice((1, 1, 1, 2))):
        key = chance.choice([key for key in entries if key.startswith(_PREFIX)])
        what, entry = _damage(file, entries[key], chance)
        entries.pop(key)
        if entry is not None:
            entries[key] = entry
        done.append(f"{key.removeprefix(_PREFIX)} {what}")
    return ", ".join(done), list(entries.values())


def _damage(file: _File, entry: Entry, chance: random.Random) -> tuple[str, Entry | None]:
    if chance.random() < 0.05 and entry.key != f"{_PREFIX}tokens":  # no tokenizer at all is honest
        return "missing", None
    if entry.type_id == STRING:
        name = chance.choice(_MODELS).encode() if entry.key.endswith(".model") else chance.choice(_TEXTS)
        return f"= {name[:20]!r}", Entry(entry.key, STRING, struct.pack("<Q", len(name)) + name)
    if entry.type_id != ARRAY:
        return "another number", Entry(entry.key, entry.type_id, _number(entry.type_id, chance))
    ref = file.header.fields[entry.key].value
    if not isinstance(ref, ArrayRef) or chance.random() < 0.1:  # of bytes: anything may come of it
        at = chance.randrange(len(entry.payload))
        data = bytearray(entry.payload)
        data[at] = chance.randrange(256)
        return f"byte {at}", Entry(entry.key, ARRAY, bytes(data))
    is_text = ref.element_type == STRING
    texts: list[bytes] = file.header.strings(entry.key) if is_text else []
    items = [_text(text) for text in texts] if is_text else _packed(file.header, entry.key, ref.element_type)
    what, changed = _changed(items, lambda: _element(ref.element_type, texts, chance), chance)
    return what, Entry(entry.key, ARRAY, struct.pack("<IQ", ref.element_type, len(changed)) + b"".join(changed))


def _changed(items: list[bytes], element: Callable[[], bytes], chance: random.Random) -> tuple[str, list[bytes]]:
    """Return what was done to a list of encoded elements, and the new list."""
    at, other = chance.randrange(len(items)), chance.randrange(len(items))
    match chance.choice(("element", "element", "element", "some", "shorter", "longer", "swapped", "alike", "shuffled")):
        case "element":
            items[at] = element()
            return f"{at} changed", items
        case "some":
            for index in chance.sample(range(len(items)), chance.randrange(1, len(items) + 1)):
                items[index] = element()
            return "many changed", items
        case "shorter":
            return f"cut at {at}", items[:at]
        case "longer":
            return "longer", [*items, *(element() for _ in range(chance.randrange(1, 40)))]
        case "swapped":
            items[at], items[other] = items[other], items[at]
            return f"{at} and {other} swapped", items
        case "alike":
            items[at] = items[other]
            return f"{at} as {other}", items
        case _:
            chance.shuffle(items)
            return "shuffled", items


def _element(type_id: int, texts: Sequence[bytes], chance: random.Random) -> bytes:
    if type_id != STRING:
        return _number(type_id, chance)
    picked = chance.choice((*_TEXTS, chance.choice(texts), chance.choice(texts) + b" " + chance.choice(texts)))
    return _text(picked if chance.random() < 0.7 else chance.randbytes(chance.randrange(1, 12)))


def _number(type_id: int, chance: random.Random) -> bytes:
    form = SCALAR_FORMATS[type_id]
    if form[1:] in "fd":
        return struct.pack(form, chance.choice((*_FLOATS, chance.uniform(-30, 0))))
    n_bits = 8 * struct.calcsize(form)
    value = chance.choice((*_NUMBERS, chance.randrange(1 << n_bits))) % (1 << n_bits)
    return value.to_bytes(n_bits // 8, "little") if form[1:] != "?" else bytes([value % 2])


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _packed(header: Header, key: str, type_id: int) -> list[bytes]:
    return [struct.pack(SCALAR_FORMATS[type_id], number) for number in header.numbers(key)]


def outcome(path: Path, readers: GgufReaders, vocabularies: VocabularyChild) -> str:
    """Return what became of a mutant. Anything but these outcomes escapes as an error."""
    verdicts = readers.verdicts(path)
    if found := disagreement(verdicts):
        return f"the readers disagree: {found}"
    return "refused" if any(verdicts.values()) else f"accepted, llama.cpp: {vocabularies.answer(path)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    tally: collections.Counter[str] = collections.Counter()
    n_failed = 0
    with (
        tempfile.TemporaryDirectory() as scratch,
        GgufReaders(Path(scratch)) as readers,
        VocabularyChild() as vocabularies,
    ):
        path, files = Path(scratch, "mutant.gguf"), []
        for folder in checkpoints(Path(scratch, "originals")):
            original = Path(scratch, f"{folder.name}.gguf")
            write_header(plan(folder, file_type_named("Q8_0"), original), original)
            files.append((folder.name, _File.read(original)))
        for _ in range(options.mutations):
            name, file = chance.choice(files)
            what, entries = damaged(file, chance)
            file.write(path, entries)
            result = outcome(path, readers, vocabularies)
            tally[result.partition(": the")[0][:60]] += 1
            if result.startswith("the readers") or "died" in result:
                n_failed += 1
                print(f"{name}, {what}: {result}", flush=True)
    for result, count in tally.most_common():
        print(f"{count:5}  {result}")
    finish(options.mutations, n_failed, options.seed)


if __name__ == "__main__":
    main()
