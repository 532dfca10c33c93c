"""What a caller must be allowed to for a path. Pure.

Owns the table of routes that manage: they load, change or take away models, start work, or tell of this machine.
"""

from __future__ import annotations

from app.keys import KeyScope

__all__ = ["scope_of"]

# The first that fits counts; one that ends with a slash is for all below it. None lets everybody in.
_SCOPES: tuple[tuple[str, KeyScope | None], ...] = (
    ("/health", None),  # says only that something lives here; watched by supervisors without a key
    ("/api/localllm/status", KeyScope.INFER),
    ("/api/localllm/", KeyScope.MANAGE),
    ("/api/blobs/", KeyScope.MANAGE),
    ("/api/copy", KeyScope.MANAGE),
    ("/api/create", KeyScope.MANAGE),
    ("/api/delete", KeyScope.MANAGE),
    ("/api/pull", KeyScope.MANAGE),
    ("/api/push", KeyScope.MANAGE),
    ("/", KeyScope.INFER),
)


def scope_of(path: str) -> KeyScope | None:
    """Return the scope that a request for `path` needs, None for what needs no key."""
    return next(
        (scope for prefix, scope in _SCOPES if path == prefix or (prefix.endswith("/") and path.startswith(prefix))),
        KeyScope.INFER,
    )
