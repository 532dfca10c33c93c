from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.load.load_check import LOAD_CHECK
from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.file_names import NO_PROJECTOR
from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.job import JobRequest, run_job
from quantizer.write.load_check import check_load, write_without_weights
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize_plan import QuantizePlan, plan
from tests.quantizer.architectures.test_architectures import OUTLINES
from tests.quantizer.checkpoints import write_hollow_checkpoint

pytestmark = pytest.mark.slow

READER = Path(__file__).with_name("unread_tensors.py")


def planned(folder: Path, outline: dict[str, Any], **options: Any) -> QuantizePlan:
    source = write_hollow_checkpoint(folder / "checkpoint", outline["config"], outline["tensors"])
    options = {"projector": NO_PROJECTOR} | options
    return plan(source, file_type_named("F16"), folder / "m.gguf", PlanOptions(**options))


def test_llama_cpp_reads_every_tensor_of_every_architecture_that_is_converted(tmp_path: Path) -> None:
    paths: dict[str, str] = {}
    for name, outline in OUTLINES.items():
        folder = tmp_path / name
        (folder / "out").mkdir(parents=True)
        path = write_without_weights(planned(folder, outline), folder / "out")
        assert path is not None
        paths[name] = str(path)
    reader = subprocess.run(
        [sys.executable, READER], input="\n".join(paths.values()), capture_output=True, text=True, check=True
    )
    answers = dict(zip(paths, map(json.loads, reader.stdout.splitlines()), strict=True))
    assert {name: answer for name, answer in answers.items() if answer != []} == {}


@pytest.mark.parametrize(
    ("name", "setting", "unread"),
    [
        ("llama", "attention_bias", ""),
        *((name, "attention_bias", "blk.0.attn_output.bias") for name in ("qwen2", "qwen3", "qwen3moe", "cohere2")),
        *((name, "attention_bias", "blk.0.attn_output.bias") for name in ("olmo2", "olmo3", "smollm3", "gemma")),
        *((name, "attention_bias", "blk.0.attn_output.bias") for name in ("gemma2", "gemma3")),
        ("deepseek3", "attention_bias", "blk.0.attn_kv_b.bias, blk.0.attn_output.bias, blk.0.attn_q_a.bias"),
        ("smollm3", "mlp_bias", "blk.0.ffn_down.bias, blk.0.ffn_gate.bias, blk.0.ffn_up.bias"),
    ],
)
def test_a_bias_that_the_graph_does_not_add_is_named(name: str, setting: str, unread: str, tmp_path: Path) -> None:
    outline = OUTLINES[name]
    part = {"attention_bias": "self_attn", "mlp_bias": "mlp"}[setting]
    projection = re.compile(rf"\.0\.{part}\.\w+_proj\w*\.weight$")
    biases = {
        key.replace("weight", "bias"): shape[:1] for key, shape in outline["tensors"].items() if projection.search(key)
    }
    config = outline["config"] | {setting: True}
    plan = planned(tmp_path, {"config": config, "tensors": outline["tensors"] | biases})
    with pytest.raises(CheckpointError, match=unread.replace(".", r"\.")) if unread else nullcontext():
        check_load(plan, LOAD_CHECK, pytest.fail)


def test_what_llama_cpp_lacks_is_said_in_its_words(tmp_path: Path) -> None:
    whole = planned(tmp_path, OUTLINES["llama"])
    shard = whole.shards[0]
    lacking = replace(shard, header=shard.header.replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_xx.weight"))
    with pytest.raises(CheckpointError, match=r"would not load\. .*tensor 'blk\.0\.ffn_up\.weight' not found"):
        check_load(replace(whole, shards=(lacking,)), LOAD_CHECK, pytest.fail)


def test_nothing_is_written_of_a_model_that_does_not_load(tmp_path: Path) -> None:
    outline = OUTLINES["qwen3"]
    tensors = outline["tensors"] | {"model.layers.0.self_attn.o_proj.bias": [64]}
    source = write_hollow_checkpoint(tmp_path / "checkpoint", outline["config"], tensors)
    output = tmp_path / "out" / "m.gguf"
    output.parent.mkdir()
    request = JobRequest(str(source), "F16", str(output), 1, is_overwriting=False, load_check=LOAD_CHECK)
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_output\.bias"):
        list(run_job(request))
    assert list(output.parent.iterdir()) == []
