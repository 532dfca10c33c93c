from __future__ import annotations

from dataclasses import replace

import pytest

from offload.devices.machine import Machine
from offload.footprint.auxiliary_models import AuxiliaryModels, PlannedAdapter, PlannedDraft, PlannedProjector
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import ENGINE_BYTES, PlannedModel, RunConfig
from offload.placement.search import place
from offload.placement.shares import allocate, margin_bytes
from offload.speed.cost_model import expected_rates
from quantizer.gguf.header import Header
from quantizer.system.errors import UsageError
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

GIB = 1 << 30
SETTING = RunConfig(n_ctx=8192, n_cells=8192, n_sequences=4)
CARD, HOST_ONLY = MACHINES["RTX 4090, 64 GB RAM"], MACHINES["processor only, 32 GB"]


@pytest.mark.parametrize(
    ("n_cells", "is_fused", "n_ubatch"),
    [(8192, False, 512), (16384, False, 256), (32768, False, 128), (1 << 20, False, 64), (1 << 20, True, 512)],
)
def test_a_micro_batch_is_halved_until_its_scores_take_half_a_gibibyte(
    n_cells: int, is_fused: bool, n_ubatch: int
) -> None:
    thirty_two_heads = PlannedModel(header_of("llama-3.1-8b"), header_of("llama-3.1-8b").tensors)
    setting = replace(SETTING, n_cells=n_cells, is_fused=is_fused)
    assert thirty_two_heads.bounded_ubatch(setting) == n_ubatch


def draft() -> PlannedDraft:
    header = header_of("qwen3-0.6b")
    return PlannedDraft("small.gguf", header, header.tensors)


def model(auxiliary: AuxiliaryModels, name: str = "llama-3.1-8b") -> PlannedModel:
    header = header_of(name)
    return PlannedModel(header, header.tensors, auxiliary=auxiliary)


def test_a_draft_model_has_a_cache_of_the_same_size_and_lies_with_the_output() -> None:
    (extra,) = model(AuxiliaryModels(draft=draft())).profile(SETTING).extras
    alone = PlannedModel(draft().header, draft().tensors).profile(SETTING)
    assert extra.cache_bytes == alone.cache_bytes
    assert extra.weight_bytes + alone.input_bytes == alone.weight_bytes
    assert extra.host_bytes == alone.input_bytes + alone.host_bytes - ENGINE_BYTES


@pytest.mark.parametrize("machine", [CARD, HOST_ONLY])
def test_what_lies_beside_a_model_is_counted_once_where_the_output_is(machine: Machine) -> None:
    planned = model(AuxiliaryModels(draft=draft(), projector=PlannedProjector(name="mmproj.gguf", n_bytes=GIB)))
    profile = planned.profile(SETTING)
    placement = place(profile, machine, expected_rates(machine))
    assert placement is not None
    shares = allocate(profile, machine, placement)
    beside = profile.beside_bytes + profile.beside_host_bytes
    assert sum(share.beside_bytes for share in shares) == beside
    alone = model(AuxiliaryModels()).profile(SETTING)
    tied_bytes = profile.tied_bytes if placement.n_on_gpus else 0
    assert sum(share.weight_bytes for share in shares) == alone.weight_bytes + tied_bytes
    assert shares[0].beside_bytes > GIB


def test_a_draft_model_takes_the_room_of_layers_on_a_small_card() -> None:
    card = replace(CARD.gpus[0], total_bytes=8 * GIB, free_bytes=8 * GIB)
    machine = Machine(CARD.host, (card,))
    counts = []
    for auxiliary in (AuxiliaryModels(), AuxiliaryModels(draft=draft())):
        profile = model(auxiliary).profile(SETTING)
        placement = place(profile, machine, expected_rates(machine))
        assert placement is not None
        on_card = allocate(profile, machine, placement)[0]
        assert on_card.n_bytes <= card.free_bytes - margin_bytes(card)
        counts.append(on_card.weight_bytes)
    assert counts[0] > counts[1]


