"""How localllm was installed, and the commands that change its environment: add a package, build llama.cpp anew.

Whoever prints such a command prints one that the person can paste: for their shell, their installer and their Python.
Sources: uv's, pipx's and pip's manuals; PEP 405 (pyvenv.cfg), PEP 610 (direct_url.json), PEP 668 (EXTERNALLY-MANAGED).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit
from urllib.request import url2pathname

LLAMA = "llama-cpp-python"
NAME = "localllm"


class Shell(StrEnum):
    """How a shell sets a variable for one command, and how it quotes. `env` does the former in every shell of Unix."""

    UNIX = "sh, bash, zsh, fish, csh"
    POWERSHELL = "PowerShell"
    CMD = "cmd"


class Installer(StrEnum):
    """Who made the environment that localllm runs in."""

    UV_PROJECT = "uv, in a clone"
    UV_TOOL = "uv tool"
    UV = "uv, another environment"
    PIPX = "pipx"
    PIP = "pip"  # in a virtual environment, conda's included
    SYSTEM = "pip, in the system's Python"  # which its distribution protects (PEP 668)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The environment of localllm. `python` is its interpreter, `source` what its installer was given to install: a
    name, a folder or an address. `clone` is the repository where it runs from one, as a folder."""

    installer: Installer
    shell: Shell
    python: str
    source: str = NAME
    clone: str | None = None


def add_command(installation: Installation, requirement: str) -> str:
    """Return the command that adds a package to the environment of localllm."""
    match installation.installer:
        case Installer.PIPX:
            words = ["pipx", "inject", NAME, requirement]
        case Installer.UV_TOOL:  # what is added in any other way is gone after the next `uv tool upgrade`
            words = ["uv", "tool", "install", "--with", requirement, installation.source]
        case Installer.UV_PROJECT | Installer.UV:
            words = ["uv", "pip", "install", "--python", installation.python, requirement]
        case Installer.PIP:
            words = [installation.python, "-m", "pip", "install", requirement]
        case Installer.SYSTEM:
            words = [installation.python, "-m", "pip", "install", "--break-system-packages", requirement]
    return command_line(installation.shell, words)


def removal_command(installation: Installation) -> str:
    """Return the command that removes the program localllm; of a clone, what to do instead."""
    match installation.installer:
        case Installer.PIPX:
            words = ["pipx", "uninstall", NAME]
        case Installer.UV_TOOL:
            words = ["uv", "tool", "uninstall", NAME]
        case Installer.UV_PROJECT:
            return f"delete the folder {installation.clone}"
        case Installer.UV:
            words = ["uv", "pip", "uninstall", "--python", installation.python, NAME]
        case Installer.PIP:
            words = [installation.python, "-m", "pip", "uninstall", NAME]
        case Installer.SYSTEM:
            words = [installation.python, "-m", "pip", "uninstall", "--break-system-packages", NAME]
    return command_line(installation.shell, words)


def build_command(installation: Installation, version: str, definitions: Sequence[str]) -> str:
    """Return the command that builds llama.cpp anew in the environment of localllm, with definitions of CMake such as
    "GGML_CUDA=on". What the repository's own build sets (`assets/llama_build`) is the same for each installer."""
    requirement = f"{LLAMA}=={version}"
    match installation.installer:
        case Installer.UV_PROJECT:
            words = ["uv", "sync", "--inexact", "--reinstall-package", LLAMA, "--no-binary-package", LLAMA]
            words += ["--project", installation.clone or "."]
        case Installer.UV_TOOL:
            words = ["uv", "tool", "upgrade", "--reinstall-package", LLAMA, "--no-binary-package", LLAMA, NAME]
        case Installer.UV:
            words = ["uv", "pip", "install", "--python", installation.python, "--reinstall-package", LLAMA]
            words += ["--no-binary-package", LLAMA, requirement]
        case Installer.PIPX:
            words = ["pipx", "runpip", NAME, *_pip_build(requirement)]
        case Installer.PIP:
            words = [installation.python, "-m", "pip", *_pip_build(requirement)]
        case Installer.SYSTEM:
            words = [installation.python, "-m", "pip", *_pip_build(requirement), "--break-system-packages"]
    # CMake wants forward slashes on every system; scikit-build-core splits the variable as a shell would
    include = f"CMAKE_PROJECT_llama_cpp_INCLUDE={cmake_file().as_posix()}"
    arguments = shlex.join(f"-D{definition}" for definition in (include, *definitions))
    return command_line(installation.shell, words, {"CMAKE_ARGS": arguments})


def rebuild_command() -> str:
    """Return the command that builds the installed version of llama.cpp for this processor, in this environment."""
    return build_command(find_installation(), metadata.version(LLAMA), ())


