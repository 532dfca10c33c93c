"""No map of characters that passes leads llama.cpp beyond its end."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.validation import validate_gguf
from quantizer.gguf.vocabulary_validation import is_sound_map
from tests.quantizer.gguf_files import tiny_llama

BLOCK = 256


def node(base: int = 0, label: int = 0, *, is_leaf: bool = False) -> int:
    """An entry of the array: base in bits 10 to 30, label in the lowest 8, leaf in bit 8."""
    return (base << 10) | (is_leaf << 8) | label


def character_map(nodes: Iterable[int], replacements: bytes = b"\0") -> bytes:
    packed = b"".join(struct.pack("<I", entry) for entry in nodes)
    return struct.pack("<I", len(packed)) + packed + replacements


def one_letter(offset: int, *, base: int = BLOCK) -> list[int]:
    """The array that replaces "a" by the text at `offset`; its value is at the base of its entry."""
    nodes = [0] * (2 * BLOCK)
    place = ord("a")
    nodes[place] = node(place ^ base, place, is_leaf=True)
    if base < len(nodes):
        nodes[base] = (1 << 31) | offset
    return nodes


def walk(content: bytes, text: bytes) -> None:
    """Read `text` as llama.cpp does; raises IndexError where that throws."""
    n_array = struct.unpack_from("<I", content)[0]
    nodes = struct.unpack_from(f"<{n_array // 4}I", content, 4)
    replacements = content[4 + n_array :]

    def base(index: int) -> int:
        return (nodes[index] >> 10) << ((nodes[index] & (1 << 9)) >> 6)

    place, found = base(0), None
    for byte in text:
        place ^= byte
        if not byte or nodes[place] & ((1 << 31) | 0xFF) != byte:
            break
        is_leaf = nodes[place] >> 8 & 1
        place ^= base(place)
        if is_leaf:
            found = nodes[place] & ~(1 << 31)
    if found is not None and (found >= len(replacements) or b"\0" not in replacements[found:]):
        raise IndexError(found)


def throws(content: bytes, text: bytes) -> bool:
    try:
        walk(content, text)
    except IndexError:
        return True
    return False


def test_a_map_of_one_letter_is_sound() -> None:
    content = character_map(one_letter(2), b"x\0y\0")
    assert is_sound_map(content)
    walk(content, b"abc")


@pytest.mark.parametrize(
    "content",
    [
        character_map(one_letter(4), b"x\0y\0"),
        character_map(one_letter(0, base=4 * BLOCK), b"x\0"),
        character_map([node(base=BLOCK)] + [0] * (BLOCK - 1)),
        character_map([0] * 8),
    ],
    ids=["offset beyond the replacements", "base beyond the array", "root beyond the array", "less than a block"],
)
def test_a_map_that_leads_beyond_its_end_is_not_sound(content: bytes) -> None:
    assert not is_sound_map(content)
    assert any(throws(content, bytes([byte, byte])) for byte in range(1, 256))


@pytest.mark.parametrize(
    "content", [b"", b"\0\0", struct.pack("<I", 1 << 31) + bytes(8), character_map([0] * BLOCK, b"x")]
)
def test_a_map_that_lies_about_its_size_or_does_not_end_is_not_sound(content: bytes) -> None:
    assert not is_sound_map(content)


@given(
    st.lists(st.integers(0, (1 << 13) - 1) | st.integers(1 << 31, (1 << 31) + 9), min_size=1, max_size=40),
    st.lists(st.binary(min_size=1, max_size=6), max_size=20),
)
def test_no_text_leads_beyond_a_map_that_passes(entries: list[int], texts: list[bytes]) -> None:
    nodes = (entries * BLOCK)[: 2 * BLOCK]
    content = character_map(nodes, b"abcd\0")
    if is_sound_map(content):
        for text in texts:
            walk(content, text)


Edit = Callable[[gguf.GGUFWriter], None]


def vocabulary(model: str, *, byte_type: int = 1, **entries: int | bool) -> Edit:
    """The 272 tokens as those of another kind of tokenizer, all but one of the type NORMAL, with more entries."""

    def edit(writer: gguf.GGUFWriter) -> None:
        for key in ("model", "token_type", "eos_token_id", "merges"):
            writer.kv_data[0].pop(f"tokenizer.ggml.{key}")
        writer.add_tokenizer_model(model)
        writer.add_token_types([byte_type, *[1] * 271])
        for key, value in entries.items():
            add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
            add(f"tokenizer.ggml.{key}", value)

    return edit


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (vocabulary("t5", add_bos_token=True), "bos"),
        (vocabulary("t5", add_bos_token=True, bos_token_id=272), "bos"),
        (vocabulary("gemma4"), "bos"),
        (vocabulary("gemma4", bos_token_id=1, add_eos_token=True), "eos"),
    ],
)
def test_a_token_around_texts_that_the_vocabulary_lacks_would_abort_llama_cpp(
    tmp_path: Path, edit: Edit, place: str
) -> None:
    with pytest.raises(ModelFileError, match=f"adds a {place} token to prompts but defines none"):
        validate_gguf(tiny_llama(tmp_path / "m.gguf", edit))


@pytest.mark.parametrize(
    "edit",
    [
        vocabulary("t5"),
        vocabulary("t5", add_bos_token=True, bos_token_id=3),
        vocabulary("t5", add_bos_token=False, bos_token_id=4_000),
        vocabulary("bert"),
        vocabulary("gpt2", add_bos_token=True, bos_token_id=4_000),
        vocabulary("gemma4", bos_token_id=1),
    ],
)
def test_a_token_that_is_there_or_that_llama_cpp_has_a_default_for_is_honest(tmp_path: Path, edit: Edit) -> None:
    validate_gguf(tiny_llama(tmp_path / "m.gguf", edit))


def test_a_byte_of_a_tokenizer_without_bytes_would_abort_llama_cpp(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="which its tokenizer does not support"):
        validate_gguf(tiny_llama(tmp_path / "m.gguf", vocabulary("bert", byte_type=6)))
