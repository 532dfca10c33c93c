from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.load.dry_run import DryRunRequest, compute_by_device
from app.engine.model_task import run_child
from app.protocol.codec import decode, encode
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel
from offload.footprint.profile import RunConfig
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.validation import tensors_of, validate_gguf
from quantizer.system.errors import EngineError

SETTING = RunConfig(n_ctx=1024, n_cells=1024, kv_types=KvTypes(), n_sequences=4, is_fused=False)


def dry_bytes(path: Path) -> int:
    return compute_by_device(DryRunRequest(path, SETTING))["CPU"]


def test_a_dry_run_returns_the_compute_buffers_of_a_context(tiny_model: Path) -> None:
    scores = 4 * 1024 * 512 * 4  # heads, cells, tokens of a micro-batch, F32
    assert scores < dry_bytes(tiny_model) < 2 * scores


def test_a_plan_uses_the_bytes_of_the_dry_run(tiny_model: Path) -> None:
    header = validate_gguf(tiny_model)
    model = PlannedModel(header, tensors_of(header))
    n_bytes = dry_bytes(tiny_model)
    assert model.measured(SETTING, n_bytes).profile(SETTING).compute_bytes == pytest.approx(n_bytes, rel=1e-6)


def test_a_file_that_llama_cpp_rejects_is_an_error_with_its_output(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(EngineError, match=r"cannot load no\.gguf: .*failed") as raised:
        dry_bytes(path)
    assert str(tmp_path) not in str(raised.value)


def test_an_abort_of_llama_cpp_names_its_source_without_the_folder_it_was_built_in() -> None:
    program = (
        "from quantizer.system.child_request import serve_request\nfrom app.engine.llama.native import ggml_function\n"
        "serve_request(lambda _, _send: ggml_function('ggml_abort')(b'/tmp/pip-x/ggml.c', 12, b'no room'))"
    )
    with pytest.raises(EngineError, match=r"(SIGABRT|status \d+)\); its last output: (.* \| )?ggml\.c:12: no room"):
        list(run_child([sys.executable, "-c", program], {}))


def test_a_device_that_no_longer_exists_is_named(tiny_model: Path) -> None:
    gone = replace(ON_HOST, n_gpu_layers=1, devices=("CUDA7",), tensor_split=(1,))
    with pytest.raises(EngineError, match="The device CUDA7 of the plan no longer exists"):
        compute_by_device(DryRunRequest(tiny_model, SETTING, gone))


def test_a_request_is_the_same_in_the_process() -> None:
    parameters = replace(ON_HOST, devices=("A", "B"), tensor_split=(1, 2), host_pattern=r"\.ffn_")
    request = replace(DryRunRequest(Path("m.gguf"), SETTING, parameters), rpc=("host:1",))
    assert decode(DryRunRequest, json.loads(json.dumps(encode(request)))) == request
