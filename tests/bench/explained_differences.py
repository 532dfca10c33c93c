"""Where our files differ from those of llama.cpp's converter on purpose: each difference with its reason.

Owns the table. A difference that no row explains is an error; rows are narrow, so that a new one is seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.bench.compare_files import Difference

__all__ = ["reason_for", "reason_for_refusal"]

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


_TOKENIZER_SAYS = "written where the tokenizer says it, not left to the runtime's guess"
_RUNTIME_TAKES = "written where the runtime would take the same"
_EXPLAINED = (
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
        r"tokenizer\.ggml\.(scores|tokens)",
        r".*",
        "special tokens score below all others and padding is unmarked: no text reaches either",
        ("bert",),
    ),
    _Explained(r"attention\.(key|value)_length", r"\d+ for nothing", _RUNTIME_TAKES),
    _Explained(r"rope\.freq_base", r"10000\.0 for nothing", _RUNTIME_TAKES),
    _Explained(r"attention\.q_lora_rank", "0 for nothing", _RUNTIME_TAKES, ("deepseek2",)),
    _Explained(
        r"expert_gating_func",
        r"[12] for nothing",
        "what the class computes where config.json has none",
        ("deepseek2",),
    ),
    _Explained(r"feed_forward_length", r"\d+ for nothing", "DistilBERT's own name of it is read", ("bert",)),
    _Explained(
        r"feed_forward_length", r"nothing for \d+", "no layer has a dense feed-forward of that width", ("qwen35moe",)
    ),
    _Explained(r"pooling_type|classifier\.output_labels", _MISSING, "the file declares that it ranks", ("bert",)),
    _Explained(r"ssm_a", r"values up to \d steps apart", "its exponential is rounded otherwise", ("mamba", "jamba")),
    _Explained(
        r"token_embd\.weight",
        r"F32 64×272 for F32 64×26[46]",
        "theirs leaves out rows of the embedding that no word has",
        ("gemma3",),
    ),
    _Explained(r"general\.size_label", r"'321K' for '320K'|'191K' for '190K'", "follows from those rows", ("gemma3",)),
    _Explained("attention.causal", "False for nothing", "theirs leaves it to a flag of the runtime", ("llama-embed",)),
    _Explained(
        "pooling_type", r"\d for nothing", "theirs reads modules.json for other classes only", ("llama", "llama-embed")
    ),
    _Explained("nextn_predict_layers", "nothing for 0", "written where there is such a layer", ("glm4moe",)),
    _Explained(
        r"token_embd\.weight|general\.size_label",
        r"F32 64×272 for F32 64×264|'451K' for '450K'",
        "theirs leaves out rows of the embedding that no word has",
        ("gemma-embedding",),
    ),
    _Explained(
        r"general\.size_label",
        r"'4x\d+K' for '4x\d+K'",
        "the biases of experts belong to one each; theirs counts them with what all share",
        ("gpt-oss",),
    ),
    # of projectors, by their kind
    _Explained(
        r"vision\.feed_forward_length",
        r"\d+ for \d+",
        "theirs takes the width of the language model; libmtmd reads neither",
        ("qwen2vl_merger",),
    ),
)
# pattern of llama.cpp's error -> why it refuses a checkpoint that is converted here
_REFUSALS = {
    r"Model MistralModel is not supported": "their table has the body of Llama only",
    r"Model \w+ForMaskedLM is not supported": "their table has no such head; what lies before it is converted",
    r"KeyError: '(rotary_pct|n_positions)'": "theirs wants a setting that transformers 5 does not write",
    r"ValueError: (Unprocessed experts: |Can not map tensor )'?\[?'?model\.layers.*experts.*": (
        "theirs reads experts in numbered tensors only"
    ),
    r"Model (Idefics3|SmolVLM)ForConditionalGeneration is not supported": (
        "theirs asks the language model's own class, which transformers 5 does not write"
    ),
    r"ValueError: Can not map tensor 'vision_tower\..*": "theirs knows the tower by its older names only",
    r"ValueError: Unprocessed norms: .*": "theirs does not expect one norm for each head here",
}


def reason_for(architecture: str, difference: Difference) -> str | None:
    """Return why `difference` is right, None where nobody knows."""
    return next((row.reason for row in _EXPLAINED if row.fits(architecture, difference)), None)


def reason_for_refusal(error: str) -> str | None:
    """Return why llama.cpp's converter refuses with `error` what is converted here, None where nobody knows."""
    return next((reason for pattern, reason in _REFUSALS.items() if re.fullmatch(pattern, error, re.DOTALL)), None)
