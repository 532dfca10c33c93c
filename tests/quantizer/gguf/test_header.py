from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantizer.gguf.gguf_reader import ArrayRef, ModelFileError
from quantizer.gguf.header import Header, parse_header, read_header
from tests.quantizer.gguf_files import raw_gguf, raw_string, tiny_llama
from tests.quantizer.memory_source import Memory


def parse(data: bytes) -> Header:
    return parse_header(Memory(data), Path("memory.gguf"))


def tensor_row(name: bytes, shape: tuple[int, ...], type_id: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return raw_string(name) + dims + struct.pack("<IQ", type_id, offset)


def text_field(key: bytes, value: bytes) -> bytes:
    return raw_string(key) + struct.pack("<I", 8) + raw_string(value)


def test_header_agrees_with_the_reference_reader(llama_gguf: Path) -> None:
    header, reference = read_header(llama_gguf), gguf.GGUFReader(llama_gguf)
    ours = {tensor.name: tensor for tensor in header.tensors}
    assert header.data_offset == reference.data_offset
    assert list(ours) == [tensor.name for tensor in reference.tensors]
    for theirs in reference.tensors:
        tensor = ours[theirs.name]
        assert tensor.shape == tuple(theirs.shape.tolist())
        assert tensor.type_id == theirs.tensor_type
        assert tensor.n_bytes == theirs.n_bytes
        assert header.data_offset + tensor.offset == theirs.data_offset


def test_every_value_agrees_with_the_reference_reader(llama_gguf: Path) -> None:
    header, reference = read_header(llama_gguf), gguf.GGUFReader(llama_gguf)
    keys = [key for key in reference.fields if not key.startswith("GGUF.")]
    assert list(header.metadata) == keys
    for key in keys:
        value = header.metadata[key]
        ours = header.array(key) if isinstance(value, ArrayRef) else value
        assert ours == reference.fields[key].contents()


@pytest.mark.parametrize("kind", ["add_uint8", "add_int8", "add_uint16", "add_int16", "add_uint64", "add_int64"])
def test_integers_of_every_width_are_read(tmp_path: Path, kind: str) -> None:
    path = tiny_llama(tmp_path / "m.gguf", lambda writer: getattr(writer, kind)("test.value", 100))
    assert read_header(path).integer("test.value") == 100


def test_floats_bools_and_text_are_read(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_float64("test.double", 0.1)
        writer.add_bool("test.yes", True)
        writer.add_string("test.text", "grüß dich 🐑")

    metadata = read_header(tiny_llama(tmp_path / "m.gguf", edit)).metadata
    assert (metadata["test.double"], metadata["test.yes"], metadata["test.text"]) == (0.1, True, "grüß dich 🐑")


def test_arrays_are_walked_and_built_only_on_demand(llama_gguf: Path) -> None:
    header = read_header(llama_gguf)
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, ArrayRef)
    assert tokens.count == 272
    assert header.array("tokenizer.ggml.tokens")[259] == "<|im_end|>"
    assert header.array("tokenizer.ggml.token_type")[:2] == [1, 1]


def test_asking_for_a_missing_array_raises_key_error(llama_gguf: Path) -> None:
    with pytest.raises(KeyError):
        read_header(llama_gguf).array("general.architecture")


@given(st.lists(st.text(), max_size=40))
def test_strings_come_back_whatever_they_hold(texts: list[str]) -> None:
    encoded = b"".join(raw_string(text.encode()) for text in texts)
    array = raw_string(b"test.texts") + struct.pack("<IIQ", 9, 8, len(texts)) + encoded
    assert parse(raw_gguf([array], [])).array("test.texts") == texts


def test_strings_longer_than_the_window_are_walked() -> None:
    texts = [b"a" * (3 << 20), b"b", b"c" * (2 << 20)]
    array = raw_string(b"test.texts") + struct.pack("<IIQ", 9, 8, 3) + b"".join(map(raw_string, texts))
    header = parse(raw_gguf([array, text_field(b"test.after", b"x")], []))
    assert header.strings("test.texts") == texts
    assert header.text("test.after") == "x"


def test_tensor_bytes_follow_the_block_size() -> None:
    header = parse(raw_gguf([], [tensor_row(b"a.weight", (512, 3), type_id=12)], bytes(864)))
    assert header.tensors[0].n_bytes == 2 * 144 * 3
    assert header.tensors[0].n_elements == 1536


def test_version_2_is_read() -> None:
    assert parse(raw_gguf([text_field(b"general.name", b"old")], [], version=2)).version == 2


MALFORMED = {
    "appears twice": raw_gguf([text_field(b"k", b"v")] * 2, []),
    "version 1": raw_gguf([], [], version=1),
    "version 9": raw_gguf([], [], version=9),
    "big-endian": raw_gguf([], [], version=0x03000000),
    "is not UTF-8": raw_gguf([text_field(b"\xff\xfe", b"v")], []),
    "is empty or has control": raw_gguf([text_field(b"k\x1b[31m", b"v")], []),
    "unknown type 77": raw_gguf([raw_string(b"k") + struct.pack("<I", 77)], []),
    "elements of the unknown type 9": raw_gguf([raw_string(b"k") + struct.pack("<IIQ", 9, 9, 1)], []),
    "power of two": raw_gguf([raw_string(b"general.alignment") + struct.pack("<II", 4, 48)], []),
    "the unknown type 4": raw_gguf([], [tensor_row(b"t", (32,), type_id=4)], bytes(128)),
    "not a multiple of": raw_gguf([], [tensor_row(b"t", (100,), type_id=12)], bytes(128)),
    "has 5 dimensions": raw_gguf([], [tensor_row(b"t", (1, 1, 1, 1, 1))], bytes(128)),
    "impossible shape": raw_gguf([], [tensor_row(b"t", (1 << 40, 1 << 40))], bytes(128)),
    "impossible shape (0": raw_gguf([], [tensor_row(b"t", (0, 4))], bytes(128)),
    "starts at 4": raw_gguf([], [tensor_row(b"t", (4,), offset=4)], bytes(128)),
    "starts at 0, not at 32": raw_gguf([], [tensor_row(b"t", (4,)), tensor_row(b"u", (4,))], bytes(128)),
    "tensor 't' appears twice": raw_gguf([], [tensor_row(b"t", (4,)), tensor_row(b"t", (4,), offset=32)], bytes(128)),
    "is truncated": raw_gguf([], [tensor_row(b"t", (64,))], bytes(128)),
    "claims 9223372036854775807 tensors": struct.pack("<4sIQQ", b"GGUF", 3, (1 << 63) - 1, 0),
    "claims 9223372036854775807 metadata": struct.pack("<4sIQQ", b"GGUF", 3, 0, (1 << 63) - 1),
    "in the middle of its header": raw_gguf([raw_string(b"k") + struct.pack("<IIQ", 9, 6, 1 << 40)], []),
    "strings where": raw_gguf([raw_string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 40)], []),
    "a string claims": raw_gguf([raw_string(b"k") + struct.pack("<IQ", 8, 1 << 62)], []),
    "64 bytes where": raw_gguf([], [tensor_row(b"t" * 64, (4,))], bytes(128)),
}


