"""What pyproject.toml promises: pins that cover what is installed, and a wheel with what runs and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = {
    canonicalize_name(pin.name): pin.specifier
    for pin in map(Requirement, PROJECT["tool"]["uv"]["constraint-dependencies"])
    if pin.marker is None or pin.marker.evaluate()
}


def installed_closure() -> dict[str, str]:
    """Return the installed version of each package that localllm, its extras, tests and checks need here."""
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]
    wanted += [line for lines in extras.values() for line in lines]
    waiting, versions = [(Requirement(line), "") for line in wanted], {}
    seen = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of a group that is not installed here
            continue
        versions[name] = found.version
        for each in ("", *requirement.extras):
            if (name, each) not in seen:
                seen.add((name, each))
                waiting += [(Requirement(line), each) for line in found.requires or ()]
    return versions


@pytest.mark.slow
def test_every_package_that_is_needed_has_a_pin_that_admits_the_installed_version() -> None:
    installed = installed_closure()
    assert len(installed) > 80
    assert installed.keys() <= PINS.keys(), "run .ci/pin.py"
    assert {name: version for name, version in installed.items() if not PINS[name].contains(version)} == {}


def test_pins_are_within_the_bounds_that_installers_without_them_keep() -> None:
    for line in PROJECT["project"]["dependencies"]:
        bounds = Requirement(line)
        (version,) = (pin.version for pin in PINS[canonicalize_name(bounds.name)])
        assert bounds.specifier.contains(version), line


def test_no_address_of_an_index_is_in_the_project() -> None:
    assert not re.search(r"https?://", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "uv.lock" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_what_only_developers_need_is_not_installed_with_localllm() -> None:
    assert PROJECT["tool"]["uv"]["default-groups"] == []
    needed = {Requirement(line).name for line in PROJECT["project"]["dependencies"]}
    assert needed.isdisjoint({"pytest", "ruff", "mypy", "miniaudio", "mcp", "torch"})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built by the build backend itself; it needs no network."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_the_wheel_has_what_runs(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    needed = ["guide/guide-Q8_0.gguf", "catalogue.toml", "text/calibration.txt", "llama_build/LocalllmLlama.cmake"]
    needed += [f"docs/{page.name}" for page in (ROOT / "assets" / "docs").glob("*.md")]
    assert {f"assets/{name}" for name in needed} <= names
    for package in ("app", "offload", "quantizer", "tui"):
        sources = (path for end in ("py", "tcss") for path in (ROOT / package).rglob(f"*.{end}"))
        assert {path.relative_to(ROOT).as_posix() for path in sources} <= names


def test_the_wheel_has_no_training_weights_corpus_or_pages_for_maintainers(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert not [name for name in names if name.endswith((".safetensors", ".svg", "README.md")) or "corpus" in name]
    assert sum(item.compress_size for item in wheel.infolist()) < 6_700_000


def test_the_version_of_the_wheel_is_the_programs(wheel: zipfile.ZipFile) -> None:
    described = wheel.read(f"localllm-{app.__version__}.dist-info/METADATA").decode()
    assert f"\nVersion: {app.__version__}\n" in described


@pytest.mark.slow
def test_a_release_names_the_repository_that_builds_it(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    here = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "somebody/localllm"}
    command = [sys.executable, "-m", "hatchling", "metadata"]
    for environment, has_urls in ((here, True), ({}, False)):
        environment = {**environment, "PATH": os.environ["PATH"]}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        urls = json.loads(done.stdout).get("urls", {})
        assert bool(urls) is has_urls
        assert all(url.startswith("https://example.org/somebody/localllm") for url in urls.values())
