"""The service as a part of the user's session: a systemd user unit, a launchd agent, or a task of Windows.

Owns what the three need: the texts, where they go, and the commands that switch them on and off. `login_service`
decides, `install` and `remove` act. All that is particular to a system is here.
"""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from xml.etree import ElementTree

from app.client.service_process import FINISH_TIMEOUT_S
from app.settings.settings import Settings, settings_file
from quantizer.system.errors import UserError
from quantizer.system.files import explained, private_folder, write_atomically
from quantizer.system.process import python_command

NAME = "localllm"
_COMMAND_TIMEOUT_S = 120.0
_TASK_NAMESPACE = "http://schemas.microsoft.com/windows/2004/02/mit/task"

Run: TypeAlias = Callable[[Sequence[str]], tuple[int, str]]  # a command's exit status and output


@dataclass(frozen=True, slots=True)
class LoginService:
    """What one system needs. `before` and `after` are commands around writing `text` to `path`, those in `undo` may
    fail, as for what was not installed. `status` exits with 0 while the service is installed and runs; `hint` says more
    about the installed one."""

    path: Path
    text: str
    after: tuple[tuple[str, ...], ...]
    undo: tuple[tuple[str, ...], ...]
    after_removal: tuple[tuple[str, ...], ...]
    status: tuple[str, ...]
    logs: str
    hint: str = ""
    encoding: str = "utf-8"
    before: tuple[tuple[str, ...], ...] = field(default=())


def serve_command(settings: Settings) -> list[str]:
    """Return the command line of the service. It names the folders: a session's manager has other variables than the
    shell in which this was installed, and another data folder would be another service."""
    folders = ("--data-dir", str(settings.data_dir.absolute()), "--cache-dir", str(settings.cache_dir.absolute()))
    return python_command("app.cli.main", "serve", *folders)


def login_service(settings: Settings, environment: Mapping[str, str] = os.environ) -> LoginService:
    """Return what this system needs. Raises UserError for a system without systemd, launchd or Windows' scheduler."""
    command = serve_command(settings)
    variables = {"LOCALLLM_CONFIG": str(settings_file(environment).absolute())}
    if sys.platform == "win32":
        return windows_task(command, settings.cache_dir.absolute(), environment.get("USERNAME", ""))
    home = Path(environment.get("HOME") or Path.home())
    if sys.platform == "darwin":
        return launchd_agent(command, variables, home, os.getuid())
    if shutil.which("systemctl") is None or not Path("/run/systemd/system").is_dir():
        line = f"@reboot LOCALLLM_CONFIG={shlex.quote(variables['LOCALLLM_CONFIG'])} {shlex.join(command)}"
        line = line.replace("%", "\\%")  # which ends a line of cron's
        raise UserError(
            "This system is not run by systemd.",
            f"Start the service by your own means: with cron, add this line by `crontab -e`:\n{line}",
        )
    return systemd_unit(command, variables, Path(environment.get("XDG_CONFIG_HOME") or home / ".config"))


