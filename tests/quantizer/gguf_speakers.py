"""Tiny models that speak, with seeded random weights, written by gguf alone as llama.cpp's converter names things.

A model is two files: the backbone, and a projector with the encoder of a voice, what generates codes or latents, and
the decoder of samples. libmtmd fixes many sizes (72 frames a window, 8 layers, 1,920 samples a frame); widths are tiny.
Sources: conversion/qwen3tts.py, conversion/pockettts.py and `load_tensors` in tools/mtmd/clip.cpp as vendored in
llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

import gguf
import numpy as np

from tests.quantizer.gguf_files import Edit, byte_level_tokens, write_gguf

__all__ = ["SpeakerKind", "tiny_speaker"]

SpeakerKind: TypeAlias = Literal["qwen3tts", "pockettts"]
Tensors: TypeAlias = dict[str, np.ndarray]

_N_EMBD, _N_FF, _N_LAYERS, _N_HEADS, _N_KV_HEADS = 64, 96, 2, 4, 2
_WIDTH = 32  # of what generates and decodes samples
_N_CODEC = 3072  # rows of the codec in the vocabulary, fixed by llama.cpp
_N_CODES = 2048  # of them that are the first code of a frame
_N_ACOUSTIC, _ACOUSTIC_CODES = 15, 64
_CODEC_IDS = {
    2050: "codec_language_english",
    2053: "codec_language_german",
    2148: "codec_pad",
    2149: "codec_bos",
    2150: "codec_eos_token",
    2154: "codec_think",
    2156: "codec_think_bos",
    2157: "codec_think_eos",
}
_CODEC_END = 2150
_TTS_TOKENS = ["<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"]
_DAC_STRIDES, _DAC_WIDTHS = (8, 5, 4, 3), (16, 8, 8, 4, 4)
_SEANET_STRIDES = (4, 5, 6)  # the encoder's; the decoder has them in reverse
_LATENT = 8
_END_BIAS = 0.8  # of the logit of the token that ends a sentence, so that some end by themselves


def tiny_speaker(folder: Path, kind: SpeakerKind, edit: Edit | None = None) -> Path:
    """Write KIND.gguf and mmproj-KIND.gguf into `folder`; return the first. `edit` may change the projector's metadata
    before it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)

    def weights(*shape: int, dtype: type = np.float32, scale: float = 1.0) -> np.ndarray:
        """Random weights whose products keep the size of what they multiply."""
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 100
        return (random.standard_normal(shape) * scale / np.sqrt(fan_in)).astype(dtype)

    model, projector = folder / f"{kind}.gguf", folder / f"mmproj-{kind}.gguf"
    writer = gguf.GGUFWriter(model, kind)
    writer.add_context_length(4096)
    writer.add_embedding_length(_N_EMBD)
    writer.add_feed_forward_length(_N_FF)
    writer.add_block_count(_N_LAYERS)
    writer.add_head_count(_N_HEADS)
    beside = gguf.GGUFWriter(projector, "clip")
    beside.add_type("mmproj")
    beside.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_encoder(beside, "audio", f"{kind}_spkenc", _WIDTH)
    _add_encoder(beside, "gen.audio", f"{kind}_gen", _WIDTH)
    beside.add_bool("clip.has_audio_encoder", True)
    beside.add_bool("clip.has_gen_audio_encoder", True)
    if kind == "qwen3tts":
        _describe_qwen(writer)
        beside.add_uint32("clip.audio.num_mel_bins", 128)
        beside.add_uint32("clip.audio.block_count", 3)
        parts = _qwen_backbone(weights), {**_qwen_voice(weights), **_qwen_codes(weights), **_qwen_decoder(weights)}
    else:
        n_vocab = _describe_pocket(writer)
        beside.add_uint32("clip.audio.num_mel_bins", 1)
        beside.add_uint32("clip.audio.block_count", _N_LAYERS)
        beside.add_string("clip.gen.audio.model_variant", "english")
        parts = _pocket_backbone(weights, n_vocab), {**_pocket_voice(weights), **_pocket_decoder(weights)}
    if edit is not None:
        edit(beside)
    write_gguf(writer, parts[0])
    write_gguf(beside, parts[1])
    return model


Weights: TypeAlias = Callable[..., np.ndarray]


