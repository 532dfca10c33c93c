"""Where our files differ from those of llama.cpp's converter on purpose: each difference with its reason.

Owns the tables. A difference that no row explains is an error; rows are narrow, so that a new one is seen. Sections:
the tokenizer, tensors, sizes, positions, experts, and what the peer refuses altogether. Last what llama.cpp's graphs
compute otherwise than the original, each with how the original is made to do the same: what is left then is a fault.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.bench.conversion.compare_files import Difference

__all__ = ["GraphDeviation", "gelu_deviation", "graph_deviations", "reason_for", "reason_for_refusal"]

_MISSING = r".* for nothing"


@dataclass(frozen=True, slots=True)
class _Explained:
    """Patterns of the key and of what differs, and the architectures of llama.cpp where that is so (empty: in all)."""

    key: str
    text: str
    reason: str
    architectures: tuple[str, ...] = ()

    def fits(self, architecture: str, difference: Difference) -> bool:
        return (
            (not self.architectures or architecture in self.architectures)
            and re.fullmatch(self.key, difference.key) is not None
            and re.fullmatch(self.text, difference.text) is not None
        )


@dataclass(frozen=True, slots=True)
class _Refused:
    """A pattern of the error with which the peer refuses, and the architectures that it is known of (empty: all)."""

    error: str
    reason: str
    architectures: tuple[str, ...] = ()

    def fits(self, architecture: str, error: str) -> bool:
        is_known = not self.architectures or architecture in self.architectures
        return is_known and re.fullmatch(self.error, error, re.DOTALL) is not None


_TOKENIZER_SAYS = "written where the tokenizer says it, not left to the runtime's guess"
_RUNTIME_TAKES = "written where the runtime would take the same"
_RUNTIME_TAKES_OURS = "left out where the runtime takes the same"
_NOT_READ = "the runtime does not read it in this architecture"
_CLASS_COMPUTES = "what the class computes where config.json has none"
_OTHER_TOKENIZER = "theirs reads such a tokenizer from SentencePiece's own file only, and got another kind"
_FOUR_TIMES = "theirs writes four times the width of the model, whatever config.json says"
_OLD_CONTEXT = "theirs looks for the context under an older name, and writes something else without it"
_OLD_EPSILON = "theirs looks for the epsilon under a name that transformers 5 does not write"
_EMPTY_ROWS = "theirs leaves out rows of the embedding that no word has"
_NOTHING_ROTATES = "nothing rotates in this model"
_NO_DENSE = "no layer has a dense feed-forward of that width"
_WITHOUT_EXPERTS = "the model has no experts"
_WITHOUT_STATES = "no layer has states: the model is plain Granite"
_RANKS = "the file declares that it ranks"
_AHEAD = "the layers that predict several tokens are not in the checkpoint"

_TOKENIZER = (
    _Explained(r"tokenizer\.ggml\.pre", r"'\S+' for 'gpt-2'", "no tokenizer of the tests has a hash that theirs lists"),
    _Explained(r"tokenizer\.ggml\.(eot|eom|fim_\w+|cls|unknown)_token_id", _MISSING, _TOKENIZER_SAYS),
    _Explained(r"tokenizer\.ggml\.add_(bos|eos)_token", _MISSING, _TOKENIZER_SAYS),
    _Explained(r"tokenizer\.ggml\.(normalizer\.strip_accents|add_space_prefix)", _MISSING, _TOKENIZER_SAYS),
    _Explained(
        r"tokenizer\.ggml\.remove_extra_whitespaces",
        "True for False",
        "whether spaces are split away; theirs asks a setting of decoding",
        ("bert",),
    ),
    _Explained(
        r"tokenizer\.ggml\.scores",
        r"\[(-1000\.0, )+-3\.0, .* for \[(0\.0, )+-3\.0, .*",
        "special tokens score below all others: no text reaches either",
        ("bert",),
    ),
    _Explained(
        r"tokenizer\.ggml\.tokens",
        r"(\['\[PAD\]', '\[UNK\]', .*) for \1",
        "padding is unmarked: no text reaches it",
        ("bert",),
    ),
    _Explained(
        r"tokenizer\.ggml\.eos_token_id",
        r"260 for 3",
        "theirs ends by eod_token_id, which transformers makes up here",
        ("hunyuan-dense",),
    ),
    _Explained(r"tokenizer\.ggml\.model", r"'t5' for '(gpt2|bert)'", _OTHER_TOKENIZER, ("t5", "t5encoder", "bert")),
    _Explained(
        r"tokenizer\.ggml\.(precompiled_charsmap|remove_extra_whitespaces)",
        r"(\[.*|True) for nothing",
        _OTHER_TOKENIZER,
        ("t5", "t5encoder", "bert"),
    ),
    _Explained(r"tokenizer\.ggml\.scores", r"\[-.* for nothing", _OTHER_TOKENIZER, ("t5", "t5encoder", "bert")),
    _Explained(
        r"tokenizer\.ggml\.tokens", r"(\['<pad>', '</s>', '<unk>', .*) for \1", _OTHER_TOKENIZER, ("t5", "t5encoder")
    ),
    _Explained(
        r"tokenizer\.ggml\.tokens",
        r"\['<s>', '<pad>', '</s>', '<unk>', '▁', '▁he', .* for \['<s>', '<pad>', '</s>', '<unk>', '▁▁', '▁▁he', .*",
        _OTHER_TOKENIZER,
        ("bert",),
    ),
    _Explained(
        r"tokenizer\.ggml\.token_type",
        r"\[3, 3, (3, )?2, 1, .* for \[3, 3, (3, )?3, 1, .*",
        _OTHER_TOKENIZER,
        ("t5", "t5encoder", "bert"),
    ),
)
_TENSORS = (
    _Explained(
        r"ssm_a",
        r"values up to \d steps apart",
        "its exponential is rounded otherwise",
        ("mamba", "jamba", "qwen35moe"),
    ),
    _Explained(r"token_embd\.weight", r"F32 64×272 for F32 64×26[46]", _EMPTY_ROWS, ("gemma3", "gemma4")),
    _Explained(
        r"general\.size_label",
        r"'321K' for '320K'|'191K' for '190K'|'216K' for '215K'",
        "follows from those rows",
        ("gemma3", "gemma4"),
    ),
    _Explained("attention.causal", "False for nothing", "theirs leaves it to a flag of the runtime", ("llama-embed",)),
    _Explained(
        "pooling_type", r"\d for nothing", "theirs reads modules.json for other classes only", ("llama", "llama-embed")
    ),
    _Explained("nextn_predict_layers", "nothing for 0", "written where there is such a layer", ("glm4moe",)),
    _Explained(
        r"token_embd\.weight|general\.size_label",
        r"F32 64×272 for F32 64×264|'451K' for '450K'",
        _EMPTY_ROWS,
        ("gemma-embedding",),
    ),
    _Explained(
        r"general\.size_label",
        r"'4x\d+K' for '4x\d+K'",
        "the biases of experts belong to one each; theirs counts them with what all share",
        ("gpt-oss",),
    ),
    _Explained(
        r"attn_[qk]\.weight",
        r"values up to \d{10} steps apart",
        "theirs reorders queries and keys alike for a rotation; nothing rotates, so that their products are the same",
        ("nemotron_h", "nemotron_h_moe"),
    ),
    _Explained(
        r"attn_(k|v|k_norm)\.weight",
        "only in ours",
        "the runtime reads them of layers that share those of others, and transformers 5 does not save them",
        ("gemma3n",),
    ),
    _Explained(
        r"per_layer_token_embd\.weight",
        r"values up to \d{10} steps apart",
        "images and sounds have the row of token 0 in transformers; theirs fills with zeros",
        ("gemma3n",),
    ),
    _Explained(
        r"ffn_(down|gate|up)_exps\.weight",
        r"F32 48×64×8 for F32 64×48×8|F32 64×48×8 for F32 96×32×8",
        "theirs takes experts for transposed, as they were published and transformers 5 does not save them",
        ("qwen3vlmoe",),
    ),
    _Explained(
        r"exp_probs_b\.bias", "F32 8 for F32 8×1", "a second extent of 1 is none to the runtime", ("ernie4_5-moe",)
    ),
    _Explained(
        r"position_embd\.weight",
        "F32 64×256 for F32 64×258",
        "the first position is row 2, as in RoBERTa; theirs begins with row 0",
        ("bert",),
    ),
    _Explained(
        r"dec\.output_norm\.weight",
        "values up to 25165824 steps apart",
        "tied embeddings are scaled, here by an eighth; neither theirs nor the runtime does it",
        ("t5",),
    ),
    _Explained(r"tensor_data_layout", "nothing for 'jploski'", _NOT_READ, ("falcon",)),
    _Explained(r"general\.file_type", "0 for nothing", "theirs leaves it out for MPT", ("mpt",)),
)
_SIZES = (
    _Explained(r"attention\.(key|value)_length", r"\d+ for nothing", _RUNTIME_TAKES),
    _Explained(
        r"feed_forward_length|attention\.head_count_kv",
        r"\[(\d+)(, \1)*\] for \1|(\d+) for \[\3(, \3)*[,\]]",
        "a number for all layers is the list of it",
    ),
    _Explained(r"attention\.head_count_kv", "6 for nothing", _RUNTIME_TAKES, ("mpt",)),
    _Explained(r"attention\.head_count_kv", "2 for 4", "theirs counts queries, whatever config.json says", ("phi2",)),
    _Explained(r"attention\.q_lora_rank", "0 for nothing", _RUNTIME_TAKES, ("deepseek2",)),
    _Explained(r"vocab_size", "272 for nothing", "the runtime counts the words", ("dots1", "falcon")),
    _Explained(r"feed_forward_length", r"\d+ for nothing", "DistilBERT's own name of it is read", ("bert",)),
    _Explained(r"feed_forward_length", "nothing for 96", _NO_DENSE, ("qwen35moe", "qwen3next", "glm4moe")),
    _Explained(r"feed_forward_length", "96 for (256|512)", _FOUR_TIMES, ("falcon", "phi2")),
    _Explained(
        r"feed_forward_length",
        "80 for 96",
        "the only feed-forward is the one that experts would share; theirs writes the width of experts",
        ("granite", "granitehybrid"),
    ),
    _Explained(r"ssm\.\w+", r"nothing for \d+", _WITHOUT_STATES, ("granite", "granitemoe")),
    _Explained(r"activation_sparsity_scale", r"nothing for \[1\.6448535919189453, .*", _NOT_READ, ("gemma3n",)),
    _Explained(r"final_logit_softcapping", r"0\.0 for nothing", "without it the runtime would cap by 30", ("gemma4",)),
    _Explained(r"context_length", "256 for (64|96)", _OLD_CONTEXT, ("bloom", "chatglm")),
    _Explained(r"context_length", "256 for 2048", "theirs writes 2048, whatever config.json says", ("falcon",)),
    _Explained(r"context_length", "256 for 258", "two rows come before the first position", ("bert",)),
    _Explained(
        r"context_length",
        "256 for 1048576",
        "what config.json says; theirs writes a million where nothing rotates",
        ("granitehybrid", "nemotron_h", "nemotron_h_moe"),
    ),
    _Explained(r"attention\.layer_norm_rms_epsilon", r"1\.56\d+e-07 for 9\.99\d+e-06", _OLD_EPSILON, ("chatglm",)),
    _Explained(r"attention\.layer_norm_epsilon", r"9\.99\d+e-06 for nothing", _OLD_EPSILON, ("modern-bert",)),
    _Explained(
        r"attention\.layer_norm_rms_epsilon", r"nothing for 9\.99\d+e-06", _NOT_READ, ("modern-bert", "nemotron")
    ),
    _Explained(
        r"attention\.layer_norm_rms_epsilon",
        r"9\.99\d+e-06 for nothing",
        _RUNTIME_TAKES,
        ("nemotron_h", "nemotron_h_moe"),
    ),
    _Explained(
        r"attention\.sliding_window_pattern",
        r"\[False, True, True, False\] for nothing",
        "theirs looks for the number of layers that transformers 5 replaced by a list",
        ("modern-bert",),
    ),
    _Explained(r"pooling_type", "4 for nothing", _RANKS, ("bert", "modern-bert")),
    _Explained(r"classifier\.output_labels", r"\['LABEL_0', 'LABEL_1'\] for nothing", _RANKS, ("bert",)),
    _Explained(r"classifier\.pooling_type", "nothing for 2", "the model has no classifier", ("modern-bert",)),
    _Explained(r"pooling_type", "[12] for nothing", "sentence-transformers' folder says it", ("t5", "t5encoder")),
    _Explained(r"attention\.causal", "False for nothing", "an encoder attends both ways", ("t5encoder",)),
)
_POSITIONS = (
    _Explained(r"rope\.freq_base", r"10000\.0 for nothing", _RUNTIME_TAKES),
    _Explained(
        r"rope\.scaling\.type", "nothing for 'none'", _RUNTIME_TAKES_OURS, ("exaone-moe", "modern-bert", "nemotron")
    ),
    _Explained(r"rope\.dimension_count", "nothing for 32", _RUNTIME_TAKES_OURS, ("afmoe",)),
    _Explained(r"rope\.dimension_count", "nothing for 16", _NOTHING_ROTATES, ("nemotron_h", "nemotron_h_moe")),
    _Explained(
        r"rope\.dimension_count", "32 for 16", "whole heads rotate; theirs takes GLM's half of them", ("glm4moe",)
    ),
    _Explained(r"rope\.dimension_sections", r"nothing for \[6, 5, 5, 0\]", _NOT_READ, ("qwen3next",)),
    _Explained(
        r"rope\.scaling\.finetuned",
        "True for False",
        "position_embedding_type has these rotate; theirs lets no hybrid rotate",
        ("granitehybrid",),
    ),
    _Explained(r"rope\.scaling\.finetuned", "nothing for True", _RUNTIME_TAKES_OURS, ("granite", "granitemoe")),
    _Explained(r"rope\.scaling\.finetuned", "nothing for False", _NOTHING_ROTATES, ("nemotron_h", "nemotron_h_moe")),
    _Explained(
        r"rope\.scaling\.(type|factor|original_context_length)",
        r"('yarn'|4\.0|64) for nothing",
        "theirs leaves out the scaling of positions",
        ("chatglm",),
    ),
    _Explained(
        r"rope\.scaling\.(original_context_length|attn_factor)",
        r"(256|1\.06\d+) for nothing",
        "by these the runtime chooses and weighs longrope's factors; theirs leaves them out",
        ("minicpm3",),
    ),
)
_EXPERTS = (
    _Explained(
        r"expert_gating_func",
        r"[12] for nothing",
        _CLASS_COMPUTES,
        ("deepseek2", "deepseek32", "glm-dsa", "dots1", "afmoe", "exaone-moe"),
    ),
    _Explained(r"expert_weights_norm", "True for nothing", _CLASS_COMPUTES, ("afmoe",)),
    _Explained(r"expert_group_(used_)?count", "nothing for 1", "one group of all experts is none", ("dots1",)),
    _Explained(r"expert_count", "nothing for 0", _WITHOUT_EXPERTS, ("granite", "granitehybrid")),
    _Explained(r"expert_shared_feed_forward_length", "nothing for 80", _WITHOUT_EXPERTS, ("granite", "granitehybrid")),
    _Explained(
        r"expert_shared_feed_forward_length",
        "96 for 48",
        "two shared experts of 48; theirs divides another width by the heads of keys",
        ("ernie4_5-moe",),
    ),
    _Explained(r"leading_dense_block_count", "1 for 0", "theirs does not read mlp_layer_types", ("deepseek2",)),
    _Explained(r"leading_dense_block_count", "0 for nothing", _RUNTIME_TAKES, ("glm4moe",)),
    _Explained(r"block_count", "4 for 5", _AHEAD, ("glm4moe",)),
    _Explained(r"nextn_predict_layers", "nothing for [01]", _AHEAD, ("glm4moe", "exaone-moe")),
)
_NEWEST = (  # those that gguf 0.19.0 lacks
    _Explained(
        r"ffn_(down|gate|up|gate_up)_exps(\.weight)?|general\.size_label",
        r"only in (ours|theirs)|'\S+K' for '\S+K'",
        "theirs leaves out experts in one tensor, or writes them without an ending",
        ("mellum", "cohere2moe"),
    ),
    _Explained(
        r"ffn_(gate|up|gate_up)_exps\.weight",
        r"only in (ours|theirs)",
        "gates and ups apart as everywhere here, which the runtime reads too",
        ("granite_swa",),
    ),
    _Explained(r"feed_forward_length", r"\d+ for nothing", "required, though no layer is dense", ("cohere2moe",)),
    _Explained(
        r"attention\.sliding_window_pattern",
        r"\[(True|False).* for nothing",
        "the config's windows, where theirs leaves them to the runtime's pattern",
        ("laguna",),
    ),
    _Explained(
        r"attention\.rope_pattern|rope\.freq_base",
        r".* for (nothing|10000\.0)",
        "transformers reads both from layer_rope_theta, theirs does not",
        ("granite_swa",),
    ),
)
_HEARING = (  # the language models
    _Explained(
        r"general\.architecture",
        r"'qwen3' for 'qwen3vl'",
        "theirs divides the rotations of Qwen 3-ASR, which leaves some pairs unrotated; transformers does not",
        ("qwen3",),
    ),
    _Explained(r"n_deepstack_layers", r"nothing for 0", "that of Qwen 3-VL, which theirs makes of it", ("qwen3",)),
    _Explained(r"tokenizer\.chat_template", r".*", "theirs has its own for Qwen 3-ASR", ("qwen3",)),
    _Explained(
        r"n_deepstack_layers",
        r"\d+ for 0",
        "theirs leaves out that layers of Qwen 3-Omni get something of a picture",
        ("qwen3vlmoe",),
    ),
    _Explained(r"tokenizer\.ggml\.padding_token_id", _MISSING, _TOKENIZER_SAYS, ("qwen3vlmoe", "qwen2vl")),
)
# by their kind
_PROJECTORS = (
    _Explained(
        r"(mm\.)?a\..*|audio\..*|has_audio_encoder",
        r"only in theirs|nothing for .*",
        "theirs writes an encoder of sounds that its graph follows otherwise",
        ("qwen2.5vl_merger",),
    ),
    _Explained(r"projector_type", r"'qwen2.5vl_merger' for 'qwen2.5o'", "that of both towers", ("qwen2.5vl_merger",)),
    _Explained(
        r"general\.size_label", r"'\d+K' for '\d+K'", "theirs counts the encoder of sounds", ("qwen2.5vl_merger",)
    ),
    _Explained(
        r"a\.conv\dd\.\d\.weight",
        r"F32 [\d×]+ for F16 [\d×]+",
        "theirs keeps convolutions in F16 in every file",
        ("qwen2a",),
    ),
    _Explained(
        r"vision\.feed_forward_length",
        r"\d+ for \d+",
        "theirs takes the width of the language model; libmtmd reads neither",
        ("qwen2vl_merger",),
    ),
    _Explained(
        r"v\.position_embd\.weight",
        r"F32 (\d+×\d+) for F32 \1×1",
        "libmtmd wants the position of the vector for the whole picture last",
        ("internvl",),
    ),
    _Explained(
        r"vision\.preproc_(min_tiles|max_tiles|image_size)",
        r"\d+ for nothing",
        "theirs does not ask the processor",
        ("internvl", "lightonocr"),
    ),
    _Explained(
        r"vision\.image_size",
        r"\d+ for \d+",
        "theirs takes the root of the largest picture; libmtmd reads neither",
        ("paddleocr",),
    ),
    _Explained(
        r"use_gelu", "True for nothing", "without it libmtmd has another activation than transformers", ("gemma4v",)
    ),
    _Explained(
        r"(vision\.)?projector_type",
        r"'gemma4v' for nothing|nothing for 'gemma4v'",
        "theirs has it for seeing alone, as its file may hear too",
        ("gemma4v",),
    ),
    _Explained(
        r"audio\..*|has_audio_encoder|general\.size_label|(mm\.)?a\..*",
        r"nothing for .*|only in theirs|'\d+K' for '\d+K'",
        "theirs hears too",
        ("gemma4v",),
    ),
    _Explained(r"vision\.projector\.scale_factor", r"\d+ for nothing", _RUNTIME_TAKES, ("gemma4v",)),
    _Explained(r"vision\.spatial_merge_size", "1 for nothing", _RUNTIME_TAKES, ("pixtral",)),
    _Explained(
        r"v\.token_embd\.img_break",
        "only in ours",
        "theirs misses the embedding under this name; libmtmd does not load a file without the row",
        ("pixtral",),
    ),
    _Explained(r"general\.size_label", r"'53K' for '52K'", "follows from that row", ("pixtral",)),
)
_EXPLAINED = (*_TOKENIZER, *_TENSORS, *_SIZES, *_POSITIONS, *_EXPERTS, *_NEWEST, *_HEARING, *_PROJECTORS)

_NOT_WRITTEN = "theirs wants a setting that transformers 5 does not write"
_NUMBERED_ONLY = "theirs reads experts in numbered tensors only"
_NO_SUCH_CLASS = "their table has no such class"
_FUSED = r"'(model|backbone)\.layers\.\d+\.\w+\.experts\.(gate_up_proj|up_proj|down_proj)'"
_REFUSALS = (
    _Refused(r"Model MistralModel is not supported", "their table has the body of Llama only", ("llama",)),
    _Refused(
        r"Model (Idefics3|SmolVLM|InternVL|Lfm2Vl|LightOnO[Cc][Rr]|PaddleOCRVL)ForConditionalGeneration is not "
        "supported",
        "theirs asks the language model's own class, which transformers 5 does not write",
    ),
    _Refused(
        r"Model Qwen3OmniMoeThinkerForConditionalGeneration is not supported", "theirs knows the whole model only"
    ),
    _Refused(
        r"Model Qwen2_5OmniForConditionalGeneration is not supported", "theirs knows the class by its first name only"
    ),
    _Refused(r"ValueError: Can not map tensor 'model\.visual\.blocks.*", "theirs does not read this tower's names"),
    _Refused(
        r"KeyError: 'thinker_config'", "theirs reads the config of Qwen 3-ASR as published before transformers had it"
    ),
    _Refused(r"ValueError: Can not map tensor 'vision_tower\..*", "theirs knows the tower by its older names only"),
    _Refused(
        r"Model (Roberta|XLMRoberta|Camembert|EuroBert)ForMaskedLM is not supported",
        "their table has no such head; what lies before it is converted",
        ("bert", "eurobert"),
    ),
    _Refused(r"Model CamembertForSequenceClassification is not supported", "their table has no such head", ("bert",)),
    _Refused(r"Model (Helium|Mpt)ForCausalLM is not supported", _NO_SUCH_CLASS, ("llama", "mpt")),
    _Refused(r"Model U?MT5EncoderModel is not supported", _NO_SUCH_CLASS, ("t5encoder",)),
    _Refused(r"KeyError: 'rotary_pct'", _NOT_WRITTEN, ("cohere2", "gptneox")),
    _Refused(r"KeyError: 'n_positions'", _NOT_WRITTEN, ("nomic-bert",)),
    _Refused(r"KeyError: 'n_ctx'", _NOT_WRITTEN, ("gpt2",)),
    _Refused(r"KeyError: 'head_dim'", _NOT_WRITTEN, ("falcon-h1",)),
    _Refused(r"KeyError: 'swa_head_dim'", _NOT_WRITTEN, ("mimo2",)),
    _Refused(r"KeyError: 'moe_intermediate_size'", _NOT_WRITTEN, ("hunyuan-moe",)),
    _Refused(r'KeyError: "could not find any of: \[\'rotary_dim\'\]"', _NOT_WRITTEN, ("minimax-m2",)),
    _Refused(
        r'KeyError: "could not find any of: \[\'expert_intermediate_size\', \'moe_intermediate_size\'\]"',
        "theirs wants the width of experts where there are none",
        ("gemma4",),
    ),
    _Refused(rf"ValueError: Unprocessed experts: \[{_FUSED}.*", _NUMBERED_ONLY),
    _Refused(rf"ValueError: Can not map tensor {_FUSED}", _NUMBERED_ONLY),
    _Refused(r"AssertionError: ", _NUMBERED_ONLY, ("lfm2moe",)),
    _Refused(
        r"ValueError: Can not map tensor 'model\.layers\.1\.mlp\.gate\.moe_statics\.e_score_correction\.bias'",
        "theirs knows the correction of the choice by its published name only",
        ("ernie4_5-moe",),
    ),
    _Refused(
        r"ValueError: Can not map tensor 'model\.layers\.0\.block_sparse_moe\.down_proj\.weight'",
        "theirs knows the dense first layer by its published name only",
        ("kimi-linear",),
    ),
    _Refused(r"ValueError: Unprocessed norms: .*", "theirs does not expect one norm for each head here", ("stablelm",)),
    _Refused(
        r"RuntimeError: shape '\[4, 3, 16, 64\]' is invalid for input of size 6144",
        "theirs goes by num_kv_heads, which the older form of the class does not",
        ("falcon",),
    ),
    _Refused(
        r"AssertionError: HunYuan dynamic RoPE scaling assumptions changed, .*",
        "theirs knows the scaling with the published numbers only",
        ("hunyuan-dense",),
    ),
    _Refused(
        r"ValueError: Can not map tensor 'decoder\.bias'",
        "theirs does not leave out the head that fills in masks",
        ("modern-bert",),
    ),
    _Refused(
        r"ValueError: Duplicated tensor name 'cls\.weight'",
        "theirs takes labels without names for none, then has one name for both layers of the head",
        ("modern-bert",),
    ),
    _Refused(
        r"NotImplementedError: Unsupported classifier_pooling: late",
        "theirs wants the pooling of a classifier that is not there",
        ("eurobert",),
    ),
)


def reason_for(architecture: str, difference: Difference) -> str | None:
    """Return why `difference` is right, None where nobody knows."""
    return next((row.reason for row in _EXPLAINED if row.fits(architecture, difference)), None)


def reason_for_refusal(architecture: str, error: str) -> str | None:
    """Return why llama.cpp's converter refuses with `error` what is converted here, None where nobody knows."""
    return next((row.reason for row in _REFUSALS if row.fits(architecture, error)), None)


