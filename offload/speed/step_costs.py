"""What a step of several tokens of an answer costs, by the types of a model's weights as they were measured. Pure.

A draft pays where its step costs fewer steps of one token than it yields tokens, and that depends on the types: of one
whose kernel computes a token after the other a step of 32 tokens costs 17 of one, where others take 8.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from offload.footprint.model import ModelProfile
from offload.speed.cost_model import ANSWER_BUILDING_S, ANSWER_FIXED_S, ATTENTION, ELEMENTS, REACHED_IN_MODELS
from offload.speed.type_costs import NO_WORK, TypeTable, WeightLayout, Weights, bytes_of, in_layout, summed

# Measured with a 1.24B Q4_K_M on 2 AVX-512 cores at depth 512, repacked, attention not fused, all tokens with logits.
# Kernels take 16 rows at once, then 4, and each row left over reads all weights again: 16 tokens cost less than 11.
# fmt: off
CPU_COST_RATIOS: dict[int, float] = {
    1: 1.0, 2: 1.6, 3: 2.03, 4: 1.93, 5: 2.5, 8: 4.2, 9: 4.4, 12: 4.9, 15: 6.1, 16: 4.9, 17: 6.0, 24: 7.4, 28: 8.3,
    31: 9.6, 32: 8.4, 33: 9.4, 36: 9.9, 40: 10.6, 47: 12.9, 48: 11.7, 63: 16.1, 64: 15.0,
}
# fmt: on


def step_ratios(profile: ModelProfile, table: TypeTable, sizes: Iterable[int]) -> dict[int, float]:
    """Return the cost of steps of `sizes` tokens of one answer, in steps of one token, of a processor with `table` that
    has all layers of `profile`: each token is behind the `depth` of its run, in the middle of its prompt, and has
    logits. Empty where a type was not measured, and for experts: how many of them several tokens need depends on the
    text."""
    graph, layout, is_fused = table.graph, profile.run_config.layout, profile.run_config.is_fused
    inner, output = summed(*(layer.weights for layer in profile.layers[:-1])), profile.layers[-1].weights
    parts: tuple[tuple[Weights, WeightLayout], ...] = ((inner, layout), (output, replace(layout, copies=())))
    used = {kind for weights, _ in parts for kind in weights} | {kind for _, kind in layout.copies}
    if graph is None or profile.has_experts or not all(map(table.cost, used)):
        return {}
    model_bytes = bytes_of(summed(inner, output))
    attended = sum((layer.attention for layer in profile.layers), NO_WORK)
    # Fused attention takes a token after the other, below 64 of them (GGML_FA_TILE_Q of ggml-cpu/common.h@0.3.36). What
    # is not fused multiplies several tokens at once. A layer's overhead contains the other steps of one token.
    single_attention_s = (graph.fused_attention if is_fused else graph.attention).of(attended)
    more_attention_s = profile.prompt_operations.get(ATTENTION, 0.0) * graph.prompt_attention_s
    more_s = profile.prompt_operations.get(ELEMENTS, 0.0) * graph.element_s
    more_s += single_attention_s if is_fused else min(single_attention_s, more_attention_s)
    overhead_s = ANSWER_FIXED_S + len(profile.layers) * (graph.layer_s + ANSWER_BUILDING_S)

    def step_s(n_tokens: int) -> float:
        products_s = sum(
            cost.step_s(n_tokens, work, model_bytes)
            for weights, used_layout in parts
            for kind, work in in_layout(weights, used_layout, n_tokens).items()
            if (cost := table.cost(kind))
        )
        return products_s / REACHED_IN_MODELS + single_attention_s + (n_tokens - 1) * more_s + overhead_s

    single_s = step_s(1)
    # where a step begins to use other weights it may cost less than one of a token less
    changes = {size for size in (layout.copy_from, layout.plain_from) if size}
    wanted = sorted({1, *sizes, *changes, *(size - 1 for size in changes)})
    return {n_tokens: step_s(n_tokens) / single_s for n_tokens in wanted if n_tokens > 0}
