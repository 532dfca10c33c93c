"""What a model's name means on this machine.

Owns the guide's place in the package and the layout `<data>/models/<publisher>/<repo>/<file>.gguf`. Knows nothing of
what is in a file: the header gate reads that.

What may be taken into the library: a file by its path, or a model of another program by its name.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from app.library.external import elsewhere
from app.library.hub.reference import RepoReference
from app.library.local.model_files import ModelRef, added_at_ns, model_paths, repo_of
from app.library.local.naming import id_of, ids_of
from app.settings.settings import Settings
from quantizer.errors import ModelFileError, UsageError
from quantizer.gguf.shards import unsplit_name

__all__ = [
    "BUILT_IN",
    "GUIDE",
    "ModelRef",
    "UnknownModelError",
    "absolute",
    "available",
    "find_by_name",
    "find_importable",
    "portable",
    "resolve",
]

GUIDE = "guide"
BUILT_IN = "built in"  # the guide's place
_GUIDE_FILE = "guide-Q8_0.gguf"
_CONVERTIBLE = "It is a checkpoint: make a GGUF of it with `localllm quantize {name}`, then run that."
_PICKLES = "It is a pickle, which can run code when read: get the model as .safetensors or .gguf."
_SUFFIX_REMEDIES = {
    ".safetensors": "It is part of a checkpoint: make a GGUF with `localllm quantize FOLDER`, then run that.",
    ".bin": _PICKLES,
    ".pt": _PICKLES,
    ".pth": _PICKLES,
    ".ckpt": _PICKLES,
}
_FILE_SUFFIXES = {".gguf", *_SUFFIX_REMEDIES}
_MAX_NAMES_LISTED = 12


class UnknownModelError(ModelFileError):
    """A name that stands for no model here, or for more than one."""


def available(settings: Settings) -> tuple[ModelRef, ...]:
    """Return every model of this machine, the guide first when it is installed, then the library in order of name."""
    return (*_guide(), *_library(settings.models_dir))


def resolve(name: str, settings: Settings) -> ModelRef:
    """Return the model that `name` means: `guide`, a path to a GGUF, a name in the library or one of another program's.

    Raises UnknownModelError that lists what is here, ModelFileError for a file or folder that is no GGUF.
    """
    if not _is_path(name):
        here = available(settings)
        if _matching(name, here):
            return find_by_name(name, here)
        if not _exists(Path(name)):
            others = _of_other_programs()
            if _matching(name, others):
                return find_by_name(name, others)
            if Path(name).suffix.lower() not in _FILE_SUFFIXES:
                return find_by_name(name, here)
    return _at_path(Path(portable(name)), name, settings)


def find_by_name(name: str, here: Sequence[ModelRef]) -> ModelRef:
    """Return the model of `here` called `name`: an id, a file stem, a repo or publisher/repo. Paths are no names.

    So is what stands before the colon of an id. Ollama's clients put `:latest` behind a name without a tag; it means
    nothing. Upper and lower case are the same.
    Raises UnknownModelError that lists what is here.
    """
    found = _matching(name, here)
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownModelError(f"{name!r} may be any of {len(found)} models.", f"Name one of them: {_listed(found)}.")
    remedy = f"Here are: {_listed(here)}." if here else "No model is installed: name a path to a GGUF file."
    raise UnknownModelError(f"There is no model {name!r}.", remedy)


def portable(name: str) -> str:
    """Return `name` so that a process with another working folder understands it: paths become absolute."""
    is_file_here = Path(name).suffix.lower() in _FILE_SUFFIXES and _exists(Path(name))
    return str(absolute(name)) if _is_path(name) or is_file_here else name


def absolute(path: str) -> Path:
    """Return `path` from the root of the file system; a `~` of nobody's is a name like any other."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:  # no such user, or one without a home
        return Path(path).absolute()


# How a name may fit, the most exact way first; the name is in lower case.
_MATCHERS: tuple[Callable[[ModelRef, str], bool], ...] = (
    lambda ref, name: ref.id.lower() == name,
    lambda ref, name: ref.served_as.lower() == name,
    lambda ref, name: ref.id.lower() == f"{name}:latest",  # what Ollama means by a name without a tag
    lambda ref, name: ref.path.stem.lower() == name or ref.path.name.lower() == name,
    lambda ref, name: f"{ref.repo}/{ref.path.stem}".lower() == name,
    lambda ref, name: ref.repo.lower() == name,
    lambda ref, name: ref.repo.lower().rpartition("/")[2] == name,
    lambda ref, name: ref.served_as.lower().partition(":")[0] == name,
    lambda ref, name: ref.path.stem.lower() == name.replace(":", "-"),  # where NAME:TAG is placed
)