def _add_encoder(writer: gguf.GGUFWriter, name: str, kind: str, width: int) -> None:
    writer.add_string(f"clip.{name}.projector_type", kind)
    for key, value in {
        "projection_dim": _N_EMBD,
        "embedding_length": width,
        "feed_forward_length": 2 * width,
        "attention.head_count": _N_HEADS,
    }.items():
        writer.add_uint32(f"clip.{name}.{key}", value)
    if name == "gen.audio":
        writer.add_uint32("clip.gen.audio.block_count", _N_LAYERS)
        if kind == "qwen3tts_gen":
            writer.add_uint32("clip.gen.audio.attention.head_count_kv", _N_KV_HEADS)
    writer.add_float32(f"clip.{name}.attention.layer_norm_epsilon", 1e-5)


def _ones(n: int = _WIDTH) -> np.ndarray:
    return np.ones(n, np.float32)


# Qwen3-TTS: the backbone samples the first code of a frame, a small transformer the other 15, a decoder makes samples


def _describe_qwen(writer: gguf.GGUFWriter) -> None:
    text = [*byte_level_tokens(260), *_TTS_TOKENS]
    codec = [f"<|{_CODEC_IDS.get(row, f'codec_{row}')}|>" for row in range(_N_CODEC)]
    n_vocab, end = len(text) + _N_CODEC, len(text) + _CODEC_END
    writer.add_head_count_kv(_N_KV_HEADS)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_array("qwen3tts.rope.dimension_sections", [4, 2, 2, 0])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*text, *codec])
    writer.add_token_types([1] * 258 + [3] * (len(text) - 258) + [3] * _N_CODEC)
    writer.add_token_merges(["t h", "h e"])
    writer.add_eos_token_id(end)
    writer.add_array("tokenizer.ggml.suppress_tokens", [i for i in range(n_vocab - 1024, n_vocab) if i != end])


