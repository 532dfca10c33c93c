"""The recipe of a derived model: system prompt, sampling, template and first messages over another model's file.

Owns the file `NAME.recipe.json` beside the model's; the weights stay one file under several names. Does not interpret
parameters or templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from app.protocol.chat import Message, Role
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.files import explained, open_regular, write_atomically

MAX_RECIPE_BYTES = 1 << 20
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings beside the weights; an empty one means the file's own. `base` names the model it derives from.
    `messages` have a `role` and a `content`, both strings. `parameters` have Ollama's names."""

    base: str = ""
    system: str = ""
    template: str = ""
    license: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] = ()

    def over(self, other: Recipe) -> Recipe:
        """Return this recipe with its gaps filled from `other`, parameter by parameter."""
        given = {name: value for name, value in asdict(self).items() if value}
        return replace(other, **given | {"parameters": {**other.parameters, **self.parameters}})

    def begin(self, messages: Sequence[Message]) -> list[Message]:
        """Return `messages` after the recipe's own: its system prompt (unless they have one) and first messages."""
        n_system = 1 if messages and messages[0].role == "system" else 0
        own = [Message("system", self.system)] if self.system and not n_system else []
        first = [Message(cast("Role", message["role"]), message["content"]) for message in self.messages]
        return [*messages[:n_system], *own, *first, *messages[n_system:]]


NO_RECIPE = Recipe()


def recipe_path(path: Path) -> Path:
    """Return the path of the recipe of the model at `path`, whether it has one or not."""
    return path.with_suffix(".recipe.json")


def read_recipe(path: Path) -> Recipe:
    """Return the recipe of the model at `path`, NO_RECIPE where there is none. Raises ModelFileError for a bad one."""
    try:
        with open_regular(recipe_path(path)) as file:
            data = file.read(MAX_RECIPE_BYTES + 1)  # one byte more shows that it is too large
    except FileNotFoundError:
        return NO_RECIPE
    except OSError as error:
        raise _damaged(path, error.strerror or "unreadable") from error
    if len(data) > MAX_RECIPE_BYTES:
        raise _damaged(path, "larger than 1 MiB")
    try:
        fields = json.loads(data)
        return checked_recipe(Recipe(**fields | {"messages": tuple(fields["messages"])}))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(path, str(error)) from error


def checked_recipe(recipe: Recipe) -> Recipe:
    """Return `recipe`, read from a file. Raises ValueError or TypeError for a field of the wrong type."""
    texts = (recipe.base, recipe.system, recipe.template, recipe.license)
    are_messages = all(
        set(message) == {"role", "content"} and message["role"] in _ROLES and isinstance(message["content"], str)
        for message in recipe.messages
    )
    if not (all(isinstance(text, str) for text in texts) and isinstance(recipe.parameters, dict) and are_messages):
        raise ValueError("a field has the wrong type")
    return recipe


def encode_recipe(recipe: Recipe) -> bytes:
    """Return `recipe` as bytes of its file; more than MAX_RECIPE_BYTES would not be read again."""
    return json.dumps(asdict(recipe), indent=1).encode()


def write_recipe(path: Path, recipe: Recipe) -> None:
    """Write `recipe` beside the model at `path`, whole or not at all. Raises StorageError."""
    target = recipe_path(path)
    with explained(f"{target} cannot be written", "Check the disk and its permissions."):
        write_atomically(target, encode_recipe(recipe), sync=True)


def replace_recipe(path: Path, recipe: Recipe) -> None:
    """Make `recipe` that of the model at `path`, NO_RECIPE by removing the file. Raises StorageError."""
    if recipe != NO_RECIPE:
        write_recipe(path, recipe)
        return
    target = recipe_path(path)
    with explained(f"{target} cannot be removed", "Check its permissions."):
        target.unlink(missing_ok=True)


def _damaged(path: Path, why: str) -> ModelFileError:
    cause = f"The recipe of {path.stem} cannot be read: {why[:200]}."
    return ModelFileError(cause, f"Remove {recipe_path(path).name}, or create it again.")
