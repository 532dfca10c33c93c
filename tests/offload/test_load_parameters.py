from __future__ import annotations

import re
from dataclasses import replace

import pytest
from model_outlines import header_of

from offload.kv_cache import KvTypes
from offload.load_parameters import load_parameters
from offload.model import PlannedModel
from offload.placement import Placement
from offload.profile import ModelProfile, Setting

SETTING = Setting(n_ctx=4096, n_cells=4096, kv_types=KvTypes())
WHOLE = Placement(gpus=("A", "B", "C"), gpu_layers=(20, 0, 5), n_split=0, n_crossings=2, token_s=1.0)


def profile(name: str) -> ModelProfile:
    header = header_of(name)
    return PlannedModel(header, header.tensors).profile(SETTING)


def test_the_device_of_the_last_layers_comes_last_and_an_idle_one_not_at_all() -> None:
    parameters = load_parameters(profile("llama-3.1-8b"), WHOLE)
    assert parameters.n_gpu_layers == 25
    assert parameters.devices == ("C", "A")
    assert parameters.tensor_split == (5, 20)
    assert parameters.host_pattern == ""


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_the_pattern_matches_exactly_the_bytes_that_stay_behind(name: str) -> None:
    model = profile(name)
    placement = replace(WHOLE, n_split=len(model.layers) - 25 + 3)
    pattern = re.compile(load_parameters(model, placement).host_pattern)
    kept = sum(tensor.n_bytes for tensor in header_of(name).tensors if pattern.search(tensor.name))
    assert kept == 3 * model.layers[0].movable_bytes


def test_layers_that_are_not_on_a_gpu_need_no_pattern() -> None:
    assert load_parameters(profile("qwen3-30b-a3b"), replace(WHOLE, n_split=10)).host_pattern == ""
