"""A model's recipe as Ollama writes it: the lines of `parameters`, and a Modelfile.

Owns how values and texts are quoted there. Knows nothing of what they mean. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from app.library.recipe import Recipe

__all__ = ["modelfile_of", "parameters_of"]

_NAME_WIDTH = 30  # source: Ollama's ShowHandler


def parameters_of(recipe: Recipe) -> str:
    """Return a line for each parameter, and for each of a list's values."""
    return "\n".join(f"{name:<{_NAME_WIDTH}} {json.dumps(value, ensure_ascii=False)}" for name, value in _each(recipe))


def modelfile_of(name: str, recipe: Recipe) -> str:
    """Return the Modelfile that would make the model `name` again."""
    texts = {"TEMPLATE": recipe.template, "SYSTEM": recipe.system, "LICENSE": recipe.license}
    lines = [
        f"FROM {recipe.base or name}",
        *(f'{word} """{text}"""' for word, text in texts.items() if text),
        *(f"PARAMETER {key} {json.dumps(value, ensure_ascii=False)}" for key, value in _each(recipe)),
        *(f'MESSAGE {message["role"]} """{message["content"]}"""' for message in recipe.messages),
    ]
    return "\n".join(lines) + "\n"


def _each(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    for name, value in recipe.parameters.items():
        for item in value if isinstance(value, list) else [value]:
            yield name, item