def _qwen_backbone(weights: Weights) -> Tensors:
    n_text, n_kv = 260 + len(_TTS_TOKENS), _N_EMBD // _N_HEADS * _N_KV_HEADS
    embeddings = weights(n_text + _N_CODEC, _N_EMBD, scale=4.0)
    embeddings[:, 0] = 0.5  # what all tokens have in common: by it, the end has a chance whatever was said
    output = weights(_N_CODEC, _N_EMBD, scale=4.0)
    output[_CODEC_END, :] = 0.0
    output[_CODEC_END, 0] = _END_BIAS * 8
    tensors = {"token_embd.weight": embeddings, "output_norm.weight": _ones(_N_EMBD), "output.weight": output}
    for layer in range(_N_LAYERS):
        block = f"blk.{layer}."
        for name, rows, columns in (
            ("attn_q", _N_EMBD, _N_EMBD),
            ("attn_k", n_kv, _N_EMBD),
            ("attn_v", n_kv, _N_EMBD),
            ("attn_output", _N_EMBD, _N_EMBD),
            ("ffn_gate", _N_FF, _N_EMBD),
            ("ffn_up", _N_FF, _N_EMBD),
            ("ffn_down", _N_EMBD, _N_FF),
        ):
            tensors[f"{block}{name}.weight"] = weights(rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"{block}{name}.weight"] = _ones(_N_EMBD)
        for name in ("attn_q_norm", "attn_k_norm"):
            tensors[f"{block}{name}.weight"] = _ones(_N_EMBD // _N_HEADS)
    return tensors


def _qwen_voice(weights: Weights) -> Tensors:
    """ECAPA-TDNN with 16 channels."""
    n, n_squeezed = 16, 8

    def convolution(name: str, *shape: int) -> Tensors:
        return {f"{name}.weight": weights(*shape), f"{name}.bias": weights(shape[0])}

    tensors = convolution("a.conv1d.0", n, 128, 5)
    for block in range(1, 4):
        prefix = f"a.blk.{block}."
        tensors |= convolution(f"{prefix}conv_pw1", n, n, 1) | convolution(f"{prefix}conv_pw2", n, n, 1)
        tensors |= convolution(f"{prefix}se_conv1", n_squeezed, n, 1) | convolution(
            f"{prefix}se_conv2", n, n_squeezed, 1
        )
        for part in range(7):
            tensors |= convolution(f"{prefix}res2.{part}", n // 8, n // 8, 3)
    tensors |= convolution("a.conv_out", 3 * n, 3 * n, 1)
    tensors |= convolution("a.asp_tdnn", n_squeezed, 9 * n, 1) | convolution("a.asp_attn", 3 * n, n_squeezed, 1)
    return tensors | convolution("mm.a.fc", _N_EMBD, 6 * n, 1)


def _qwen_codes(weights: Weights) -> Tensors:
    n_head, n_kv = _WIDTH // _N_HEADS, _WIDTH // _N_HEADS * _N_KV_HEADS
    tensors = {
        "a.gen.code.proj_in.weight": weights(_WIDTH, _N_EMBD),
        "a.gen.code.proj_in.bias": weights(_WIDTH),
        "a.gen.code.embd.weight": weights(_N_ACOUSTIC, _ACOUSTIC_CODES, _N_EMBD) * 8,
        "a.gen.code.head.weight": weights(_N_ACOUSTIC, _ACOUSTIC_CODES, _WIDTH) * 40,
        "a.gen.code.out_embd.weight": weights(_N_CODEC, _N_EMBD),
        "a.gen.code.output_norm.weight": _ones(),
    }
    for layer in range(_N_LAYERS):
        block = f"a.gen.code.blk.{layer}."
        for name, rows, columns in (
            ("attn_q", _WIDTH, _WIDTH),
            ("attn_k", n_kv, _WIDTH),
            ("attn_v", n_kv, _WIDTH),
            ("attn_out", _WIDTH, _WIDTH),
            ("ffn_gate", 2 * _WIDTH, _WIDTH),
            ("ffn_up", 2 * _WIDTH, _WIDTH),
            ("ffn_down", _WIDTH, 2 * _WIDTH),
        ):
            tensors[f"{block}{name}.weight"] = weights(rows, columns)
        tensors |= {f"{block}ln1.weight": _ones(), f"{block}ln2.weight": _ones()}
        tensors |= {f"{block}attn_q_norm.weight": _ones(n_head), f"{block}attn_k_norm.weight": _ones(n_head)}
    return tensors


def _qwen_decoder(weights: Weights) -> Tensors:
    n_code, n_inner = 16, 128  # 16 heads of 8
    tensors = {
        "a.gen.wav.quant.first.in_proj.weight": weights(n_code, _WIDTH),
        "a.gen.wav.quant.first.out_proj.weight": weights(_WIDTH, n_code),
        "a.gen.wav.quant.first.codebook.weight": weights(_N_CODES, n_code, scale=4.0),
        "a.gen.wav.quant.rest.in_proj.weight": weights(n_code, _WIDTH),
        "a.gen.wav.quant.rest.out_proj.weight": weights(_WIDTH, n_code),
        "a.gen.wav.quant.rest.codebook.weight": weights(_N_ACOUSTIC, _ACOUSTIC_CODES, n_code) * 8,
        "a.gen.wav.pre_conv.weight": weights(_WIDTH, _WIDTH, 3, dtype=np.float16),
        "a.gen.wav.pre_conv.bias": weights(_WIDTH),
        "a.gen.wav.tfm.in_proj.weight": weights(_WIDTH, _WIDTH),
        "a.gen.wav.tfm.in_proj.bias": weights(_WIDTH),
        "a.gen.wav.tfm.out_proj.weight": weights(_WIDTH, _WIDTH),
        "a.gen.wav.tfm.out_proj.bias": weights(_WIDTH),
        "a.gen.wav.tfm.output_norm.weight": _ones(),
    }
    for layer in range(8):
        block = f"a.gen.wav.tfm.blk.{layer}."
        for name, rows, columns in (
            ("attn_q", n_inner, _WIDTH),
            ("attn_k", n_inner, _WIDTH),
            ("attn_v", n_inner, _WIDTH),
            ("attn_out", _WIDTH, n_inner),
            ("ffn_gate", 2 * _WIDTH, _WIDTH),
            ("ffn_up", 2 * _WIDTH, _WIDTH),
            ("ffn_down", _WIDTH, 2 * _WIDTH),
        ):
            tensors[f"{block}{name}.weight"] = weights(rows, columns)
        tensors |= {f"{block}{name}.weight": _ones() for name in ("ln1", "ln2", "ls1", "ls2")}
    for number in range(2):
        block = f"a.gen.wav.up.blk.{number}."
        tensors |= {
            f"{block}conv.weight": weights(_WIDTH, _WIDTH, 2),
            f"{block}conv.bias": weights(_WIDTH),
            f"{block}dwconv.weight": weights(_WIDTH, 1, 7, dtype=np.float16),
            f"{block}dwconv.bias": weights(_WIDTH),
            f"{block}norm.weight": _ones(),
            f"{block}norm.bias": weights(_WIDTH),
            f"{block}pw1.weight": weights(2 * _WIDTH, _WIDTH),
            f"{block}pw1.bias": weights(2 * _WIDTH),
            f"{block}pw2.weight": weights(_WIDTH, 2 * _WIDTH),
            f"{block}pw2.bias": weights(_WIDTH),
            f"{block}gamma": _ones(),
        }

    def snake(name: str, n: int) -> Tensors:
        return {f"{name}.alpha": _ones(n), f"{name}.beta": _ones(n)}

    dac = "a.gen.wav.dac."
    tensors |= {f"{dac}entry.weight": weights(_DAC_WIDTHS[0], _WIDTH, 7, dtype=np.float16)}
    tensors |= {f"{dac}entry.bias": weights(_DAC_WIDTHS[0])}
    for number, stride in enumerate(_DAC_STRIDES):
        block, before, after = f"{dac}blk.{number}.", _DAC_WIDTHS[number], _DAC_WIDTHS[number + 1]
        tensors |= snake(f"{block}snake", before)
        tensors |= {f"{block}conv.weight": weights(before, after, 2 * stride), f"{block}conv.bias": weights(after)}
        for part in range(3):
            unit = f"{block}res.{part}."
            tensors |= snake(f"{unit}act1", after) | snake(f"{unit}act2", after)
            tensors |= {f"{unit}conv1.weight": weights(after, after, 7, dtype=np.float16)}
            tensors |= {f"{unit}conv2.weight": weights(after, after, 1, dtype=np.float16)}
            tensors |= {f"{unit}conv1.bias": weights(after), f"{unit}conv2.bias": weights(after)}
    tensors |= snake(f"{dac}post_snake", _DAC_WIDTHS[-1])
    last = weights(1, _DAC_WIDTHS[-1], 7, dtype=np.float16) / 64  # below the clamp to -1 and 1
    return tensors | {f"{dac}post_conv.weight": last, f"{dac}post_conv.bias": weights(1)}


# Pocket-TTS: each hidden state of the backbone becomes a latent by flow matching, a decoder makes samples of latents


def _describe_pocket(writer: gguf.GGUFWriter) -> int:
    characters = [chr(code) for code in range(33, 127)]
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        "▁",
        *characters,
        "▁the",
        "ing",
        "<|pad|>",
        "<|bos_before_voice|>",
        "<|audio_bos|>",
    ]
    n_special = 3
    writer.add_head_count_kv(_N_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_eps(1e-5)
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-5.0] * (len(tokens) - n_special) + [-1000.0] * n_special)
    writer.add_token_types([2, 3, 3] + [1] * (len(tokens) - n_special - 3) + [3] * n_special)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(False)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    return len(tokens)