@dataclass(frozen=True, slots=True)
class GraphDeviation:
    """What the graphs of some of llama.cpp's architectures compute otherwise, which no file can change.

    `imitate` makes a model of transformers compute the same; `concerns` says whether that changes this one.
    """

    architectures: tuple[str, ...]
    reason: str
    imitate: Callable[[Any], None]
    concerns: Callable[[Any], bool] = lambda _model: True


def _norms(model: Any) -> list[tuple[Any, str]]:
    """The RMS norms of a model, and the name of the attribute that is their epsilon."""
    norms = [each for each in model.modules() if "RMSNorm" in type(each).__name__]
    return [(norm, "variance_epsilon" if hasattr(norm, "variance_epsilon") else "eps") for norm in norms]


def _set_epsilon(epsilon: Callable[[Any], float]) -> Callable[[Any], None]:
    def imitate(model: Any) -> None:
        for norm, name in _norms(model):
            setattr(norm, name, epsilon(model))

    return imitate


def _one_epsilon(model: Any) -> float:
    settings = model.config.get_text_config()
    return float(getattr(settings, "rms_norm_eps", None) or settings.layer_norm_epsilon)


def _has_several_epsilons(model: Any) -> bool:
    return any(getattr(norm, name) != _one_epsilon(model) for norm, name in _norms(model))


