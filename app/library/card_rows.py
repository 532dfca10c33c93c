"""A model's card as people read it: lines of a label and a text. Pure.

Owns their words and order. Texts come from files and are not yet fit for a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.library.base_template import difference

if TYPE_CHECKING:
    from app.engine.tuning import Measured
    from app.library.record import ModelRecord
    from quantizer.card import ModelCard

__all__ = ["card_rows", "template_changes"]


def card_rows(card: ModelCard, record: ModelRecord) -> list[tuple[str, str]]:
    """Return label and text of every line that there is something to say in."""
    return [(label, text) for label, text in (*_of_card(card), *_of_record(record)) if text]


def template_changes(record: ModelRecord) -> list[str]:
    """Return how the chat template differs from that of the model's base, line by line; nothing where it does not."""
    return difference(record.base.text, record.template) if record.base else []


def _of_card(card: ModelCard) -> list[tuple[str, str]]:
    return [
        ("name", card.name),
        ("architecture", card.architecture),
        ("parameters", f"{card.n_parameters:,}"),
        ("size", f"{card.file_bytes:,} bytes, {card.bits_per_weight:.2f} bits per weight"),
        ("type", card.file_type),
        ("tensors", ", ".join(f"{share.n_tensors} × {name}" for name, share in card.types.items())),
        ("context", f"{card.n_ctx_train:,} tokens" if card.n_ctx_train else ""),
        ("layers", f"{card.n_layers} of width {card.n_embd:,}" if card.n_layers else ""),
        ("heads", f"{card.n_heads}, {card.n_kv_heads} for keys and values" if card.n_heads else ""),
        ("experts", str(card.n_experts) if card.n_experts else ""),
        ("cache", f"{card.kv_bytes_per_token:,} bytes per token in F16" if card.kv_bytes_per_token else ""),
        ("vocabulary", f"{card.n_vocab:,} tokens ({card.tokenizer})" if card.n_vocab else ""),
        ("chat template", "yes" if card.has_chat_template else "no"),
        ("tools", "yes" if card.has_tools else "no"),
        ("fill in the middle", "yes" if card.has_fim else "no"),
        ("licence", card.licence),
    ]


def _of_record(record: ModelRecord) -> list[tuple[str, str]]:
    rows = [("template's base", _comparison(record))]
    if record.tuned:
        rows.append(("tuned", _speeds(record.tuned)))
    for path, sha256 in record.hashes:
        rows += [("file", str(path)), ("sha256", sha256 or "unknown until `localllm verify`")]
    return rows


def _comparison(record: ModelRecord) -> str:
    """How the template stands to that of the model's base, empty where that is not here."""
    if record.base is None:
        return ""
    if record.base.text == record.template:
        return f"the same as in {record.base.repo}"
    changes = template_changes(record)
    n_added, n_gone = (sum(line.startswith(sign) for line in changes) for sign in "+-")
    counts = f" ({n_added} lines more, {n_gone} fewer; --template shows them)" if changes else ""
    return f"differs from {record.base.repo}{counts}"


def _speeds(tuned: Measured) -> str:
    setting = tuned.setting
    attention = "fused" if setting.flash_attention else "plain"
    decode = ", ".join(f"{speed:.1f} at {depth}" for depth, speed in tuned.decode)
    how = f"{attention} attention, {setting.n_threads} threads"
    return f"{how}: {tuned.prefill:.1f} tok/s of prompt; tok/s of answer by tokens in the cache: {decode}"
