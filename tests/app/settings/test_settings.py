from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path

import pytest

from app.settings.settings import (
    Settings,
    SettingSource,
    environment_variable,
    load_settings,
    setting_sources,
    settings_file,
)
from quantizer.system.errors import UsageError


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("False", False), ("0", False)])
def test_a_switch_is_read_from_the_environment_as_it_is_written_there(tmp_path: Path, text: str, value: bool) -> None:
    environment = {"LOCALLLM_CONFIG": str(tmp_path / "none.toml"), "LOCALLLM_CONTEXT_SHIFT": text}
    assert load_settings({}, environment).context_shift is value


def test_a_switch_that_is_neither_on_nor_off_is_refused(tmp_path: Path) -> None:
    environment = {"LOCALLLM_CONFIG": str(tmp_path / "none.toml"), "LOCALLLM_CONTEXT_SHIFT": "perhaps"}
    with pytest.raises(UsageError, match="context_shift"):
        load_settings({}, environment)


def test_an_empty_variable_counts_as_not_given(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('draft = "small"\nthreads = 3\n')
    environment = {environment_variable(item.name): "" for item in fields(Settings)} | {"LOCALLLM_CONFIG": str(path)}
    assert load_settings({}, environment) == replace(Settings(), draft="small", threads=3)
    origins = setting_sources({}, environment)
    assert {name for name, origin in origins.items() if origin is not SettingSource.DEFAULT} == {"draft", "threads"}
    assert settings_file({"LOCALLLM_CONFIG": ""}) == settings_file({})


def test_a_list_comes_from_flags_from_the_file_and_from_the_environment_as_paths_do(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('lora = ["a.gguf=style", "b.gguf"]\n')
    config = {"LOCALLLM_CONFIG": str(path)}
    assert load_settings({}, config).lora == ("a.gguf=style", "b.gguf")
    assert load_settings({"lora": ("c.gguf",)}, config).lora == ("c.gguf",)
    separated = os.pathsep.join(("d.gguf", "e,f.gguf"))
    assert load_settings({"lora": None}, {**config, "LOCALLLM_LORA": separated}).lora == ("d.gguf", "e,f.gguf")


def test_a_list_of_something_else_is_refused_with_its_source(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("lora = [1]\n")
    with pytest.raises(UsageError, match=r"config\.toml"):
        load_settings({}, {"LOCALLLM_CONFIG": str(path)})


@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("port", "99999", "between 0 and 65,535; the variable is LOCALLLM_PORT"),
        ("parallel", "-3", "between 1 and 256"),
        ("ctx", "-5", "between 0 and"),
        ("threads", "banana", "a whole number; the variable is LOCALLLM_THREADS"),
    ],
)
def test_a_number_that_nothing_could_be_done_with_is_refused_where_it_is_read(
    tmp_path: Path, name: str, text: str, remedy: str
) -> None:
    with pytest.raises(UsageError, match=remedy):
        load_settings({}, {"LOCALLLM_CONFIG": str(tmp_path / "none.toml"), environment_variable(name): text})


@pytest.mark.parametrize("value", ["70000", "-1", "true", "1.5"])
def test_a_number_of_the_settings_file_is_checked_as_well(tmp_path: Path, value: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"port = {value}\n")
    with pytest.raises(UsageError, match=r"config\.toml sets port to"):
        load_settings({}, {"LOCALLLM_CONFIG": str(path)})
