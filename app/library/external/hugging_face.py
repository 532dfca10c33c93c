"""GGUFs in the cache of huggingface-hub: `models--ORG--NAME/snapshots/<commit>/…`, links to `blobs/<sha256>`.

Where links are impossible (Windows) the snapshot contains the files. Source: huggingface-hub's documentation of its
cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from app.library.local.model_files import ModelRef, is_model_file

__all__ = ["cache_folder", "models", "snapshots_of"]

_MAIN_BYTES = 256


def models(home: Path, environment: Mapping[str, str]) -> Iterator[ModelRef]:
    """Yield the GGUFs of every repository; a file of several commits in the version of the latest `main`."""
    for folder in sorted(cache_folder(home, environment).glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        found: dict[Path, Path] = {}
        for snapshot in snapshots_of(folder):
            for path in sorted(snapshot.rglob("*.gguf")):
                if is_model_file(path.name) and path.exists():
                    found.setdefault(path.relative_to(snapshot), path)
        for path in found.values():
            yield ModelRef(f"{repo}/{path.stem}", path, repo, "Hugging Face")


def cache_folder(home: Path, environment: Mapping[str, str]) -> Path:
    """Return the cache folder: HF_HUB_CACHE, or `hub` in HF_HOME, or in the user's cache folder."""
    if folder := environment.get("HF_HUB_CACHE"):
        return Path(folder).expanduser()
    if folder := environment.get("HF_HOME"):
        return Path(folder).expanduser() / "hub"
    user_cache = environment.get("XDG_CACHE_HOME")
    return (Path(user_cache) if user_cache else home / ".cache") / "huggingface" / "hub"


def snapshots_of(folder: Path) -> list[Path]:
    """Return the cached commits of the repository in `folder`, the latest `main` first."""
    try:
        with (folder / "refs" / "main").open(encoding="utf-8", errors="replace") as file:
            main = file.read(_MAIN_BYTES).strip()
    except OSError:
        main = ""
    return sorted((folder / "snapshots").glob("*"), key=lambda path: (path.name != main, path.name))