def _pip_build(requirement: str) -> list[str]:
    return ["install", "--force-reinstall", "--no-deps", "--no-cache-dir", "--no-binary", LLAMA, requirement]


def cmake_file() -> Path:
    """Return the file with which every build of llama.cpp for localllm begins; an installed localllm has it too."""
    return Path(__file__).parents[2] / "assets" / "llama_build" / "LocalllmLlama.cmake"


def command_line(shell: Shell, words: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    """Return a line for `shell` that runs `words` with some variables of the environment set."""
    variables = variables or {}
    if shell is Shell.UNIX:
        assignments = [f"{name}={value}" for name, value in variables.items()]
        return shlex.join([*(["env", *assignments] if assignments else []), *words])
    if shell is Shell.POWERSHELL:
        program, *arguments = (_powershell_word(word) for word in words)
        called = f"& {program}" if program.startswith("'") else program
        assignments = [f"$env:{name}={_powershell_quoted(value)};" for name, value in variables.items()]
        return " ".join((*assignments, called, *arguments))
    assignments = [f'set "{name}={value}"&&' for name, value in variables.items()]
    return " ".join((*assignments, *(_cmd_word(word) for word in words)))


def _powershell_word(word: str) -> str:
    return word if re.fullmatch(r"[\w.:/\\=+-]+", word) else _powershell_quoted(word)


def _powershell_quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _cmd_word(word: str) -> str:
    # a bare < or > would redirect; a quotation mark cannot be part of a path on Windows
    return word if re.fullmatch(r"[\w.:/\\+-]+", word) else f'"{word}"'


def find_installation() -> Installation:
    """Return how the running localllm was installed, and the shell in which a command would be pasted."""
    try:
        record = metadata.distribution(NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # run from a folder, never installed
        record = None
    source, clone = read_source(record)
    prefix = Path(sys.prefix)
    return Installation(
        installer=find_installer(
            prefix, clone, Path(sysconfig.get_path("stdlib")), is_virtual=sys.prefix != sys.base_prefix
        ),
        shell=find_shell(_ancestors(), os.environ.get("SHELL"), is_windows=sys.platform == "win32"),
        python=sys.executable,
        source=source,
        clone=clone,
    )


def read_source(record: str | None) -> tuple[str, str | None]:
    """Return what an installer was given, from direct_url.json, and the folder if that is what runs (PEP 610)."""
    if record is None:
        return NAME, None
    told = json.loads(record)
    url = told["url"]
    if version := told.get("vcs_info"):
        revision = version.get("requested_revision")
        return f"{version['vcs']}+{url}" + (f"@{revision}" if revision else ""), None
    if not url.startswith("file:"):
        return url, None
    path = url2pathname(urlsplit(url).path)
    return path, path if told.get("dir_info", {}).get("editable") else None


def find_installer(prefix: Path, clone: str | None, standard_library: Path, *, is_virtual: bool) -> Installer:
    """Return who made the environment at `prefix`, from the files that they leave in it."""
    if (prefix / "pipx_metadata.json").exists():
        return Installer.PIPX
    if (prefix / "uv-receipt.toml").exists():
        return Installer.UV_TOOL
    if is_virtual:
        try:
            configuration = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
        except OSError:
            configuration = ""
        if not re.search(r"^uv\s*=", configuration, re.MULTILINE):
            return Installer.PIP
        return Installer.UV_PROJECT if clone and prefix.parent == Path(clone) else Installer.UV
    is_protected = (standard_library / "EXTERNALLY-MANAGED").exists() and not (prefix / "conda-meta").exists()
    return Installer.SYSTEM if is_protected else Installer.PIP


_POWERSHELLS = {"powershell", "pwsh"}
_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "nu", "xonsh", "elvish"}


def find_shell(ancestors: Iterable[str], login_shell: str | None, *, is_windows: bool) -> Shell:
    """Return the nearest shell among the names of the programs that started this one, else the usual one."""
    for ancestor in (*ancestors, login_shell or ""):
        name = PurePosixPath(ancestor.replace("\\", "/")).name.lower().removesuffix(".exe").removeprefix("-")
        if name in _POWERSHELLS:
            return Shell.POWERSHELL
        if name == "cmd":
            return Shell.CMD
        if name in _SHELLS:
            return Shell.UNIX
    return Shell.POWERSHELL if is_windows else Shell.UNIX


def _ancestors() -> Iterator[str]:
    import psutil  # slow, and only this needs it

    try:
        yield from (process.name() for process in psutil.Process().parents())
    except psutil.Error:  # one ended meanwhile, or belongs to somebody else
        return
