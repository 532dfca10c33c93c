from __future__ import annotations

from app.engine.media.chunks import (
    MediaChunk,
    MediaLayout,
    PlacedChunk,
    is_placeholder,
    n_whole,
    placeholder_tokens,
    prompt_tokens,
)
from app.engine.quoted import Spans

ONE, OTHER = MediaChunk("a" * 64, 3, 3), MediaChunk("b" * 64, 2, 2)
LAYOUTS = {"<1>": MediaLayout(((1,), ONE, (2,))), "<2>": MediaLayout((OTHER,))}
BEGIN = 9


def tokenize(text: str, is_first: bool, _quoted: Spans = ()) -> list[int]:
    return [BEGIN] * is_first + [*text.encode()]


def test_each_marker_becomes_its_layout_and_only_the_first_text_begins_a_prompt() -> None:
    prompt = prompt_tokens("x<1>y<2>", LAYOUTS, tokenize)
    assert prompt.tokens == [BEGIN, 120, 1, *placeholder_tokens(ONE), 2, 121, *placeholder_tokens(OTHER)]
    assert prompt.chunks == (PlacedChunk(3, ONE), PlacedChunk(8, OTHER))
    assert [placed.end for placed in prompt.chunks] == [6, 10]


def test_a_prompt_that_begins_with_a_picture_begins_as_any_other() -> None:
    assert prompt_tokens("<2>x", LAYOUTS, tokenize).tokens == [BEGIN, *placeholder_tokens(OTHER), 120]


def test_a_picture_may_stand_in_a_prompt_twice() -> None:
    assert [placed.begin for placed in prompt_tokens("<2><2>", LAYOUTS, tokenize).chunks] == [1, 3]


def test_text_without_markers_is_tokenized_as_a_whole() -> None:
    assert prompt_tokens("<3>", LAYOUTS, tokenize).tokens == tokenize("<3>", True)
    assert prompt_tokens("<1>", {}, tokenize).tokens == tokenize("<1>", True)


def test_each_text_gets_its_quoted_parts() -> None:
    seen: list[tuple[str, Spans]] = []

    def note(text: str, _is_first: bool, quoted: Spans) -> list[int]:
        seen.append((text, quoted))
        return [*text.encode()]

    prompt_tokens("abc<1>def<2>", LAYOUTS, note, ((1, 7), (8, 9)))
    assert seen == [("abc", ((1, 3),)), ("def", ((0, 1), (2, 3)))]


def test_placeholders_come_from_the_content_and_are_negative_numbers_of_32_bits() -> None:
    tokens = placeholder_tokens(ONE)
    assert tokens == placeholder_tokens(MediaChunk("a" * 64, 3, 1)) != placeholder_tokens(MediaChunk("c" * 64, 3, 3))
    assert all(is_placeholder(token) and token >= -(2**31) for token in tokens)
    assert not any(map(is_placeholder, (0, 7, -1, -100_000)))


def test_a_prefix_never_ends_within_a_picture() -> None:
    tokens = prompt_tokens("x<1>y", LAYOUTS, tokenize).tokens
    assert [n_whole(tokens, n_tokens) for n_tokens in range(len(tokens) + 1)] == [0, 1, 2, 3, 3, 3, 6, 7, 8]
