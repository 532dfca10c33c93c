from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from app.engine.backend import MemoryShortError
from app.engine.llama.model import dry_compute_bytes
from app.engine.load.planner import (
    DryRunRequest,
    LoadAttempt,
    LoadPlanner,
    check_fit,
    compute_by_device,
    load_within_memory,
    size_context,
)
from app.engine.messages import EngineConfig, UnfitPolicy
from app.engine.model_task import run_child
from app.engine.tuning.tune_results import RuntimeSettings
from app.protocol.codec import decode, encode
from app.protocol.errors import UnfitError
from offload.advice.remedies import fit_summary
from offload.devices.machine import DeviceSpeed, Machine
from offload.footprint.kv_cache import KvTypes, bytes_per_cell
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.assessment import FitLevel
from offload.placement.load_parameters import ON_HOST, ExcessUsage, LoadParameters
from offload.plan import PlacementPlan, parameters_of, plan
from offload.speed.cost_model import expected_rates
from quantizer.gguf.header import read_header
from quantizer.gguf.layer_caches import kv_shape_of
from quantizer.gguf.validation import tensors_of, validate_gguf
from quantizer.system.errors import EngineError, UsageError
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of
from tests.quantizer.gguf_heads import predicting_model

GIB = 1 << 30
CARD = MACHINES["RTX 3060 12 GB, 32 GB RAM"]
WITHOUT_CARD = Machine(CARD.host)
CONFIG = EngineConfig(n_ctx=8192, n_cells=8192, kv_type="f16", n_sequences=1)
TUNED = RuntimeSettings(n_threads=7, flash_attention=False, extra_buffers=True, n_ubatch=128)


def dry_run(_setting: RunConfig, parameters: LoadParameters) -> Mapping[str, int]:
    return dict.fromkeys((*parameters.devices, "CPU"), 64 << 20)


def planner(machine: Machine, excess: ExcessUsage = ExcessUsage()) -> LoadPlanner:  # noqa: B008
    header = header_of("llama-3.1-8b")
    return LoadPlanner(PlannedModel(header, header.tensors), machine, dry_run, excess)


class Loader:
    """A loader that fails for memory `n_failures` times, and records the attempts."""

    def __init__(self, n_failures: int) -> None:
        self.n_failures = n_failures
        self.attempts: list[LoadAttempt] = []

    def __call__(self, attempt: LoadAttempt) -> str:
        self.attempts.append(attempt)
        if len(self.attempts) <= self.n_failures:
            raise MemoryShortError("llama.cpp cannot load m.gguf: unable to allocate CUDA0 buffer", "See.")
        return "loaded"


def test_without_a_gpu_the_measured_settings_are_unchanged_without_a_dry_run() -> None:
    attempt = planner(WITHOUT_CARD).attempt(CONFIG, TUNED)
    assert (attempt.config, attempt.setting, attempt.parameters) == (CONFIG, TUNED, replace(ON_HOST, n_ubatch=128))
    assert attempt.plan.run_config.n_cells == CONFIG.n_cells


@pytest.mark.parametrize(("free_gib", "has_copies"), [(64, True), (12, False)])
def test_copies_of_weights_are_left_out_where_they_would_leave_little_memory(free_gib: int, has_copies: bool) -> None:
    host = replace(WITHOUT_CARD.host, total_bytes=free_gib * GIB, free_bytes=free_gib * GIB)
    wanted = replace(TUNED, copies=(("Q8_0", "BF16"), ("Q6_K", "BF16"), ("Q4_K", "BF16"), ("F16", "BF16")))
    attempt = planner(Machine(host)).attempt(CONFIG, wanted)
    without = planner(Machine(host)).attempt(CONFIG, TUNED)
    assert attempt.setting == (wanted if has_copies else TUNED)
    assert attempt.config == CONFIG
    assert attempt.plan.assessment.verdict is FitLevel.FITS
    taken = attempt.plan.assessment.profile.total_bytes - without.plan.assessment.profile.total_bytes
    assert (taken > GIB) == has_copies


def test_a_load_onto_a_gpu_makes_no_copies_of_weights() -> None:
    wanted = replace(TUNED, copies=(("Q8_0", "BF16"),))
    assert planner(CARD).attempt(CONFIG, wanted).setting.copies == ()


def test_a_long_context_gets_a_smaller_micro_batch_where_its_scores_would_take_too_much_memory() -> None:
    setting, config = replace(TUNED, n_ubatch=512), replace(CONFIG, n_ctx=32768, n_cells=32768)
    attempt = planner(WITHOUT_CARD).attempt(config, setting)
    assert attempt.setting == replace(setting, n_ubatch=128)
    assert attempt.plan.run_config.n_ubatch == 128
    fused = planner(WITHOUT_CARD).attempt(config, replace(setting, flash_attention=True))
    assert fused.setting.n_ubatch == 512


