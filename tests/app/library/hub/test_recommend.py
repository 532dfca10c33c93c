from __future__ import annotations

import pytest

from app.library.hub.catalogue import Role, read_catalogue
from app.library.hub.recommend import recommend
from app.library.machine_fit.planning import planning_context
from app.protocol.library import Recommendation
from app.settings.settings import Settings
from tests.offload.machines import MACHINES


def recommended(role: Role, machine: str) -> Recommendation:
    return recommend(read_catalogue(), role, planning_context(Settings(), MACHINES[machine]))


@pytest.mark.parametrize(
    ("machine", "role", "chosen"),
    [
        ("RTX 3060 12 GB, 32 GB RAM", Role.CHAT, "ggml-org/gpt-oss-20b-GGUF:MXFP4_MOE"),
        ("RTX 3060 12 GB, 32 GB RAM", Role.CODE, "ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF:Q8_0"),
        ("RTX 4090, 64 GB RAM", Role.CHAT, "unsloth/Qwen3-30B-A3B-GGUF:Q5_K_M"),
        ("2 × RTX 3090, 64 GB RAM", Role.CHAT, "bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M"),
        ("M2, 16 GB", Role.CHAT, "Qwen/Qwen3-8B-GGUF:Q4_K_M"),
        ("processor only, 32 GB", Role.CHAT, "unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M"),
        ("container of 4 GiB", Role.SMALL, "Qwen/Qwen3-0.6B-GGUF:Q8_0"),
        ("container of 4 GiB", Role.EMBEDDING, "Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0"),
    ],
)
def test_machines_get_what_their_owners_would_take(machine: str, role: Role, chosen: str) -> None:
    found = recommended(role, machine)
    assert found.model is not None
    assert found.model.reference == chosen, [each.quant for each in found.passed_over]


def test_what_is_passed_over_would_not_fit_or_is_too_slow() -> None:
    found = recommended(Role.CHAT, "RTX 3060 12 GB, 32 GB RAM")
    assert found.passed_over
    for other in found.passed_over:
        fit = other.quant.fit
        assert not fit.runs_well or (fit.decode_tps or 0) < 12
    assert "12 tok/s" in found.why
    assert found.model is not None
    assert found.model.keeps_pace


def test_where_all_are_slow_the_fastest_is_recommended() -> None:
    found = recommended(Role.MOE, "container of 4 GiB")
    assert found.model is None
    assert "No model of this kind runs" in found.why
    assert all(other.quant.fit.verdict == "wont_run" for other in found.passed_over)
    slow = recommended(Role.CODE, "container of 4 GiB")
    assert slow.model is not None
    assert "the best of the fastest" in slow.why
    assert not slow.model.keeps_pace
