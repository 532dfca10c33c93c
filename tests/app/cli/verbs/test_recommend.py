from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from datetime import date

import pytest

from app.cli.verbs import search as recommend_verb
from app.cli.verbs.search import _FOR
from app.library.hub.catalogue import Role, read_catalogue
from app.protocol.codec import decode
from app.protocol.library import Recommended
from tests.app.cli.in_process import run_localllm

MACHINE = ("--vram", "GPU0=12GiB@360GB/s", "--ram", "32GiB@45GB/s")


def test_one_is_recommended_for_each_role_without_opening_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def unplugged(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", unplugged)
    monkeypatch.setattr(socket, "getaddrinfo", unplugged)
    done = run_localllm(os.environ, "recommend", *MACHINE, "--json")
    assert list(json.loads(done.stdout)) == ["recommendations", "notice"]
    found = json.loads(done.stdout)["recommendations"]
    assert [each["role"] for each in found] == list(_FOR) == [role.value for role in Role]
    for each in found:
        assert list(each) == ["role", "why", "model", "passed_over"]
        recommended = decode(Recommended, each["model"])
        assert (recommended.quant.fit.decode_tps or 0) > 0


def test_the_command_to_pull_and_the_reason_are_printed(environment: Mapping[str, str]) -> None:
    done = run_localllm(environment, "recommend", "--role", "code", *MACHINE)
    assert done.returncode == 0, done.stderr
    first, why, *_others, pull, _blank = done.stdout.split("\n")[:-1]
    assert first.startswith(
        "To write code, filling in the middle: Qwen2.5 Coder 7B in Q8_0 (2024-09, 7.6B parameters, 8.1 GB)"
    )
    assert "that fits" in why
    assert pull == "  localllm pull ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF:Q8_0"


def test_an_old_catalogue_says_so(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    dated = read_catalogue().dated
    for today, is_old in ((dated, False), (date(dated.year + 1, dated.month, 1), True)):
        monkeypatch.setattr(recommend_verb, "_today", lambda today=today: today)
        done = run_localllm(environment, "recommend", "--role", "code", *MACHINE)
        assert ("localllm search --trending" in done.stdout) is is_old
        notice = json.loads(run_localllm(environment, "recommend", "--role", "code", *MACHINE, "--json").stdout)[
            "notice"
        ]
        assert bool(notice) is is_old
