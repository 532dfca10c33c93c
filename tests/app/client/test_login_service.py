"""The service in the user's session. The texts are compared with those in `login_services/`, and read as their systems
read them where that is possible here."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from app.client import login_service as module
from app.client.login_service import (
    LoginService,
    install,
    is_running,
    launchd_agent,
    login_service,
    remove,
    serve_command,
    systemd_unit,
    windows_task,
)
from app.settings.settings import Settings
from quantizer.system.errors import UserError

GOLDEN = Path(__file__).parent / "login_services"
COMMAND = ["/opt/my python/bin/python", "-P", "-m", "app.cli.main", "serve", "--data-dir", '/home/me/50%/$HOME "a"\\b']
VARIABLES = {"LOCALLLM_CONFIG": "/home/me/my config.toml"}
WINDOWS = [
    r"C:\Program Files\Python\python.exe",
    "-P",
    "-m",
    "app.cli.main",
    "serve",
    "--data-dir",
    r"C:\me & you\data",
]


def _systemd(root: Path) -> LoginService:
    return systemd_unit(COMMAND, VARIABLES, root)


@pytest.mark.parametrize(
    ("service", "name"),
    [
        (_systemd(Path("/home/me/.config")), "localllm.service"),
        (launchd_agent(COMMAND, VARIABLES, Path("/Users/me"), 501), "localllm.plist"),
        (windows_task(WINDOWS, Path("cache"), "PC\\me"), "localllm-task.xml"),
    ],
)
def test_the_text_is_the_golden_one(service: LoginService, name: str) -> None:
    assert service.path.name == name
    assert service.text == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = systemd_unit([sys.executable, *COMMAND[1:]], VARIABLES, tmp_path)
    unit.path.parent.mkdir(parents=True)
    unit.path.write_text(unit.text)
    broken = tmp_path / "broken.service"
    broken.write_text(unit.text.replace("[Install]", "Nonsense=1\n[Install]"))

    def complaints(path: Path) -> str:
        command, variables = ["systemd-analyze", "verify", "--user", str(path)], {"XDG_RUNTIME_DIR": str(tmp_path)}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **variables}
        ).stderr

    assert complaints(unit.path) == ""
    assert "Nonsense" in complaints(broken)


def test_launchd_reads_the_command_and_the_variables_as_they_are() -> None:
    agent = launchd_agent(COMMAND, VARIABLES, Path("/Users/me"), 501)
    values = plistlib.loads(agent.text.encode())
    assert (values["ProgramArguments"], values["EnvironmentVariables"]) == (COMMAND, VARIABLES)
    assert values["KeepAlive"] == {"SuccessfulExit": False}
    assert agent.after == (("launchctl", "bootstrap", "gui/501", str(agent.path)),)


def test_windows_reads_the_command_as_it_is_and_opens_no_window() -> None:
    task = windows_task(WINDOWS, Path("cache"), "PC\\me")
    root = ElementTree.fromstring(task.text.encode(task.encoding))
    names = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}
    assert root.findtext(".//t:Command", namespaces=names) == r"C:\Program Files\Python\pythonw.exe"
    arguments = root.findtext(".//t:Arguments", namespaces=names)
    assert arguments == r'-P -m app.cli.main serve --data-dir "C:\me & you\data"'
    assert root.findtext(".//t:ExecutionTimeLimit", namespaces=names) == "PT0S"


class Recorder:
    """Commands that were run; those that contain a word of `failing` fail."""

    def __init__(self, *failing: str) -> None:
        self.commands: list[str] = []
        self._failing = failing

    def __call__(self, command: Sequence[str]) -> tuple[int, str]:
        self.commands.append(" ".join(command))
        return (1, "Failed to connect to bus") if set(command) & set(self._failing) else (0, "")


@pytest.mark.parametrize(
    "make",
    [
        _systemd,
        lambda root: launchd_agent(COMMAND, VARIABLES, root, 501),
        lambda root: windows_task(WINDOWS, root, "me"),
    ],
)
def test_installing_twice_is_installing_once_and_removing_undoes_it(
    tmp_path: Path, make: Callable[[Path], LoginService]
) -> None:
    service, first, second, last = make(tmp_path), Recorder(), Recorder(), Recorder()
    assert not is_running(service, Recorder())
    install(service, first)
    install(service, second)
    assert first.commands == second.commands
    assert service.path.read_bytes().decode(service.encoding).replace("\r\n", "\n") == service.text
    assert is_running(service, Recorder())
    assert not is_running(service, Recorder(*service.status))
    assert remove(service, last)
    assert len(last.commands) == len(service.undo) + len(service.after_removal)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not remove(service, nothing := Recorder())
    assert nothing.commands == []


def test_a_command_that_fails_is_reported_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"systemctl --user daemon-reload failed: Failed to connect to bus\."):
        install(_systemd(tmp_path), Recorder("daemon-reload"))


@pytest.mark.parametrize("is_booted", [False, True])
def test_without_systemd_another_way_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_booted: bool
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    found: Any = shutil.which("sh") if is_booted else None
    monkeypatch.setattr(module.shutil, "which", lambda _name: found)
    monkeypatch.setattr(Path, "is_dir", lambda _path: False)
    settings = Settings(data_dir=tmp_path / "my data", cache_dir=tmp_path)
    with pytest.raises(UserError, match="not run by systemd") as refused:
        login_service(settings, {"HOME": str(tmp_path)})
    assert f"--data-dir '{tmp_path / 'my data'}'" in refused.value.remedy
    assert "crontab -e" in refused.value.remedy


def test_the_command_names_the_folders_of_the_environment_it_was_installed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = serve_command(Settings(data_dir=Path("data"), cache_dir=Path("cache")))
    assert command[-4:] == ["--data-dir", str(tmp_path / "data"), "--cache-dir", str(tmp_path / "cache")]