def test_a_gpu_that_is_slower_than_the_processor_leaves_the_measured_settings_unchanged() -> None:
    slow = Machine(CARD.host, (replace(CARD.gpus[0], speed=DeviceSpeed(1e9, 20e9)),))
    attempt = planner(slow).attempt(CONFIG, TUNED)
    assert (attempt.config, attempt.setting, attempt.parameters) == (CONFIG, TUNED, replace(ON_HOST, n_ubatch=128))
    assert "CUDA0 gets no layers" in attempt.plan.warnings[0]


@pytest.mark.slow
def test_a_gpu_that_the_dry_run_refuses_gets_nothing_and_the_measured_settings_stay() -> None:
    def too_much(_setting: RunConfig, parameters: LoadParameters) -> Mapping[str, int]:
        return {"CPU": 64 << 20, **dict.fromkeys(parameters.devices, 13 * GIB)}

    refused = replace(planner(CARD), dry_run=too_much).attempt(CONFIG, TUNED)
    assert parameters_of(plan(planner(CARD).model, RunConfig(), CARD, expected_rates(CARD)).assessment).devices
    assert (refused.config, refused.setting) == (CONFIG, TUNED)
    assert refused.parameters == replace(ON_HOST, n_ubatch=128)
    assert not any(share.n_bytes for share in refused.shares if share.device.name == "CUDA0")


def test_with_a_gpu_layers_go_there_as_planned() -> None:
    attempt = planner(CARD).attempt(CONFIG, replace(TUNED, flash_attention=True))
    assert attempt.parameters.devices == ("CUDA0",)
    assert attempt.parameters.n_gpu_layers == 33
    assert attempt.is_all_on_gpus
    assert attempt.setting.flash_attention
    assert {share.compute_bytes for share in attempt.shares} == {64 << 20}


def test_manually_placed_layers_go_to_their_gpu_until_memory_is_too_small() -> None:
    requested = replace(CONFIG, gpu_layers={"CUDA0": 12})
    attempt = planner(CARD).attempt(requested, TUNED)
    assert attempt.parameters.n_gpu_layers == 12
    smaller = planner(CARD).smaller(attempt, may_shorten=False)
    assert smaller is not None
    assert smaller.config.gpu_layers is None


@pytest.mark.slow
def test_the_excess_of_the_last_load_makes_the_next_one_smaller() -> None:
    small = Machine(CARD.host, (replace(CARD.gpus[0], free_bytes=6 * GIB),))
    before = planner(small).attempt(CONFIG, TUNED).shares[0].weight_bytes
    after = planner(small, ExcessUsage(gpu_bytes=2 * GIB)).attempt(CONFIG, TUNED).shares[0].weight_bytes
    assert 0 < after < before
    assert planner(small).attempt(CONFIG, TUNED).plan.assessment.verdict is FitLevel.PARTIAL


@pytest.mark.slow
def test_a_gpu_with_less_memory_than_reported_gets_fewer_layers_with_a_notice() -> None:
    small = Machine(CARD.host, (replace(CARD.gpus[0], free_bytes=6 * GIB),))
    plans, load, notices = planner(small), Loader(1), list[str]()
    attempt = plans.attempt(CONFIG, TUNED)
    loaded, smaller = load_within_memory(plans, attempt, load, notices.append, may_shorten=False)
    assert loaded == "loaded"
    assert smaller.shares[0].weight_bytes < attempt.shares[0].weight_bytes
    assert smaller.config.n_ctx == CONFIG.n_ctx
    assert fit_summary(smaller.plan.assessment) in notices[0]


def test_a_second_failure_is_an_error_with_the_numbers() -> None:
    plans, load = planner(CARD), Loader(2)
    with pytest.raises(EngineError, match=r"Not enough memory: the model needs .* GiB on CUDA0 and may use .* GiB"):
        load_within_memory(plans, plans.attempt(CONFIG, TUNED), load, lambda _: None, may_shorten=True)
    assert len(load.attempts) == 2


def test_without_a_gpu_an_automatic_context_is_shortened() -> None:
    plans, load, notices = planner(WITHOUT_CARD), Loader(1), list[str]()
    _, smaller = load_within_memory(plans, plans.attempt(CONFIG, TUNED), load, notices.append, may_shorten=True)
    assert (smaller.config.n_ctx, smaller.config.n_cells) == (4096, 4096)
    assert "a context of 4,096 tokens" in notices[0]