def _norm_vectors_by_epsilon(model: Any) -> None:
    """Set the epsilon of the class's `l2norm`, a function of its module."""
    module, epsilon = sys.modules[type(model).__module__], _one_epsilon(model)
    original = getattr(module.l2norm, "original", module.l2norm)

    def l2norm(x: Any, dim: int = -1, eps: float = 0.0) -> Any:
        return original(x, dim, epsilon)

    l2norm.original = original  # type: ignore[attr-defined]
    module.l2norm = l2norm  # type: ignore[attr-defined]


def _of_parts(attribute: str, value: Any) -> Callable[[Any], None]:
    def imitate(model: Any) -> None:
        for part in model.modules():
            if hasattr(part, attribute):
                setattr(part, attribute, value(part) if callable(value) else value)

    return imitate


def _sample_deviation(part: Any) -> Callable[[Any], Any]:
    """Gemma 3n's threshold with the deviation of a sample: its squares divided by one less than their number."""

    def threshold(inputs: Any) -> Any:
        import torch

        normal = torch.distributions.normal.Normal(0, 1)
        n_deviations = normal.icdf(torch.tensor(part.activation_sparsity)).to(inputs.dtype)
        deviation = inputs.std(-1, keepdim=True, unbiased=True)
        return torch.relu(inputs - inputs.mean(-1, keepdim=True) - deviation * n_deviations)

    return threshold


