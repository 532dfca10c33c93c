"""A round with huggingface-hub itself over one cache: what it placed we list, run and import, and it reads it still."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quantizer.system.process import python_command
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

_REPO, _FILE, _NAME = "org/repo", "m-Q4_0.gguf", "org/repo/m-Q4_0"

_FETCH = "print(hf_hub_download(repo, file))"
_READ = """
print(json.dumps({
    "tried": try_to_load_from_cache(repo, file),
    "local": hf_hub_download(repo, file, local_files_only=True),
    "scanned": [str(it.file_path) for repo in scan_cache_dir().repos for at in repo.revisions for it in at.files],
    "warnings": list(map(str, scan_cache_dir().warnings)),
}))"""
_DELETE = """
commits = [at.commit_hash for entry in scan_cache_dir().repos for at in entry.revisions]
scan_cache_dir().delete_revisions(*commits).execute()"""


@dataclass(frozen=True)
class Machine:
    """A library of ours and a cache of theirs, and a hub that both may ask."""

    environment: Mapping[str, str]

    def theirs(self, code: str) -> str:
        names = "hf_hub_download, scan_cache_dir, try_to_load_from_cache"
        program = f"import json\nfrom huggingface_hub import {names}\nrepo, file = {_REPO!r}, {_FILE!r}\n{code}"
        return self._said([sys.executable, "-c", program])

    def ours(self, *arguments: str) -> Any:
        return json.loads(self._said(python_command("app.cli.main", *arguments, "--json")))

    def _said(self, command: list[str]) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def machine(environment: Mapping[str, str], tiny_model: Path, tmp_path: Path) -> Iterator[Machine]:
    kept = {name: value for name, value in environment.items() if not name.startswith(("HF_", "LOCALLLM_MODEL"))}
    folders = {"LOCALLLM_DATA_DIR": "data", "LOCALLLM_CACHE_DIR": "cache", "HF_HOME": "hf", "HOME": "home"}
    own = {name: str(tmp_path / folder) for name, folder in folders.items()}
    with HubServer(HubRepo.of(_REPO, {_FILE: tiny_model.read_bytes()})) as hub:
        yield Machine({**kept, **own, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_PROGRESS_BARS": "1"})


def test_what_huggingface_hub_placed_runs_here_and_stays_its_own(machine: Machine, tiny_model: Path) -> None:
    theirs = Path(machine.theirs(_FETCH).strip())
    listed = [row for row in machine.ours("ls", "--external")["models"] if row["path"] == str(theirs)]
    assert [row["id"] for row in listed] == [_NAME]
    assert machine.ours("run", _NAME, "-p", "hello", "--max-tokens", "4")["text"]

    placed = machine.ours("import", _NAME)
    ours = Path(placed["path"])
    assert (placed["way"], ours.stat().st_ino) == ("hard link", theirs.resolve().stat().st_ino)
    expected = {"tried": str(theirs), "local": str(theirs), "scanned": [str(theirs)], "warnings": []}
    assert json.loads(machine.theirs(_READ)) == expected
    assert machine.ours("verify", str(ours))["models"][0]["state"] == "sound"

    machine.ours("rm", str(ours), "--yes")
    assert json.loads(machine.theirs(_READ)) == expected
    assert theirs.read_bytes() == tiny_model.read_bytes()


def test_a_model_that_was_imported_outlives_the_cache_of_huggingface_hub(machine: Machine, tiny_model: Path) -> None:
    machine.theirs(_FETCH)
    ours = Path(machine.ours("import", _NAME)["path"])
    machine.theirs(_DELETE)
    assert ours.read_bytes() == tiny_model.read_bytes()
    assert machine.ours("verify", str(ours))["models"][0]["state"] == "sound"
