"""Resolution of model names on this machine: the guide, the library, other programs' models, and paths.

Owns the list of models, the order in which a name is matched, and the error that lists what exists. Reads no header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from app.library.external import external_models, find_external_models
from app.library.hub.reference import OllamaReference, PackageReference, RepoReference
from app.library.local.model_files import (
    ModelRef,
    added_at_ns,
    head_paths,
    id_of,
    ids_of,
    is_path,
    listed,
    model_paths,
    repo_of,
)
from app.settings.settings import GUIDE, Settings
from quantizer.gguf.file_names import unsplit_name
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import UsageError
from quantizer.system.files import explained, is_file, is_folder, sorted_glob

BUILT_IN = "built in"  # the guide's place
_GUIDE_FILE = "guide-Q8_0.gguf"
_CONVERTIBLE = "It is a checkpoint: make a GGUF of it with `localllm quantize {name}`, then run that."
_PICKLES = "It is a pickle, which can run code when read: get the model as .safetensors or .gguf."
_SUFFIX_REMEDIES = {  # of files other than GGUF
    ".safetensors": "It is part of a checkpoint: make a GGUF with `localllm quantize FOLDER`, then run that.",
    ".bin": _PICKLES,
    ".pt": _PICKLES,
    ".pth": _PICKLES,
    ".ckpt": _PICKLES,
}
_FILE_SUFFIXES = {".gguf", *_SUFFIX_REMEDIES}
_MAX_NAMES_LISTED = 12
_MAX_LIKELY, _LIKENESS = 3, 0.6  # of names that may be meant
_MAX_COMPARED = 200  # characters of a name


class UnknownModelError(ModelFileError):
    """A name that matches no model on this machine, or several."""


def guide_folder() -> Path:
    return Path(str(files("assets") / "guide"))


def guide_source(folder: Path) -> Path:
    """Return what `localllm quantize guide` reads: the checkpoint in a clone. An installed localllm has only the file
    that it runs, for the checkpoint would make its package twice as large."""
    return folder if (folder / "model.safetensors").is_file() else folder / _GUIDE_FILE


def available(settings: Settings) -> tuple[ModelRef, ...]:
    """Return every model of localllm: the guide first, if it is installed, then the library sorted by name."""
    path, models_dir = guide_folder() / _GUIDE_FILE, settings.models_dir
    guide = (ModelRef(GUIDE, path, place=BUILT_IN),) if is_file(path) else ()
    repos = {path: repo_of(path, models_dir) for path in model_paths(models_dir)}
    ids = ids_of(repos.items(), added_at_ns, {GUIDE})
    return (*guide, *(ModelRef(id=ids[path], path=path, repo=repo) for path, repo in repos.items()))


def resolve(name: str, settings: Settings) -> ModelRef:
    """Return the model called `name`: `guide`, a path to a GGUF, a name in the library or in another program. A draft
    head beside a model has its file's name here, though no list shows it. Raises UnknownModelError that lists the
    models, ModelFileError for a file or folder that is not a GGUF."""
    if not is_path(name):
        here = available(settings)
        if _matching(name, here):
            return find_by_name(name, here)
        for head in head_paths(settings.models_dir):
            ref = ModelRef(id_of(head.name), head, repo_of(head, settings.models_dir))
            if name.lower() in (ref.id.lower(), *_file_names(head)):
                return ref
        if not _exists(Path(name)):
            external, skipped = find_external_models()
            others = tuple({ref.id: ref for ref in reversed(external)}.values())  # of one id, the first
            if _matching(name, others):
                return find_by_name(name, others)
            if Path(name).suffix.lower() not in _FILE_SUFFIXES:
                try:
                    return find_by_name(name, here)
                except UnknownModelError as error:  # it may be one of those
                    left_out = "".join(f" {folder.what}" for folder in skipped)
                    raise UnknownModelError(error.cause, f"{error.remedy}{left_out}") from None
    return _at_path(Path(portable(name)), name, settings)


def find_by_name(name: str, here: Sequence[ModelRef]) -> ModelRef:
    """Return the model of `here` called `name`: an id or its part before the colon, a file stem, a repo. Case is
    ignored, and so is the `:latest` that Ollama's clients append. Paths do not match. Raises UnknownModelError that
    lists the models, those of a similar name first."""
    found = _matching(name, here)
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownModelError(f"{name!r} matches {len(found)} models.", f"Name one of them: {_listed(found)}.")
    remedy = f"Models: {_listed(here)}." if here else "No model is installed: name a path to a GGUF file."
    wanted = name.lower()[:_MAX_COMPARED].removesuffix(":latest")
    names = {form.lower(): ref.id for ref in reversed(here) for form in (ref.path.stem, ref.id)}
    similar = get_close_matches(wanted, names, n=_MAX_LIKELY, cutoff=_LIKENESS)
    likely = " or ".join(dict.fromkeys(names[form] for form in similar))
    raise UnknownModelError(f"There is no model {name!r}.", f"Did you mean {likely}? {remedy}" if likely else remedy)


def portable(name: str) -> str:
    """Return `name` for a process with another working folder: paths become absolute."""
    is_file_here = Path(name).suffix.lower() in _FILE_SUFFIXES and _exists(Path(name))
    return str(absolute(name)) if is_path(name) or is_file_here else name


def absolute(path: str) -> Path:
    """Return `path` as an absolute path; the `~` of an unknown user is an ordinary name."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:  # no such user, or no home
        return Path(path).absolute()


