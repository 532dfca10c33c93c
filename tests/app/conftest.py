"""A tiny model file, an environment that touches no folder of the user's, a service over the fake engine, and the
command line run in this process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest

from app.cli.main import main
from app.engine.load.machine import list_gpus
from offload.devices.bandwidth import measure_read_bandwidth
from tests.app.fork_server import ForkingPopen, ForkServer
from tests.app.running import RunningService, started_services
from tests.quantizer.gguf_files import tiny_llama

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if messages[-1].content == 'refuse me' %}{{ raise_exception('no') }}{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def _with_template(writer: gguf.GGUFWriter) -> None:
    writer.add_chat_template(CHAT_TEMPLATE)


@pytest.fixture(autouse=True, scope="session")
def _machine_is_measured_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measure the memory and list the GPUs of this machine once for all tests of this process, not at each plan.

    All measurements of memory read a small buffer: no test is about the figure.
    """
    folder = tmp_path_factory.mktemp("devices")
    listed = cache(lambda rpc: list_gpus(rpc, folder))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offload.devices.bandwidth._MOST_BUFFER_BYTES", 16 << 20)
        patch.setattr("app.engine.load.machine.measure_read_bandwidth", cache(measure_read_bandwidth))
        patch.setattr("app.engine.load.machine.list_gpus", lambda rpc, _cache_dir: listed(tuple(rpc)))
        yield


@pytest.fixture(autouse=True, scope="session")
def _children_of_tests_are_forked() -> Iterator[None]:
    """Fork commands, services, engines, jobs and renderers of templates, for this process has imported most."""
    if sys.platform != "linux":
        yield
        return
    with closing(ForkServer()) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkingPopen, "server", server, raising=False)
        patch.setattr("subprocess.Popen", ForkingPopen)
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gated, loadable model with a chat template."""
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", _with_template)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Mapping[str, str]:
    """The environment of child processes: the fake engine, and folders that are thrown away."""
    root = tmp_path_factory.mktemp("localllm")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("LOCALLLM_")},
        "LOCALLLM_DATA_DIR": str(root / "data"),
        "LOCALLLM_CACHE_DIR": str(root / "cache"),
        "LOCALLLM_CONFIG": str(root / "config.toml"),
        "LOCALLLM_ENGINE": "fake",
        "LOCALLLM_MODEL": str(tiny_model),
        "LOCALLLM_PORT": "0",
        "LOCALLLM_KEEP_SERVICE": "0",
        "LOCALLLM_KEEP_ALIVE": "24h",  # on a slow machine a service may be idle for longer than the usual ten minutes
    }


@pytest.fixture(scope="module")
def start_service(environment: Mapping[str, str]) -> Iterator[Callable[..., RunningService]]:
    """Start services that end with the tests of this file."""
    with started_services(environment) as start:
        yield start


@pytest.fixture(scope="session")
def shared_service(environment: Mapping[str, str]) -> Iterator[RunningService]:
    with started_services(environment) as start:
        yield start()


@pytest.fixture(scope="module")
def service(shared_service: RunningService) -> RunningService:
    """The service that most tests share, with its model loaded even if tests of another file unloaded it."""
    if shared_service.model()["state"] != "ready":
        shared_service.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).raise_for_status()
    return shared_service


@dataclass(frozen=True)
class Ran:
    """What a command said, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder without anything, in which `data`, `cache` and `ollama` are made when they are needed."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    folders = {"LOCALLLM_DATA_DIR": "data", "LOCALLLM_CACHE_DIR": "cache", "OLLAMA_MODELS": "ollama"}
    for name, folder in folders.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("LOCALLLM_PORT", "9")  # where no service answers
    monkeypatch.setenv("LOCALLLM_KEEP_SERVICE", "0")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def models(home: Path) -> Path:
    """The models folder, which is not there yet."""
    return home / "data" / "models"


@pytest.fixture
def localllm(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*arguments: str) -> Ran:
        with pytest.raises(SystemExit) as leaving:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert isinstance(leaving.value.code, int)
        return Ran(leaving.value.code, said.out, said.err)

    return run