def _pocket_backbone(weights: Weights, n_vocab: int) -> Tensors:
    tensors = {"token_embd.weight": weights(n_vocab, _N_EMBD) * 8}
    tensors |= {"output_norm.weight": _ones(_N_EMBD), "output_norm.bias": weights(_N_EMBD)}
    for layer in range(_N_LAYERS):
        block = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"{block}{name}.weight"] = weights(_N_EMBD, _N_EMBD)
        tensors |= {
            f"{block}ffn_up.weight": weights(_N_FF, _N_EMBD),
            f"{block}ffn_down.weight": weights(_N_EMBD, _N_FF),
        }
        for name in ("attn_norm", "ffn_norm"):
            tensors |= {f"{block}{name}.weight": _ones(_N_EMBD), f"{block}{name}.bias": weights(_N_EMBD)}
    return tensors


def _mimi(weights: Weights, prefix: str) -> Tensors:
    tensors: Tensors = {}
    for layer in range(_N_LAYERS):
        block = f"{prefix}.blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            tensors[f"{block}{name}.weight"] = weights(_WIDTH, _WIDTH)
        tensors[f"{block}ffn_up.weight"] = weights(2 * _WIDTH, _WIDTH)
        tensors[f"{block}ffn_down.weight"] = weights(_WIDTH, 2 * _WIDTH)
        for name in ("ln1", "ln2"):
            tensors |= {f"{block}{name}.weight": _ones(), f"{block}{name}.bias": weights(_WIDTH)}
        tensors |= {f"{block}ls1.weight": _ones(), f"{block}ls2.weight": _ones()}
    return tensors


