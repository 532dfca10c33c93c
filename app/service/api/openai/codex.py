"""The models as Codex reads them from /v1/models: without this it guesses the context and the abilities of each.

Codex (0.171) asks with its `client_version`, where its provider has a key and a `model_catalog_url` with the feature
`api_key_model_discovery`, or a command for the key. It refuses a model without instructions; its own for unknown models
are 17 kB, which a model on this machine reads for a while. Source: its requests, and the catalogue in its program.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.service.models.model_file import Modality

_INSTRUCTIONS = """\
You are a coding agent in the user's terminal. Work on the task until it is done, and then say briefly what you did.

- Find out before you change: list and search files (`rg` is fast where it is installed), and read those that matter.
- Change only what the task needs, in the style of the code around it. Leave alone what others have changed.
- Edit files with `apply_patch` (`apply_patch <<'EOF'` in a shell: `*** Begin Patch`, then `*** Update File: PATH` with
  `@@` and lines that begin with ` `, `-` or `+`, or `*** Add File: PATH`, or `*** Delete File: PATH`, then
  `*** End Patch`), or with other commands.
- Run the tests or the program when that shows whether it works, and mend what you broke.
- Never commit, push, delete or install anything that the user did not ask for.
- Files named AGENTS.md have rules for the folder that they are in: follow them.
- Where something is unclear and cannot be found out, ask. Never invent a result; say what failed.

Your last message is plain text: what changed, in which files, and what is left to do."""
_EFFORTS = {"low": "Thinks little.", "medium": "Thinks as it does by itself.", "high": "Thinks long."}


class Effort(TypedDict):
    effort: str
    description: str


class Truncation(TypedDict):
    mode: Literal["tokens"]
    limit: NonNegativeInt


class CodexModel(TypedDict):
    """A model of Codex's catalogue; `truncation_policy` is how much of a command's output it sends."""

    slug: str
    display_name: str
    description: str
    base_instructions: str
    context_window: NonNegativeInt
    input_modalities: list[str]
    default_reasoning_level: str | None
    supported_reasoning_levels: list[Effort]
    supports_reasoning_summaries: bool
    supports_parallel_tool_calls: bool
    support_verbosity: bool
    default_verbosity: None
    apply_patch_tool_type: None
    shell_type: Literal["default"]
    truncation_policy: Truncation
    auto_compact_token_limit: None
    experimental_supported_tools: list[None]
    visibility: Literal["list"]
    supported_in_api: bool
    priority: NonNegativeInt
    availability_nux: None
    upgrade: None


def codex_model(name: str, place: int, n_ctx: int, modalities: list[Modality], *, has_efforts: bool) -> CodexModel:
    """Return a model of `n_ctx` tokens, the one at `place` of the list."""
    efforts: list[Effort] = [{"effort": effort, "description": about} for effort, about in _EFFORTS.items()]
    return {
        "slug": name,
        "display_name": name,
        "description": "A model on this machine.",
        "base_instructions": _INSTRUCTIONS,
        "context_window": n_ctx,
        "input_modalities": ["text", *(["image"] if "image" in modalities else [])],
        "default_reasoning_level": "medium" if has_efforts else None,
        "supported_reasoning_levels": efforts if has_efforts else [],
        "supports_reasoning_summaries": has_efforts,
        "supports_parallel_tool_calls": True,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": None,
        "shell_type": "default",
        "truncation_policy": {"mode": "tokens", "limit": max(1000, min(10_000, n_ctx // 8))},
        "auto_compact_token_limit": None,
        "experimental_supported_tools": [],
        "visibility": "list",
        "supported_in_api": True,
        "priority": place,
        "availability_nux": None,
        "upgrade": None,
    }
