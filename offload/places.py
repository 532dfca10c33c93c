"""How many sequences a context has room for: those that are answered, and those that are kept for their prefixes. Pure.

Owns the count. Knows nothing of what a sequence takes.
"""

from __future__ import annotations

from quantizer.layer_caches import LayerCaches

__all__ = ["DRAFT_CELLS", "N_PARKED", "can_cut", "n_places"]

N_PARKED = 32  # sequences kept beside those that are answered; each costs only its cells
DRAFT_CELLS = 32  # of an answer, beside the cells of the model; where they do not suffice, drafts end
_MOST_PLACES = 256  # LLAMA_MAX_SEQ of llama.cpp


def can_cut(caches: LayerCaches) -> bool:
    """Return whether what such a model has seen can be taken back in part: not out of states, nor out of windows."""
    return not caches.n_window and not any(layer.state_elements for layer in caches.layers)


def n_places(n_sequences: int, *, can_cut: bool) -> int:
    """Return the sequences that the engine keeps when it answers `n_sequences` at once.

    A state takes its memory whether or not it is in use, so of what cannot be cut only as many are kept as answered.
    """
    return min(n_sequences + (N_PARKED if can_cut else n_sequences), _MOST_PLACES)