def _end_ramp_at_whole_pairs(model: Any) -> None:
    for part in model.modules():
        if type(part).__name__.endswith("RotaryEmbedding"):
            part.config.rope_parameters["truncate"] = True
            part.inv_freq = type(part)(part.config).inv_freq


_DEVIATIONS = (
    GraphDeviation(
        ("gpt-oss",),
        "the graph's ramp of YaRN ends at whole pairs of a head",
        _end_ramp_at_whole_pairs,
        lambda model: model.config.rope_parameters.get("truncate") is False,
    ),
    GraphDeviation(
        ("qwen2vl",), "the graph does not read the epsilon of norms: it is 0", _set_epsilon(lambda _model: 0.0)
    ),
    GraphDeviation(
        ("deepseek2", "minicpm3", "glm-dsa", "kimi-linear", "mamba"),
        "the graph has one epsilon for all norms, the class another one for latent vectors or what states take in",
        _set_epsilon(_one_epsilon),
        _has_several_epsilons,
    ),
    GraphDeviation(
        ("kimi-linear",),
        "the graph takes the epsilon of the norms for the lengths of keys and queries too",
        _norm_vectors_by_epsilon,
    ),
    GraphDeviation(
        ("nemotron_h", "nemotron_h_moe"),
        "the graph lets time steps be as short as they come, the class makes them 0.001 at least",
        _of_parts("time_step_limit", (0.0, float("inf"))),
    ),
    GraphDeviation(
        ("gemma3n",),
        "the graph finds what a sparse feed-forward keeps by the deviation of a sample, the class by that of all",
        _of_parts("_gaussian_topk", _sample_deviation),
    ),
)


def graph_deviations(architecture: str, model: Any) -> list[GraphDeviation]:
    """Return what llama.cpp's graph computes otherwise than this model of transformers, beside GELU."""
    return [each for each in _DEVIATIONS if architecture in each.architectures and each.concerns(model)]


def gelu_deviation(kind: str) -> str:
    """Return what ggml computes otherwise where the class has GELU of a kind (`tanh` or `erf`)."""
    exact = ", of its approximation by tanh, where the class has the exact function" if kind == "erf" else ""
    return f"ggml looks GELU up in a table of F16 numbers{exact}"
