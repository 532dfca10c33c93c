from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quantizer.system.installation import (
    Installation,
    Installer,
    Shell,
    add_command,
    build_command,
    cmake_file,
    command_line,
    find_installation,
    find_installer,
    find_shell,
    read_source,
)


def made_by(installer: Installer, shell: Shell = Shell.UNIX) -> Installation:
    return Installation(installer=installer, shell=shell, python="/v/bin/python", source="/src", clone="/src")


@pytest.mark.parametrize(
    ("installer", "begin"),
    [
        (Installer.UV_PROJECT, "uv pip install --python /v/bin/python 'mcp>=2'"),
        (Installer.UV_TOOL, "uv tool install --with 'mcp>=2' /src"),
        (Installer.UV, "uv pip install --python /v/bin/python 'mcp>=2'"),
        (Installer.PIPX, "pipx inject localllm 'mcp>=2'"),
        (Installer.PIP, "/v/bin/python -m pip install 'mcp>=2'"),
        (Installer.SYSTEM, "/v/bin/python -m pip install --break-system-packages 'mcp>=2'"),
    ],
)
def test_the_command_that_adds_a_package_is_the_installers(installer: Installer, begin: str) -> None:
    assert add_command(made_by(installer), "mcp>=2") == begin


@pytest.mark.parametrize(
    ("installer", "begin"),
    [
        (Installer.UV_PROJECT, "uv sync --inexact --reinstall-package llama-cpp-python"),
        (Installer.UV_TOOL, "uv tool upgrade --reinstall-package llama-cpp-python"),
        (Installer.UV, "uv pip install --python /v/bin/python --reinstall-package llama-cpp-python"),
        (Installer.PIPX, "pipx runpip localllm install --force-reinstall --no-deps --no-cache-dir"),
        (Installer.PIP, "/v/bin/python -m pip install --force-reinstall --no-deps --no-cache-dir"),
        (Installer.SYSTEM, "/v/bin/python -m pip install --force-reinstall --no-deps --no-cache-dir"),
    ],
)
def test_the_command_that_builds_llama_cpp_is_the_installers(installer: Installer, begin: str) -> None:
    env, variable, *words = shlex.split(build_command(made_by(installer), "0.3.36", ("GGML_CUDA=on",)))
    assert shlex.join(words).startswith(begin)
    assert env == "env"
    name, _, arguments = variable.partition("=")
    assert name == "CMAKE_ARGS"
    include = f"-DCMAKE_PROJECT_llama_cpp_INCLUDE={cmake_file().as_posix()}"
    assert shlex.split(arguments) == [include, "-DGGML_CUDA=on"]
    assert ("--break-system-packages" in words) is (installer is Installer.SYSTEM)
    if installer not in (Installer.UV_PROJECT, Installer.UV_TOOL):  # which know the version
        assert "llama-cpp-python==0.3.36" in words


