from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from app.engine.load.auxiliary_models import LoadPlan, best_fit, plan_load, read_auxiliary_models, with_sound_projector
from app.engine.load.planner import LoadPlanner
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.devices.machine import Machine
from offload.footprint.auxiliary_models import AuxiliaryModels
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.assessment import FitLevel
from offload.placement.load_parameters import ExcessUsage, LoadParameters
from offload.plan import PlacementPlan, plan
from offload.speed.cost_model import expected_rates
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import Header
from quantizer.gguf.validation import validate_gguf
from tests.app.service.pool.memory_fake import host_with
from tests.offload.machines import MACHINES
from tests.quantizer.gguf_draft_heads import draft_head, drafted_model
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_heads import predicting_model
from tests.quantizer.gguf_projectors import tiny_projector


def test_a_model_alone_has_no_auxiliary_models(tiny_model: Path) -> None:
    auxiliary = read_auxiliary_models(validate_gguf(tiny_model))
    assert auxiliary.draft is None
    assert not auxiliary.has_mtp_layer
    assert not auxiliary.adapters


def test_a_draft_model_is_read_with_its_tensors(tiny_model: Path) -> None:
    auxiliary = read_auxiliary_models(validate_gguf(tiny_model), draft_path=str(tiny_model))
    assert auxiliary.draft is not None
    assert auxiliary.draft.name == tiny_model.name
    assert auxiliary.draft.tensors


@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35"])
@pytest.mark.parametrize("n_layers", [1, 2])
def test_an_mtp_layer_counts_if_it_can_draft(tmp_path: Path, architecture: str, n_layers: int) -> None:
    path = predicting_model(tmp_path / "m.gguf", architecture, lambda w: w.add_nextn_predict_layers(n_layers))
    assert read_auxiliary_models(validate_gguf(path)).has_mtp_layer is (n_layers == 1)


def test_only_a_projector_is_one(tmp_path: Path, tiny_model: Path) -> None:
    header = validate_gguf(tiny_model)
    found = read_auxiliary_models(header, projector=tiny_projector(tmp_path / "mmproj-F16.gguf")).projector
    assert found is not None
    assert found.name == "mmproj-F16.gguf"
    with pytest.raises(ModelFileError, match="is not a projector"):
        read_auxiliary_models(header, projector=tiny_model)


def test_a_projector_that_was_found_and_does_not_belong_is_left_out_with_the_reason(
    tmp_path: Path, tiny_model: Path
) -> None:
    header = validate_gguf(tiny_model)
    wrong = str(tiny_projector(tmp_path / "mmproj-F16.gguf", n_embd=96))
    config, reason = with_sound_projector(EngineConfig(projector_path=wrong), header)
    assert config.projector_path == ""
    assert "its embeddings are 96 wide" in reason
    chosen = EngineConfig(projector_path=wrong, has_chosen_projector=True)
    assert with_sound_projector(chosen, header) == (chosen, "")


@pytest.mark.slow
def test_a_head_that_was_found_is_left_out_where_only_the_model_alone_fits(tmp_path: Path) -> None:
    header, head = validate_gguf(drafted_model(tmp_path / "m.gguf")), draft_head(tmp_path / "dflash-m.gguf", "dflash")
    alone = PlannedModel(header, header.tensors)
    drafting = replace(alone, auxiliary=read_auxiliary_models(header, draft_path=str(head)))

    def planned(model: PlannedModel, n_bytes: int) -> PlacementPlan:
        machine = host_with(n_bytes)
        return plan(model, RunConfig(n_ctx=64, n_cells=64), machine, expected_rates(machine))

    def least_bytes(model: PlannedModel) -> int:
        fits = FitLevel.FITS.rank
        return bisect_left(range(4 << 30), True, key=lambda n: planned(model, n).assessment.verdict.rank == fits)

    def notices(n_bytes: int) -> tuple[str, ...]:
        def with_draft(draft_path: str, _projector: str, _is_on_host: bool) -> PlacementPlan:
            return planned(drafting if draft_path else alone, n_bytes)

        return best_fit(
            with_draft,
            lambda found: found,
            str(head),
            "",
            has_gpu=False,
            is_draft_chosen=False,
            is_projector_chosen=False,
        )[1]

    few, enough = least_bytes(alone), least_bytes(drafting)
    assert few < enough
    [notice] = notices(few)
    assert notice.startswith("dflash-m.gguf is not used for drafts")
    assert notices(enough) == notices(1) == ()


CARD = MACHINES["RTX 3060 12 GB, 32 GB RAM"]
GIB, MIB = 1 << 30, 1 << 20
CONFIG = EngineConfig(n_ctx=128, n_cells=128, kv_type="f16", n_sequences=1)
SETTING = RuntimeSettings(n_threads=4, flash_attention=False, extra_buffers=False, n_ubatch=512)


