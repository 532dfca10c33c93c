from __future__ import annotations

import os
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.options.option import format_value
from app.settings.settings import (
    SETTINGS,
    Settings,
    SettingSource,
    edit_toml,
    environment_variable,
    load_settings,
    parse_setting,
    setting_sources,
    settings_file,
    write_setting,
)
from quantizer.system.errors import StorageError, UsageError, UserError


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


@pytest.mark.parametrize(
    ("line", "words"),
    [
        *((f"port = {value}", r"config\.toml sets port to") for value in ("70000", "-1", "true", "1.5")),
        ("lora = [1]", r"config\.toml"),
    ],
)
def test_what_the_settings_file_has_is_checked_as_well(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"{line}\n")
    with pytest.raises(UsageError, match=words):
        load_settings({}, {"LOCALLLM_CONFIG": str(path)})


COMMENTED = """# my machine
ctx = 4096  # enough

# keep this
threads = 2
"""


def test_a_change_keeps_comments_and_order() -> None:
    changed = edit_toml(COMMENTED, "ctx", 8192)
    assert changed == COMMENTED.replace("4096", "8192")
    assert edit_toml(changed, "threads", None) == "# my machine\nctx = 8192  # enough\n\n# keep this\n"
    assert tomllib.loads(edit_toml(COMMENTED, "lora", ("a.gguf", "b.gguf")))["lora"] == ["a.gguf", "b.gguf"]


@pytest.mark.slow
@given(st.text(st.characters(codec="utf-8")), st.integers(-(2**62), 2**62), st.booleans())
def test_what_is_written_is_read_again_as_it_was(text: str, number: int, flag: bool) -> None:
    written = COMMENTED
    values = {"model": text, "ctx": number, "also": flag, "lora": (text, "b")}
    for name, value in values.items():
        written = edit_toml(written, name, value)
    assert tomllib.loads(written) == {"ctx": number, "threads": 2, "model": text, "also": flag, "lora": [text, "b"]}


def test_a_written_setting_applies_and_has_its_source(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    environment = {"LOCALLLM_CONFIG": str(path), "LOCALLLM_THREADS": "3"}
    write_setting(path, "ctx", parse_setting("ctx", "4096"))
    write_setting(path, "data_dir", tmp_path / "data")
    settings = load_settings({}, environment)
    assert (settings.ctx, settings.threads, settings.data_dir) == (4096, 3, tmp_path / "data")
    origins = setting_sources({"port": 1, "host": None}, environment)
    assert {name: origin for name, origin in origins.items() if origin is not SettingSource.DEFAULT} == {
        "ctx": SettingSource.FILE,
        "data_dir": SettingSource.FILE,
        "threads": SettingSource.ENVIRONMENT,
        "port": SettingSource.FLAG,
    }
    assert path.stat().st_mode & 0o077 == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["config.toml"]


def test_a_file_that_is_no_toml_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("ctx = = 1")
    with pytest.raises(UsageError, match="cannot be read"):
        write_setting(path, "ctx", 1)
    assert path.read_text() == "ctx = = 1"


@pytest.mark.parametrize("text", ["a = " + "[" * 5_000, "a = " + "9" * 5_000, "a" + ".a" * 5_000 + " = 1"])
def test_a_file_that_no_parser_takes_is_an_error_with_its_path(text: str, tmp_path: Path) -> None:
    """Python's parser of TOML says RecursionError or ValueError there, and ours for changes too."""
    path = tmp_path / "config.toml"
    path.write_text(text)
    for use in (
        lambda: load_settings(environment={"LOCALLLM_CONFIG": str(path)}),
        lambda: write_setting(path, "ctx", 1),
    ):
        with pytest.raises(UsageError):
            use()
    assert path.read_text() == text


def test_the_null_device_is_a_settings_file_without_settings(tmp_path: Path) -> None:
    without = load_settings({}, {"LOCALLLM_CONFIG": str(tmp_path / "none.toml")})
    assert load_settings({}, {"LOCALLLM_CONFIG": os.devnull}) == without
    with pytest.raises(UserError):
        write_setting(Path(os.devnull), "port", 1)


def test_a_file_that_cannot_be_written_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="config"):
        write_setting(tmp_path / "file" / "config.toml", "ctx", 1)


REFUSED = {
    "ctx": "-1",
    "parallel": "0",
    "port": "70000",
    "threads": "many",
    "also": "perhaps",
    "when_unfit": "never",
    "keep_alive": "soon",
    "max_memory": "much",
    "kv_type": "q8_0,q9_9",
    "rpc": "nowhere",
    "keys": "help",
    "data_dir": " ",
    "model": "",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_setting_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_setting(name, REFUSED[name])
    assert refused.value.remedy


@pytest.mark.parametrize("name", SETTINGS)
def test_every_default_is_taken_again_as_it_is_shown(name: str) -> None:
    default = getattr(Settings(), name)
    assert parse_setting(name, format_value(default)) == default


def test_keys_are_a_table_in_the_file_and_a_line_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[keys]\nhelp = "f1,f12"  # two\nquit = "ctrl+x"\n')
    environment = {"LOCALLLM_CONFIG": str(path)}
    assert format_value(load_settings({}, environment).keys) == "help=f1,f12 quit=ctrl+x"
    assert load_settings({}, {**environment, "LOCALLLM_KEYS": "help=f2"}).keys == {"help": "f2"}
    write_setting(path, "keys", {"help": "f1,f12", "go-log": "f11"})
    write_setting(path, "ctx", 512)
    assert load_settings({}, environment).keys == {"help": "f1,f12", "go-log": "f11"}
    assert load_settings({}, environment).ctx == 512
    assert "# two" in path.read_text()


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
@pytest.mark.parametrize("name", [name for name, row in SETTINGS.items() if row.choices])
def test_a_choice_is_taken_in_any_case_from_every_source(tmp_path: Path, name: str, source: str) -> None:
    for choice in SETTINGS[name].choices:
        file = tmp_path / "config.toml"
        file.write_text(f'{name} = "{choice.upper()}"\n' if source == "file" else "")
        environment = {"LOCALLLM_CONFIG": str(file)}
        environment |= {environment_variable(name): choice.title()} if source == "environment" else {}
        flags = {name: choice.upper()} if source == "flag" else {}
        assert getattr(load_settings(flags, environment), name) == choice
