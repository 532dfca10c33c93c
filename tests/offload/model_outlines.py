"""Headers of published models, without their weights: shapes and metadata as in their config.json.

Owns tensor lists by architecture (names: llama.cpp src/models as vendored in llama-cpp-python 0.3.36) and figures of
each model (source: its repository on the Hugging Face hub). Matrices are Q8_0, or F16 where rows are no whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from quantizer.gguf.header import Entry, Header, OutputTensor, encode_entry, encode_header, file_bytes, parse_header
from quantizer.gguf.tensor_types import tensor_type_named

__all__ = ["OUTLINES", "UNMEASURED", "Outline", "header_of", "write_outline"]

Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """One model; `layer` yields the tensors of a layer, `more` is metadata by suffix."""

    architecture: str
    layer: Callable[[Outline, int], Shapes]
    n_layers: int
    n_embd: int
    n_vocab: int
    n_ctx: int
    n_ff: int = 0
    n_heads: int = 0
    n_kv_heads: int | tuple[int, ...] = 0
    head: int = 0
    n_experts: int = 0
    n_used: int = 0
    n_expert_ff: int = 0
    is_tied: bool = True
    output_norm: str = "output_norm"
    more: dict[str, int | float | list[bool]] = field(default_factory=dict)

    def kv_heads(self, index: int) -> int:
        return self.n_kv_heads[index] if isinstance(self.n_kv_heads, tuple) else self.n_kv_heads


@dataclass(frozen=True, slots=True)
class _Head:
    """The start of a file that has no data, as a ByteSource."""

    data: bytes
    n_bytes: int

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]


def header_of(name: str) -> Header:
    """Return the header of the model called `name`, as if its file were there."""
    head, n_bytes = _encoded((OUTLINES | UNMEASURED)[name])
    return parse_header(_Head(head, n_bytes), Path(f"{name}.gguf"))


def write_outline(name: str, path: Path) -> None:
    """Write the model as a sparse file: its weights are all zero and take no space on disk."""
    head, n_bytes = _encoded(OUTLINES[name])
    with path.open("wb") as file:
        file.write(head)
        file.truncate(n_bytes)


def _encoded(outline: Outline) -> tuple[bytes, int]:
    tensors = [_tensor(name, shape) for name, shape in _tensors(outline)]
    head = encode_header(list(_entries(outline)), tensors)
    return head, file_bytes(head, tensors)


def _tensor(name: str, shape: tuple[int, ...]) -> OutputTensor:
    is_plain = len(shape) == 1 or name.endswith((".bias", "_a", "_d")) or "norm" in name or "conv" in name
    kind = "F32" if is_plain else "Q8_0" if shape[0] % 32 == 0 else "F16"
    return OutputTensor(name, shape, tensor_type_named(kind))


def _tensors(outline: Outline) -> Shapes:
    yield "token_embd.weight", (outline.n_embd, outline.n_vocab)
    if outline.output_norm:
        yield f"{outline.output_norm}.weight", (outline.n_embd,)
    if not outline.is_tied:
        yield "output.weight", (outline.n_embd, outline.n_vocab)
    if outline.architecture == "bert":
        yield "token_types.weight", (outline.n_embd, 2)
        yield "position_embd.weight", (outline.n_embd, outline.n_ctx)
        yield "token_embd_norm.weight", (outline.n_embd,)
        yield "token_embd_norm.bias", (outline.n_embd,)
    for index in range(outline.n_layers):
        for name, shape in outline.layer(outline, index):
            yield f"blk.{index}.{name}", shape


def _entries(outline: Outline) -> Iterator[Entry]:
    yield encode_entry("general.architecture", outline.architecture, "str")
    yield encode_entry("tokenizer.ggml.model", "none", "str")
    yield encode_entry("tokenizer.ggml.token_type_count", 2, "u32")
    counts = {
        "context_length": outline.n_ctx,
        "embedding_length": outline.n_embd,
        "block_count": outline.n_layers,
        "vocab_size": outline.n_vocab,
        "feed_forward_length": outline.n_ff,
        "attention.head_count": outline.n_heads,
        "attention.key_length": outline.head,
        "attention.value_length": outline.head,
        "rope.dimension_count": outline.head,
        "expert_count": outline.n_experts,
        "expert_used_count": outline.n_used,
        "expert_feed_forward_length": outline.n_expert_ff,
    }
    figures: dict[str, object] = {suffix: value for suffix, value in counts.items() if value}
    kv_heads = outline.n_kv_heads
    figures |= {"attention.head_count_kv": list(kv_heads) if isinstance(kv_heads, tuple) else kv_heads}
    figures |= {"attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5} | outline.more
    for suffix, value in figures.items():
        yield encode_entry(f"{outline.architecture}.{suffix}", value, _type_name(value))


def _type_name(value: object) -> str:
    if isinstance(value, list):
        return "bool[]" if isinstance(value[0], bool) else "u32[]"
    return {bool: "bool", int: "u32", float: "f32"}[type(value)]


def _attention(outline: Outline, index: int) -> Shapes:
    n_embd, width, kv_width = outline.n_embd, outline.head * outline.n_heads, outline.head * outline.kv_heads(index)
    yield "attn_q.weight", (n_embd, width)
    yield "attn_k.weight", (n_embd, kv_width)
    yield "attn_v.weight", (n_embd, kv_width)
    yield "attn_output.weight", (width, n_embd)


def _feed_forward(outline: Outline, suffix: str = "", n_ff: int = 0) -> Shapes:
    n_embd, n_ff = outline.n_embd, n_ff or outline.n_ff
    yield f"ffn_gate{suffix}.weight", (n_embd, n_ff)
    yield f"ffn_up{suffix}.weight", (n_embd, n_ff)
    yield f"ffn_down{suffix}.weight", (n_ff, n_embd)


def _experts(outline: Outline) -> Shapes:
    n_embd, n_ff, n = outline.n_embd, outline.n_expert_ff or outline.n_ff, outline.n_experts
    yield "ffn_gate_inp.weight", (n_embd, n)
    yield "ffn_gate_exps.weight", (n_embd, n_ff, n)
    yield "ffn_up_exps.weight", (n_embd, n_ff, n)
    yield "ffn_down_exps.weight", (n_ff, n_embd, n)


def _norms(outline: Outline, *names: str) -> Shapes:
    for name in names or ("attn_norm", "ffn_norm"):
        yield f"{name}.weight", (outline.n_embd,)


def _head_norms(outline: Outline) -> Shapes:
    yield "attn_q_norm.weight", (outline.head,)
    yield "attn_k_norm.weight", (outline.head,)


def _llama(outline: Outline, index: int) -> Shapes:
    yield from _norms(outline)
    yield from _attention(outline, index)
    yield from _feed_forward(outline)


def _qwen3(outline: Outline, index: int) -> Shapes:
    yield from _llama(outline, index)
    yield from _head_norms(outline)


def _gemma2(outline: Outline, index: int) -> Shapes:
    yield from _llama(outline, index)
    yield from _norms(outline, "post_attention_norm", "post_ffw_norm")


def _gemma3(outline: Outline, index: int) -> Shapes:
    yield from _gemma2(outline, index)
    yield from _head_norms(outline)


def _qwen3moe(outline: Outline, index: int) -> Shapes:
    yield from _norms(outline)
    yield from _attention(outline, index)
    yield from _head_norms(outline)
    yield from _experts(outline)


def _gpt_oss(outline: Outline, index: int) -> Shapes:
    n, n_embd, n_ff = outline.n_experts, outline.n_embd, outline.n_expert_ff
    yield from _norms(outline, "attn_norm", "post_attention_norm")
    yield from _attention(outline, index)
    yield from _experts(outline)
    yield "attn_sinks.weight", (outline.n_heads,)
    yield "attn_output.bias", (n_embd,)
    yield "ffn_gate_inp.bias", (n,)
    yield "ffn_gate_exps.bias", (n_ff, n)
    yield "ffn_up_exps.bias", (n_ff, n)
    yield "ffn_down_exps.bias", (n_embd, n)


def _deepseek2(outline: Outline, index: int) -> Shapes:
    n_embd, n_heads, rank, rope, nope, value = outline.n_embd, outline.n_heads, 512, 64, 128, 128
    yield from _norms(outline)
    yield "attn_q.weight", (n_embd, n_heads * (nope + rope))
    yield "attn_kv_a_mqa.weight", (n_embd, rank + rope)
    yield "attn_kv_a_norm.weight", (rank,)
    yield "attn_k_b.weight", (nope, rank, n_heads)
    yield "attn_v_b.weight", (rank, value, n_heads)
    yield "attn_output.weight", (n_heads * value, n_embd)
    if index == 0:
        yield from _feed_forward(outline)
    else:
        yield from _experts(outline)
        yield from _feed_forward(outline, "_shexp", 2 * outline.n_expert_ff)


def _deepseek32(outline: Outline, index: int) -> Shapes:
    n_embd, n_heads, q_rank, rank, rope, nope, value = outline.n_embd, outline.n_heads, 1536, 512, 64, 128, 128
    n_index_heads, index_head = (int(str(outline.more[f"attention.indexer.{name}"])) for name in _INDEX_SIZES)
    yield from _norms(outline)
    yield "attn_q_a.weight", (n_embd, q_rank)
    yield "attn_q_a_norm.weight", (q_rank,)
    yield "attn_q_b.weight", (q_rank, n_heads * (nope + rope))
    yield "attn_kv_a_mqa.weight", (n_embd, rank + rope)
    yield "attn_kv_a_norm.weight", (rank,)
    yield "attn_k_b.weight", (nope, rank, n_heads)
    yield "attn_v_b.weight", (rank, value, n_heads)
    yield "attn_output.weight", (n_heads * value, n_embd)
    yield "indexer.k_norm.weight", (index_head,)
    yield "indexer.k_norm.bias", (index_head,)
    yield "indexer.proj.weight", (n_embd, n_index_heads)
    yield "indexer.attn_k.weight", (n_embd, index_head)
    yield "indexer.attn_q_b.weight", (q_rank, n_index_heads * index_head)
    if index < int(str(outline.more["leading_dense_block_count"])):
        yield from _feed_forward(outline)
    else:
        yield from _experts(outline)
        yield from _feed_forward(outline, "_shexp", outline.n_expert_ff)


def _lfm2(outline: Outline, index: int) -> Shapes:
    yield from _norms(outline)
    yield from _feed_forward(outline)
    if outline.kv_heads(index):
        yield from _attention(outline, index)
        yield from _head_norms(outline)
    else:
        yield "shortconv.conv.weight", (3, outline.n_embd)
        yield "shortconv.in_proj.weight", (outline.n_embd, 3 * outline.n_embd)
        yield "shortconv.out_proj.weight", (outline.n_embd, outline.n_embd)


def _granite_hybrid(outline: Outline, index: int) -> Shapes:
    n_embd, inner, n_ssm_heads = outline.n_embd, 2 * outline.n_embd, int(str(outline.more["ssm.time_step_rank"]))
    n_convolved = inner + 2 * int(str(outline.more["ssm.state_size"]))
    yield from _norms(outline)
    if outline.kv_heads(index):
        yield from _attention(outline, index)
    else:
        yield "ssm_in.weight", (n_embd, inner + n_convolved + n_ssm_heads)
        yield "ssm_conv1d.weight", (4, n_convolved)
        yield "ssm_conv1d.bias", (n_convolved,)
        yield "ssm_dt.bias", (n_ssm_heads,)
        yield "ssm_a", (1, n_ssm_heads)
        yield "ssm_d", (1, n_ssm_heads)
        yield "ssm_norm.weight", (inner, 1)
        yield "ssm_out.weight", (inner, n_embd)
    yield from _experts(outline)
    yield from _feed_forward(outline, "_shexp", 1024)


def _mamba(outline: Outline, _index: int) -> Shapes:
    n_embd, inner, rank = outline.n_embd, 2 * outline.n_embd, outline.n_embd // 16
    yield from _norms(outline, "attn_norm")
    yield "ssm_in.weight", (n_embd, 2 * inner)
    yield "ssm_conv1d.weight", (4, inner)
    yield "ssm_conv1d.bias", (inner,)
    yield "ssm_x.weight", (inner, rank + 32)
    yield "ssm_dt.weight", (rank, inner)
    yield "ssm_dt.bias", (inner,)
    yield "ssm_a", (16, inner)
    yield "ssm_d", (inner,)
    yield "ssm_out.weight", (inner, n_embd)


def _bert(outline: Outline, index: int) -> Shapes:
    n_embd, n_ff = outline.n_embd, outline.n_ff
    yield from _attention(outline, index)
    yield "ffn_up.weight", (n_embd, n_ff)
    yield "ffn_up.bias", (n_ff,)
    yield "ffn_down.weight", (n_ff, n_embd)
    yield "ffn_down.bias", (n_embd,)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        yield f"{name}.bias", (n_embd,)
    for name in ("attn_output_norm", "layer_output_norm"):
        yield f"{name}.weight", (n_embd,)
        yield f"{name}.bias", (n_embd,)


def _ssm(n_inner: int, n_state: int, n_groups: int, rank: int) -> dict[str, int | float | list[bool]]:
    figures = {"conv_kernel": 4, "inner_size": n_inner, "state_size": n_state, "time_step_rank": rank}
    return {f"ssm.{name}": value for name, value in figures.items()} | (
        {"ssm.group_count": n_groups} if n_groups else {}
    )


_INDEX_SIZES = ("head_count", "key_length")
_LATENT = {
    "attention.kv_lora_rank": 512,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "rope.dimension_count": 64,
    "leading_dense_block_count": 1,
    "expert_shared_count": 2,
    "expert_weights_scale": 1.0,
}

OUTLINES = {
    "llama-3.1-8b": Outline(
        architecture="llama",
        layer=_llama,
        n_layers=32,
        n_embd=4096,
        n_vocab=128_256,
        n_ctx=131_072,
        n_ff=14_336,
        n_heads=32,
        n_kv_heads=8,
        head=128,
        is_tied=False,
    ),
    "llama-2-7b": Outline(
        architecture="llama",
        layer=_llama,
        n_layers=32,
        n_embd=4096,
        n_vocab=32_000,
        n_ctx=4096,
        n_ff=11_008,
        n_heads=32,
        n_kv_heads=32,
        head=128,
        is_tied=False,
    ),
    "gemma-2b": Outline(
        architecture="gemma",
        layer=_llama,
        n_layers=18,
        n_embd=2048,
        n_vocab=256_000,
        n_ctx=8192,
        n_ff=16_384,
        n_heads=8,
        n_kv_heads=1,
        head=256,
    ),
    "qwen3-0.6b": Outline(
        architecture="qwen3",
        layer=_qwen3,
        n_layers=28,
        n_embd=1024,
        n_vocab=151_936,
        n_ctx=40_960,
        n_ff=3072,
        n_heads=16,
        n_kv_heads=8,
        head=128,
    ),
    "gemma-2-9b": Outline(
        architecture="gemma2",
        layer=_gemma2,
        n_layers=42,
        n_embd=3584,
        n_vocab=256_000,
        n_ctx=8192,
        n_ff=14_336,
        n_heads=16,
        n_kv_heads=8,
        head=256,
        more={"attention.sliding_window": 4096},
    ),
    "gemma-3-4b": Outline(
        architecture="gemma3",
        layer=_gemma3,
        n_layers=34,
        n_embd=2560,
        n_vocab=262_208,
        n_ctx=131_072,
        n_ff=10_240,
        n_heads=8,
        n_kv_heads=4,
        head=256,
        more={"attention.sliding_window": 1024},
    ),
    "deepseek-v2-lite": Outline(
        architecture="deepseek2",
        layer=_deepseek2,
        n_layers=27,
        n_embd=2048,
        n_vocab=102_400,
        n_ctx=163_840,
        n_ff=10_944,
        n_heads=16,
        n_kv_heads=1,
        n_experts=64,
        n_used=6,
        n_expert_ff=1408,
        is_tied=False,
        more=_LATENT,
    ),
    "deepseek-v3.2": Outline(
        architecture="deepseek32",
        layer=_deepseek32,
        n_layers=61,
        n_embd=7168,
        n_vocab=129_280,
        n_ctx=163_840,
        n_ff=18_432,
        n_heads=128,
        n_kv_heads=1,
        n_experts=256,
        n_used=8,
        n_expert_ff=2048,
        is_tied=False,
        more=_LATENT
        | {"attention.q_lora_rank": 1536, "leading_dense_block_count": 3, "expert_shared_count": 1}
        | {"expert_gating_func": 2, "attention.indexer.head_count": 64, "attention.indexer.key_length": 128}
        | {"attention.indexer.top_k": 2048},
    ),
    "qwen3-30b-a3b": Outline(
        architecture="qwen3moe",
        layer=_qwen3moe,
        n_layers=48,
        n_embd=2048,
        n_vocab=151_936,
        n_ctx=40_960,
        n_ff=6144,
        n_heads=32,
        n_kv_heads=4,
        head=128,
        n_experts=128,
        n_used=8,
        n_expert_ff=768,
        is_tied=False,
    ),
    "gpt-oss-20b": Outline(
        architecture="gpt-oss",
        layer=_gpt_oss,
        n_layers=24,
        n_embd=2880,
        n_vocab=201_088,
        n_ctx=131_072,
        n_ff=2880,
        n_heads=64,
        n_kv_heads=8,
        head=64,
        n_experts=32,
        n_used=4,
        n_expert_ff=2880,
        is_tied=False,
        more={"attention.sliding_window": 128},
    ),
    "lfm2-350m": Outline(
        architecture="lfm2",
        layer=_lfm2,
        n_layers=16,
        n_embd=1024,
        n_vocab=65_536,
        n_ctx=128_000,
        n_ff=4608,
        n_heads=16,
        n_kv_heads=tuple(8 if i in (2, 5, 8, 10, 12, 14) else 0 for i in range(16)),
        head=64,
        output_norm="token_embd_norm",
        more={"shortconv.l_cache": 3},
    ),
    "granite-4.0-h-tiny": Outline(
        architecture="granitehybrid",
        layer=_granite_hybrid,
        n_layers=40,
        n_embd=1536,
        n_vocab=100_352,
        n_ctx=131_072,
        n_ff=512,
        n_heads=12,
        n_kv_heads=tuple(4 if i in (5, 15, 25, 35) else 0 for i in range(40)),
        head=128,
        n_experts=64,
        n_used=6,
        more={"expert_shared_feed_forward_length": 1024, "logit_scale": 6.0, **_ssm(3072, 128, 1, 48)},
    ),
    "mamba-130m": Outline(
        architecture="mamba",
        layer=_mamba,
        n_layers=24,
        n_embd=768,
        n_vocab=50_280,
        n_ctx=1_048_576,
        more=_ssm(1536, 16, 0, 48),
    ),
    "bge-base": Outline(
        architecture="bert",
        layer=_bert,
        n_layers=12,
        n_embd=768,
        n_vocab=30_522,
        n_ctx=512,
        n_ff=3072,
        n_heads=12,
        n_kv_heads=12,
        head=64,
        output_norm="",
        more={"attention.causal": False, "pooling_type": 2},
    ),
}

# Too large for what llama.cpp logs of them to be compared, or of the shape of another.
UNMEASURED = {
    "llama-3.3-70b": replace(OUTLINES["llama-3.1-8b"], n_layers=80, n_embd=8192, n_ff=28_672, n_heads=64),
    "llama-3.2-1b": replace(OUTLINES["llama-3.1-8b"], n_layers=16, n_embd=2048, n_ff=8192, head=64, is_tied=True),
}
