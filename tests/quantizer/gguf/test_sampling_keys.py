from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.sampling import NUMBER_RANGES, SamplingOptions
from quantizer.gguf.header import read_header
from quantizer.gguf.sampling_keys import checked_number, sampling_of_config, sampling_of_header
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.convert.test_checkpoint_source import converted
from tests.quantizer.gguf_files import tiny_llama

# The sampling part of ten models' generation_config.json as their makers published it, and what it means here.
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "Qwen3-0.6B": (
        {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    ),
    "Qwen2.5-7B-Instruct": (
        {"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repeat_penalty": 1.05},
    ),
    "Llama-3.2-3B-Instruct": (
        {"bos_token_id": 128000, "do_sample": True, "eos_token_id": [128001, 128008], "temperature": 0.6, "top_p": 0.9},
        {"temperature": 0.6, "top_p": 0.9},
    ),
    "gemma-3-4b-it": (
        {"cache_implementation": "hybrid", "do_sample": True, "top_k": 64, "top_p": 0.95},
        {"top_k": 64, "top_p": 0.95},
    ),
    "SmolLM2-135M-Instruct": ({"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2}, {}),
    "phi-4": ({"_from_model_config": True, "bos_token_id": 100257, "eos_token_id": [100257, 100265]}, {}),
    "Mistral-Small-3.2": ({"bos_token_id": 1, "do_sample": True, "temperature": 0.15}, {"temperature": 0.15}),
    "DeepSeek-R1": (
        {"_from_model_config": True, "do_sample": True, "temperature": 0.6, "top_p": 0.95},
        {"temperature": 0.6, "top_p": 0.95},
    ),
    "gpt-oss-20b": ({"bos_token_id": 199998, "do_sample": True, "eos_token_id": [200002, 199999]}, {}),
    "GLM-4.6": ({"do_sample": True, "temperature": 1.0, "top_p": 0.95}, {"temperature": 1.0, "top_p": 0.95}),
}
NONSENSE = [math.nan, math.inf, -math.inf, 1e30, -0.5, "0.7", True, [0.7], {"value": 1}, "", 10**400]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_generation_config_is_read_as_its_makers_mean_it(name: str) -> None:
    config, expected = PUBLISHED[name]
    stated = sampling_of_config(config)
    assert stated.options == expected
    assert stated.ignored == ()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_converted_checkpoint_has_its_makers_sampling_under_llama_cpps_keys(tmp_path: Path, name: str) -> None:
    config, expected = PUBLISHED[name]
    folder = TinyLlama().write(tmp_path / "model")
    options = {key: value for key, value in config.items() if "token_id" not in key}  # of another vocabulary
    (folder / "generation_config.json").write_text(json.dumps(options))
    header = converted(folder)
    assert sampling_of_header(header).options == expected
    written = {key for key in header.fields if key.startswith("general.sampling.")}
    known = {value for key, value in vars(gguf.Keys.General).items() if key.startswith("SAMPLING_")}
    assert len(written) == len(expected)
    assert written <= known


def test_a_model_that_is_not_sampled_is_greedy() -> None:
    assert sampling_of_config({"do_sample": False, "temperature": 0.6, "top_p": 0.9}).options["temperature"] == 0


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "mirostat_tau"])
@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: str(value)[:9])
def test_nonsense_is_left_out_with_a_word(name: str, value: object) -> None:
    stated = sampling_of_config({name: value, "typical_p": 0.9})
    assert stated.options == {"typical_p": 0.9}
    assert len(stated.ignored) == 1
    assert stated.ignored[0].startswith(f"{name} in generation_config.json is ")
    assert len(stated.ignored[0]) < 120


@pytest.mark.parametrize("value", NONSENSE[:-1])
def test_nonsense_in_a_checkpoint_does_not_stop_its_conversion(tmp_path: Path, value: object) -> None:
    folder = TinyLlama().write(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"temperature": value, "top_k": 7}))
    assert sampling_of_header(converted(folder)).options == {"top_k": 7}


def _with_keys(path: Path, **keys: Any) -> Path:
    def edit(writer: gguf.GGUFWriter) -> None:
        for name, value in keys.items():
            kind = {str: writer.add_string, bool: writer.add_bool, int: writer.add_int32, float: writer.add_float32}
            kind[type(value)](f"general.sampling.{name}", value)

    return tiny_llama(path, edit)


def test_the_keys_of_a_gguf_are_read_and_rounded_as_they_were_written(tmp_path: Path) -> None:
    path = _with_keys(tmp_path / "m.gguf", temp=0.6, top_k=20, penalty_last_n=-1, penalty_repeat=1.05, mirostat=2)
    assert sampling_of_header(read_header(path)).options == {
        "temperature": 0.6,
        "top_k": 20,
        "penalty_last_n": -1,
        "repeat_penalty": 1.05,
        "mirostat": 2,
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -3.0, 1e30, "hot", True])
def test_a_hostile_key_of_a_gguf_is_left_out_with_a_word(tmp_path: Path, value: object) -> None:
    stated = sampling_of_header(read_header(_with_keys(tmp_path / "m.gguf", temp=value, min_p=0.02)))
    assert stated.options == {"min_p": 0.02}
    assert stated.ignored[0].startswith("general.sampling.temp is ")


@pytest.mark.parametrize("name", ["top_k", "top-k", "topk"])
def test_a_sequence_switches_off_the_stages_that_it_leaves_out(tmp_path: Path, name: str) -> None:
    path = _with_keys(tmp_path / "m.gguf", sequence=f"{name};temp", top_k=30, top_p=0.5)
    options = sampling_of_header(read_header(path)).options
    assert (options["top_k"], options["top_p"], options["min_p"], options["repeat_penalty"]) == (30, 1.0, 0.0, 1.0)
    assert "temperature" not in options


@pytest.mark.parametrize("sequence", ["", "nothing;known", 7, "top_k;" * 100, "top_k;evil"])
def test_a_sequence_that_makes_no_sense_is_left_out_with_a_word(sequence: object) -> None:
    stated = sampling_of_config({"sequence": sequence})
    assert stated.options == {}
    assert len(stated.ignored) == 1


def test_all_of_the_tokens_has_two_spellings() -> None:
    assert sampling_of_config({"top_k": -1}).options == sampling_of_config({"top_k": 0}).options == {"top_k": 0}


_VALUES = st.one_of(st.floats(), st.integers(), st.text(), st.booleans(), st.none(), st.lists(st.integers()))


@given(st.dictionaries(st.sampled_from([*NUMBER_RANGES, "repetition_penalty", "do_sample", "sequence"]), _VALUES))
def test_whatever_a_file_states_the_engine_takes_what_is_read_of_it(config: dict[str, Any]) -> None:
    stated = sampling_of_config(config)
    SamplingOptions(**stated.options)  # type: ignore[arg-type]  # raises for a value outside its range


@given(st.sampled_from(list(NUMBER_RANGES)), st.floats(allow_nan=True) | st.integers())
def test_a_checked_number_is_finite_and_within_the_engines_range(name: str, value: float) -> None:
    number = checked_number(name, value)
    if number is not None:
        lowest, highest = NUMBER_RANGES[name]
        assert lowest <= number <= highest
