from __future__ import annotations

import pytest

from app.engine.llama.native import Buffer, parse_buffer

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
