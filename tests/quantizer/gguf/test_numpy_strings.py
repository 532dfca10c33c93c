"""Arrays of very many strings in numpy, compared with the simple reading of each."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantizer.gguf import gguf_reader as strings
from quantizer.gguf import gguf_reader as wire
from quantizer.gguf.gguf_reader import STRING, ArrayRef, ListStrings, ModelFileError, decode_strings
from quantizer.gguf.numpy_strings import NumpyStrings, skip_strings
from quantizer.gguf.validation import validate_gguf
from tests.quantizer.damaged_models import Originals, damages
from tests.quantizer.gguf_files import raw_string

# what lengths are made of, at their edges, and what a reading could take for one
_PIECES = st.sampled_from([b"", b"\0", b" ", b"a", b"\x07" + bytes(7), bytes(6), bytes(8), b"x" * 255, b"y" * 256])
_STRINGS = st.lists(st.lists(_PIECES | st.binary(max_size=20), max_size=3).map(b"".join), max_size=40)


def encoded(texts: list[bytes]) -> bytes:
    return b"".join(map(raw_string, texts))


def answers(whole: strings.StringArray, texts: list[bytes]) -> list[object]:
    read = whole.up_to_nul()
    wanted = {b"", b"a", b"\n", *texts[:3]}
    some = list(range(0, len(texts), 2))
    return [
        *(whole.n_distinct(), whole.longest_bytes(), whole.empty_indices(), whole.present(wanted), whole.select(some)),
        *(read.n_distinct(), read.longest_bytes(), read.empty_indices(), read.present(wanted), read.select(some)),
        *(whole.all_contain_after_first(b" "), read.all_contain_after_first(b" ")),
    ]


@given(_STRINGS)
def test_very_many_strings_are_as_each_of_them_is(texts: list[bytes]) -> None:
    many = NumpyStrings.of(encoded(texts), len(texts))
    assert many.strings() == texts
    assert answers(many, texts) == answers(ListStrings(texts), texts)


@given(st.lists(st.binary(min_size=1, max_size=300).filter(lambda text: b"\0" not in text), min_size=1))
def test_text_is_found_without_a_walk(texts: list[bytes]) -> None:
    data = encoded(texts)
    assert skip_strings(data, 0, len(texts)) == (len(data), 0)


@given(_STRINGS, st.integers(0, 2000), st.integers(0, 50))
def test_a_window_is_left_where_walking_would_leave_it(texts: list[bytes], n_bytes: int, count: int) -> None:
    window = encoded(texts)[:n_bytes]
    at, left = skip_strings(window, 0, count)
    assert wire._walk_strings(window, at, left) == wire._walk_strings(window, 0, count)


def test_strings_whose_keys_are_the_same_are_compared_to_the_end() -> None:
    texts = [b"12345678" + bytes([65 + i]) * 9 + b"12345678" for i in range(20)] * 2
    assert NumpyStrings.of(encoded(texts), len(texts)).n_distinct() == 20


@pytest.mark.parametrize(
    "data", [b"", b"\x05" + bytes(7) + b"abc", struct.pack("<Q", 1 << 63), encoded([b"a"]) + b"\1"]
)
def test_an_array_that_ends_early_is_an_error(data: bytes) -> None:
    with pytest.raises(struct.error):
        NumpyStrings.of(data, 2)


def cause_of(path: Path) -> str:
    try:
        validate_gguf(path)
    except ModelFileError as error:
        return error.cause
    return ""


@pytest.mark.slow
def test_damaged_models_are_refused_as_they_are_string_by_string(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    originals = Originals.make(tmp_path)
    kinds = {"headers", "key-values", "vocabularies"}
    wrong = [damage for damage in damages(originals, 40) if damage.family in kinds]
    paths = [originals.gguf]
    for index, damage in enumerate(wrong):
        (tmp_path / str(index)).mkdir()
        paths.append(damage.write(tmp_path / str(index)))
    plain = [cause_of(path) for path in paths]
    for module in (wire, strings):
        monkeypatch.setattr(module, "MANY", 1)
    assert [cause_of(path) for path in paths] == plain
    assert plain[0] == ""
    assert sum(map(bool, plain)) == len(wrong)


def _repeated(tokens: list[bytes], chance: random.Random) -> list[bytes]:
    return [*tokens[:-1], chance.choice(tokens[:-1])]


def _with_nul(tokens: list[bytes], chance: random.Random) -> list[bytes]:
    return [*tokens[:-1], chance.choice(tokens[:-1]) + b"\0more"]


def _two_empty(tokens: list[bytes], chance: random.Random) -> list[bytes]:
    return [b"", b"", *tokens[2:]]


def _named_as_empty(tokens: list[bytes], chance: random.Random) -> list[bytes]:
    return [b"", b"[EMPTY_0]", *tokens[2:]]


@pytest.mark.parametrize("change", [_repeated, _with_nul, _two_empty, _named_as_empty])
def test_a_vocabulary_of_many_is_counted_as_one_of_few(
    change: Callable[[list[bytes], random.Random], list[bytes]],
) -> None:
    from quantizer.gguf.vocabulary_validation import _n_distinct

    tokens = change([b"token%d" % index for index in range(wire.MANY)], random.Random(3))
    data = encoded(tokens)
    many = strings.string_array(ArrayRef(STRING, len(tokens), 0, len(data)), data)
    assert isinstance(many, NumpyStrings)
    assert decode_strings(ArrayRef(STRING, len(tokens), 0, len(data)), data) == tokens
    assert _n_distinct(many.up_to_nul()) == _n_distinct(ListStrings(tokens).up_to_nul())