def test_a_requested_context_is_not_shortened() -> None:
    plans, load = planner(WITHOUT_CARD), Loader(1)
    with pytest.raises(EngineError, match="GiB on CPU"):
        load_within_memory(plans, plans.attempt(CONFIG, TUNED), load, lambda _: None, may_shorten=False)
    assert len(load.attempts) == 1


def test_a_context_that_is_not_shortened_keeps_its_length_for_one_answer_at_a_time() -> None:
    plans, load = planner(WITHOUT_CARD), Loader(1)
    several = replace(CONFIG, n_cells=16384, n_sequences=8)
    _, smaller = load_within_memory(plans, plans.attempt(several, TUNED), load, lambda _: None, may_shorten=False)
    assert (smaller.config.n_ctx, smaller.config.n_cells) == (8192, 8192)


def test_an_error_of_memory_repeats_nothing_of_what_llama_cpp_printed() -> None:
    plans, load = planner(WITHOUT_CARD), Loader(1)
    with pytest.raises(EngineError) as caught:
        load_within_memory(plans, plans.attempt(CONFIG, TUNED), load, lambda _: None, may_shorten=False)
    assert str(caught.value).startswith("Not enough memory: the model needs ")
    assert "llama.cpp takes more than was planned" in caught.value.cause, "the machine has more than the plan takes"
    assert "allocate" not in str(caught.value)


def planned(free_gib: float, on_card_gib: float | None = None) -> PlacementPlan:
    """A plan of an 8B in Q8_0 (8 GiB) on a machine with so much free."""
    cards = () if on_card_gib is None else (replace(CARD.gpus[0], free_bytes=int(on_card_gib * GIB)),)
    machine = Machine(replace(CARD.host, free_bytes=int(free_gib * GIB)), cards)
    header = header_of("llama-3.1-8b")
    question = RunConfig(n_ctx=2048, n_cells=2048, kv_types=KvTypes())
    return plan(PlannedModel(header, header.tensors), question, machine, expected_rates(machine))


@pytest.mark.parametrize("when_unfit", UnfitPolicy)
def test_a_model_that_fits_has_no_warning(when_unfit: UnfitPolicy) -> None:
    assert check_fit(planned(20, 11.5), when_unfit) == ""


@pytest.mark.parametrize("when_unfit", UnfitPolicy)
def test_a_processor_alone_has_no_warning(when_unfit: UnfitPolicy) -> None:
    assert check_fit(planned(20), when_unfit) == ""


@pytest.mark.slow
@pytest.mark.parametrize("when_unfit", [UnfitPolicy.WARN, UnfitPolicy.LOAD])
def test_a_partly_offloaded_model_has_a_warning_of_one_sentence(when_unfit: UnfitPolicy) -> None:
    warning = check_fit(planned(20, 5), when_unfit)
    assert "of 33 layers fit" in warning
    assert "tok/s instead of" in warning
    assert "\n" not in warning


@pytest.mark.slow
def test_a_partly_offloaded_model_needs_a_yes_when_the_user_can_be_asked() -> None:
    with pytest.raises(UnfitError, match=r"tok/s instead of .* What would help: "):
        check_fit(planned(20, 5), UnfitPolicy.ASK)


def test_a_model_beyond_all_memory_is_an_error_with_remedies_unless_the_user_agrees() -> None:
    hopeless = planned(6)
    assert hopeless.assessment.verdict is FitLevel.WONT_RUN
    with pytest.raises(
        EngineError, match=r"Not enough memory: it needs .* and may use .* What would help: .*quantize .* with --yes"
    ):
        check_fit(hopeless, UnfitPolicy.WARN)
    with pytest.raises(UnfitError):
        check_fit(hopeless, UnfitPolicy.ASK)
    assert "it needs" in check_fit(hopeless, UnfitPolicy.LOAD)


@pytest.mark.slow
def test_a_gpu_without_layers_is_an_error() -> None:
    with pytest.raises(EngineError, match="with --yes"):
        check_fit(planned(7.9, 0.5), UnfitPolicy.WARN)


def test_a_model_that_leaves_a_processor_alone_no_margin_is_loaded() -> None:
    profile = planned(20).assessment.profile
    tight = planned((profile.weight_bytes + profile.cache_bytes + profile.compute_bytes) / GIB + 0.1)
    assert tight.assessment.verdict is FitLevel.WONT_RUN
    assert check_fit(tight, UnfitPolicy.WARN) == ""


