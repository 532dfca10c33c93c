"""`localllm pull --quantize`: a checkpoint is downloaded into `<data>/checkpoints` and converted to a GGUF.

Owns where both are stored. `app.library.pulling` downloads and converts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from app.cli.verbs.quantize import note
from app.library.hub.reference import Reference, RepoReference
from app.library.pulling.checkpoint import CheckpointPuller, check_free
from app.library.pulling.puller import Puller, plan_checkpoint_pull
from app.settings.settings import Settings
from quantizer.errors import StorageError, UsageError
from quantizer.gguf.file_types import FileType, file_type_named
from quantizer.write.job import JobRequest

__all__ = ["CheckpointPull"]


@dataclass(frozen=True, slots=True)
class CheckpointPull:
    """The checkpoint `repo` in `folder`, from which `output` is made."""

    repo: str
    file_type: FileType
    folder: Path
    output: Path
    is_overwriting: bool
    is_removing: bool

    @classmethod
    def of(
        cls, wanted: Reference, file_type: str, settings: Settings, *, is_overwriting: bool, is_removing: bool
    ) -> CheckpointPull:
        """Return the pull of `wanted`. Raises UsageError for another reference or type, StorageError if the output
        exists."""
        if not isinstance(wanted, RepoReference) or wanted.quant:
            raise UsageError("--quantize needs a checkpoint.", "Name its repository, org/repo.")
        kind = file_type_named(file_type)
        folder = settings.data_dir / "checkpoints" / wanted.repo
        output = settings.models_dir / wanted.repo / f"{wanted.repo.rpartition('/')[2]}-{kind.name}.gguf"
        check_free(folder, output, is_overwriting=is_overwriting)
        return cls(wanted.repo, kind, folder, output, is_overwriting, is_removing)

    async def make(self, puller: Puller) -> dict[str, object]:
        """Download and convert it, and return the result as `localllm quantize --json` prints it. Raises as both do."""
        folder = self.output.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{folder} cannot be created: {error.strerror}.", "Check the disk.") from error
        made: dict[str, object] = {"output": str(self.output)}
        n_threads = os.cpu_count() or 1
        request = JobRequest(str(self.folder), self.file_type.name, str(self.output), n_threads, self.is_overwriting)
        await CheckpointPuller(puller, request, self.is_removing, lambda event: note(event, made)).pull(
            lambda session: plan_checkpoint_pull(session, self.repo, self.folder, self.file_type)
        )
        return made