AWKWARD = "it's a <test> & 100 % fun"


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        (Shell.UNIX, "env 'A=-Db=c d' '/my python' -m pip 'x>=1,<2'"),
        (Shell.POWERSHELL, "$env:A='-Db=c d'; & '/my python' -m pip 'x>=1,<2'"),
        (Shell.CMD, 'set "A=-Db=c d"&& "/my python" -m pip "x>=1,<2"'),
    ],
)
def test_variables_and_words_are_written_as_the_shell_reads_them(shell: Shell, expected: str) -> None:
    assert command_line(shell, ["/my python", "-m", "pip", "x>=1,<2"], {"A": "-Db=c d"}) == expected


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "dash", "tcsh"])
def test_a_shell_of_unix_runs_the_line_as_it_was_meant(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = "import os, sys, json; print(json.dumps([os.environ['CMAKE_ARGS'], *sys.argv[1:]]))"
    line = command_line(Shell.UNIX, [sys.executable, "-c", program, AWKWARD, "x>=1,<2"], {"CMAKE_ARGS": AWKWARD})
    done = subprocess.run([shell, "-c", line], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [AWKWARD, AWKWARD, "x>=1,<2"]


@pytest.mark.skipif(sys.platform != "win32", reason="needs cmd and PowerShell")
@pytest.mark.parametrize(
    ("shell", "words"), [(Shell.CMD, ["cmd", "/d", "/c"]), (Shell.POWERSHELL, ["powershell", "-NoProfile", "-Command"])]
)
def test_a_shell_of_windows_runs_the_line_as_it_was_meant(shell: Shell, words: list[str], tmp_path: Path) -> None:
    program = tmp_path / "print arguments.py"
    program.write_text("import os, sys, json; print(json.dumps([os.environ['CMAKE_ARGS'], *sys.argv[1:]]))")
    line = command_line(shell, [sys.executable, str(program), "x>=1,<2"], {"CMAKE_ARGS": "-Da=b '-Dc=d e'"})
    command = " ".join((*words, line)) if shell is Shell.CMD else [*words, line]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["-Da=b '-Dc=d e'", "x>=1,<2"]


@pytest.mark.parametrize(
    ("files", "is_virtual", "installer"),
    [
        ({"pyvenv.cfg": "home = /usr/bin\n"}, True, Installer.PIP),
        ({"pyvenv.cfg": "home = /usr/bin\nuv = 0.13.9\n"}, True, Installer.UV),
        ({"pyvenv.cfg": "uv = 0.13.9\n", "uv-receipt.toml": ""}, True, Installer.UV_TOOL),
        ({"pyvenv.cfg": "home = /usr/bin\n", "pipx_metadata.json": "{}"}, True, Installer.PIPX),
        ({"pyvenv.cfg": "uv = 0.13.9\n", "pipx_metadata.json": "{}"}, True, Installer.PIPX),  # pipx with uv behind it
        ({}, True, Installer.PIP),
        ({}, False, Installer.PIP),
        ({"lib/EXTERNALLY-MANAGED": ""}, False, Installer.SYSTEM),
        ({"lib/EXTERNALLY-MANAGED": "", "pyvenv.cfg": "home = /usr/bin\n"}, True, Installer.PIP),
        ({"lib/EXTERNALLY-MANAGED": "", "conda-meta/history": ""}, False, Installer.PIP),
    ],
)
def test_files_in_the_environment_say_who_made_it(
    tmp_path: Path, files: dict[str, str], is_virtual: bool, installer: Installer
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert find_installer(tmp_path, None, tmp_path / "lib", is_virtual=is_virtual) is installer


def test_an_environment_of_uv_in_the_clone_is_the_projects(tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    venv.mkdir()
    (venv / "pyvenv.cfg").write_text("uv = 0.13.9\n", encoding="utf-8")
    assert find_installer(venv, str(tmp_path), tmp_path, is_virtual=True) is Installer.UV_PROJECT
    assert find_installer(venv, None, tmp_path, is_virtual=True) is Installer.UV


@pytest.mark.parametrize(
    ("record", "source", "clone"),
    [
        (None, "localllm", None),
        ({"url": "file:///my/clone", "dir_info": {"editable": True}}, "/my/clone", "/my/clone"),
        ({"url": "file:///my/clone", "dir_info": {}}, "/my/clone", None),
        ({"url": "https://example.org/localllm.whl", "archive_info": {}}, "https://example.org/localllm.whl", None),
        (
            {"url": "https://example.org/r.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "git+https://example.org/r.git",
            None,
        ),
        (
            {"url": "https://example.org/r.git", "vcs_info": {"vcs": "git", "requested_revision": "v1"}},
            "git+https://example.org/r.git@v1",
            None,
        ),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="paths of Unix")
def test_what_the_installer_was_given_is_read_from_its_record(
    record: dict[str, object] | None, source: str, clone: str | None
) -> None:
    assert read_source(None if record is None else json.dumps(record)) == (source, clone)


@pytest.mark.parametrize(
    ("ancestors", "login_shell", "is_windows", "shell"),
    [
        (["python3.11", "uv", "bash", "sshd"], None, False, Shell.UNIX),
        (["uv", "fish"], "/bin/bash", False, Shell.UNIX),
        (["-zsh"], None, False, Shell.UNIX),
        (["uv", "pwsh", "bash"], "/bin/bash", False, Shell.POWERSHELL),
        (["systemd"], "/usr/bin/pwsh", False, Shell.POWERSHELL),
        (["systemd"], None, False, Shell.UNIX),
        (["uv.exe", "powershell.exe", "explorer.exe"], None, True, Shell.POWERSHELL),
        (["uv.exe", "cmd.exe", "powershell.exe"], None, True, Shell.CMD),
        (["bash.exe"], None, True, Shell.UNIX),  # of Git for Windows
        (["explorer.exe"], None, True, Shell.POWERSHELL),
    ],
)
def test_the_nearest_program_that_is_a_shell_reads_the_command(
    ancestors: list[str], login_shell: str | None, is_windows: bool, shell: Shell
) -> None:
    assert find_shell(ancestors, login_shell, is_windows=is_windows) is shell


def test_this_installation_is_found_with_its_python() -> None:
    found = find_installation()
    assert found.python == sys.executable
    assert Path(found.source).name


def test_the_file_that_every_build_begins_with_is_there() -> None:
    assert cmake_file().is_file()