@dataclass(frozen=True)
class Devices:
    """The devices of `machine`, on which a projector takes `n_bytes`."""

    machine: Machine
    n_bytes: int

    @property
    def has_gpu(self) -> bool:
        return bool(self.machine.gpus)

    def planner(self, path: Path, header: Header, key: str, auxiliary: AuxiliaryModels) -> LoadPlanner:
        if auxiliary.projector is not None:
            auxiliary = replace(auxiliary, projector=replace(auxiliary.projector, n_bytes=self.n_bytes))
        model = PlannedModel(header, header.tensors, auxiliary=auxiliary)
        return LoadPlanner(model, self.machine, _dry_run, ExcessUsage())


def _dry_run(_setting: RunConfig, parameters: LoadParameters) -> Mapping[str, int]:
    return dict.fromkeys((*parameters.devices, "CPU"), MIB)


def machine(host_bytes: int, gpu_bytes: int = 0) -> Machine:
    gpus = (replace(CARD.gpus[0], free_bytes=gpu_bytes),) if gpu_bytes else ()
    return Machine(replace(CARD.host, free_bytes=host_bytes), gpus)


@pytest.fixture
def header(tmp_path: Path) -> Header:
    tiny_projector(tmp_path / "mmproj-m.gguf")
    return validate_gguf(tiny_llama(tmp_path / "m.gguf"))


def planned(header: Header, devices: Devices, *, is_chosen: bool = False) -> tuple[LoadPlan, list[str]]:
    path, notices = str(header.path.with_name("mmproj-m.gguf")), list[str]()
    config = replace(CONFIG, projector_path=path, has_chosen_projector=is_chosen)
    plan = plan_load(devices, header, "key", SETTING, config, notices.append, Path("cache"), has_found_draft=False)
    return plan, notices


def test_a_projector_lies_on_the_gpu_of_the_model_where_both_fit(header: Header) -> None:
    plan, notices = planned(header, Devices(machine(16 * GIB, 8 * GIB), GIB))
    assert plan.attempt.projector_device == "CUDA0"
    assert notices == []
    taken = {share.device.name: share.beside_bytes for share in plan.attempt.shares}
    assert taken["CUDA0"] > GIB


def test_a_projector_that_the_gpu_has_no_room_for_goes_to_the_processor(header: Header) -> None:
    plan, notices = planned(header, Devices(machine(16 * GIB, 2 * GIB), 4 * GIB))
    assert plan.attempt.parameters.n_gpu_layers == 3
    assert plan.auxiliary.projector is not None
    assert (plan.auxiliary.projector.is_on_host, plan.attempt.projector_device) == (True, "")
    assert notices == []


def test_a_projector_that_was_found_gives_way_to_the_model_with_a_notice(header: Header) -> None:
    plan, notices = planned(header, Devices(machine(2 * GIB), 16 * GIB))
    assert plan.auxiliary.projector is None
    assert plan.attempt.plan.assessment.verdict is FitLevel.FITS
    assert plan.attempt.config.projector_path == ""
    assert "mmproj-m.gguf" in notices[0]


def test_a_chosen_projector_stays_where_the_model_fits_worse_with_it(header: Header) -> None:
    plan, notices = planned(header, Devices(machine(2 * GIB), 16 * GIB), is_chosen=True)
    assert plan.auxiliary.projector is not None
    assert notices == []


def test_the_usage_that_is_compared_with_a_plan_has_no_projector(header: Header) -> None:
    plan, _ = planned(header, Devices(machine(16 * GIB, 8 * GIB), GIB))
    [gpu, _host] = plan.attempt.shares_without_projector
    assert gpu.beside_bytes == 0
    assert plan.attempt.shares[0].beside_bytes > GIB


def test_the_micro_batch_of_a_loaded_model_takes_a_picture_whole(header: Header) -> None:
    class Wide(Devices):
        def planner(self, path: Path, header: Header, key: str, auxiliary: AuxiliaryModels) -> LoadPlanner:
            assert auxiliary.projector is not None
            projector = replace(auxiliary.projector, min_ubatch=256)
            return super().planner(path, header, key, replace(auxiliary, projector=projector))

    path = str(header.path.with_name("mmproj-m.gguf"))
    config = replace(CONFIG, projector_path=path, has_chosen_projector=True)
    for devices in (Wide(machine(16 * GIB), MIB), Wide(machine(16 * GIB, 8 * GIB), MIB)):
        small = replace(SETTING, n_ubatch=64)
        cache_dir = Path("cache")
        plan = plan_load(devices, header, "key", small, config, lambda _notice: None, cache_dir, has_found_draft=False)
        assert plan.attempt.setting.n_ubatch >= 256
