"""Which variables of the person's environment a command gets."""

from __future__ import annotations

import pytest

from app.tools.builtin.environment import command_environment, removed_names


@pytest.mark.parametrize(
    "name",
    [
        *("LOCALLLM_API_KEY", "HF_TOKEN", "OPENAI_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "my_token"),
        *("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "PGPASSWORD", "DB_PASS", "GITHUB_PAT", "CLIENT_SECRETS", "APIKEY"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "SENTRY_DSN", "NPM_AUTH", "SSH_KEY_PASSPHRASE", "SOME_APITOKEN"),
    ],
)
def test_secrets_are_left_out(name: str) -> None:
    assert name not in command_environment({name: "x"})
    assert removed_names({name: "x"}) == (name,)


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "LANG", "TOKENIZERS_PARALLELISM", "SSH_AUTH_SOCK", "KEYBOARD", "LS_COLORS", "XAUTHORITY"),
        *("SECURITYSESSIONID", "GNOME_KEYRING_CONTROL", "SUDO_ASKPASS", "COMPASS_HOME", "LOCALLLM_DATA_DIR", "MONKEY"),
    ],
)
def test_other_variables_stay(name: str) -> None:
    assert command_environment({name: "x"})[name] == "x"


@pytest.mark.parametrize(
    "value",
    [
        "postgres://me:hunter2@db.example/app",
        "http://user:pw@proxy.example:3128",
        "sk-abcdefghijklmnop",
        "ghp_0123456789abcdef",
        "hf_abcdefghijklmnop",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nabc",
    ],
)
def test_values_that_look_like_secrets_are_left_out_whatever_their_name(value: str) -> None:
    assert removed_names({"HARMLESS": value, "OTHER": "http://proxy.example:3128"}) == ("HARMLESS",)


def test_nothing_waits_for_a_key_or_colours_its_output() -> None:
    made = command_environment({"PAGER": "less", "TERM": "xterm-256color"})
    assert (made["PAGER"], made["TERM"], made["GIT_TERMINAL_PROMPT"]) == ("cat", "dumb", "0")
