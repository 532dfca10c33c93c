from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import pytest

from app.cli.main import main
from app.library.machine_fit.planning import parse_machine
from offload.devices.machine import Device, DeviceKind, Machine
from quantizer.system.errors import UsageError
from tests.app.cli.in_process import json_of, run_localllm
from tests.app.external_folders import add_ollama_layers, ollama_model_that_sees
from tests.quantizer.gguf_adapters import lora
from tests.quantizer.gguf_draft_heads import draft_head, drafted_model
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_heads import predicting_model
from tests.quantizer.gguf_projectors import tiny_projector

GIB = 1 << 30
HERE = Machine(Device(name="CPU", kind=DeviceKind.CPU, total_bytes=8 * GIB, free_bytes=6 * GIB, bytes_per_s=25e9))


def plan(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_localllm(environment, "plan", *arguments)


@pytest.mark.slow
def test_a_plan_is_one_object_with_stable_keys(environment: Mapping[str, str], tiny_model: Path) -> None:
    arguments = ("--vram", "GPU0=8GiB@900GB/s", "--ram", "16GiB@60GB/s", "--json")
    output = json_of(plan(environment, str(tiny_model), *arguments))
    keys = ["verdict", "setting", "n_layers", "devices", "decode_tps", "best_tps", "prefill_tps", "first_token_s"]
    others = ["uncertainty", "curve", "warnings", "remedies", "extras", "saved_chats_bytes", "turn", "prompt_gpu"]
    assert list(output) == [*keys, *others, "fetched_bytes", "runner_up", "drafts", "measured"]
    assert (output["prompt_gpu"], output["fetched_bytes"], output["runner_up"]) == ("", 0, None)
    assert (output["turn"]["prompt_tokens"], output["turn"]["answer_tokens"]) == (128, 256)
    assert output["verdict"] == "fits"
    gpu, host = output["devices"]
    sizes = ["weights_bytes", "kv_bytes", "compute_bytes", "free_bytes", "total_bytes", "extras_bytes"]
    assert list(gpu) == ["name", "kind", "layers", *sizes, "bytes_per_s", "description"]
    assert (gpu["name"], gpu["layers"], gpu["free_bytes"]) == ("GPU0", 3, 8 * GIB)
    assert gpu["kv_bytes"] == 2 * 64 * 2 * 1024  # two layers of 64 elements in F16, for 1,024 cells
    assert host["layers"] == 0
    assert output["saved_chats_bytes"] == 16 * GIB // 3
    assert output["curve"][3] == pytest.approx(output["decode_tps"], rel=0.01)


@pytest.mark.slow
def test_auxiliary_models_are_listed_and_counted(environment: Mapping[str, str], tiny_model: Path) -> None:
    machine = ("--vram", "GPU0=8GiB@900GB/s", "--ram", "16GiB@60GB/s")
    output = json_of(plan(environment, str(tiny_model), "--draft", str(tiny_model), *machine, "--json"))
    (extra,) = output["extras"]
    assert extra["what"] == f"draft model {tiny_model.name}"
    gpu, _ = output["devices"]
    assert gpu["extras_bytes"] >= extra["weights_bytes"] + extra["kv_bytes"] > 0
    assert extra["kv_bytes"] == gpu["kv_bytes"]


@pytest.mark.slow
def test_the_adapter_of_a_model_of_ollama_is_counted(environment: Mapping[str, str], tmp_path: Path) -> None:
    manifest = "registry.ollama.ai/library/tuned/latest"
    base, _ = ollama_model_that_sees(tmp_path / "ollama", manifest)
    add_ollama_layers(tmp_path / "ollama", manifest, base, adapter=lora(tmp_path / "adapter.gguf"))
    own = {**environment, "OLLAMA_MODELS": str(tmp_path / "ollama")}
    done = plan(own, "tuned", "--ram", "16GiB@60GB/s", "--json")
    assert done.returncode == 0, done.stderr
    (extra,) = json.loads(done.stdout)["extras"]
    assert extra["what"].startswith("adapter sha256-")
    assert extra["weights_bytes"] > 0


@pytest.mark.slow
def test_the_head_beside_a_model_is_counted_unless_none_is_wanted(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    model, machine = drafted_model(tmp_path / "m.gguf"), ("--ram", "16GiB@60GB/s", "--json")
    draft_head(tmp_path / "dflash-m.gguf", "dflash")
    (tmp_path / "dspark-m.gguf").write_bytes(b"no GGUF")
    done = plan(environment, str(model), *machine)
    assert done.returncode == 0, done.stderr
    (extra,) = json.loads(done.stdout)["extras"]
    assert extra["what"].endswith("dflash-m.gguf")
    assert any("dspark-m.gguf" in warning for warning in json.loads(done.stdout)["warnings"])
    for silent in (
        plan(environment, str(model), *machine, "--draft", "none"),
        _with_setting(environment, model, machine),
    ):
        assert json.loads(silent.stdout)["extras"] == []


@pytest.mark.slow
def test_the_projector_beside_a_model_is_counted_with_its_tokens_unless_none_is_wanted(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    model, machine = tiny_llama(tmp_path / "m.gguf"), ("--ram", "16GiB@60GB/s", "--json")
    tiny_projector(tmp_path / "mmproj-m-F16.gguf")
    (extra,) = json_of(plan(environment, str(model), *machine))["extras"]
    assert extra["what"].endswith("mmproj-m-F16.gguf")
    assert extra["weights_bytes"] > 0 < extra["compute_bytes"]
    assert (extra["picture_tokens"], extra["max_picture_tokens"], extra["sound_tokens"]) == (4, 4, 0)
    for none in (("--projector", "none"), ("--mmproj", "none")):
        assert json.loads(plan(environment, str(model), *machine, *none).stdout)["extras"] == []
    text = plan(environment, str(model), "--ram", "16GiB@60GB/s").stdout
    assert "It turns a picture into 4 tokens." in text


def _with_setting(
    environment: Mapping[str, str], model: Path, machine: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    return plan({**environment, "LOCALLLM_DRAFT": "none"}, str(model), *machine)


@pytest.mark.slow
def test_a_plan_for_people_has_a_table_speeds_and_a_curve(environment: Mapping[str, str], tiny_model: Path) -> None:
    done = plan(environment, str(tiny_model), "--vram", "GPU0=8GiB@900GB/s", "--ram", "16GiB@60GB/s", "--plot")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "It fits."
    assert any(line.startswith("GPU0") for line in lines)
    assert any(line.startswith("Answers ") and "tok/s" in line for line in lines)
    assert sum("← here" in line for line in lines) == 1
    assert "Chats that left the cache: up to 5.3 GiB more, given back where memory is short." in lines


@pytest.mark.slow
def test_a_plan_for_this_machine_uses_what_it_measured(environment: Mapping[str, str], tiny_model: Path) -> None:
    output = json_of(plan(environment, str(tiny_model), "--json"))
    assert output["devices"][-1]["name"] == "CPU"
    assert output["decode_tps"] is None or output["decode_tps"] > 0


def test_the_size_of_the_cache_is_listed_by_context_and_type(environment: Mapping[str, str], tiny_model: Path) -> None:
    (row,) = json_of(plan(environment, str(tiny_model), "--kv-table", "--json"))["kv_table"]
    assert row["n_ctx"] == 128
    assert row["f16"] == 2 * 64 * 2 * 256  # cells come in blocks of 256
    assert "q8_0" not in row  # heads of 16 elements are no whole blocks
    assert plan(environment, str(tiny_model), "--kv-table").stdout.startswith("context ")


def test_the_speed_up_of_drafts_is_listed_by_acceptance_and_length(
    environment: Mapping[str, str], tiny_model: Path
) -> None:
    output = json_of(plan(environment, str(tiny_model), "--speculation", "--json"))
    assert output["is_measured"] is False
    gains = [row["best"]["gain"] for row in output["speculation"]]
    assert gains == sorted(gains)
    assert gains[0] >= 1.0
    lines = plan(environment, str(tiny_model), "--speculation").stdout.splitlines()
    assert any(line.startswith("acceptance ") for line in lines)
    assert lines[-1].endswith("`localllm tune MODEL` measures them here.")


@pytest.mark.slow
def test_what_can_never_run_is_reported_with_the_numbers(environment: Mapping[str, str], tiny_model: Path) -> None:
    done = plan(environment, str(tiny_model), "--ram", "256MiB@60GB/s", "--vram", "GPU0=64MiB@900GB/s")
    assert done.returncode == 0, done.stderr
    assert "It will not run here." in done.stdout
    assert "may use" in done.stdout


@pytest.mark.parametrize("arguments", [("--vram", "8GiB"), ("--ram", "0"), ("--ram", "-4GiB"), ("--kv-type", "q4_k")])
def test_a_machine_that_makes_no_sense_is_refused_in_a_sentence(
    environment: Mapping[str, str], tiny_model: Path, arguments: tuple[str, ...]
) -> None:
    done = plan(environment, str(tiny_model), *arguments)
    assert done.returncode == 2
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_described_gpu_is_as_fast_as_given_or_as_its_name_implies() -> None:
    first, second, third = parse_machine(lambda: HERE, ["GPU0=8GiB@900GB/s", "RTX 3060=12GiB", "X=1GiB"], None).gpus
    assert (first.free_bytes, first.bytes_per_s) == (8 * GIB, 900e9)
    assert second.bytes_per_s == 360e9
    assert third.bytes_per_s is None


def test_given_memory_without_a_speed_is_read_as_fast_as_here() -> None:
    assert parse_machine(lambda: HERE, [], "16GiB").host.bytes_per_s == 25e9
    assert parse_machine(lambda: HERE, [], "16GiB@60GB/s").host.bytes_per_s == 60e9
    assert parse_machine(lambda: HERE, [], None) == HERE


@pytest.mark.parametrize("vram", [["=8GiB"], ["GPU0"], ["GPU0=8GiB@900GB"], ["GPU0=8GiB@0GB/s"], ["A=1GiB", "A=2GiB"]])
def test_what_is_no_gpu_is_refused(vram: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_machine(lambda: HERE, vram, None)


def test_a_machine_that_is_given_whole_is_not_compared_with_this_one() -> None:
    def nobody() -> Machine:
        raise AssertionError("this machine was asked")

    machine = parse_machine(nobody, ["GPU0=8GiB@900GB/s"], "16GiB@60GB/s")
    assert (machine.host.total_bytes, machine.gpus[0].bytes_per_s) == (16 * GIB, 900e9)


@pytest.mark.slow
def test_a_missing_curve_is_explained(environment: Mapping[str, str], tiny_model: Path) -> None:
    done = plan(environment, str(tiny_model), "--ram", "16GiB@60GB/s", "--plot")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("No curve")


GIVEN = ("--ram", "16GiB@60GB/s", "--vram", "GPU0=8GiB@900GB/s")


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA_DIR", "CACHE_DIR"):
        monkeypatch.setenv(f"LOCALLLM_{name}", str(tmp_path / name))
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config.toml"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as leaving:
        main(["plan", *map(str, arguments)])
    assert leaving.value.code in (1, 2)
    said = capsys.readouterr().err
    assert "Error: " in said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ram", "0"),
        ("--ram", "-4GiB@60GB/s"),
        ("--ram", "16GiB@0GB/s"),
        ("--ram", "16GiB@-1GB/s"),
        ("--ram", "1e400GiB"),
        ("--ram", "nan"),
        ("--ram", ""),
        ("--ram", "9" * 40),
        ("--vram", "GPU0=0GiB@900GB/s"),
        ("--vram", "GPU0=-8GiB@900GB/s"),
        ("--vram", "GPU0=8GiB@900"),
        ("--vram", "=8GiB"),
        ("--vram", "GPU0"),
        ("--vram", "A=1GiB@1GB/s", "--vram", "A=2GiB@1GB/s"),
        ("--ctx", "-1"),
        ("--ctx", str(1 << 40)),
        ("--ctx", "many"),
        ("--kv-type", "q4_k"),
        ("--kv-type", "f16,f16,f16"),
        ("--draft", "no-such-model.gguf"),
        ("--lora", "no-such-adapter.gguf"),
        ("--mmproj", "no-such-projector.gguf"),
    ],
)
def test_impossible_numbers_and_names_are_refused(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, arguments: tuple[str, ...]
) -> None:
    refused(capsys, tiny_model, *arguments, *(option for option in GIVEN if arguments[0] not in GIVEN))


def test_files_that_are_not_what_they_are_named_as_are_refused(
    capsys: pytest.CaptureFixture[str], tiny_model: Path
) -> None:
    assert "is not a projector" in refused(capsys, tiny_model, "--mmproj", tiny_model, *GIVEN)
    assert "is not a LoRA adapter" in refused(capsys, tiny_model, "--lora", tiny_model, *GIVEN)


@pytest.mark.parametrize(
    "edit",
    [
        lambda writer: writer.add_uint32("glm4moe.block_count", 100_000),
        lambda writer: writer.add_uint32("glm4moe.embedding_length", 0xFFFFFFFF),
        lambda writer: writer.add_uint32("glm4moe.attention.head_count_kv", 7_777_777),
        lambda writer: writer.add_nextn_predict_layers(400),
        lambda writer: writer.add_expert_used_count(4000),
    ],
)
def test_a_header_that_lies_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, edit: Callable[[gguf.GGUFWriter], None]
) -> None:
    refused(capsys, predicting_model(tmp_path / "m.gguf", "glm4moe", edit), *GIVEN)


def test_what_is_no_model_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for content in (b"", b"GGUF", b"GGUF" + b"\xff" * 60, b"PK\x03\x04" + b"\0" * 60):
        path = tmp_path / "m.gguf"
        path.write_bytes(content)
        refused(capsys, path, *GIVEN)


@pytest.mark.slow
def test_a_context_beyond_all_memory_is_planned_by_the_header_alone(
    capsys: pytest.CaptureFixture[str], tiny_model: Path
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["plan", str(tiny_model), "--ctx", str(1 << 30), *GIVEN])
    assert leaving.value.code == 0
    assert "It will not run here." in capsys.readouterr().out
