"""What a list says of a model: the few facts that are worth keeping, read from its header through the gate."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.library.folder import look_at

if TYPE_CHECKING:
    from quantizer.card import ModelCard
    from quantizer.header import Header

__all__ = ["VERSION", "Facts", "read_facts", "whole_card"]

VERSION = 2  # of what is kept and how it is worked out: facts of another version are read anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A selection of the model's card. Texts are data, not yet fit for a terminal."""

    name: str
    architecture: str
    n_parameters: int
    file_type: str
    n_ctx_train: int
    kv_bytes_per_token: int
    has_chat_template: bool
    has_tools: bool
    has_fim: bool
    licence: str
    template_sha256: str


def read_facts(path: Path) -> Facts:
    """Read the model at `path`, all its files. Raises ModelFileError when the gate does not let it through."""
    from quantizer.gate import admit

    card = whole_card(admit(path))
    return Facts(**{item.name: getattr(card, item.name) for item in fields(Facts)})


def whole_card(header: Header) -> ModelCard:
    """Return the card of a model with all its files, of which the first or only one has `header`.

    Raises ModelFileError when another of them is unsound.
    """
    from quantizer.card import card_of
    from quantizer.gate import tensors_of

    card = card_of(replace(header, tensors=tensors_of(header)))
    return replace(card, file_bytes=look_at(header.path).n_bytes)
