from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.quantizer.tokenizer_files import vocabulary_of


def test_special_tokens_are_found_by_setting_and_by_name(tmp_path: Path) -> None:
    assert vocabulary_of(tmp_path).special_ids == {
        "bos": 258,
        "eos": 260,
        "eot": 260,
        "fim_pre": 261,
        "fim_mid": 262,
        "fim_suf": 263,
    }


def test_the_models_config_names_the_end_when_the_tokenizer_does_not(tmp_path: Path) -> None:
    found = vocabulary_of(tmp_path, lambda _parsed, settings: settings.pop("eos_token"))
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
def test_the_post_processor_gives_the_tokens_around_a_text(
    tmp_path: Path, ids: tuple[str, ...], expected: tuple[bool, bool]
) -> None:
    found = vocabulary_of(tmp_path, lambda parsed, _settings: parsed.update(post_processor=template(*ids)))
    assert (found.additions["bos"], found.additions["eos"]) == expected


def test_a_setting_overrides_the_post_processor(tmp_path: Path) -> None:
    assert vocabulary_of(tmp_path, lambda _parsed, settings: settings.update(add_bos_token=True)).additions["bos"]


def test_a_text_ends_with_the_frames_token_and_an_answer_with_the_settings(tmp_path: Path) -> None:
    found = vocabulary_of(tmp_path, lambda parsed, _: parsed.update(post_processor=template("A", "<|endoftext|>")))
    assert (found.special_ids["eos"], found.special_ids["eot"]) == (258, 260)
    assert found.additions["eos"] is True


def test_tokens_that_generation_stops_at_fill_the_two_places_there_are(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [260, 258, 265, 266]}))

    def edit(parsed: dict[str, Any], settings: dict[str, Any]) -> None:
        names = {258: "<|endoftext|>", 260: "<|stop|>", 265: "<|user|>", 266: "<|observation|>"}
        parsed["added_tokens"] = [{"id": i, "content": name, "special": True} for i, name in names.items()]
        settings["eos_token"] = "<|endoftext|>"

    found = vocabulary_of(tmp_path, edit, config={"vocab_size": 272})
    assert [found.special_ids[role] for role in ("eos", "eot", "eom")] == [258, 260, 265]


def test_generation_settings_name_the_end_when_nothing_else_does(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 259}))
    found = vocabulary_of(tmp_path, lambda _parsed, settings: settings.pop("eos_token"), config={"vocab_size": 272})
    assert found.special_ids["eos"] == 259


@pytest.mark.parametrize(("kind", "is_separated"), [("BertProcessing", False), ("RobertaProcessing", True)])
def test_older_steps_name_both_ends_and_imply_a_separator(tmp_path: Path, kind: str, is_separated: bool) -> None:
    step = {"type": kind, "cls": ["<|im_start|>", 259], "sep": ["<|im_end|>", 260]}

    def edit(parsed: dict[str, Any], settings: dict[str, Any]) -> None:
        parsed["post_processor"] = step
        settings["bos_token"] = "<|im_start|>"

    assert vocabulary_of(tmp_path, edit).additions == {"bos": True, "eos": True, "sep": is_separated}


def test_an_id_that_is_no_token_is_no_role(tmp_path: Path) -> None:
    found = vocabulary_of(tmp_path, config={"vocab_size": 272, "pad_token_id": 271, "unk_token_id": 5_000})
    assert {"pad", "unk"}.isdisjoint(found.special_ids)


def test_a_step_of_no_named_kind_puts_nothing_around_texts(tmp_path: Path) -> None:
    step = {"type": [["BertProcessing"]], "cls": ["<|im_start|>", 259], "sep": ["<|im_end|>", 260]}
    assert not any(vocabulary_of(tmp_path, lambda parsed, _: parsed.update(post_processor=step)).additions.values())
