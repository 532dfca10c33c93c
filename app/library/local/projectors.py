"""Which projector belongs to a model: the file that lets it see, hear or speak, found where programs keep one.

Owns where it is looked for (the model's folder, that of its commit in a Hugging Face cache, the layers of a model of
Ollama), which of several is taken, and what a choice of the settings means. Reads headers only: whether
libmtmd can run one is tested when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from app.library.external import ollama_projectors, snapshot_folders
from app.library.local.model_files import is_model_file
from app.settings.parsing import projector_file
from quantizer.gguf.file_names import (
    FOUND_TYPES,
    NO_PROJECTOR,
    is_projector,
    is_sidecar,
    names_model,
    projector_owner,
    unsplit_name,
    without_type,
)
from quantizer.gguf.gguf_reader import ModelFileError

if TYPE_CHECKING:
    from quantizer.gguf.header import Header
    from quantizer.gguf.projector_header import ProjectorHeader


_AMBIGUOUS = 2  # rank of a projector that may belong to any model of its folder


@dataclass(frozen=True, slots=True)
class _Folder:
    """The names of a folder's projectors, with the models that they name, and the stems of its models without types."""

    projectors: tuple[tuple[str, str], ...]
    models: frozenset[str]


Look: TypeAlias = Callable[[Path], _Folder]


def look_into(folder: Path) -> _Folder:
    """Return the projectors and the models in a folder; none if it cannot be listed."""
    try:
        names = sorted(path.name for path in folder.iterdir() if is_model_file(path.name))
    except OSError:
        return _Folder((), frozenset())
    stems = (without_type(unsplit_name(name).removesuffix(".gguf")).lower() for name in names if not is_sidecar(name))
    return _Folder(tuple((name, projector_owner(name)) for name in names if is_projector(name)), frozenset(stems))


@dataclass(frozen=True, slots=True)
class FoundProjector:
    """The projector of a model, None for a model without one, and why others were passed over. One that `is_chosen` was
    named by the user and is loaded even where the model fits worse with it."""

    projector: ProjectorHeader | None = None
    passed_over: tuple[str, ...] = ()
    is_chosen: bool = False

    @property
    def path(self) -> str:
        return str(self.projector.path) if self.projector else ""

    @property
    def sees(self) -> bool:
        return self.projector is not None and self.projector.sees

    @property
    def hears(self) -> bool:
        return self.projector is not None and self.projector.hears

    @property
    def speaks(self) -> bool:
        return self.projector is not None and self.projector.speaks


NOTHING_FOUND = FoundProjector()


def choose_projector(model: Header, choice: str) -> FoundProjector:
    """Return the projector of `model` by a `choice` of the settings: empty or auto (the one that is found), none, a
    type that is preferred among those found, or a file. Raises ModelFileError for a file that is not a projector, or
    belongs to another model."""
    if choice.lower() == NO_PROJECTOR:
        return NOTHING_FOUND
    if not (named := projector_file(choice)):
        return find_projector(model, choice)
    from app.engine.load.projector_file import validate_projector  # lists should not wait for it

    return FoundProjector(validate_projector(named, model), is_chosen=True)


def general_choice(choice: str) -> str:
    """Return what a `choice` for one model means for all others: a file belongs to that model only."""
    return "" if projector_file(choice) else choice


def find_projector(model: Header, preferred: str = "") -> FoundProjector:
    """Return the projector that is kept with `model`: one that names it before one that names none, then by its type,
    the `preferred` one first. Files that cannot be loaded beside it are passed over with a reason, unless they name
    another model."""
    from app.engine.load.projector_file import validate_projector

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


def own_projectors(model: Path) -> tuple[Path, ...]:
    """Return the files in the folder of `model`, or in its manifests, that are its projectors by their names; only
    their headers show whether they are."""
    return tuple(path for path, rank in _candidates(model) if rank != _AMBIGUOUS and path.parent == model.parent)


def projector_stamp(model: Path, look: Look = look_into) -> str:
    """Return a stamp of the files that may be projectors of `model`, which differs after any change of one; `look` may
    remember folders."""
    stamps = []
    for path, _ in _candidates(model, look):
        try:
            status = path.stat()
        except OSError:  # removed meanwhile
            continue
        stamps.append(f"{path.name}:{status.st_size}:{status.st_mtime_ns}:{status.st_ino}")
    return " ".join(sorted(stamps))


def _candidates(model: Path, look: Look = look_into) -> Iterator[tuple[Path, int]]:
    """Yield the files that may be the projector of `model`, with how likely they are its own: 0 names it, 1 is that of
    the only model there, `_AMBIGUOUS` may be that of any model there."""
    yield from ((path, 0) for path in ollama_projectors(model))
    own = without_type(unsplit_name(model.name).removesuffix(".gguf")).lower()
    for folder in (model.parent, *snapshot_folders(model.parent)):
        found = look(folder)
        owners = [owner for _, owner in found.projectors]
        # those that have a projector of their own do not compete for another
        others = [
            stem for stem in found.models - {own} if found.projectors and not any(names_model(o, stem) for o in owners)
        ]
        for name, owner in found.projectors:
            if name == model.name:
                continue
            if names_model(owner, own):
                yield folder / name, 0
            elif not others and not any(names_model(owner, stem) for stem in found.models):
                yield folder / name, 1
            elif not owner:
                yield folder / name, _AMBIGUOUS