def test_an_adapter_lies_where_the_weights_lie_that_it_changes() -> None:
    base = model(AuxiliaryModels())
    query = next(tensor for tensor in base.tensors if tensor.name == "blk.3.attn_q.weight")
    part = replace(query, name="blk.3.attn_q.weight.lora_a", shape=(4096, 16), type_id=0, n_bytes=4096 * 16 * 4)
    adapted = model(AuxiliaryModels(adapters=(PlannedAdapter("style.gguf", (part,)),)))
    before, after = base.profile(SETTING), adapted.profile(SETTING)
    grown = [new.weight_bytes - old.weight_bytes for new, old in zip(after.layers, before.layers, strict=True)]
    assert grown == [part.n_bytes if index == 3 else 0 for index in range(len(grown))]
    assert after.beside_bytes == 0
    assert after.total_bytes == before.total_bytes + part.n_bytes
    assert [extra.weight_bytes for extra in after.extras] == [part.n_bytes]


def test_a_prediction_layer_counts_as_a_layer_and_has_a_context_of_its_own() -> None:
    base = model(AuxiliaryModels())
    n_trunk = 32
    layer = [tensor for tensor in base.tensors if tensor.name.startswith("blk.0.")]
    added = tuple(replace(tensor, name=tensor.name.replace("blk.0.", f"blk.{n_trunk}.")) for tensor in layer)
    header = with_prediction_layer(base)
    without = PlannedModel(header, (*base.tensors, *added)).profile(SETTING)
    with_head = PlannedModel(header, (*base.tensors, *added), auxiliary=AuxiliaryModels(has_mtp_layer=True)).profile(
        SETTING
    )
    assert len(without.layers) == len(with_head.layers) == n_trunk + 2
    assert without.total_bytes == base.profile(SETTING).total_bytes
    assert with_head.layers[-2].weight_bytes == without.layers[0].weight_bytes
    cells = SETTING.n_cells + SETTING.n_sequences * 32
    assert with_head.layers[-2].cache_bytes == without.layers[0].cache_bytes * -(-cells // 256) * 256 // SETTING.n_cells
    (extra,) = with_head.extras
    assert with_head.beside_bytes == extra.compute_bytes > 0


def test_each_of_several_prediction_layers_has_a_context_with_a_cache_for_all_of_them() -> None:
    base = model(AuxiliaryModels())
    trunk = [tensor for tensor in base.tensors if tensor.name.startswith("blk.0.")]
    profiles = []
    for n_layers in (1, 3):
        added = tuple(
            replace(tensor, name=tensor.name.replace("blk.0.", f"blk.{32 + i}."))
            for i in range(n_layers)
            for tensor in trunk
        )
        header = with_prediction_layer(base, n_layers)
        planned = PlannedModel(header, (*base.tensors, *added), auxiliary=AuxiliaryModels(has_mtp_layer=True))
        profiles.append(planned.profile(SETTING))
    (one,), (three,) = (profile.extras for profile in profiles)
    assert three.weight_bytes == 3 * one.weight_bytes
    assert three.cache_bytes == 9 * one.cache_bytes
    assert three.beside_bytes == 3 * one.beside_bytes
    assert three.what == "3 prediction layers"


def with_prediction_layer(base: PlannedModel, n_layers: int = 1) -> Header:
    fields = dict(base.header.fields)
    count = fields["llama.block_count"]
    fields["llama.block_count"] = replace(count, value=32 + n_layers)
    fields["llama.nextn_predict_layers"] = replace(count, value=n_layers)
    return replace(base.header, fields=fields)


def test_a_draft_model_that_cannot_have_the_kind_of_cache_is_refused() -> None:
    small = draft()
    latent = header_of("deepseek-v2-lite")
    odd = replace(small, header=latent, tensors=latent.tensors)
    setting = replace(SETTING, kv_types=KvTypes("q8_0", "f16"))
    with pytest.raises(UsageError, match="one vector"):
        model(AuxiliaryModels(draft=odd)).profile(setting)


def test_bytes_of_an_adapter_are_those_of_its_tensors() -> None:
    tensors = tuple(model(AuxiliaryModels()).tensors[:3])
    assert PlannedAdapter("a", tensors).n_bytes == sum(tensor.n_bytes for tensor in tensors)
