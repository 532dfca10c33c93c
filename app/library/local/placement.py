"""Imports into the library: a model's files linked where possible, or copied.

Owns the kinds of link and their order: a hard link, which survives the removal of the first name; a reflink, where the
file system shares blocks and another user's file may not be linked; a symbolic link. A failed import leaves nothing
behind; a copy that was killed resumes.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.library.external import adapters_of, recipe_of
from app.library.local.index import Index, expected_sha256
from app.library.local.model_files import ModelRef, model_output_path, parts_of, stat_model
from app.library.local.model_sampling import (
    generation_config_path,
    read_generation_config,
    write_generation_config,
)
from app.library.local.projectors import find_projector
from app.library.local.recipe import NO_RECIPE, Recipe, recipe_path, write_recipe
from app.library.local.removal import remove_empty_folders
from app.protocol.library import ImportWay
from quantizer.gguf.file_names import projector_name, shard_path
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import StorageError
from quantizer.system.files import explained, make_folder, open_regular
from quantizer.write.partial_output import OutputFile, PartialOutput, partial_path

REFERENCE: ImportWay = "symbolic link"
_FICLONE = 0x40049409  # source: linux/fs.h
_BLOCK_BYTES = 64 << 20
_PIECE_BYTES = 4 << 20


class NameTakenError(StorageError):
    """The path of a model to import exists already."""


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The files of a model, each with its target path, first file first, its projector last; `n_bytes` is the size of a
    copy. The `recipe` it has at its source comes with it, and the `generation_config` beside it, unless empty."""

    files: tuple[tuple[Path, Path], ...]
    n_bytes: int
    recipe: Recipe = NO_RECIPE
    generation_config: bytes = b""

    @property
    def path(self) -> Path:
        return self.files[0][1]


def plan_import(source: ModelRef, wanted: str, models_dir: Path) -> ImportPlan:
    """Return where `source` goes under the name `wanted`, with its projector; empty keeps its own name. Raises
    UsageError for an invalid name, ModelFileError for an invalid model, NameTakenError for a path that exists."""
    from quantizer.gguf.validation import validate_gguf

    path = model_output_path(source, wanted, models_dir)
    header, recipe = validate_gguf(source.path), recipe_of(source)
    if adapters_of(source):
        cause = f"{source.id} is a model with an adapter, which cannot be imported with it."
        raise ModelFileError(cause, f"Run it in place: localllm run {source.id}.")
    sources = parts_of(source.path)
    targets = [shard_path(path, index, len(sources)) for index in range(len(sources))]
    for target in targets:
        if os.path.lexists(target):
            raise _name_taken(target)
    files: tuple[tuple[Path, Path], ...] = tuple(zip(sources, targets, strict=True))
    n_bytes = stat_model(source.path).n_bytes
    if found := find_projector(header).projector:
        target = path.with_name(projector_name(path.name, found.type_name))
        if not os.path.lexists(target):  # else it is that of another type of the model
            files, n_bytes = (*files, (found.path, target)), n_bytes + found.path.stat().st_size
    return ImportPlan(files, n_bytes, recipe, read_generation_config(source.path))


def _name_taken(target: Path) -> NameTakenError:
    return NameTakenError(f"{target} exists already.", "Remove it first, or give another name.")


def link_model(plan: ImportPlan, index: Index) -> ImportWay:
    """Link every file, the first one last, and return the kind of link. Raises NameTakenError where a path was taken
    meanwhile, StorageError when no kind works."""
    hashes = [expected_sha256(source, index) for source, _ in plan.files]
    way: ImportWay = REFERENCE
    with _new_folder(plan.path.parent), ExitStack() as undo:
        _write_beside(plan, undo)
        for source, target in reversed(plan.files):  # the first file is the one that lists show: all others are there
            way = link(source, target)
            undo.callback(target.unlink)
        undo.pop_all()
    for (_, target), sha256 in zip(plan.files, hashes, strict=True):
        if sha256:
            index.record_sha256(target, sha256)
    return way


