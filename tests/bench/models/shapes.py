"""The shapes of the models that are made for benchmarks and tests.

The figures are those of the published config.json of each model (source: its repository on the Hugging Face hub).
"""

from __future__ import annotations

from dataclasses import replace

from tests.bench.models.layers import (
    ATTENTION_INTERVAL,
    Recurrence,
    Shape,
    Value,
    gemma3_layer,
    gpt_oss_layer,
    lfm2_layer,
    llama_layer,
    mamba2_layer,
    mamba_layer,
    qwen3_layer,
    qwen3moe_layer,
    qwen35_layer,
)

__all__ = ["SHAPES"]


def _rope(base: float) -> tuple[str, Value]:
    return "rope.freq_base", (base, "f32")


def _mamba_metadata(n_embd: int) -> tuple[tuple[str, Value], ...]:
    figures = {"conv_kernel": 4, "inner_size": 2 * n_embd, "state_size": 16, "time_step_rank": -(-n_embd // 16)}
    return tuple((f"ssm.{name}", (value, "u32")) for name, value in figures.items())


def _expert_metadata(n_experts: int, n_used: int, n_ff: int) -> tuple[tuple[str, Value], ...]:
    figures = {"expert_count": n_experts, "expert_used_count": n_used, "expert_feed_forward_length": n_ff}
    return tuple((name, (value, "u32")) for name, value in figures.items())


def _gpt_oss_metadata(window: int) -> tuple[tuple[str, Value], ...]:
    scaling: tuple[tuple[str, Value], ...] = (
        ("rope.scaling.type", ("yarn", "str")),
        ("rope.scaling.factor", (32.0, "f32")),
        ("rope.scaling.original_context_length", (4096, "u32")),
    )
    return (_rope(150_000.0), ("attention.sliding_window", (window, "u32")), *scaling)


def _qwen35_metadata(*sections: int) -> tuple[tuple[str, Value], ...]:
    return (
        _rope(10_000_000.0),
        ("rope.dimension_sections", (list(sections), "i32[]")),
        ("full_attention_interval", (ATTENTION_INTERVAL, "u32")),
    )


_LLAMA_1B = Shape(
    architecture="llama",
    layer=llama_layer,
    n_layers=16,
    n_embd=2048,
    n_vocab=128_256,
    n_ctx=131_072,
    n_ff=8192,
    n_heads=32,
    n_kv_heads=8,
    head_dim=64,
    more=(_rope(500_000.0),),
)
_QWEN3_600M = Shape(
    architecture="qwen3",
    layer=qwen3_layer,
    n_layers=28,
    n_embd=1024,
    n_vocab=151_936,
    n_ctx=40_960,
    n_ff=3072,
    n_heads=16,
    n_kv_heads=8,
    head_dim=128,
    pre_tokenizer="qwen2",
    more=(_rope(1_000_000.0),),
)
# Not a published model: the form of Qwen3-30B-A3B at a size that fits any machine.
_QWEN3_MOE_1B = Shape(
    architecture="qwen3moe",
    layer=qwen3moe_layer,
    n_layers=16,
    n_embd=1024,
    n_vocab=151_936,
    n_ctx=40_960,
    n_ff=512,
    n_heads=16,
    n_kv_heads=4,
    head_dim=128,
    n_experts=32,
    n_experts_used=4,
    pre_tokenizer="qwen2",
    more=(_rope(1_000_000.0), *_expert_metadata(32, 4, 512)),
)
_LFM2_350M = Shape(
    architecture="lfm2",
    layer=lfm2_layer,
    n_layers=16,
    n_embd=1024,
    n_vocab=65_536,
    n_ctx=128_000,
    n_ff=4608,
    n_heads=16,
    n_kv_heads=8,
    head_dim=64,
    attention_layers=(2, 5, 8, 10, 12, 14),
    output_norm="token_embd_norm",
    more=(_rope(1_000_000.0), ("shortconv.l_cache", (3, "u32"))),
)
_MAMBA_130M = Shape(
    architecture="mamba",
    layer=mamba_layer,
    n_layers=24,
    n_embd=768,
    n_vocab=50_280,
    n_ctx=1_048_576,
    more=_mamba_metadata(768),
)
_GEMMA3_1B = Shape(
    architecture="gemma3",
    layer=gemma3_layer,
    n_layers=26,
    n_embd=1152,
    n_vocab=262_144,
    n_ctx=32_768,
    n_ff=6912,
    n_heads=4,
    n_kv_heads=1,
    head_dim=256,
    more=(_rope(1_000_000.0), ("attention.sliding_window", (512, "u32"))),
)
# The form of gpt-oss-20b with 8 layers of 24, 8 experts of 32 and a third of the vocabulary.
_GPT_OSS_2B = Shape(
    architecture="gpt-oss",
    layer=gpt_oss_layer,
    n_layers=8,
    n_embd=2880,
    n_vocab=65_536,
    n_ctx=131_072,
    n_ff=2880,
    n_heads=64,
    n_kv_heads=8,
    head_dim=64,
    n_experts=8,
    n_experts_used=4,
    has_output=True,
    pre_tokenizer="gpt-4o",
    more=(*_gpt_oss_metadata(128), *_expert_metadata(8, 4, 2880)),
)
_QWEN35_800M = Shape(
    architecture="qwen35",
    layer=qwen35_layer,
    n_layers=25,
    n_embd=1024,
    n_vocab=248_320,
    n_ctx=262_144,
    n_ff=3584,
    n_heads=8,
    n_kv_heads=2,
    head_dim=256,
    n_rotated=64,
    n_prediction_layers=1,
    ssm=Recurrence(inner=2048, n_state=128, n_heads=16, n_groups=16),
    pre_tokenizer="qwen35",
    more=_qwen35_metadata(11, 11, 10, 0),
)
_MAMBA2_370M = Shape(
    architecture="mamba2",
    layer=mamba2_layer,
    n_layers=48,
    n_embd=1024,
    n_vocab=50_288,
    n_ctx=1_048_576,
    ssm=Recurrence(inner=2048, n_state=128, n_heads=32, n_groups=1),
    pre_tokenizer="gpt-2",
)

_TINY_GPT_OSS = replace(
    _GPT_OSS_2B,
    n_layers=4,
    n_embd=256,
    n_vocab=4096,
    n_ctx=4096,
    n_ff=256,
    n_heads=4,
    n_kv_heads=2,
    more=(*_gpt_oss_metadata(64), *_expert_metadata(8, 4, 256)),
)

SHAPES: dict[str, Shape] = {
    "llama-3.2-1b": _LLAMA_1B,
    "qwen3-0.6b": _QWEN3_600M,
    "qwen3-moe-1b": _QWEN3_MOE_1B,
    "lfm2-350m": _LFM2_350M,
    "mamba-130m": _MAMBA_130M,
    "gemma3-1b": _GEMMA3_1B,
    "gpt-oss-2b": _GPT_OSS_2B,
    "qwen3.5-0.8b": _QWEN35_800M,
    "mamba2-370m": _MAMBA2_370M,
    # The same forms for correctness: loaded in a moment, with a sliding window that a short text leaves behind.
    "tiny-llama": replace(
        _LLAMA_1B, n_layers=2, n_embd=256, n_vocab=4096, n_ctx=4096, n_ff=512, n_heads=4, n_kv_heads=2
    ),
    "tiny-qwen3": replace(
        _QWEN3_600M, n_layers=2, n_embd=256, n_vocab=4096, n_ctx=4096, n_ff=512, n_heads=4, n_kv_heads=2, head_dim=64
    ),
    "tiny-moe": replace(
        _QWEN3_MOE_1B, n_layers=2, n_embd=256, n_vocab=4096, n_ctx=4096, n_heads=4, n_kv_heads=2, head_dim=64
    ),
    "tiny-lfm2": replace(
        _LFM2_350M,
        n_layers=4,
        n_embd=256,
        n_vocab=4096,
        n_ctx=4096,
        n_ff=512,
        n_heads=4,
        n_kv_heads=2,
        attention_layers=(2,),
    ),
    "tiny-mamba": replace(_MAMBA_130M, n_layers=2, n_embd=256, n_vocab=4096, n_ctx=4096, more=_mamba_metadata(256)),
    "tiny-mamba2": replace(
        _MAMBA2_370M,
        n_layers=2,
        n_embd=256,
        n_vocab=4096,
        n_ctx=4096,
        ssm=Recurrence(inner=512, n_state=64, n_heads=8, n_groups=1),
    ),
    "tiny-qwen35": replace(
        _QWEN35_800M,
        n_layers=5,
        n_embd=256,
        n_vocab=4096,
        n_ctx=4096,
        n_ff=512,
        n_heads=4,
        n_kv_heads=2,
        head_dim=64,
        n_rotated=16,
        ssm=Recurrence(inner=256, n_state=64, n_heads=4, n_groups=4),
        more=_qwen35_metadata(8, 0, 0, 0),
    ),
    "tiny-gpt-oss": _TINY_GPT_OSS,
    # Which experts a router asks turns on the last bits where two score alike, and with it the text. Here it asks all.
    "tiny-gpt-oss-all-experts": replace(_TINY_GPT_OSS, more=(*_gpt_oss_metadata(64), *_expert_metadata(8, 8, 256))),
    "tiny-gemma3": replace(
        _GEMMA3_1B,
        n_layers=6,
        n_embd=256,
        n_vocab=4096,
        n_ctx=4096,
        n_ff=512,
        n_heads=4,
        head_dim=64,
        more=(_rope(1_000_000.0), ("attention.sliding_window", (64, "u32"))),
    ),
}
