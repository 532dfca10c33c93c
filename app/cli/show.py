"""`localllm show`: what a model file is, from its header alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from app.terminal import printable

if TYPE_CHECKING:
    from quantizer.card import ModelCard

__all__ = ["show"]


@click.command()
@click.argument("model")
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
def show(model: str, wants_json: bool) -> None:
    """Tell what MODEL (guide, a path to a GGUF, or a name in the library) is."""
    from app.library.resolve import resolve
    from app.settings import load_settings
    from quantizer.card import card_of
    from quantizer.gate import admit

    path = resolve(model, load_settings()).path
    card = card_of(admit(path))
    if wants_json:
        click.echo(json.dumps(asdict(card) | {"path": str(path), "bits_per_weight": round(card.bits_per_weight, 3)}))
        return
    rows = _rows(card)
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        click.echo(f"{label:<{width}}  {printable(text)}")


def _rows(card: ModelCard) -> list[tuple[str, str]]:
    """Label and text of every line; lines that the file says nothing about are left out."""
    rows = [
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
        ("fill in the middle", "yes" if card.has_fim else "no"),
        ("licence", card.licence),
    ]
    return [(label, " ".join(text.split())) for label, text in rows if text]