def systemd_unit(command: Sequence[str], variables: Mapping[str, str], config_home: Path) -> LoginService:
    """Return the user unit (systemd.unit(5), systemd.service(5))."""
    environment = "".join(f"Environment={_systemd_word(f'{key}={value}')}\n" for key, value in variables.items())
    text = (
        "[Unit]\n"
        "Description=localllm: language models on this machine\n"
        "StartLimitIntervalSec=0\n"
        "\n"
        "[Service]\n"
        f"ExecStart={' '.join(map(_systemd_word, command)).replace('$', '$$')}\n"
        f"{environment}"
        "Restart=on-failure\n"  # `localllm stop` ends it without a failure
        "RestartSec=10\n"
        f"TimeoutStopSec={FINISH_TIMEOUT_S}\n"
        "\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )
    unit, manage = f"{NAME}.service", ("systemctl", "--user")
    return LoginService(
        path=config_home / "systemd" / "user" / unit,
        text=text,
        after=((*manage, "daemon-reload"), (*manage, "enable", unit), (*manage, "restart", unit)),
        undo=((*manage, "disable", "--now", unit),),
        after_removal=((*manage, "daemon-reload"),),
        status=(*manage, "is-active", unit),
        logs=f"journalctl --user -u {NAME} -f",
        hint="It ends when you log out, unless you run `loginctl enable-linger`.",
    )


def _systemd_word(word: str) -> str:
    """Return a word as systemd reads it: quoted, without its specifiers (`%h`)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{escaped}"'


def launchd_agent(command: Sequence[str], variables: Mapping[str, str], home: Path, user: int) -> LoginService:
    """Return the agent (launchd.plist(5))."""
    log, target = home / "Library" / "Logs" / f"{NAME}.log", f"gui/{user}"
    path = home / "Library" / "LaunchAgents" / f"{NAME}.plist"
    values = {
        "Label": NAME,
        "ProgramArguments": [*command],
        "EnvironmentVariables": {**variables},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},  # `localllm stop` ends it without a failure
        "ProcessType": "Interactive",  # else it computes at the speed of a background process
        "ExitTimeOut": FINISH_TIMEOUT_S,
        "StandardOutPath": str(log),
        "StandardErrorPath": str(log),
    }
    end = ("launchctl", "bootout", f"{target}/{NAME}")
    return LoginService(
        path=path,
        text=plistlib.dumps(values, sort_keys=False).decode(),
        before=(end,),
        after=(("launchctl", "bootstrap", target, str(path)),),
        undo=(end,),
        after_removal=(),
        status=("launchctl", "print", f"{target}/{NAME}"),
        logs=f"tail -f {shlex.quote(str(log))}",
    )


def windows_task(command: Sequence[str], folder: Path, user: str) -> LoginService:
    """Return the scheduled task (Task Scheduler Schema); its description is kept in `folder`."""
    program, *arguments = command
    windowless = program[: -len("python.exe")] + "pythonw.exe" if program.lower().endswith("python.exe") else program
    task = ElementTree.Element("Task", {"version": "1.2", "xmlns": _TASK_NAMESPACE})
    trigger = ElementTree.SubElement(ElementTree.SubElement(task, "Triggers"), "LogonTrigger")
    ElementTree.SubElement(trigger, "UserId").text = user
    rules = ElementTree.SubElement(task, "Settings")
    for name, value in (
        ("MultipleInstancesPolicy", "IgnoreNew"),
        ("DisallowStartIfOnBatteries", "false"),
        ("StopIfGoingOnBatteries", "false"),
        ("ExecutionTimeLimit", "PT0S"),  # without end
        ("Priority", "5"),  # the default, 7, is below that of ordinary programs
    ):
        ElementTree.SubElement(rules, name).text = value
    restart = ElementTree.SubElement(rules, "RestartOnFailure")
    ElementTree.SubElement(restart, "Interval").text = "PT1M"
    ElementTree.SubElement(restart, "Count").text = "10"
    action = ElementTree.SubElement(ElementTree.SubElement(task, "Actions"), "Exec")
    ElementTree.SubElement(action, "Command").text = windowless
    ElementTree.SubElement(action, "Arguments").text = subprocess.list2cmdline(arguments)
    ElementTree.indent(task)
    path = folder / f"{NAME}-task.xml"
    return LoginService(
        path=path,
        text='<?xml version="1.0" encoding="UTF-16"?>\n' + ElementTree.tostring(task, encoding="unicode") + "\n",
        encoding="utf-16",  # the only one that schtasks reads
        after=(("schtasks", "/Create", "/TN", NAME, "/XML", str(path), "/F"), ("schtasks", "/Run", "/TN", NAME)),
        undo=(("schtasks", "/End", "/TN", NAME), ("schtasks", "/Delete", "/TN", NAME, "/F")),
        after_removal=(),
        status=("schtasks", "/Query", "/TN", NAME),
        logs="localllm serve, in a terminal, prints what the task does not show",
    )


def run_command(command: Sequence[str]) -> tuple[int, str]:
    """Run a command of the system. Raises UserError where it cannot be started or does not end."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{shlex.join(command)} failed: {error}.", "Run it in a terminal to see why.") from error
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace").strip()


def install(service: LoginService, run: Run = run_command) -> None:
    """Write the text and start the service, anew if it runs. Doing so again changes nothing more. Raises UserError."""
    for command in service.before:
        run(command)
    with explained(f"{service.path} cannot be written"):
        private_folder(service.path.parent)
        write_atomically(service.path, service.text.encode(service.encoding), sync=True)
    for command in service.after:
        status, output = run(command)
        if status != 0:
            remedy = f"{service.path} is written: see what is wrong, and install it again. Or run `localllm serve`."
            raise UserError(f"{shlex.join(command)} failed: {output or f'exit status {status}'}.", remedy)


def remove(service: LoginService, run: Run = run_command) -> bool:
    """End the service and remove what was written; return whether there was anything. Raises StorageError."""
    was_installed = service.path.exists()
    if was_installed:
        for command in service.undo:
            run(command)
        with explained(f"{service.path} cannot be removed"):
            service.path.unlink(missing_ok=True)
        for command in service.after_removal:
            run(command)
    return was_installed


def is_running(service: LoginService, run: Run = run_command) -> bool:
    return service.path.exists() and run(service.status)[0] == 0
