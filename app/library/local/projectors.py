"""Which projector belongs to a model: the file that lets it see or hear, found where programs keep one.

Owns where it is looked for (the model's folder, that of its commit in a Hugging Face cache, the layers of a model of
Ollama), which of several is taken, and what a choice of the settings means. Reads headers only; the load tries whether
libmtmd runs one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.engine.load.projector_file import validate_projector
from app.library.external import ollama_projectors, snapshot_folders
from app.library.local.model_files import is_model_file
from quantizer.errors import ModelFileError
from quantizer.gguf.header import Header
from quantizer.gguf.projector_header import ProjectorHeader
from quantizer.gguf.sidecars import FOUND_TYPES, NO_PROJECTOR, is_projector, is_sidecar, projector_owner, without_type

__all__ = [
    "AUTO_PROJECTOR",
    "NOTHING_FOUND",
    "FoundProjector",
    "choose_projector",
    "find_projector",
    "general_choice",
    "portable_choice",
    "projector_stamp",
]

AUTO_PROJECTOR = "auto"
_AMBIGUOUS = 2


@dataclass(frozen=True, slots=True)
class FoundProjector:
    """The projector of a model, None for a model without one, and why others were passed over. One that `is_chosen` was
    named by the user and is loaded even where the model fits worse with it."""

    projector: ProjectorHeader | None = None
    passed_over: tuple[str, ...] = ()
    is_chosen: bool = False

    @property
    def path(self) -> str:
        """Its file; empty without one."""
        return str(self.projector.path) if self.projector else ""

    @property
    def sees(self) -> bool:
        return self.projector is not None and self.projector.sees

    @property
    def hears(self) -> bool:
        return self.projector is not None and self.projector.hears


NOTHING_FOUND = FoundProjector()


def choose_projector(model: Header, choice: str) -> FoundProjector:
    """Return the projector of `model` by a `choice` of the settings: empty or auto (the one that is found), none, a
    type that is preferred among those found, or a file.

    Raises ModelFileError for a file that is no projector, or that of another model.
    """
    if choice.lower() == NO_PROJECTOR:
        return NOTHING_FOUND
    if not (named := _named(choice)):
        return find_projector(model, choice)
    return FoundProjector(validate_projector(named, model), is_chosen=True)


def general_choice(choice: str) -> str:
    """Return what a `choice` for one model means for all others: a file is no projector of theirs."""
    return "" if _named(choice) else choice


def portable_choice(choice: str) -> str:
    """Return `choice` for a process with another working folder: the path of a file becomes absolute."""
    return str(_named(choice) or choice)


def find_projector(model: Header, preferred: str = "") -> FoundProjector:
    """Return the projector that is kept with `model`: one that names it before one that names none, then by its type,
    the `preferred` one first.

    Files that cannot be loaded beside it are passed over with a reason, unless they name another model.
    """
    types = sorted(FOUND_TYPES, key=lambda name: name != preferred.upper())
    found: list[tuple[tuple[int, int, str], ProjectorHeader]] = []
    passed_over: list[str] = []
    for path, rank in _candidates(model.path):
        try:
            projector = validate_projector(path, model)
        except ModelFileError as error:
            if rank != _AMBIGUOUS:
                passed_over.append(error.cause)
            continue
        if rank == _AMBIGUOUS:
            passed_over.append(f"{path.name} lies beside several models and names none of them: use --projector.")
        else:
            type_rank = types.index(projector.type_name) if projector.type_name in types else len(types)
            found.append(((rank, type_rank, path.name), projector))
    best = min(found, key=lambda item: item[0])[1] if found else None
    return FoundProjector(best, () if best else tuple(passed_over))


def projector_stamp(model: Path) -> str:
    """Return a stamp of the files that may be projectors of `model`, which differs after any change of one."""
    stamps = []
    for path, _ in _candidates(model):
        try:
            status = path.stat()
        except OSError:  # removed meanwhile
            continue
        stamps.append(f"{path.name}:{status.st_size}:{status.st_mtime_ns}:{status.st_ino}")
    return " ".join(sorted(stamps))


def _named(choice: str) -> Path | None:
    """Return the file that a choice names; None for one that is to be found, or for none."""
    if choice.lower() in ("", AUTO_PROJECTOR, NO_PROJECTOR) or choice.upper() in FOUND_TYPES:
        return None
    try:
        return Path(choice).expanduser().absolute()
    except RuntimeError:  # no such user, or no home
        return Path(choice).absolute()


def _candidates(model: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files that may be the projector of `model`, with how likely they are its own: 0 names it, 1 is that of
    the only model there, `_AMBIGUOUS` may be that of any model there."""
    own = without_type(model.stem).lower()
    for path in ollama_projectors(model):
        yield path, 0
    for folder in (model.parent, *snapshot_folders(model.parent)):
        files = _files_of(folder)
        others = {without_type(Path(name).stem).lower() for name in files if not is_sidecar(name)} - {own}
        for name in files:
            if not is_projector(name) or name == model.name:
                continue
            owner = projector_owner(name)
            if owner and (own.startswith(owner) or owner.startswith(own)):
                yield folder / name, 0
            elif not others:
                yield folder / name, 1
            elif not owner:
                yield folder / name, _AMBIGUOUS


def _files_of(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if is_model_file(path.name))
    except OSError:  # a folder whose files can be opened by their names only
        return []
