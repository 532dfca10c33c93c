"""Plans of a few models for machines that people have; `plans.txt` is there to be read and judged.

Where a change is meant, `LOCALLLM_WRITE_GOLDEN=1` writes it anew.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from offload.advice.remedies import choice_summary
from offload.devices.machine import Device, DeviceKind, DeviceSpeed, Machine
from offload.footprint.auxiliary_models import AuxiliaryModels, PlannedDraft
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import DEFAULT_N_UBATCH, PlannedModel, RunConfig
from offload.format import format_memory
from offload.placement.assessment import FitLevel
from offload.plan import PlacementPlan, plan
from offload.speed.cost_model import expected_rates
from quantizer.figures import format_speed
from quantizer.gguf.tensor_types import file_type_named
from quantizer.system.errors import UsageError
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

GOLDEN = Path(__file__).with_name("plans.txt")
MODELS = (
    ("qwen3-0.6b", "Q8_0"),
    ("llama-3.1-8b", "Q4_K_M"),
    ("gemma-2-9b", "Q8_0"),
    ("qwen3-30b-a3b", "Q4_K_M"),
    ("llama-3.3-70b", "Q4_K_M"),
)
QUESTION = RunConfig(kv_types=KvTypes(), n_sequences=8)
GIB = 1 << 30


def model(name: str, file_type: str) -> PlannedModel:
    header = header_of(name)
    return PlannedModel(header, header.tensors).quantized(file_type_named(file_type))


def planned(name: str, file_type: str, machine: Machine, question: RunConfig = QUESTION) -> PlacementPlan:
    question = replace(question, is_fused=bool(machine.gpus))
    return plan(model(name, file_type), question, machine, expected_rates(machine))


def told(found: PlacementPlan) -> list[str]:
    """A plan on a few lines."""
    pace = found.assessment.speed
    tps = f"{format_speed(pace.decode_tps)} tok/s, prompt {format_speed(pace.prefill_tps)}" if pace else "speed unknown"
    setting = found.run_config
    lines = [f"{found.assessment.verdict}, {tps}, {setting.n_cells} cells for a context of {setting.n_ctx}"]
    lines += (
        [f"  micro-batches of {setting.n_ubatch}"]
        if found.assessment.placement and setting.n_ubatch != DEFAULT_N_UBATCH
        else []
    )
    if found.assessment.placement and (gpu := found.assessment.placement.prompt_gpu):
        lines.append(f"  prompts by {gpu}, which fetches {format_memory(found.assessment.fetched_bytes)} for each")
    if other := found.assessment.runner_up:
        tps = f"{format_speed(other.speed.decode_tps)} tok/s, prompt {format_speed(other.speed.prefill_tps)}"
        lines.append(
            f"  {found.assessment.turn_s:.1f} s a turn; next {choice_summary(other)}: {other.turn_s:.1f} s, {tps}"
        )
    lines += [
        f"  {share.device.name}: {share.n_layers} layers, {format_memory(share.n_bytes)}"
        f" of {format_memory(share.device.free_bytes)}"
        for share in found.assessment.shares
    ]
    lines += [f"  + {extra.what}: {format_memory(extra.n_bytes)}" for extra in found.assessment.profile.extras]
    lines += [f"  ! {warning}" for warning in found.warnings]
    for remedy in found.remedies:
        gained = format_speed(remedy.decode_tps) if remedy.decode_tps else "?"
        lines.append(f"  > {remedy.what}: {remedy.verdict}, {gained} tok/s; {remedy.cost}")
    return lines


@pytest.mark.slow
def test_plans_for_known_machines_are_as_written_down() -> None:
    lines = []
    for name, file_type in MODELS:
        for label, machine in MACHINES.items():
            lines += [f"== {name} {file_type} on {label}", *told(planned(name, file_type, machine)), ""]
    machine, draft = MACHINES["RTX 3060 12 GB, 32 GB RAM"], model("qwen3-0.6b", "Q8_0")
    drafting = replace(
        model("gemma-2-9b", "Q6_K"),
        auxiliary=AuxiliaryModels(draft=PlannedDraft("qwen3-0.6b", draft.header, draft.tensors)),
    )
    with_draft = plan(drafting, QUESTION, machine, expected_rates(machine))
    lines += ["== gemma-2-9b Q6_K with a draft model on RTX 3060 12 GB, 32 GB RAM", *told(with_draft), ""]
    text = "\n".join(lines)
    if os.environ.get("LOCALLLM_WRITE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_cost_of_a_partial_fit_is_one_sentence_with_its_numbers() -> None:
    machine = MACHINES["RTX 3060 12 GB, 32 GB RAM"]
    card = replace(machine.gpus[0], free_bytes=4 * GIB)
    found = planned("llama-3.1-8b", "Q4_K_M", Machine(machine.host, (card,)))
    assert found.assessment.verdict is FitLevel.PARTIAL
    assert "tok/s instead of" in found.warnings[0]
    assert "% of the bytes are read at 45 GB/s instead of 360." in found.warnings[0]


@pytest.mark.slow
def test_remedies_come_with_the_fastest_first_and_each_one_helps() -> None:
    machine = MACHINES["RTX 3060 12 GB, 32 GB RAM"]
    card = replace(machine.gpus[0], free_bytes=6 * GIB)
    found = planned("llama-3.1-8b", "Q8_0", Machine(machine.host, (card,)))
    turns_s = [remedy.turn_s for remedy in found.remedies]
    assert len(turns_s) > 1
    assert turns_s == sorted(turns_s)
    assert turns_s[-1] < found.assessment.turn_s


@pytest.mark.slow
def test_what_is_assumed_of_a_gpu_that_computes_prompts_is_said_and_what_was_measured_is_not() -> None:
    machine = MACHINES["RTX 3060 12 GB, 32 GB RAM"]
    card = replace(machine.gpus[0], free_bytes=3 * GIB)
    known = planned("llama-3.1-8b", "Q4_K_M", Machine(machine.host, (card,))).warnings
    assert any("assumed, not measured, that it computes 27 TFLOP/s: prompts" in warning for warning in known)
    unknown = replace(card, link_bytes_per_s=None)
    both = planned("llama-3.1-8b", "Q4_K_M", Machine(machine.host, (unknown,))).warnings
    assert any("that its link carries 8.0 GB/s and it computes 27 TFLOP/s" in warning for warning in both)
    measured = replace(card, speed=DeviceSpeed(300e9, 20e12))
    found = planned("llama-3.1-8b", "Q4_K_M", Machine(machine.host, (measured,))).warnings
    assert not any("assumed" in warning for warning in found)


def test_cells_of_other_conversations_are_given_up_before_the_plan_gets_worse() -> None:
    machine, short = MACHINES["RTX 3060 12 GB, 32 GB RAM"], replace(QUESTION, n_ctx=2048)
    assert planned("llama-3.1-8b", "Q4_K_M", machine, short).run_config.n_cells == 4 * 2048
    card = replace(machine.gpus[0], free_bytes=6 * GIB)
    tight = planned("llama-3.1-8b", "Q4_K_M", Machine(machine.host, (card,)), short)
    assert tight.run_config.n_cells == 2048


def test_a_model_larger_than_all_memory_will_not_run_and_the_numbers_say_why() -> None:
    found = planned("qwen3-30b-a3b", "Q4_K_M", MACHINES["container of 4 GiB"])
    assert found.assessment.verdict is FitLevel.WONT_RUN
    assert found.assessment.shares == ()
    assert "may use 3.6 GiB" in found.warnings[0]


def test_a_gpu_of_unknown_bandwidth_gets_layers_and_no_made_up_speed() -> None:
    machine = MACHINES["RTX 4090, 64 GB RAM"]
    card = replace(machine.gpus[0], bytes_per_s=None)
    found = planned("llama-3.1-8b", "Q4_K_M", Machine(machine.host, (card,)))
    assert found.assessment.shares[0].n_layers == 33
    assert found.assessment.speed is None
    assert "is unknown" in found.warnings[0]


def test_a_gpu_that_is_slower_than_the_processor_gets_no_layers_and_the_reason_is_given() -> None:
    host = MACHINES["processor only, 32 GB"].host
    slow = Device(
        name="Vulkan0", kind=DeviceKind.GPU, total_bytes=8 * GIB, free_bytes=8 * GIB, speed=DeviceSpeed(2e9, 20e9)
    )
    slow = replace(slow, bytes_per_s=2e9)
    found = planned("llama-3.1-8b", "Q4_K_M", Machine(host, (slow,)))
    assert found.assessment.shares[0].n_layers == 0
    assert found.assessment.speed is not None
    assert any("Vulkan0 gets no layers: it reads weights at 1.8 GB/s" in warning for warning in found.warnings)
    fast = replace(slow, speed=DeviceSpeed(200e9, 20e12))
    assert not any(
        "no layers" in warning for warning in planned("llama-3.1-8b", "Q4_K_M", Machine(host, (fast,))).warnings
    )


def test_layers_that_a_person_puts_on_a_slower_gpu_are_what_slows_the_model() -> None:
    host = MACHINES["processor only, 32 GB"].host
    slow = Device(
        name="Vulkan0", kind=DeviceKind.GPU, total_bytes=8 * GIB, free_bytes=8 * GIB, speed=DeviceSpeed(2e9, 20e9)
    )
    machine = Machine(host, (replace(slow, bytes_per_s=2e9),))
    for n_layers in (10, 33):
        found = planned("llama-3.1-8b", "Q4_K_M", machine, replace(QUESTION, gpu_layers={"Vulkan0": n_layers}))
        assert found.assessment.shares[0].n_layers == n_layers
        assert "because part of it is on a slower GPU" in found.warnings[0]


def test_a_machine_without_any_memory_is_planned_for_without_a_crash() -> None:
    nothing = replace(MACHINES["processor only, 32 GB"].host, total_bytes=0, free_bytes=0)
    assert planned("llama-3.1-8b", "Q4_K_M", Machine(nothing)).assessment.verdict is FitLevel.WONT_RUN


def test_a_cache_that_the_model_cannot_have_is_refused() -> None:
    question = replace(QUESTION, kv_types=KvTypes("q8_0", "f16"))
    with pytest.raises(UsageError, match="one vector"):
        planned("deepseek-v2-lite", "Q4_K_M", MACHINES["RTX 4090, 64 GB RAM"], question)


@pytest.mark.slow
def test_a_gpu_that_does_not_tell_its_memory_gets_nothing_and_a_sentence() -> None:
    machine = MACHINES["RTX 4090, 64 GB RAM"]
    silent = replace(machine.gpus[0], name="Vulkan0", total_bytes=0, free_bytes=0)
    found = planned("llama-3.1-8b", "Q4_K_M", Machine(machine.host, (silent,)))
    assert found.assessment.shares[0].n_layers == 0
    assert any("The memory of Vulkan0 is unknown" in warning for warning in found.warnings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vram", "ram", "n_ctx"),
    [(0, 0, 0), (1, 1, 1), (1 << 60, 1 << 60, 1 << 30), (0, 1 << 62, 1 << 30), (1 << 62, 0, 512), (24 * GIB, 1, 8192)],
)
def test_machines_that_make_no_sense_are_planned_for_without_a_crash(vram: int, ram: int, n_ctx: int) -> None:
    machine = MACHINES["RTX 4090, 64 GB RAM"]
    odd = Machine(
        replace(machine.host, total_bytes=ram, free_bytes=ram),
        (replace(machine.gpus[0], total_bytes=vram, free_bytes=vram),),
    )
    for name in ("llama-3.1-8b", "mamba-130m", "bge-base"):
        found = planned(name, "Q8_0", odd, replace(QUESTION, n_ctx=n_ctx))
        assert (found.assessment.placement is None) == (found.assessment.verdict is FitLevel.WONT_RUN)
        assert found.assessment.decode_tps is None or found.assessment.decode_tps > 0


def test_a_context_beyond_training_is_warned_of_last() -> None:
    machine = MACHINES["RTX 4090, 64 GB RAM"]
    n_ctx_train = model("gemma-2-9b", "Q6_K").n_ctx_train
    at_its_end, beyond = (
        plan(model("gemma-2-9b", "Q6_K"), replace(QUESTION, n_ctx=n_ctx), machine, expected_rates(machine)).warnings
        for n_ctx in (n_ctx_train, n_ctx_train + 1)
    )
    assert not any("trained on" in warning for warning in at_its_end)
    assert beyond[-1].startswith(f"It was trained on {n_ctx_train:,} tokens of context")