def _matching(name: str, refs: Iterable[ModelRef]) -> list[ModelRef]:
    """The models that fit `name` in the most exact way that any does."""
    refs, wanted = list(refs), name.lower().removesuffix(":latest")
    found = ([ref for ref in refs if matches(ref, wanted)] for matches in _MATCHERS)
    return next(filter(None, found), []) or _pulled_as(wanted, refs)


def _pulled_as(name: str, refs: Iterable[ModelRef]) -> list[ModelRef]:
    """The models that `localllm pull NAME` fetches, with a quantization too: clients ask for them by the same words."""
    from app.library.hub.catalogue import resolve_reference

    try:
        wanted = resolve_reference(name, "")
    except UsageError:
        return []
    if not isinstance(wanted, RepoReference):
        return []
    repo, endings = wanted.repo.lower(), (f"-{wanted.quant.lower()}", f".{wanted.quant.lower()}")
    fetched = [ref for ref in refs if ref.repo.lower() == repo]
    return [ref for ref in fetched if not wanted.quant or _whole_stem(ref.path).endswith(endings)]


def _whole_stem(path: Path) -> str:
    return unsplit_name(path.name).lower().removesuffix(".gguf")


def _guide() -> tuple[ModelRef, ...]:
    path = Path(str(files("assets") / "guide" / _GUIDE_FILE))
    return (ModelRef(GUIDE, path, place=BUILT_IN, served_as=GUIDE),) if path.is_file() else ()


def _of_other_programs() -> tuple[ModelRef, ...]:
    """What other programs hold, once each: of models with the same id, the first."""
    return tuple({ref.id: ref for ref in reversed(elsewhere())}.values())


def _library(models_dir: Path) -> list[ModelRef]:
    paths = model_paths(models_dir)
    n_called = Counter(path.stem.lower() for path in paths)
    served = ids_of([(path, repo_of(path)) for path in paths], added_at_ns)
    return [
        ModelRef(
            id=_library_id(path, is_unique=n_called[path.stem.lower()] == 1),
            path=path,
            repo=repo_of(path),
            served_as=served[path],
        )
        for path in paths
    ]


def _library_id(path: Path, *, is_unique: bool) -> str:
    return path.stem if is_unique and path.stem.lower() != GUIDE else f"{repo_of(path)}/{path.stem}"


def _is_path(name: str) -> bool:
    """True for what can only be a path: publisher/repo has a separator too."""
    return name == "~" or name.startswith(("~/", ".", os.sep)) or "\\" in name or Path(name).is_absolute()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        return False


def _at_path(path: Path, name: str, settings: Settings) -> ModelRef:
    if not _exists(path):
        raise UnknownModelError(f"There is no file {path}.", "Check the path.")
    if path.is_dir():
        is_checkpoint = any(path.glob("*.safetensors")) or (path / "config.json").is_file()
        remedy = _CONVERTIBLE.format(name=name) if is_checkpoint else "Name the .gguf file in it."
        raise ModelFileError(f"{path} is a folder, not a GGUF file.", remedy)
    if remedy := _SUFFIX_REMEDIES.get(path.suffix.lower(), ""):
        raise ModelFileError(f"{path} is not a GGUF file.", remedy)
    return next(
        (ref for ref in available(settings) if ref.path == path), ModelRef(path.stem, path, served_as=id_of(path.name))
    )


def _listed(refs: Iterable[ModelRef]) -> str:
    names = [ref.id for ref in refs]
    more = f" and {len(names) - _MAX_NAMES_LISTED} more" if len(names) > _MAX_NAMES_LISTED else ""
    return ", ".join(names[:_MAX_NAMES_LISTED]) + more


def find_importable(source: str, settings: Settings) -> ModelRef:
    """Return the model that `source` means: a path, or a name that `localllm ls --elsewhere` shows.

    Raises UnknownModelError, ModelFileError.
    """
    ref = resolve(source, settings)
    if ref.repo:
        return ref
    # a path may be another program's file, whose name is a better one
    return next((other for other in elsewhere() if other.path == ref.path), ref)
