"""Every option of the table, once for each place that reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import TypeAdapter

from app.cli.main import _cli
from app.options.docs import settings_page
from app.options.jobs import JOBS, QuantizeOptions, command_words, given, job_rows
from app.options.option import Kind, Option, format_value, parse_flags
from app.protocol.errors import RequestError
from app.protocol.plan import PlanRequest
from app.service.jobs.arguments import command_of, options_of, title_of
from app.settings.settings import SETTINGS, Settings, environment_variable, load_settings, parse_setting
from tui.__main__ import app_options

JOB_ROWS = [pytest.param(kind, row, id=f"{kind}-{row.name}") for kind in JOBS for row in job_rows(kind).values()]
SETTING_ROWS = [pytest.param(row, id=row.name) for row in SETTINGS.values()]

_TAKEN = {"keep_alive": "5m", "max_memory": "2GiB", "rpc": "pc:50052", "hosts": "pc.local", "origins": "localhost"}
_TAKEN |= {"kv_type": "q8_0", "responses_size": "1GB", "projector": "none", "engine": "fake"}


NO_FILE = {"LOCALLLM_CONFIG": "nowhere.toml"}


def sample(row: Option) -> Any:
    """Return a value of `row` that is not its default."""
    match row.kind:
        case Kind.FLAG:
            return not row.default
        case Kind.INTEGER | Kind.SIZE:
            return int(row.least) + 2
        case Kind.NUMBER:
            return 0.5
        case Kind.TEXTS:
            return ("--a=b", "c")
        case Kind.TABLE:
            return {"help": "f2"}
        case Kind.PATH if isinstance(row.default, Path):
            return Path("/elsewhere")
    if row.choices:
        return next(choice for choice in row.choices if choice != row.default)
    return _TAKEN.get(row.name, "/a" if row.kind is Kind.PATH else "--help")  # no value is taken for an option


def words_of(row: Option, value: Any) -> list[str]:
    if row.kind is Kind.FLAG:
        return [row.flag if value else row.no_flag]
    values = value if isinstance(value, tuple) else (value,)
    return [word for item in values for word in (row.flag, format_value(item))]


def command(verb: str) -> tuple[click.Command, click.Context]:
    group = click.Context(_cli, **_cli.context_settings)
    found = _cli.get_command(group, verb)
    assert found is not None
    return found, group


def parsed(verb: str, words: list[str]) -> dict[str, Any]:
    """Return the parameters that the command `verb` gets from `words`."""
    found, group = command(verb)
    with found.make_context(verb, words, parent=group) as context:
        return context.params


def with_sample(kind: Any, row: Option) -> Any:
    required = {name: sample(other) for name, other in job_rows(kind).items() if other.is_required}
    return JOBS[kind](**required, **({} if row.is_required else {row.name: sample(row)}))


@pytest.mark.parametrize(("kind", "row"), JOB_ROWS)
def test_a_job_takes_each_option_of_its_command_and_the_command_line_gives_it_back(kind: Any, row: Option) -> None:
    options = with_sample(kind, row)
    assert options_of(kind, given(options)) == options
    assert title_of(options)
    verb, *words = command_words(options)
    got = parsed(verb, words)
    assert got["wants_json"]
    assert {name: got[name] for name in job_rows(kind)} == {name: getattr(options, name) for name in job_rows(kind)}


@pytest.mark.parametrize(("kind", "row"), JOB_ROWS)
def test_help_of_the_command_shows_each_option(kind: Any, row: Option) -> None:
    found, group = command(kind)
    shown = " ".join(found.get_help(click.Context(found, info_name=kind, parent=group)).split())
    assert row.is_positional or all(flag in shown for flag in row.flags)
    assert row.is_positional or row.help in shown


@pytest.mark.parametrize(("kind", "row"), JOB_ROWS)
def test_a_job_refuses_what_is_beyond_the_limits_of_an_option(kind: Any, row: Option, tmp_path: Path) -> None:
    beyond: dict[Kind, Any] = {Kind.TEXT: "a\0b", Kind.MODEL: "./m.gguf", Kind.PATH: "a\0b", Kind.TEXTS: ("x" * 5000,)}
    value = beyond.get(row.kind, row.most + 1)
    if row.kind is Kind.FLAG:
        with pytest.raises(ValueError, match="bool"):
            options_of(kind, {row.name: "perhaps"})
        return
    with pytest.raises(RequestError):
        command_of(replace(with_sample(kind, row), **{row.name: value}), Settings(data_dir=tmp_path))


@pytest.mark.parametrize("kind", JOBS)
def test_the_schema_of_a_job_has_every_option_with_its_help(kind: Any) -> None:
    properties = TypeAdapter(JOBS[kind]).json_schema()["properties"]
    assert {name: found["description"] for name, found in properties.items()} == {
        name: row.help for name, row in job_rows(kind).items()
    }


@pytest.mark.parametrize("row", SETTING_ROWS)
def test_the_app_without_a_verb_takes_each_setting_as_click_does(row: Option) -> None:
    words = words_of(row, sample(row))
    flags = app_options(words)
    assert flags is not None
    assert getattr(load_settings(flags, NO_FILE), row.name) == sample(row)
    if row.kind is not Kind.FLAG:
        assert app_options([f"{words[0]}={words[1]}", *words[2:]]) == flags
    if row.name != "system":  # there that is the system prompt of the chat
        found = parsed("chat", ["--inline", *words])
        of_chat = load_settings({name: found[name] for name in SETTINGS if name in found}, NO_FILE)
        assert getattr(of_chat, row.name) == sample(row)


@pytest.mark.parametrize("row", SETTING_ROWS)
def test_a_setting_has_a_sentence_a_flag_and_a_default_that_is_taken(row: Option) -> None:
    assert row.help.endswith(".")
    assert row.flag == f"--{row.name.replace('_', '-')}"
    assert not row.choices or row.default in row.choices
    text = format_value(row.default)
    assert parse_setting(row.name, text) == row.default or not text
    assert environment_variable(row.name).isupper()
    assert not row.plan_field or hasattr(PlanRequest(), row.plan_field)


def test_a_flag_may_come_again_and_joined_to_its_value() -> None:
    table = SETTINGS.values()
    assert parse_flags(table, ["-mguide", "--rpc", "a:1", "--rpc=b:2"]) == {"model": "guide", "rpc": "a:1,b:2"}
    assert parse_flags(table, ["--lora", "a", "--lora", "-b", "--gpu", "--no-gpu"]) == {
        "lora": ("a", "-b"),
        "gpu": False,
    }
    assert parse_flags(table, []) == {}
    for words in (["--gpu=true"], ["--lora"], ["run"], ["--", "x"], ["--no-ctx", "1"], ["-x"]):
        assert parse_flags(table, words) is None


def test_a_command_line_has_only_what_differs_and_options_in_one_word() -> None:
    options = QuantizeOptions(source="guide", projector="none", prune_layers=2, keep_split=True)
    words = ("quantize", "--json", "--prune-layers=2", "--projector=none", "--keep-split", "--", "guide")
    assert command_words(options) == words


def test_the_page_of_settings_is_made_from_the_table() -> None:
    page = Path(__file__).parents[3] / "assets" / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == settings_page(), (
        "run: python -m app.options.docs > assets/docs/settings.md"
    )
