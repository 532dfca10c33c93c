"""Models that get a place in the library: linked where that is possible, or copied.

Owns what a placement takes, and that nothing of it is left when it fails. A copy that was killed goes on where it
stopped. Knows nothing of who asks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.library.folder import look_at, parts_of
from app.library.hashes import expected_sha256
from app.library.index import Index
from app.library.linking import NameTakenError, link
from app.library.model_ref import ModelRef
from app.library.naming import place_for
from app.library.removal import remove_empty_folders
from quantizer.blocks import OutputFile
from quantizer.errors import ModelFileError, StorageError
from quantizer.output import PartialOutput
from quantizer.shards import shard_path

__all__ = ["Placement", "copy", "link_all", "plan_placement"]

_BLOCK_BYTES = 64 << 20
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Placement:
    """The files of a model with the path that each gets, the first file first, and what a copy of them takes."""

    files: tuple[tuple[Path, Path], ...]
    n_bytes: int

    @property
    def path(self) -> Path:
        """The path that stands for the placed model."""
        return self.files[0][1]


def plan_placement(source: ModelRef, wanted: str, models_dir: Path) -> Placement:
    """Return where `source` would lie under the name `wanted`, its own when that is empty.

    Raises UsageError for a name that is none, ModelFileError for a model that the gate refuses, NameTakenError
    when something is there.
    """
    from quantizer.gate import admit

    place = place_for(source, wanted, models_dir)
    admit(source.path)
    sources = parts_of(source.path)
    targets = [shard_path(place, index, len(sources)) for index in range(len(sources))]
    for target in targets:
        if target.exists() or target.is_symlink():
            raise NameTakenError(f"{target} exists already.", "Remove it first, or give another name.")
    return Placement(tuple(zip(sources, targets, strict=True)), look_at(source.path).n_bytes)


def link_all(placement: Placement, index: Index) -> str:
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


def copy(placement: Placement, index: Index, on_bytes: Callable[[int], object]) -> None:
    """Copy every file and record its hash; `on_bytes` hears how many more were read. All appear when all are whole.

    Raises StorageError, and ModelFileError for a file whose bytes are not those that its name or record says.
    """
    sizes = [source.stat().st_size for source, _ in placement.files]
    files = [OutputFile(target, _blocks(n)) for (_, target), n in zip(placement.files, sizes, strict=True)]
    fingerprint = hashlib.sha256(look_at(placement.files[0][0]).stamp.encode()).hexdigest()
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
