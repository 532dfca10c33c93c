from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import tokenizer, tokenizer_config

from quantizer.config import Config
from quantizer.errors import CheckpointError
from quantizer.pretokenizers import recognise
from quantizer.tokenizers import TokenType, Vocabulary, read_vocabulary

Edit = Callable[[dict[str, Any], dict[str, Any]], object]
CONFIG = Config({"vocab_size": 272, "eos_token_id": [258, 260]})


def vocabulary(folder: Path, *edits: Edit) -> Vocabulary:
    parsed, settings = tokenizer(), tokenizer_config()
    for edit in edits:
        edit(parsed, settings)
    (folder / "tokenizer.json").write_text(json.dumps(parsed))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return read_vocabulary(folder, CONFIG)


def test_tokens_stand_at_their_ids_and_gaps_are_padded(tmp_path: Path) -> None:
    found = vocabulary(tmp_path)
    assert found.tokens[0] == "Ā"
    assert (found.tokens[256], found.types[256]) == ("th", TokenType.NORMAL)
    assert (found.tokens[260], found.types[260]) == ("<|im_end|>", TokenType.CONTROL)
    assert (found.tokens[271], found.types[271]) == ("[PAD271]", TokenType.UNUSED)


def test_merges_are_pairs_with_their_spaces_encoded(tmp_path: Path) -> None:
    def edit(parsed: dict[str, Any], _settings: dict[str, Any]) -> None:
        parsed["model"]["merges"] = ["t h", [" ", "t"]]

    assert vocabulary(tmp_path, edit).merges == ("t h", "Ġ t")


def test_special_tokens_are_found_by_setting_and_by_name(tmp_path: Path) -> None:
    assert vocabulary(tmp_path).special_ids == {
        "bos": 258,
        "eos": 260,
        "eot": 260,
        "fim_pre": 261,
        "fim_mid": 262,
        "fim_suf": 263,
    }


def test_the_models_config_names_the_end_when_the_tokenizer_does_not(tmp_path: Path) -> None:
    found = vocabulary(tmp_path, lambda _parsed, settings: settings.pop("eos_token"))
    assert found.special_ids["eos"] == 258


def template(*ids: str) -> dict[str, Any]:
    single = [
        {"Sequence": {"id": "A", "type_id": 0}} if name == "A" else {"SpecialToken": {"id": name, "type_id": 0}}
        for name in ids
    ]
    return {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing", "single": single}]}


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (("<|endoftext|>", "A"), (True, False)),
        (("A", "<|im_end|>"), (False, True)),
        (("<|im_start|>", "A"), (False, False)),
        (("A",), (False, False)),
    ],
)
def test_the_post_processor_says_what_surrounds_a_text(
    tmp_path: Path, ids: tuple[str, ...], expected: tuple[bool, bool]
) -> None:
    found = vocabulary(tmp_path, lambda parsed, _settings: parsed.update(post_processor=template(*ids)))
    assert (found.add_bos, found.add_eos) == expected


def test_a_setting_overrides_the_post_processor(tmp_path: Path) -> None:
    assert vocabulary(tmp_path, lambda _parsed, settings: settings.update(add_bos_token=True)).add_bos


def test_the_chat_template_may_lie_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    found = vocabulary(tmp_path, lambda _parsed, settings: settings.pop("chat_template"))
    assert found.chat_template == "{{ messages }}"


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
    assert recognise({"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}, ignore_merges) == name


def test_an_unknown_pre_tokenizer_is_printed() -> None:
    with pytest.raises(CheckpointError, match=r"splits: \\w\+; ignore_merges: false"):
        recognise({"pre_tokenizer": split(r"\w+")}, False)


def test_a_split_that_removes_text_is_not_taken_for_a_known_one() -> None:
    removing = split(CONTRACTIONS + r"|\p{N}" + TAIL) | {"behavior": "Removed"}
    with pytest.raises(CheckpointError, match="Removed"):
        recognise({"pre_tokenizer": removing}, False)


BAD: dict[str, Edit] = {
    "SentencePiece, not byte-level": lambda parsed, _: parsed["model"].update(byte_fallback=True),
    "kind Unigram": lambda parsed, _: parsed["model"].update(type="Unigram"),
    "rewrites text": lambda parsed, _: parsed.update(normalizer={"type": "Lowercase"}),
    "no merges": lambda parsed, _: parsed["model"].pop("merges"),
    "odd merge": lambda parsed, _: parsed["model"]["merges"].append(["a", "b", "c"]),
    "added tokens in tokenizer.json are not sound": lambda parsed, _: parsed["added_tokens"].append({"id": "x"}),
    "vocabulary in tokenizer.json is not sound": lambda parsed, _: parsed["model"]["vocab"].update(x=-1),
    "do not fit the model's 272": lambda parsed, _: parsed["model"]["vocab"].update(x=5),
    "is not an object": lambda parsed, _: parsed.update(model=[]),
}


@pytest.mark.parametrize("cause", BAD)
def test_tokenizers_that_cannot_be_converted_are_refused(tmp_path: Path, cause: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        vocabulary(tmp_path, BAD[cause])
    assert cause in caught.value.cause
