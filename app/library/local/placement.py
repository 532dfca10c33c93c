"""A second name for a file without a second copy of its bytes. The platforms differ here only.

Owns the ways and their order: a hard link, which outlives the first name; a reflink, where the file system shares
blocks and another user's file may not be linked; a symbolic link, which is a reference and no more.

Models that get a place in the library: linked where that is possible, or copied.

Owns what a placement takes, and that nothing of it is left when it fails. A copy that was killed goes on where it
stopped. Knows nothing of who asks.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.library.local.index import Index
from app.library.local.model_files import ModelRef, parts_of, stat_model
from app.library.local.naming import model_output_path
from app.library.local.removal import remove_empty_folders
from app.library.local.verification import expected_sha256
from quantizer.errors import ModelFileError, StorageError
from quantizer.gguf.shards import shard_path
from quantizer.write.blocks import OutputFile
from quantizer.write.partial_output import PartialOutput, partial_path

__all__ = ["REFERENCE", "ImportPlan", "NameTakenError", "copy", "link", "link_model", "plan_import"]

REFERENCE = "symbolic link"
_FICLONE = 0x40049409  # source: linux/fs.h


class NameTakenError(StorageError):
    """Where a model was to lie something lies already."""


def link(source: Path, target: Path) -> str:
    """Make `target` a name of the file `source` and return which way worked. Nothing that is there is replaced.

    Raises NameTakenError when something is at `target`, StorageError when no way works.
    """
    real = source.resolve()
    reasons = []
    for way, make in _WAYS.items():
        try:
            make(real, target)
        except FileExistsError as error:
            raise NameTakenError(f"{target} exists already.", "Remove it first, or give another name.") from error
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
        with source.open("rb") as original, partial.open("xb") as clone:
            fcntl.ioctl(clone, _FICLONE, original.fileno())
        os.link(partial, target)  # where renaming would replace
    finally:
        partial.unlink(missing_ok=True)


_WAYS: dict[str, Callable[[Path, Path], None]] = {
    "hard link": lambda source, target: os.link(source, target),
    "reflink": _reflink,
    REFERENCE: lambda source, target: target.symlink_to(source),
}


_BLOCK_BYTES = 64 << 20
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The files of a model with the path that each gets, the first file first, and what a copy of them takes."""

    files: tuple[tuple[Path, Path], ...]
    n_bytes: int

    @property
    def path(self) -> Path:
        """The path that stands for the placed model."""
        return self.files[0][1]


def plan_import(source: ModelRef, wanted: str, models_dir: Path) -> ImportPlan:
    """Return where `source` would lie under the name `wanted`, its own when that is empty.

    Raises UsageError for a name that is none, ModelFileError for a model that the gate refuses, NameTakenError
    when something is there.
    """
    from quantizer.gguf.validation import validate_gguf

    place = model_output_path(source, wanted, models_dir)
    validate_gguf(source.path)
    sources = parts_of(source.path)
    targets = [shard_path(place, index, len(sources)) for index in range(len(sources))]
    for target in targets:
        if target.exists() or target.is_symlink():
            raise NameTakenError(f"{target} exists already.", "Remove it first, or give another name.")
    return ImportPlan(tuple(zip(sources, targets, strict=True)), stat_model(source.path).n_bytes)


def link_model(placement: ImportPlan, index: Index) -> str:
    """Give every file its second name, the first file last, and return which way worked.

    Raises NameTakenError where a name was taken meanwhile, StorageError when no way works.
    """
    hashes = [expected_sha256(source, index) for source, _ in placement.files]
    way = ""
    with _made_folder(placement.path.parent), ExitStack() as undo:
        for source, target in reversed(placement.files):
            way = link(source, target)
            undo.callback(target.unlink)
        undo.pop_all()
    for (_, target), sha256 in zip(placement.files, hashes, strict=True):
        if sha256:
            index.record(target, sha256)
    return way


def copy(placement: ImportPlan, index: Index, on_bytes: Callable[[int], object]) -> None:
    """Copy every file and record its hash; `on_bytes` hears how many more were read. All appear when all are whole.

    Raises StorageError, and ModelFileError for a file whose bytes are not those that its name or record says.
    """
    sizes = [source.stat().st_size for source, _ in placement.files]
    files = [OutputFile(target, _blocks(n)) for (_, target), n in zip(placement.files, sizes, strict=True)]
    fingerprint = hashlib.sha256(stat_model(placement.files[0][0]).stamp.encode()).hexdigest()
    with (
        _made_folder(placement.path.parent),
        PartialOutput(placement.path, files, fingerprint, is_overwriting=False) as output,
    ):
        standing = iter(range(output.n_done))
        hashes = []
        for source, _ in placement.files:
            sha256 = _copy_file(source, output, standing, on_bytes)
            if expected_sha256(source, index) not in ("", sha256):
                raise ModelFileError(f"{source} is damaged: its SHA-256 is not what it should be.", "Fetch it again.")
            hashes.append(sha256)
    for (_, target), sha256 in zip(placement.files, hashes, strict=True):
        index.record(target, sha256)


def _copy_file(source: Path, output: PartialOutput, standing: Iterator[int], on_bytes: Callable[[int], object]) -> str:
    """Append a file to `output`, but for the blocks that are `standing` there already, and return its hash."""
    digest = hashlib.sha256()
    try:
        with source.open("rb", buffering=0) as file:
            for n_bytes in _blocks(source.stat().st_size):
                is_missing = next(standing, None) is None
                for data in _pieces(file.read, n_bytes):
                    digest.update(data)
                    on_bytes(len(data))
                    if is_missing:
                        output.write(data)
                if is_missing:
                    output.end_block()
    except OSError as error:
        raise StorageError(f"{source} cannot be read: {error.strerror}.", "Check the disk.") from error
    return digest.hexdigest()


def _pieces(read: Callable[[int], bytes | None], n_bytes: int) -> Iterator[bytes]:
    while n_bytes:
        data = read(min(n_bytes, _PIECE_BYTES))
        if not data:
            raise StorageError("The file became shorter while it was copied.", "Try again when nobody writes to it.")
        n_bytes -= len(data)
        yield data


def _blocks(n_bytes: int) -> tuple[int, ...]:
    """Sizes of the blocks of a file."""
    whole, rest = divmod(n_bytes, _BLOCK_BYTES)
    return (_BLOCK_BYTES,) * whole + ((rest,) if rest else ())


@contextmanager
def _made_folder(folder: Path) -> Iterator[None]:
    """Make a repo's folder, and take it away again if nothing comes to lie in it. Raises StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made: {error.strerror}.", "Check its permissions.") from error
    try:
        yield
    finally:
        remove_empty_folders(folder)