GUIDE = read_header(Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf")
N_CTX_TRAIN = GUIDE.integer(f"{GUIDE.architecture}.context_length") or 0


def test_a_small_model_gets_the_context_it_was_trained_on_and_cells_for_all_answers() -> None:
    config, notice = size_context(EngineConfig(n_sequences=2), GUIDE, is_on_host=True)
    assert (config.n_ctx, config.n_cells, config.kv_type) == (N_CTX_TRAIN, 2 * N_CTX_TRAIN, "f16")
    assert notice == ""


def test_a_context_beyond_the_memory_of_this_machine_is_an_error_before_loading() -> None:
    n_ctx = psutil.virtual_memory().total // bytes_per_cell(KvTypes(), kv_shape_of(GUIDE)) + 1
    with pytest.raises(EngineError, match="MiB of KV cache"):
        size_context(EngineConfig(n_ctx=n_ctx), GUIDE, is_on_host=True)
    assert size_context(EngineConfig(n_ctx=n_ctx), GUIDE, is_on_host=False)[0].n_ctx == n_ctx


def test_requested_cache_types_are_validated() -> None:
    assert size_context(EngineConfig(kv_type="Q8_0"), GUIDE, is_on_host=True)[0].kv_type == "q8_0"
    with pytest.raises(UsageError, match="is not a KV cache type"):
        size_context(EngineConfig(kv_type="q3"), GUIDE, is_on_host=True)


SETTING = RunConfig(n_ctx=1024, n_cells=1024, kv_types=KvTypes(), n_sequences=4, is_fused=False)


def dry_bytes(path: Path) -> int:
    return compute_by_device(DryRunRequest(path, SETTING))["CPU"]


@pytest.mark.slow
def test_a_dry_run_returns_the_compute_buffers_of_a_context(tiny_model: Path) -> None:
    scores = 4 * 1024 * 512 * 4  # heads, cells, tokens of a micro-batch, F32
    assert scores < dry_bytes(tiny_model) < 2 * scores


@pytest.mark.slow
def test_a_plan_uses_the_bytes_of_the_dry_run(tiny_model: Path) -> None:
    header = validate_gguf(tiny_model)
    model = PlannedModel(header, tensors_of(header))
    n_bytes = dry_bytes(tiny_model)
    assert model.measured(SETTING, n_bytes).profile(SETTING).compute_bytes == pytest.approx(n_bytes, rel=1e-6)


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("name", ["deepseek2", "deepseek32", "glm-dsa"])
def test_compute_buffers_of_latent_attention_are_planned_as_a_dry_run_takes_them(
    name: str, is_fused: bool, tmp_path: Path
) -> None:
    path = predicting_model(tmp_path / f"{name}.gguf", name)
    setting = replace(SETTING, n_ctx=8192, n_cells=8192, is_fused=is_fused)
    real = dry_compute_bytes(path, setting, ON_HOST)["CPU"]
    assert PlannedModel.read(path).profile(setting).compute_bytes == pytest.approx(real, rel=0.05)


@pytest.mark.slow
def test_a_file_that_llama_cpp_rejects_is_an_error_with_its_output(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(EngineError, match=r"cannot load no\.gguf: .*failed") as raised:
        dry_bytes(path)
    assert str(tmp_path) not in str(raised.value)


@pytest.mark.slow
def test_an_abort_of_llama_cpp_names_its_source_without_the_folder_it_was_built_in() -> None:
    program = (
        "from quantizer.system.child_request import serve_request\nfrom app.engine.llama.native import ggml_function\n"
        "serve_request(lambda _, _send: ggml_function('ggml_abort')(b'/tmp/pip-x/ggml.c', 12, b'no room'))"
    )
    with pytest.raises(EngineError, match=r"(SIGABRT|status \d+)\); its last output: (.* \| )?ggml\.c:12: no room"):
        list(run_child([sys.executable, "-c", program], {}))


@pytest.mark.slow
def test_a_device_that_no_longer_exists_is_named(tiny_model: Path) -> None:
    gone = replace(ON_HOST, n_gpu_layers=1, devices=("CUDA7",), tensor_split=(1,))
    with pytest.raises(EngineError, match="The device CUDA7 of the plan no longer exists"):
        compute_by_device(DryRunRequest(tiny_model, SETTING, gone))


def test_a_request_is_the_same_in_the_process() -> None:
    parameters = replace(ON_HOST, devices=("A", "B"), tensor_split=(1, 2), host_pattern=r"\.ffn_")
    request = replace(DryRunRequest(Path("m.gguf"), SETTING, parameters), rpc=("host:1",))
    assert decode(DryRunRequest, json.loads(json.dumps(encode(request)))) == request