@pytest.mark.parametrize("cause", MALFORMED)
def test_malformed_headers_are_refused_with_their_cause(cause: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        parse(MALFORMED[cause])
    assert cause in caught.value.cause


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (b"", "Download it again"),
        (b"Hello, this is a text file", "begins with GGUF"),
        (b"PK\x03\x04pickle", "safetensors"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
    ],
)
def test_other_kinds_of_file_are_named_in_the_remedy(tmp_path: Path, content: bytes, remedy: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as caught:
        read_header(path)
    assert remedy in caught.value.remedy


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="is a folder"):
        read_header(tmp_path)


def test_every_truncation_is_refused(llama_gguf: Path) -> None:
    data = llama_gguf.read_bytes()
    rng = random.Random(1)
    for length in (*range(40), *(rng.randrange(40, len(data) - 32) for _ in range(100))):
        with pytest.raises(ModelFileError):
            parse(data[:length])


def test_a_file_that_changes_after_reading_is_a_typed_error(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    header = read_header(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ModelFileError, match="changed"):
        header.array("tokenizer.ggml.tokens")


def test_numbers_in_an_array_come_back_as_written(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 9, dtype=np.float32)
    path = tiny_llama(tmp_path / "m.gguf", lambda writer: writer.add_array("test.floats", values.tolist()))
    assert read_header(path).array("test.floats") == values.tolist()
