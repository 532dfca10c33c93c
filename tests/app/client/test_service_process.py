"""A service that is begun before anybody looks for one."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from app.client.launcher import open_service
from app.client.service_process import begin_service, starter_lock_path
from app.service.server import listen
from app.settings.settings import Settings
from quantizer.system.files import private_folder, try_lock
from quantizer.system.process import python_command
from tests.patience import PATIENCE_S


async def test_the_service_that_was_begun_is_the_one_that_the_command_uses_and_the_next_finds(
    settings: Settings,
) -> None:
    begun = begin_service(settings)
    assert begun is not None
    assert begin_service(settings) is None, "the first keeps others from starting one too"
    async with open_service(settings, keeps=True, begun=begun) as client:
        assert (client.base_url, client.kept_for, client.notices) == (settings.url, "10m", ())
    assert begun.log.closed
    assert begin_service(settings) is None, "it is there to be found"
    async with open_service(settings, keeps=True) as client:
        assert client.kept_for == "", "it was started for another command"


@pytest.mark.parametrize("changed", [{"port": 0}, {"connect": "http://127.0.0.1:1"}])
def test_nothing_is_begun_for_any_port_or_a_remote_engine(settings: Settings, changed: dict[str, object]) -> None:
    assert begin_service(replace(settings, **changed)) is None  # type: ignore[arg-type]


def test_nothing_is_begun_where_something_listens(settings: Settings) -> None:
    with listen("127.0.0.1", settings.port):
        assert begin_service(settings) is None


def test_nothing_is_begun_while_another_command_starts_a_service(settings: Settings) -> None:
    private_folder(settings.cache_dir)
    lock = try_lock(starter_lock_path(settings))
    assert lock is not None
    assert begin_service(settings) is None
    lock.release()


def test_a_service_that_is_not_to_stay_ends_with_its_stdin_whatever_the_settings_say(settings: Settings) -> None:
    variables = {"LOCALLLM_KEEP_SERVICE": "10m", "LOCALLLM_PORT": str(settings.port)}
    command = python_command("app.cli.main", "serve", "--owned")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | variables) as owned:
        assert owned.stdout is not None
        assert owned.stdin is not None
        assert b"url" in owned.stdout.readline()
        owned.stdin.close()
        assert owned.wait(PATIENCE_S) == 0
