"""What a model says and does that was made of another one's file: system prompt, sampling, template, first messages.

Owns the file `NAME.recipe.json` beside the model's, which nobody else has to know: the weights stay one file under
several names. Knows nothing of which parameters there are, nor of how a template is filled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from quantizer.errors import ModelFileError, StorageError

__all__ = ["MAX_RECIPE_BYTES", "NO_RECIPE", "Recipe", "encoded", "read_recipe", "recipe_path", "write_recipe"]

MAX_RECIPE_BYTES = 1 << 20
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What was given beside the weights; empty is what the model's file says. `base` is what it was made of.

    `messages` have a `role` and a `content` each, both text. `parameters` are in Ollama's words.
    """

    base: str = ""
    system: str = ""
    template: str = ""
    license: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] = ()

    def over(self, other: Recipe) -> Recipe:
        """Return this recipe with what it leaves out as `other` has it, parameters one by one."""
        given = {name: value for name, value in asdict(self).items() if value}
        return replace(other, **given | {"parameters": {**other.parameters, **self.parameters}})

    def begin(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return a conversation of this model: its system prompt unless there is one, its messages, then `messages`."""
        n_system = 1 if messages and messages[0]["role"] in ("system", "developer") else 0
        own = [{"role": "system", "content": self.system}] if self.system and not n_system else []
        parts = (messages[:n_system], own, self.messages, messages[n_system:])
        return [dict(message) for part in parts for message in part]


NO_RECIPE = Recipe()


def recipe_path(path: Path) -> Path:
    """Return where the recipe of the model at `path` is, if it has one."""
    return path.with_suffix(".recipe.json")


def read_recipe(path: Path) -> Recipe:
    """Return the recipe of the model at `path`, NO_RECIPE where there is none. Raises ModelFileError for a bad one."""
    try:
        with recipe_path(path).open("rb") as file:
            data = file.read(MAX_RECIPE_BYTES + 1)
    except FileNotFoundError:
        return NO_RECIPE
    except OSError as error:
        raise _damaged(path, error.strerror or "unreadable") from error
    if len(data) > MAX_RECIPE_BYTES:
        raise _damaged(path, "larger than 1 MiB")
    try:
        return _checked(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(path, str(error)) from error


def encoded(recipe: Recipe) -> bytes:
    """Return `recipe` as its file has it; past MAX_RECIPE_BYTES that is not read again."""
    return json.dumps(asdict(recipe), indent=1).encode()


def write_recipe(path: Path, recipe: Recipe) -> None:
    """Keep `recipe` beside the model at `path`, whole or not at all. Raises StorageError."""
    target = recipe_path(path)
    partial = target.with_name(f".{target.name}.part")
    try:
        partial.write_bytes(encoded(recipe))
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        cause = f"{target} cannot be written: {error.strerror}."
        raise StorageError(cause, "Check the disk and its permissions.") from error


def _checked(told: Any) -> Recipe:
    recipe = Recipe(**told | {"messages": tuple(told["messages"])})
    texts = (recipe.base, recipe.system, recipe.template, recipe.license)
    are_messages = all(
        set(message) == {"role", "content"} and message["role"] in _ROLES and isinstance(message["content"], str)
        for message in recipe.messages
    )
    if not (all(isinstance(text, str) for text in texts) and isinstance(recipe.parameters, dict) and are_messages):
        raise ValueError("a field is of another kind")
    return recipe


def _damaged(path: Path, why: str) -> ModelFileError:
    cause = f"What {path.stem} was made with cannot be read: {why[:200]}."
    return ModelFileError(cause, f"Remove {recipe_path(path).name}, or make it anew.")
