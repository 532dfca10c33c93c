"""The chat template of the repository that a model was made from, where that is in the Hugging Face cache.

Owns the way from a model's metadata to that repository, and how two templates differ. Never asks the network.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.library.elsewhere import home_folder
from app.library.elsewhere.hugging_face import cache_folder, snapshots_of
from quantizer.errors import CheckpointError
from quantizer.header import Header

__all__ = ["BaseTemplate", "base_template", "difference"]

_ORIGINS = ("general.base_model.0.repo_url", "general.source.repo_url")
_REPO_URL = re.compile(r"https://huggingface\.co/([\w.-]+)/([\w.-]+)/?", re.ASCII)
_MAX_COMPARED_LINES = 5000  # comparing takes up to the square of them


@dataclass(frozen=True, slots=True)
class BaseTemplate:
    """A repository as ORG/NAME, and its default chat template: empty where it has none."""

    repo: str
    text: str


def base_template(header: Header, environment: Mapping[str, str] = os.environ) -> BaseTemplate | None:
    """Return the template of the model's base.

    None where the file names no base, or that is not on this machine, or its files are unsound.
    """
    for match in (_REPO_URL.fullmatch(header.text(key)) for key in _ORIGINS):
        if match is None:
            continue
        folder = cache_folder(home_folder(), environment) / f"models--{match[1]}--{match[2]}"
        for snapshot in snapshots_of(folder):
            if (snapshot / "tokenizer_config.json").is_file():
                with contextlib.suppress(CheckpointError):
                    return BaseTemplate(f"{match[1]}/{match[2]}", _template_in(snapshot))
    return None


def difference(base: str, own: str) -> list[str]:
    """Return the lines that lead from `base` to `own`, as diff writes them; none where they are too many to compare."""
    before, after = base.splitlines(), own.splitlines()
    if len(before) + len(after) > _MAX_COMPARED_LINES:
        return []
    return list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]  # without the names of files


def _template_in(folder: Path) -> str:
    from quantizer.checkpoint import read_json
    from quantizer.config import Config
    from quantizer.tokenizers.chat_templates import DEFAULT, read_chat_templates
    from quantizer.tokenizers.folder import TokenizerFolder, as_object

    path = folder / "tokenizer_config.json"
    settings = Config(as_object(read_json(path), path.name))
    return read_chat_templates(TokenizerFolder(folder, {}, settings, Config({}))).get(DEFAULT, "")
