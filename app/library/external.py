"""External models: those of Ollama, LM Studio and the Hugging Face cache, which run in place.

Owns where each program keeps its models. LM Studio's folder has our own layout, `<publisher>/<repo>/<file>.gguf`: it
is `models` in LM Studio's home, or the `downloadsFolder` of settings.json there (source: src/modelsFolder.ts of
lmstudio-ai/lms @ 3cc0201). The cache of huggingface-hub has `models--ORG--NAME/snapshots/<commit>/…`, links to
`blobs/<sha256>`, or on Windows files (source: its documentation). Ollama's `manifests/<host>/<namespace>/<model>/<tag>`
refer to `blobs/sha256-<hash>`; they are untrusted: only a hash from them becomes part of a path. Never writes to a
program's folder.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from app.library.local.model_files import ModelRef, is_model_file, model_paths, repo_of, without_heads
from app.library.local.recipe import MAX_RECIPE_BYTES, Recipe, checked_recipe, read_recipe, recipe_path
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import StorageError
from quantizer.system.files import is_file, is_folder, open_regular, read_regular, sorted_glob

Parsed = TypeVar("Parsed", dict[str, Any], list[Any])

_LM_STUDIO_HOMES = (".lmstudio", ".cache/lm-studio")  # since version 0.3.6, and before
_LM_STUDIO_POINTER = ".lmstudio-home-pointer"  # holds the path of another home
_MAX_SETTINGS_BYTES = 4 << 20
_MAIN_BYTES = 256
_OLLAMA_SYSTEM_FOLDER = Path("/usr/share/ollama/.ollama/models")  # of the service that Linux packages install
LAYER = "application/vnd.ollama.image"  # with a kind behind it, the media type of a layer
TEXT_LAYERS = ("system", "params", "messages", "license")  # the kinds that a recipe is made of
_MODEL_LAYER, _PROJECTOR_LAYER, _ADAPTER_LAYER = f"{LAYER}.model", f"{LAYER}.projector", f"{LAYER}.adapter"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_BLOB = re.compile(r"sha256-([0-9a-f]{64})")
_MAX_MANIFESTS_CACHED = 1024
_MAX_MANIFEST_BYTES = 1 << 20
_OWN_HOST, _OWN_NAMESPACE = "registry.ollama.ai", "library"


@dataclass(frozen=True, slots=True)
class SkippedFolder:
    """A file or folder of `program` that this user may not read, `why`, and the group that may, or ""."""

    program: str
    path: Path
    why: str
    group: str = ""

    @property
    def what(self) -> str:
        return f"Models of {self.program} are left out: {self.path} cannot be read ({self.why})."

    @property
    def remedy(self) -> str:
        if self.group:
            return f"Join the group that may read them, and log in again: sudo usermod -aG {self.group} $USER"
        return f"To use them here too, correct the rights of {self.path}."


_Unreadable: TypeAlias = list[tuple[Path, OSError]]


def external_models(environment: Mapping[str, str] = os.environ) -> tuple[ModelRef, ...]:
    """Return the models of `find_external_models`."""
    return find_external_models(environment)[0]


def find_external_models(
    environment: Mapping[str, str] = os.environ,
) -> tuple[tuple[ModelRef, ...], tuple[SkippedFolder, ...]]:
    """Return every GGUF in a program's usual folder, or the one that `environment` sets, sorted by name; and of each
    program the first file or folder that cannot be read. What it holds is left out."""
    home, found, skipped = _home_folder(), list[ModelRef](), list[SkippedFolder]()
    searches = (
        ("LM Studio", partial(_lm_studio_models, home)),
        ("Hugging Face", partial(_hugging_face_models, home, environment)),
        ("Ollama", partial(_ollama_models, home, environment)),
    )
    for program, search in searches:
        readable, unreadable = list[ModelRef](), _Unreadable()
        for ref in search(unreadable):
            try:
                open_regular(ref.path).close()
            except OSError as error:
                may_enter = os.access(ref.path.parent, os.X_OK)
                unreadable.append((ref.path if may_enter else ref.path.parent, error))
            else:
                readable.append(ref)
        found += sorted(readable, key=lambda ref: ref.id)
        if unreadable:
            path, why = unreadable[0]
            skipped.append(SkippedFolder(program, path, why.strerror or str(why), _reading_group(path)))
    return tuple(found), tuple(skipped)


def _reading_group(path: Path) -> str:
    """Return the group that may read the file or folder, or the closest one above it that this user may know of."""
    for each in (path, *path.parents):
        with suppress(OSError, KeyError, NotImplementedError):  # of another machine's user, or on Windows
            may_read = each.stat().st_mode & stat.S_IRGRP
            return each.group() if may_read and each.stat().st_gid not in os.getgroups() else ""
    return ""


def _is_listable(folder: Path, unreadable: _Unreadable) -> bool:
    """Return whether the names in `folder` can be listed and entered; a folder that is there and cannot is added."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)  # only this needs the right to enter
                break
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        unreadable.append((folder, error))
        return False
    return True


