from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from offload.advice.vllm import Cluster, checkpoint_of, cluster_for, vllm_command
from offload.devices.machine import Machine
from offload.footprint.model import PlannedModel, RunConfig
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

GIB = 1 << 30
SETTING = RunConfig(n_ctx=32_768, n_cells=32_768)
TWO_CARDS, NO_CARD = MACHINES["2 × RTX 3090, 64 GB RAM"], MACHINES["processor only, 32 GB"]


def model(name: str, url: str = "") -> PlannedModel:
    header = header_of(name)
    if url:
        count = header.fields[f"{header.architecture}.block_count"]
        header = replace(header, fields={**header.fields, "general.source.repo_url": replace(count, value=url)})
    return PlannedModel(header, header.tensors)


def cluster(name: str, machine: Machine, url: str = "") -> Cluster | None:
    planned = model(name, url)
    return cluster_for(planned, planned.profile(SETTING), machine)


def test_machines_like_this_one_share_layers_within_and_split_them_between() -> None:
    found = cluster("qwen3-30b-a3b", TWO_CARDS, "https://huggingface.co/Qwen/Qwen3-30B-A3B")
    assert found is not None
    assert (found.n_machines, found.n_gpus) == (2, 2)  # 61 GB of F16 and 3 of cache, 19.6 GiB of a card used
    command = vllm_command(model("qwen3-30b-a3b", "https://huggingface.co/Qwen/Qwen3-30B-A3B"), found, 32_768)
    assert command == (
        "vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 2 --pipeline-parallel-size 2 --max-model-len 32768 "
        "--distributed-executor-backend ray"
    )


def test_without_a_card_here_the_usual_machine_is_assumed_and_one_card_is_no_cluster() -> None:
    assert cluster("qwen3-30b-a3b", NO_CARD) is None
    planned = model("qwen3-30b-a3b")
    tensors = tuple(replace(tensor, n_bytes=tensor.n_bytes * 8) for tensor in planned.tensors)
    found = cluster_for(replace(planned, tensors=tensors), planned.profile(SETTING), NO_CARD)
    assert found is not None
    assert (found.n_machines, found.n_gpus, found.is_like_this) == (1, 4, False)
    assert "ray" not in vllm_command(planned, found, 4096)


def test_gpus_that_share_a_layer_divide_its_heads() -> None:
    cards = tuple(replace(TWO_CARDS.gpus[0], name=f"CUDA{index}") for index in range(5))
    found = cluster("lfm2-350m", Machine(TWO_CARDS.host, cards))
    assert found is not None
    assert found.n_gpus == 4


@pytest.mark.parametrize("url", ["https://huggingface.co/a/b; rm -rf ~", "https://evil.example/a/b", "-x/y", "a/b"])
def test_only_a_repository_of_the_hub_is_named_as_a_checkpoint(url: str) -> None:
    assert checkpoint_of(model("qwen3-0.6b", url)) == ""


def test_a_file_with_a_strange_name_stays_one_word_of_the_command() -> None:
    planned = model("qwen3-0.6b")
    path = planned.header.path.with_name("my model; x.gguf")
    odd = replace(planned, header=replace(planned.header, path=path))
    words = shlex.split(vllm_command(odd, Cluster(1, 2, 24 * GIB, is_like_this=True), 4096))
    assert words[2] == str(path)


def test_a_cluster_is_described_in_words() -> None:
    assert str(Cluster(3, 2, 24 * GIB, is_like_this=True)) == "3 machines like this with 2 GPUs of 24.0 GiB"
    assert str(Cluster(1, 4, 80 * GIB, is_like_this=False)) == "a machine with 4 GPUs of 80.0 GiB"