# How a name may match, the most exact way first; the name is in lower case.
_MATCHERS: tuple[Callable[[ModelRef, str], bool], ...] = (
    lambda ref, name: ref.id.lower() == name,
    lambda ref, name: ref.id.lower() == f"{name}:latest",  # Ollama's meaning of a name without a tag
    lambda ref, name: ref.place != BUILT_IN and name in _file_names(ref.path),
    lambda ref, name: name in _file_names(ref.path),
    lambda ref, name: f"{ref.repo}/{ref.path.stem}".lower() == name,
    lambda ref, name: ref.repo.lower() == name,
    lambda ref, name: ref.repo.lower().rpartition("/")[2] == name,
    lambda ref, name: ref.id.lower().partition(":")[0] == name,
    lambda ref, name: ref.path.stem.lower() == name.replace(":", "-"),  # where NAME:TAG is placed
)


def _matching(name: str, refs: Iterable[ModelRef]) -> list[ModelRef]:
    """Return the models that match `name` in the most exact way that any does."""
    refs, wanted = list(refs), name.lower().removesuffix(":latest")
    found = ([ref for ref in refs if matches(ref, wanted)] for matches in _MATCHERS)
    return next(filter(None, found), []) or _pulled_as(wanted, refs)


def _pulled_as(name: str, refs: Iterable[ModelRef]) -> list[ModelRef]:
    """Return the models that `localllm pull NAME` has fetched: clients request them by the same name."""
    refs = [ref for ref in refs if ref.repo]
    if not refs:
        return []
    from app.library.hub.catalogue import resolve_reference  # with numpy: a path should not wait for it

    wanted = None
    with suppress(UsageError):
        wanted = resolve_reference(name, "")
    if isinstance(wanted, PackageReference):
        return [ref for ref in refs if ref.repo.lower() == wanted.repo]
    if isinstance(wanted, OllamaReference):
        stem = wanted.stem.lower()
        return [ref for ref in refs if ref.repo.lower() == wanted.repo.lower() and ref.path.stem.lower() == stem]
    if not isinstance(wanted, RepoReference):
        return []
    repo, endings = wanted.repo.lower(), (f"-{wanted.quant.lower()}", f".{wanted.quant.lower()}")
    fetched = [ref for ref in refs if ref.repo.lower() == repo]
    found = [ref for ref in fetched if not wanted.quant or _whole_stem(ref.path).endswith(endings)]
    # a dynamic quant, which was fetched in place of the plain one, ends like it
    plain = [ref for ref in found if not _whole_stem(ref.path).endswith(f"-ud-{wanted.quant.lower()}")]
    return plain or found


def _file_names(path: Path) -> tuple[str, str, str]:
    """Return the file's name with and without its ending, and without the number of its part."""
    return path.name.lower(), path.stem.lower(), _whole_stem(path)


def _whole_stem(path: Path) -> str:
    return unsplit_name(path.name).lower().removesuffix(".gguf")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        return False


def _at_path(path: Path, name: str, settings: Settings) -> ModelRef:
    if not _exists(path):
        remedy = "Check its rights, and those of its folders."
        with explained(f"{path} cannot be read", remedy, ModelFileError), suppress(FileNotFoundError, ValueError):
            path.stat()
        raise UnknownModelError(f"There is no file {path}.", "Check the path.")
    if is_folder(path):
        is_checkpoint = bool(sorted_glob(path, "*.safetensors")) or is_file(path / "config.json")
        remedy = _CONVERTIBLE.format(name=name) if is_checkpoint else "Name the .gguf file in it."
        raise ModelFileError(f"{path} is a folder, not a GGUF file.", remedy)
    if remedy := _SUFFIX_REMEDIES.get(path.suffix.lower(), ""):
        raise ModelFileError(f"{path} is not a GGUF file.", remedy)
    return next((ref for ref in available(settings) if ref.path == path), ModelRef(id_of(path.name), path))


def _listed(refs: Iterable[ModelRef]) -> str:
    return listed((ref.id for ref in refs), _MAX_NAMES_LISTED)


def find_importable(source: str, settings: Settings) -> ModelRef:
    """Return the model `source` to import: a path, or a name that `localllm ls --external` shows. Raises
    UnknownModelError, ModelFileError."""
    ref = resolve(source, settings)
    if ref.repo:
        return ref
    # if the path is another program's file, the name there is better; what Ollama adds belongs to its names
    other = next((other for other in external_models() if other.path == ref.path), ref)
    return replace(other, manifest=None)