def _home_folder() -> Path:
    """Return the user's home folder; for a user without one, a folder that does not exist."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def _lm_studio_models(home: Path, unreadable: _Unreadable) -> Iterator[ModelRef]:
    for folder in _lm_studio_folders(home):
        if not _is_listable(folder, unreadable):
            continue
        try:
            paths = model_paths(folder)
        except StorageError as error:  # of a folder below: the other programs' models are listed
            if isinstance(error.__cause__, OSError):
                unreadable.append((folder, error.__cause__))
            continue
        for path in paths:
            repo = repo_of(path, folder)
            if path.parent == folder / repo and "/" in repo:  # it shows no others
                yield ModelRef(f"{repo}/{path.stem}", path, repo, "LM Studio")


def _lm_studio_folders(home: Path) -> list[Path]:
    """Return the folders that hold its models, each once: of every home the one its settings choose, and the usual
    one, whose models stay when another is chosen."""
    homes = [home / name for name in _LM_STUDIO_HOMES]
    with suppress(OSError, UnicodeDecodeError, ValueError):  # no such file, or no path
        pointed = Path(read_regular(home / _LM_STUDIO_POINTER).decode("utf-8").strip())
        if pointed.is_absolute() and is_folder(pointed):
            homes.insert(0, pointed)
    folders = []
    for each in homes:
        # missing, or not as LM Studio writes it
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            with open_regular(each / "settings.json") as file:
                chosen = Path(json.loads(file.read(_MAX_SETTINGS_BYTES))["downloadsFolder"])
            if chosen.is_absolute() and chosen.is_dir():
                folders.append(chosen)
        folders.append(each / "models")
    return list({folder.resolve(): folder for folder in reversed(folders)}.values())[::-1]


def _hugging_face_models(home: Path, environment: Mapping[str, str], unreadable: _Unreadable) -> Iterator[ModelRef]:
    """Yield the GGUFs of every repository; a file of several commits in the version of the latest `main`."""
    cache = _cache_folder(home, environment)
    for folder in sorted_glob(cache, "models--*--*") if _is_listable(cache, unreadable) else ():
        _is_listable(folder / "snapshots", unreadable)
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        found: dict[Path, Path] = {}
        for snapshot in _snapshots_of(folder):
            files = [path for path in sorted(snapshot.rglob("*.gguf")) if is_model_file(path.name) and _is_there(path)]
            for path in without_heads(files):
                found.setdefault(path.relative_to(snapshot), path)
        for path in found.values():
            yield ModelRef(f"{repo}/{path.stem}", path, repo, "Hugging Face")


def hugging_face_snapshots(repo: str, environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the commits of `repo` in the cache, the latest `main` first."""
    return _snapshots_of(_cache_folder(_home_folder(), environment) / f"models--{repo.replace('/', '--')}")


