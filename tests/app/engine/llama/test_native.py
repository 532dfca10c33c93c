from __future__ import annotations

import os
import subprocess

import pytest

from app.engine.backend import MemoryShortError
from app.engine.llama.native import Buffer, is_reported, load_error, parse_buffer
from quantizer.system.process import python_command

MIB = 1 << 20


@pytest.mark.parametrize(
    ("line", "buffer"),
    [
        ("load_tensors:   CPU_Mapped model buffer size =  4403.49 MiB", Buffer("CPU", "model", round(4403.49 * MIB))),
        ("load_tensors: RPC0[a:1] model buffer size =     1.50 MiB", Buffer("RPC0[a:1]", "model", 3 * MIB // 2)),
        ("llama_kv_cache:      CUDA0 KV buffer size =   256.00 MiB", Buffer("CUDA0", "KV", 256 * MIB)),
        ("llama_memory_recurrent:      CPU RS buffer size =     0.25 MiB", Buffer("CPU", "RS", MIB // 4)),
        ("sched_reserve:      CUDA0 compute buffer size =   258.50 MiB", Buffer("CUDA0", "compute", 517 * MIB // 2)),
        ("llama_context:        CPU  output buffer size =     0.49 MiB", None),
        ("load_tensors: offloaded 33/33 layers to GPU", None),
    ],
)
def test_a_line_of_the_log_is_parsed_as_a_buffer_or_none(line: str, buffer: Buffer | None) -> None:
    assert parse_buffer(line) == buffer


def test_warnings_of_llama_cpp_are_told_but_that_of_a_context_that_answers_share() -> None:
    assert is_reported(3, "load: control-looking token: 128247 was not control-type")
    assert not is_reported(2, "llama_context: n_seq_max = 1")
    assert not is_reported(
        3, "llama_context: n_ctx_seq (4096) > n_ctx_train (2048) -- possible training context overflow"
    )


def test_an_interrupted_batch_is_no_error_and_a_failed_one_is() -> None:
    interrupted = (
        "graph_compute: ggml_backend_sched_graph_compute_async failed with error 1",
        "process_ubatch: failed to compute graph, compute status: 1",
        "llama_decode: failed to decode, ret = 2",
    )
    assert not any(is_reported(4, line) for line in interrupted)
    assert not is_reported(3, "decode: removing memory module entries for seq_id = 11, pos = [1191, +inf)")
    assert is_reported(4, "process_ubatch: failed to compute graph, compute status: -1")
    assert is_reported(4, "llama_decode: failed to decode, ret = -3")


def test_an_error_of_memory_says_what_was_needed_without_repeating_the_log() -> None:
    words = "ggml_gallocr_reserve_n_impl: failed to allocate CPU buffer of size 173598848 graph_reserve: failed"
    error = load_error("llama.cpp cannot make a context of 16384 tokens", words, "Use a smaller --ctx.")
    assert isinstance(error, MemoryShortError)
    assert str(error) == (
        "Not enough memory: llama.cpp cannot make a context of 16384 tokens, which needs another 166 MiB. "
        "Use a smaller --ctx."
    )
    assert "unknown model architecture" in load_error("llama.cpp cannot load x", "unknown model architecture", "").cause


@pytest.mark.slow
@pytest.mark.parametrize(("own", "used"), [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_a_thread_that_waits_for_another_soon_sleeps_unless_the_user_has_it_otherwise(
    own: dict[str, str], used: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    environment |= {"OMP_DISPLAY_ENV": "verbose", **own}
    command = python_command("app.engine.llama.native")
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    if "OPENMP DISPLAY ENVIRONMENT" not in done.stderr or "GOMP_" not in done.stderr:
        pytest.skip("this build of llama.cpp has no libgomp")
    assert f"GOMP_SPINCOUNT = '{used}'" in done.stderr


@pytest.mark.slow
def test_a_process_that_ends_leaves_no_file_of_llama_cpps_bindings_open() -> None:
    python, *options, _, module = python_command("app.engine.llama.native")
    command = [python, *options, "-W", "always::ResourceWarning", "-c", f"import {module}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
