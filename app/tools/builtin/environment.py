"""The environment of commands that a model runs: that of the person, without secrets, and without waiting for a key.

Owns which variables are left out: those named like a key, a token, a secret, a password, a credential or a cookie, and
those whose value looks like one, such as an address with a password. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# HF_TOKEN, LOCALLLM_API_KEY, AWS_SECRET_ACCESS_KEY, PGPASSWORD; not TOKENIZERS_PARALLELISM, not SSH_AUTH_SOCK.
_NAMES = re.compile(
    r"(?:^|_)(?:[A-Z0-9]*(?:APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?|KEYS?|PASS|PAT|JWT|COOKIE|DSN)"
    r"(?:_|$)|_AUTH$"
)
_VALUES = re.compile(
    r"://[^/\s@]*:[^/\s@]+@"  # an address with a password
    r"|^(?:sk-|ghp_|gho_|ghs_|github_pat_|hf_|glpat-|xox[abprs]-|AKIA)[A-Za-z0-9_-]{8}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_ADDED = {
    "PAGER": "cat",  # nobody turns pages
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "TERM": "dumb",
    "NO_COLOR": "1",
}


def removed_names(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables that commands do not get, sorted."""
    return tuple(sorted(name for name, value in environment.items() if _is_secret(name, value)))


def command_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of commands, made of the person's."""
    kept = {name: value for name, value in environment.items() if not _is_secret(name, value)}
    return {**kept, **_ADDED}


def _is_secret(name: str, value: str) -> bool:
    return _NAMES.search(name.upper()) is not None or _VALUES.search(value) is not None
