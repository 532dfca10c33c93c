from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from offload.advice.doctor import Constraint
from tests.app.cli.in_process import run_localllm


def doctor(environment: Mapping[str, str], *arguments: str) -> str:
    done = run_localllm(environment, "doctor", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_machine_is_reported_with_a_verdict(environment: Mapping[str, str]) -> None:
    output = json.loads(doctor(environment, "--json"))
    host = output["devices"][0]
    assert host["kind"] == "cpu"
    assert 0 < host["free_bytes"] <= host["total_bytes"]
    assert host["bytes_per_s"] > 1e8
    assert output["verdict"] == ("problems" if output["problems"] else "good")


@pytest.mark.slow
def test_a_model_is_measured_and_its_bottleneck_reported(environment: Mapping[str, str], tiny_model: Path) -> None:
    output = json.loads(doctor(environment, str(tiny_model), "--json"))["model"]
    assert output["decode_tps"] > 0
    assert output["prefill_tps"] > 0
    assert output["constraint"] in list(Constraint)
    assert output["first_step"].endswith(".")


def test_people_read_what_it_is_and_what_is_wrong(environment: Mapping[str, str]) -> None:
    lines = doctor(environment).splitlines()
    assert lines[0].startswith("processor ")
    assert any(line.startswith("engine     llama-cpp-python") for line in lines)
    assert lines[-1] == "No problems found." or any(line.startswith("! ") for line in lines)
