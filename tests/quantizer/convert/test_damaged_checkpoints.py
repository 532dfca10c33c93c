"""A sample of `tests/battery/damage/fuzz_checkpoint.py`, and what it found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.quantize_plan import plan
from tests.battery.damage.fuzz_checkpoint import checkpoints, damage, is_sound, outcome
from tests.battery.damage.vocabularies import VocabularyChild
from tests.quantizer.checkpoints import TinyLlama


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused_or_becomes_a_file_that_loads(tmp_path: Path) -> None:
    chance = random.Random(21)
    output = tmp_path / "out.gguf"
    with VocabularyChild() as vocabularies:
        for number in range(12):
            for mutant in checkpoints(tmp_path / str(number)):
                what = damage(mutant, chance)
                result = outcome(mutant, output, vocabularies)
                assert is_sound(result), f"{what}: {result}"


@pytest.mark.parametrize(
    ("setting", "value", "cause"),
    [
        ("rms_norm_eps", 600.0, r"layer_norm_rms_epsilon is 600\.0, outside"),
        ("rms_norm_eps", 1e308, "does not fit the type f32"),
        ("rope_theta", -28_804, "freq_base is -28804.0, outside"),
    ],
)
def test_a_setting_that_llama_cpp_could_not_survive_is_refused_before_anything_is_written(
    tmp_path: Path, setting: str, value: float, cause: str
) -> None:
    folder = TinyLlama(n_layers=1, extra_config={setting: value}).write(tmp_path / "model")
    with pytest.raises(CheckpointError, match=cause):
        plan(folder, file_type_named("F16"), tmp_path / "out.gguf")