def link(source: Path, target: Path) -> ImportWay:
    """Link `target` to the file `source` without replacing anything, and return the kind of link. Raises NameTakenError
    if `target` exists, StorageError when no kind of link works."""
    real = source.resolve()  # a link to a link, as snapshots of a Hugging Face cache have them, breaks with that one
    reasons = []
    for way, make in _WAYS.items():
        try:
            make(real, target)
        except FileExistsError as error:
            raise _name_taken(target) from error
        except OSError as error:
            reasons.append(f"{way}: {error.strerror or error}")
        else:
            return way
    raise StorageError(f"{source} cannot be linked ({'; '.join(reasons)}).", "Copy it with `localllm import --copy`.")


def _reflink(source: Path, target: Path) -> None:
    if sys.platform != "linux":
        raise OSError(None, "not on this system")
    import fcntl

    partial = partial_path(target, 0)
    try:
        with open_regular(source) as original, partial.open("xb") as clone:
            fcntl.ioctl(clone, _FICLONE, original.fileno())
        os.link(partial, target)  # renaming would replace a target
    finally:
        partial.unlink(missing_ok=True)


_WAYS: dict[ImportWay, Callable[[Path, Path], None]] = {
    "hard link": lambda source, target: os.link(source, target),
    "reflink": _reflink,
    REFERENCE: lambda source, target: target.symlink_to(source),
}


def copy_model(plan: ImportPlan, index: Index, on_bytes: Callable[[int], object]) -> None:
    """Copy every file and record its hash, calling `on_bytes` with the size of each piece. All appear together. Raises
    StorageError, and ModelFileError for a file that does not match its expected hash."""
    sizes = [source.stat().st_size for source, _ in plan.files]
    files = [OutputFile(target, _blocks(n)) for (_, target), n in zip(plan.files, sizes, strict=True)]
    fingerprint = hashlib.sha256(stat_model(plan.files[0][0]).stamp.encode()).hexdigest()
    with (
        _new_folder(plan.path.parent),
        ExitStack() as undo,
        PartialOutput(plan.path, files, fingerprint, is_overwriting=False) as output,
    ):
        _write_beside(plan, undo)
        done_blocks = iter(range(output.n_done))
        hashes = []
        for source, _ in plan.files:
            sha256 = _copy_file(source, output, done_blocks, on_bytes)
            if expected_sha256(source, index) not in ("", sha256):
                raise ModelFileError(f"{source} is damaged: its SHA-256 is wrong.", "Fetch it again.")
            hashes.append(sha256)
        undo.pop_all()
    for (_, target), sha256 in zip(plan.files, hashes, strict=True):
        index.record_sha256(target, sha256)


def _write_beside(plan: ImportPlan, undo: ExitStack) -> None:
    """Write what belongs beside the model before it, which lists show, and remove it again if that does not appear."""
    if plan.recipe != NO_RECIPE:
        write_recipe(plan.path, plan.recipe)
        undo.callback(recipe_path(plan.path).unlink, missing_ok=True)
    if plan.generation_config:
        write_generation_config(plan.path, plan.generation_config)
        undo.callback(generation_config_path(plan.path).unlink, missing_ok=True)


def _copy_file(
    source: Path, output: PartialOutput, done_blocks: Iterator[int], on_bytes: Callable[[int], object]
) -> str:
    """Append a file to `output`, except for its `done_blocks`, and return its hash."""
    digest = hashlib.sha256()
    with explained(f"{source} cannot be read", "Check the disk."), open_regular(source, 0) as file:
        for n_left in _blocks(source.stat().st_size):
            is_missing = next(done_blocks, None) is None
            while n_left:
                if not (data := file.read(min(n_left, _PIECE_BYTES))):
                    cause = "The file became shorter while it was copied."
                    raise StorageError(cause, "Try again when no program writes it.")
                n_left -= len(data)
                digest.update(data)
                on_bytes(len(data))
                if is_missing:
                    output.write(data)
            if is_missing:
                output.end_block()
    return digest.hexdigest()


def _blocks(n_bytes: int) -> tuple[int, ...]:
    whole, rest = divmod(n_bytes, _BLOCK_BYTES)
    return (_BLOCK_BYTES,) * whole + ((rest,) if rest else ())


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Create a repo's folder, and remove it again if it stays empty. Raises StorageError."""
    with explained(f"{folder} cannot be created", "Check its permissions."):
        make_folder(folder)
    try:
        yield
    finally:
        remove_empty_folders(folder)
