"""The folders that localllm writes: for what, whether each can be written, and what to do where one cannot.

A cache that cannot be written is no error: its users go on without it, and what is here says so once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.settings.settings import Settings, environment_variable, settings_file
from quantizer.system.files import why_unwritable

_CACHE_REMEDY = "Free some of its disk, correct its rights, or set LOCALLLM_CACHE_DIR to a folder of yours."
_LOSSES = "model lists and loads take longer, and speeds, prefixes of chats and logs are not kept"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of localllm: `what` it holds, and the `problem` that it has, "" without any, with its `remedy`."""

    what: str
    path: Path
    problem: str
    remedy: str


def cache_warning(cache_dir: Path) -> str:
    """Return a sentence about caches that cannot be written, and what to do; "" where they can."""
    why = why_unwritable(cache_dir)
    return f"{_cache_problem(cache_dir, why)} {_CACHE_REMEDY}" if why else ""


def find_folders(settings: Settings) -> tuple[Folder, ...]:
    """Return the folders in use, each with its problem; of settings the folder that the file is or would be in."""
    data = why_unwritable(settings.data_dir)
    cache = why_unwritable(settings.cache_dir)
    config_dir = settings_file().absolute().parent
    config = why_unwritable(config_dir)
    own = f"Correct its rights or its disk, or set {environment_variable('data_dir')} to a folder of yours."
    return (
        Folder(
            "data",
            settings.data_dir,
            f"Models, chats and keys cannot be stored in {settings.data_dir}: {data}." if data else "",
            own,
        ),
        Folder("cache", settings.cache_dir, _cache_problem(settings.cache_dir, cache) if cache else "", _CACHE_REMEDY),
        Folder(
            "settings",
            config_dir,
            f"Settings cannot be changed in {config_dir}: {config}." if config else "",
            "Correct its rights, or set LOCALLLM_CONFIG to a file of yours.",
        ),
    )


def _cache_problem(cache_dir: Path, why: str) -> str:
    return f"Caches cannot be written in {cache_dir} ({why}): {_LOSSES}."
