"""The entries of all architectures, a module per family (small dense ones share `dense`)."""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture
from quantizer.architectures.families.bert import BERT, EUROBERT, MODERN_BERT, NOMIC
from quantizer.architectures.families.classic import CLASSIC
from quantizer.architectures.families.deepseek import DEEPSEEK
from quantizer.architectures.families.dense import DENSE
from quantizer.architectures.families.draft_heads import DRAFT_HEADS
from quantizer.architectures.families.ernie import ERNIE
from quantizer.architectures.families.exaone import EXAONE
from quantizer.architectures.families.experts import SINGLE_EXPERTS
from quantizer.architectures.families.falcon import FALCON
from quantizer.architectures.families.gemma import GEMMA
from quantizer.architectures.families.gemma3n import GEMMA_3N, GEMMA_4
from quantizer.architectures.families.glm import GLM
from quantizer.architectures.families.gpt_oss import GPT_OSS
from quantizer.architectures.families.granite import GRANITE
from quantizer.architectures.families.hearing import HEARING
from quantizer.architectures.families.hunyuan import HUNYUAN
from quantizer.architectures.families.kimi import KIMI
from quantizer.architectures.families.lfm import LFM
from quantizer.architectures.families.llama import LLAMA_LIKE
from quantizer.architectures.families.mamba import JAMBA, MAMBA
from quantizer.architectures.families.nemotron import NEMOTRON
from quantizer.architectures.families.qwen import QWEN, QWEN35
from quantizer.architectures.families.qwen_vl import QWEN_VL
from quantizer.architectures.families.seeing import SEEING
from quantizer.architectures.families.t5 import T5
from quantizer.architectures.families.windowed_experts import WINDOWED_EXPERTS

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
