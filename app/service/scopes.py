"""What a caller must be allowed to for a path. Pure.

Owns the table of routes that manage: they load, change or take away models, start work, or tell of this machine.
"""

from __future__ import annotations

from app.keys import ALL_SCOPES, KeyScope

__all__ = ["scopes_for"]

_INFER, _MANAGE = frozenset({KeyScope.INFER}), frozenset({KeyScope.MANAGE})

# The first that fits counts; one that ends with a slash is for all below it. Nothing lets everybody in.
_SCOPES: tuple[tuple[str, frozenset[KeyScope]], ...] = (
    ("/health", frozenset()),  # says only that something lives here; watched by supervisors without a key
    ("/api/localllm/status", ALL_SCOPES),
    ("/api/localllm/", _MANAGE),
    ("/api/blobs/", _MANAGE),
    ("/api/copy", _MANAGE),
    ("/api/create", _MANAGE),
    ("/api/delete", _MANAGE),
    ("/api/pull", _MANAGE),
    ("/api/push", _MANAGE),
)


def scopes_for(path: str) -> frozenset[KeyScope]:
    """Return the scopes of which a key needs one for `path`, none for what needs no key."""
    return next(
        (scopes for prefix, scopes in _SCOPES if path == prefix or (prefix.endswith("/") and path.startswith(prefix))),
        _INFER,
    )
