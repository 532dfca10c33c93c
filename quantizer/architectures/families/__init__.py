"""The entries of all architectures, a module per family (small dense ones share `dense`)."""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture
from quantizer.architectures.families.classic import CLASSIC
from quantizer.architectures.families.deepseek import DEEPSEEK, KIMI
from quantizer.architectures.families.dense import DENSE
from quantizer.architectures.families.draft_heads import DRAFT_HEADS
from quantizer.architectures.families.encoders import BERT, EUROBERT, MODERN_BERT, NOMIC, T5
from quantizer.architectures.families.experts import GPT_OSS, SINGLE_EXPERTS
from quantizer.architectures.families.falcon import FALCON
from quantizer.architectures.families.gemma import GEMMA, GEMMA_3N, GEMMA_4
from quantizer.architectures.families.llama import GRANITE, LLAMA_LIKE
from quantizer.architectures.families.multimodal import HEARING, SEEING
from quantizer.architectures.families.nemotron import NEMOTRON
from quantizer.architectures.families.newer_experts import HUNYUAN, WINDOWED_EXPERTS
from quantizer.architectures.families.qwen import QWEN, QWEN35, QWEN_VL
from quantizer.architectures.families.recurrent import JAMBA, LFM, MAMBA
from quantizer.architectures.families.shared_experts import ERNIE, EXAONE, GLM

__all__ = ["FAMILIES"]

FAMILIES: tuple[Architecture, ...] = (
    *LLAMA_LIKE,
    *QWEN,
    *GEMMA,
    GEMMA_3N,
    *GEMMA_4,
    *DENSE,
    *CLASSIC,
    *DEEPSEEK,
    *GLM,
    *EXAONE,
    *HUNYUAN,
    *ERNIE,
    GPT_OSS,
    *QWEN35,
    *QWEN_VL,
    *MAMBA,
    JAMBA,
    *BERT,
    NOMIC,
    *LFM,
    *GRANITE,
    *NEMOTRON,
    *SINGLE_EXPERTS,
    *FALCON,
    *MODERN_BERT,
    EUROBERT,
    KIMI,
    *T5,
    *WINDOWED_EXPERTS,
    *DRAFT_HEADS,
    *SEEING,
    *HEARING,
)
