from __future__ import annotations

from typing import Any

import pytest

from quantizer.checkpoint.config import CheckpointError
from quantizer.tokenizers.pretokenizers import preparation, pretokenizer_name


def name_of(pre_tokenizer: dict[str, Any], ignore_merges: bool) -> str:
    return pretokenizer_name(preparation({"pre_tokenizer": pre_tokenizer}).cuts, ignore_merges)


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


BYTES = {"type": "ByteLevel", "use_regex": False}
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@pytest.mark.parametrize(
    ("steps", "ignore_merges", "name"),
    [
        ([split(CONTRACTIONS + r"|\p{N}{1,3}" + TAIL), BYTES], True, "llama-bpe"),
        ([split(CONTRACTIONS + r"|\p{N}{1,3}" + TAIL), BYTES], False, "smaug-bpe"),
        ([split(CONTRACTIONS + r"|\p{N}" + TAIL), BYTES], False, "qwen2"),
        ([{"type": "ByteLevel", "use_regex": True}], False, "gpt-2"),
        ([{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}], False, "smollm"),
    ],
)
def test_pre_tokenizers_are_recognised_by_what_they_do(
    steps: list[dict[str, Any]], ignore_merges: bool, name: str
) -> None:
    assert name_of({"type": "Sequence", "pretokenizers": steps}, ignore_merges) == name


def test_an_unknown_pre_tokenizer_is_printed() -> None:
    with pytest.raises(CheckpointError, match=r"splits: \\w\+; ignore_merges: false"):
        name_of(split(r"\w+"), False)


def test_a_split_that_removes_text_is_not_taken_for_a_known_one() -> None:
    removing = split(CONTRACTIONS + r"|\p{N}" + TAIL) | {"behavior": "Removed"}
    with pytest.raises(CheckpointError, match="Removed"):
        name_of(removing, False)


def test_taking_what_matches_is_cutting_when_everything_matches() -> None:
    inverted = split(CONTRACTIONS + r"|\p{N}" + TAIL) | {"behavior": "Removed", "invert": True}
    assert name_of(inverted, False) == "qwen2"


def test_taking_what_matches_is_no_cutting_when_something_does_not() -> None:
    inverted = split(r"\p{N}{1,3}") | {"behavior": "Removed", "invert": True}
    with pytest.raises(CheckpointError, match="Removed, inverted"):
        name_of(inverted, False)


def test_a_space_put_before_a_text_is_not_overlooked() -> None:
    with pytest.raises(CheckpointError, match="after a space"):
        name_of({"type": "ByteLevel", "add_prefix_space": True}, False)