def _cache_folder(home: Path, environment: Mapping[str, str]) -> Path:
    """Return the cache folder: HF_HUB_CACHE, or HUGGINGFACE_HUB_CACHE, its former name; or `hub` in HF_HOME, or in the
    user's cache folder."""
    if folder := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(folder).expanduser()
    if folder := environment.get("HF_HOME"):
        return Path(folder).expanduser() / "hub"
    user_cache = environment.get("XDG_CACHE_HOME")
    return (Path(user_cache) if user_cache else home / ".cache") / "huggingface" / "hub"


def _snapshots_of(folder: Path) -> list[Path]:
    """Return the cached commits of the repository in `folder`, the latest `main` first."""
    try:
        with open_regular(folder / "refs" / "main") as file:
            main = file.read(_MAIN_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        main = ""
    return sorted(sorted_glob(folder / "snapshots", "*"), key=lambda path: path.name != main)


def _is_there(path: Path) -> bool:
    """Return whether a link leads to a file, also to one that may not be known of: opening it tells."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _ollama_models(home: Path, environment: Mapping[str, str], unreadable: _Unreadable) -> Iterator[ModelRef]:
    """Yield the models that consist of one GGUF, by the names that `ollama ls` shows."""
    chosen = environment.get("OLLAMA_MODELS")
    for folder in [Path(chosen)] if chosen else [home / ".ollama" / "models", _OLLAMA_SYSTEM_FOLDER]:
        if not _is_listable(folder, unreadable) or not _is_listable(folder / "manifests", unreadable):
            continue
        for manifest in sorted_glob(folder / "manifests", "*/*/*/*"):
            if not os.access(manifest, os.R_OK):
                unreadable.append((manifest, PermissionError(errno.EACCES, os.strerror(errno.EACCES))))
            digests = [digest for kind, digest in _layers_of(manifest) if kind == _MODEL_LAYER]
            if len(digests) != 1 or not _is_there(blob := folder / "blobs" / f"sha256-{digests[0]}"):
                continue
            host, namespace, model, tag = manifest.parts[-4:]
            parts = (namespace, model) if host == _OWN_HOST else (host, namespace, model)
            name = "/".join(parts).removeprefix(f"{_OWN_NAMESPACE}/")
            is_own = (host, namespace) == (_OWN_HOST, _OWN_NAMESPACE)
            yield ModelRef(f"{name}:{tag}", blob, f"{'ollama' if is_own else namespace}/{model}", "Ollama", manifest)


def _layers_of(manifest: Path) -> tuple[tuple[str, str], ...]:
    """Return the media type and the hash of each layer in a manifest; none for an unreadable or invalid manifest."""
    try:
        status = manifest.stat()
    except OSError:
        return ()
    return _read_layers(manifest, status.st_mtime_ns, status.st_size)


@lru_cache(_MAX_MANIFESTS_CACHED)
def _read_layers(manifest: Path, _modified_ns: int, _n_bytes: int) -> tuple[tuple[str, str], ...]:
    try:
        with open_regular(manifest) as file:
            layers = json.loads(file.read(_MAX_MANIFEST_BYTES))["layers"]
        named = [(str(layer["mediaType"]), str(layer["digest"])) for layer in layers if "digest" in layer]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
    matched = ((kind, _DIGEST.fullmatch(digest)) for kind, digest in named)
    return tuple((kind, match[1]) for kind, match in matched if match)


def recipe_of(ref: ModelRef) -> Recipe:
    """Return the recipe of the model at `ref`: Ollama's layers, or the file beside ours. Raises ModelFileError where
    they cannot be read. A template is left out: Ollama's are for Go, and the model's own is in its file."""
    if ref.manifest is None:
        return read_recipe(ref.path)
    texts = {
        kind: [_layer_text(ref, digest) for layer, digest in _layers_of(ref.manifest) if layer == f"{LAYER}.{kind}"]
        for kind in TEXT_LAYERS
    }
    try:
        return ollama_recipe(texts)
    except BAD_LAYERS as error:
        raise _bad_layer(ref, str(error)) from error


BAD_LAYERS = (KeyError, TypeError, ValueError, RecursionError)  # what `ollama_recipe` raises


def ollama_recipe(texts: Mapping[str, Sequence[str]]) -> Recipe:
    """Return the recipe in the `texts` of Ollama's layers by kind, of which there may be several. Raises BAD_LAYERS for
    invalid ones."""
    parameters, messages = _parsed(texts["params"], dict), _parsed(texts["messages"], list)
    first = tuple({"role": item["role"], "content": item["content"]} for part in messages for item in part)
    return checked_recipe(
        Recipe(
            system="\n\n".join(texts["system"]),
            license="\n\n".join(texts["license"]),
            parameters={name: value for part in parameters for name, value in part.items()},
            messages=first,
        )
    )


def recipe_stamp(ref: ModelRef) -> str:
    """Return a stamp of what `recipe_of` reads, which differs after any change of it; empty for a file that is gone."""
    try:
        status = (ref.manifest or recipe_path(ref.path)).stat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns}:{status.st_size}:{status.st_ino}"


def weights_of(ref: ModelRef) -> tuple[str, ...]:
    """Return the hashes of the weights and the adapters that Ollama runs the model at `ref` with now."""
    layers = _layers_of(ref.manifest) if ref.manifest else ()
    return tuple(digest for kind, digest in layers if kind in (_MODEL_LAYER, _ADAPTER_LAYER))


def adapters_of(ref: ModelRef) -> tuple[Path, ...]:
    """Return the LoRA adapters that Ollama runs the model at `ref` with, none for any other program's model."""
    layers = _layers_of(ref.manifest) if ref.manifest else ()
    return tuple(ref.path.with_name(f"sha256-{digest}") for kind, digest in layers if kind == _ADAPTER_LAYER)


def _layer_text(ref: ModelRef, digest: str) -> str:
    blob = ref.path.with_name(f"sha256-{digest}")
    try:
        with open_regular(blob) as file:
            data = file.read(MAX_RECIPE_BYTES + 1)
        if len(data) > MAX_RECIPE_BYTES:
            raise _bad_layer(ref, "larger than 1 MiB")
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_layer(ref, str(error)) from error


def _parsed(texts: Iterable[str], kind: type[Parsed]) -> list[Parsed]:
    """Return layers of JSON, each of which is a `kind`."""
    parsed = [json.loads(text) for text in texts]
    if not all(isinstance(part, kind) for part in parsed):
        raise TypeError("of another kind")
    return parsed


def _bad_layer(ref: ModelRef, why: str) -> ModelFileError:
    cause = f"A layer of {ref.id} in Ollama's folder cannot be read: {why[:200]}."
    return ModelFileError(cause, f"Fetch it again: ollama pull {ref.id}.")


def ollama_projectors(blob: Path) -> tuple[Path, ...]:
    """Return the projectors that manifests of Ollama give the model in `blob`, sorted; none for any other file."""
    if not (match := _BLOB.fullmatch(blob.name)):
        return ()
    digests: set[str] = set()
    for manifest in sorted_glob(blob.parent.parent / "manifests", "*/*/*/*"):
        layers = _layers_of(manifest)
        if (_MODEL_LAYER, match[1]) in layers:
            digests |= {digest for kind, digest in layers if kind == _PROJECTOR_LAYER}
    paths = (blob.with_name(f"sha256-{digest}") for digest in sorted(digests))
    return tuple(path for path in paths if is_file(path))


def snapshot_folders(folder: Path) -> tuple[Path, ...]:
    """Return the folders above `folder` up to its commit in a cache of huggingface-hub; none for any other folder."""
    above = (folder, *folder.parents)
    for index, each in enumerate(above):
        if each.parent.name == "snapshots" and each.parent.parent.name.startswith("models--"):
            return above[1 : index + 1]
    return ()
