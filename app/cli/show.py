"""`localllm show`: what a model file is, from its header, and what this machine has learnt of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from app.cli.completions import complete_model
from app.cli.index import opened_index
from app.terminal import printable, printable_line

if TYPE_CHECKING:
    from app.engine.tuning import Measured
    from app.library.record import ModelRecord
    from quantizer.card import ModelCard

__all__ = ["show"]


@click.command(epilog="Example: localllm show qwen3-0.6b-Q8_0")
@click.argument("model", shell_complete=complete_model)
@click.option(
    "--template", "wants_template", is_flag=True, help="Print the chat template, or how it differs from its base."
)
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
def show(model: str, *, wants_template: bool, wants_json: bool) -> None:
    """Tell what MODEL (guide, a path to a GGUF, or a name that `localllm ls --elsewhere` shows) is."""
    from app.library.facts import whole_card
    from app.library.record import record_of
    from app.library.resolve import resolve
    from app.settings import load_settings
    from quantizer.gate import admit

    settings = load_settings()
    header = admit(resolve(model, settings).path)
    card = whole_card(header)
    with opened_index(settings.cache_dir) as index:
        record = record_of(header, index, settings.cache_dir)
    if wants_json:
        click.echo(json.dumps(_as_json(card, record)))
    elif wants_template:
        click.echo(printable("\n".join(_difference(record) or [record.template])))
    else:
        rows = [(label, printable_line(text)) for label, text in (*_card_rows(card), *_record_rows(record)) if text]
        width = max(len(label) for label, _ in rows)
        for label, text in rows:
            click.echo(f"{label:<{width}}  {text}")


def _card_rows(card: ModelCard) -> list[tuple[str, str]]:
    """Label and text of every line; lines that the file says nothing about are empty."""
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


def _record_rows(record: ModelRecord) -> list[tuple[str, str]]:
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
    changes = _difference(record)
    n_added, n_gone = (sum(line.startswith(sign) for line in changes) for sign in "+-")
    counts = f" ({n_added} lines more, {n_gone} fewer; --template shows them)" if changes else ""
    return f"differs from {record.base.repo}{counts}"


def _difference(record: ModelRecord) -> list[str]:
    from app.library.base_template import difference

    return difference(record.base.text, record.template) if record.base else []


def _speeds(tuned: Measured) -> str:
    setting = tuned.setting
    attention = "fused" if setting.flash_attention else "plain"
    decode = ", ".join(f"{speed:.1f} at {depth}" for depth, speed in tuned.decode)
    how = f"{attention} attention, {setting.n_threads} threads"
    return f"{how}: {tuned.prefill:.1f} tok/s of prompt; tok/s of answer by tokens in the cache: {decode}"


def _as_json(card: ModelCard, record: ModelRecord) -> dict[str, object]:
    paths = [str(path) for path, _ in record.hashes]
    base = record.base and {"repo": record.base.repo, "is_same": record.base.text == record.template}
    return asdict(card) | {
        "path": paths[0],
        "bits_per_weight": round(card.bits_per_weight, 3),
        "files": paths,
        "sha256": [sha256 or None for _, sha256 in record.hashes],
        "template_base": base,
        "tuned": asdict(record.tuned) if record.tuned else None,
    }