def _seanet(weights: Weights, prefix: str, *, is_decoder: bool) -> Tensors:
    def convolution(name: str, n_out: int, n_in: int, n_taps: int) -> Tensors:
        kernel = weights(n_out, n_in, n_taps, dtype=np.float16)
        return {f"{prefix}.{name}.weight": kernel, f"{prefix}.{name}.bias": weights(n_out)}

    narrow = 8
    if not is_decoder:
        tensors = convolution("conv_in", narrow, 1, 7) | convolution("conv_out", _WIDTH, narrow, 3)
        for stage, stride in enumerate(_SEANET_STRIDES):
            tensors |= convolution(f"blk.{stage}.res_conv1", narrow // 2, narrow, 3)
            tensors |= convolution(f"blk.{stage}.res_conv2", narrow, narrow // 2, 1)
            tensors |= convolution(f"blk.{stage}.scale_conv", narrow, narrow, 2 * stride)
        return tensors
    tensors = convolution("conv_in", narrow, _WIDTH, 7) | convolution("conv_out", 1, narrow, 3)
    for stage, stride in enumerate(reversed(_SEANET_STRIDES)):
        tensors |= convolution(f"blk.{stage}.res_conv1", narrow // 2, narrow, 3)
        tensors |= convolution(f"blk.{stage}.res_conv2", narrow, narrow // 2, 1)
        tensors |= convolution(f"blk.{stage}.scale_conv", narrow, narrow, 2 * stride)
    return tensors


def _pocket_voice(weights: Weights) -> Tensors:
    return {
        **_seanet(weights, "a.seanet", is_decoder=False),
        **_mimi(weights, "a"),
        "a.downsample.conv.weight": weights(_LATENT, _WIDTH, 32, dtype=np.float16),
        "a.speaker_proj.weight": weights(_N_EMBD, _LATENT),
    }


def _pocket_decoder(weights: Weights) -> Tensors:
    n_flow, n_frequencies, flow = _WIDTH, 8, "a.gen.flow."

    def linear(name: str, n_out: int, n_in: int) -> Tensors:
        return {f"{name}.weight": weights(n_out, n_in), f"{name}.bias": weights(n_out)}

    tensors = linear(f"{flow}input_proj", n_flow, _LATENT) | linear(f"{flow}cond_embd", n_flow, _N_EMBD)
    for which in range(2):
        time = f"{flow}time.{which}."
        tensors |= {
            f"{time}freqs": np.geomspace(1, 100, n_frequencies).astype(np.float32),
            f"{time}norm": _ones(n_flow),
        }
        tensors |= linear(f"{time}up", n_flow, 2 * n_frequencies) | linear(f"{time}down", n_flow, n_flow)
    for block in range(2):
        prefix = f"{flow}blk.{block}."
        tensors |= {f"{prefix}norm.weight": _ones(n_flow), f"{prefix}norm.bias": weights(n_flow)}
        tensors |= linear(f"{prefix}up", n_flow, n_flow) | linear(f"{prefix}down", n_flow, n_flow)
        tensors |= linear(f"{prefix}ada", 3 * n_flow, n_flow)
    tensors |= linear(f"{flow}final.ada", 2 * n_flow, n_flow) | linear(f"{flow}final.proj", _LATENT, n_flow)
    tensors |= linear("a.gen.out_eos", 1, _N_EMBD)
    tensors["a.gen.out_eos.bias"] = np.full(1, -6.0, np.float32)
    tensors |= {
        "a.gen.input_linear.weight": weights(_N_EMBD, _LATENT) * 4,
        "a.gen.emb_mean": weights(_LATENT),
        "a.gen.emb_std": _ones(_LATENT),
        "a.gen.wav.quant_out.weight": weights(_WIDTH, _LATENT),
        "a.gen.wav.upsample.weight": weights(_WIDTH, 1, 32, dtype=np.float16) * 4,
    }
    return tensors | _seanet(weights, "a.gen.wav.seanet", is_decoder=True) | _mimi(weights, "a.gen.wav.tfm")
