"""Programs of a chat get the variables that they are known to need, and nothing else."""

from __future__ import annotations

import pytest

from app.settings.parsing import parse_variable_names
from app.tools.environment import UNATTENDED, command_environment, server_environment
from quantizer.system.errors import UsageError

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
# Split, so that no scanner of repositories takes them for real ones.
TOKENS = [
    "sk_" + "live_0123456789abcdef",
    "AI" + "zaSyA0123456789abcdef",
    "np" + "m_0123456789abcdef",
    "gh" + "p_0123456789",
]
SECRETS = [
    *("MYSQL_PWD", "SSHPASS", "AZURE_STORAGE_CONNECTION_STRING", "PASSWORD1", "COOKIES", "DB_PW", "DOCKER_AUTH_CONFIG"),
    *("LOCALLLM_API_KEY", "HF_TOKEN", "OPENAI_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *(
        "PGPASSWORD",
        "RESTIC_PASSWORD_COMMAND",
        "SENTRY_DSN",
        "NPM_CONFIG__AUTH",
        "VAULT_ADDR",
        "KUBECONFIG",
        "DATABASE_URL",
    ),
    *("X", "_", "NETRC", "TWILIO_SID", "LD_PRELOAD", "BASH_ENV", "PYTHONSTARTUP", "GIT_ASKPASS", "BASH_FUNC_x%%"),
]


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
@pytest.mark.parametrize("name", SECRETS)
def test_what_is_not_known_to_be_needed_stays_here(name: str, platform: str) -> None:
    environment = command_environment({name: "hunter2", "PATH": "/bin"}, (), platform)
    assert name not in environment.variables
    assert "hunter2" not in environment.variables.values()
    assert name in (*environment.withheld, "_")
    assert name not in server_environment({name: "hunter2"}, platform)


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        *((name, "linux") for name in ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "https_proxy")),
        *((name, "linux") for name in ("SSL_CERT_FILE", "XDG_CONFIG_HOME", "USER", "SHELL", "HTTPS_PROXY")),
        *(("HOME", "darwin"), ("TMPDIR", "darwin"), ("__CF_USER_TEXT_ENCODING", "darwin")),
        *((name, "win32") for name in ("Path", "SystemRoot", "PATHEXT", "UserProfile", "TEMP", "ProgramFiles(x86)")),
    ],
)
def test_every_program_gets_what_programs_need(name: str, platform: str) -> None:
    assert command_environment({name: "x"}, (), platform).variables[name] == "x"
    assert server_environment({name: "x"}, platform) == {name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        "VIRTUAL_ENV",
        "PYTHONPATH",
        "GOPATH",
        "CARGO_HOME",
        "JAVA_HOME",
        "NVM_DIR",
        "CC",
        "SSH_AUTH_SOCK",
        "LD_LIBRARY_PATH",
    ],
)
def test_commands_get_where_toolchains_are_and_servers_do_not(name: str) -> None:
    assert command_environment({name: "x"}, (), "linux").variables[name] == "x"
    assert server_environment({name: "x"}, "linux") == {}


@pytest.mark.parametrize(
    ("name", "platform"), [("path", "linux"), ("SYSTEMROOT", "linux"), ("DYLD_LIBRARY_PATH", "linux")]
)
def test_names_of_other_systems_and_in_another_case_are_not_passed(name: str, platform: str) -> None:
    assert name not in command_environment({name: "x"}, (), platform).variables


@pytest.mark.parametrize(
    "value",
    [
        *("http://user:pw@proxy.example:3128", "https://token@host", "socks5h://a:b@[::1]:1080", JWT, *TOKENS),
        *("-----BEGIN OPENSSH PRIVATE KEY-----\nabc", "() { curl evil; }"),
    ],
)
def test_a_secret_in_a_variable_that_is_known_stays_here_unless_the_person_names_it(value: str) -> None:
    environment = command_environment({"HTTPS_PROXY": value}, (), "linux")
    assert "HTTPS_PROXY" not in environment.variables
    assert environment.withheld == ("HTTPS_PROXY",)
    assert server_environment({"HTTPS_PROXY": value}, "linux") == {}
    added = command_environment({"HTTPS_PROXY": value}, ("HTTPS_PROXY",), "linux")
    assert (added.variables["HTTPS_PROXY"], added.added) == (value, ("HTTPS_PROXY",))


@pytest.mark.parametrize(
    "path",
    ["/home/me/.npm_packages/bin:/bin", "/opt/sk-learn-build/bin", "/data/hf_cache_models:/bin", "http://proxy:3128"],
)
def test_folders_whose_names_look_like_tokens_are_no_secrets(path: str) -> None:
    assert command_environment({"PATH": path}, (), "linux").variables["PATH"] == path


def test_the_setting_adds_names_and_beginnings_of_names() -> None:
    names = parse_variable_names(" AWS_PROFILE, MYAPP_*,AWS_PROFILE")
    assert names == ("AWS_PROFILE", "MYAPP_*")
    own = {
        "AWS_PROFILE": "work",
        "MYAPP_A": "1",
        "MYAPP_TOKEN": "2",
        "MYAP": "3",
        "AWS_SECRET_ACCESS_KEY": "4",
        "PATH": "/bin",
    }
    environment = command_environment(own, names, "linux")
    assert environment.added == ("AWS_PROFILE", "MYAPP_A", "MYAPP_TOKEN")
    assert environment.withheld == ("AWS_SECRET_ACCESS_KEY", "MYAP")
    assert command_environment({"Aws_Profile": "work"}, names, "win32").added == ("Aws_Profile",)


@pytest.mark.parametrize("text", ["*", "A=B", "A B", "$HOME", "A*B", "1A", "ü"])
def test_the_setting_takes_names_only(text: str) -> None:
    with pytest.raises(UsageError, match="not the name of a variable"):
        parse_variable_names(text)


def test_nothing_waits_for_a_key_or_colours_its_output() -> None:
    made = command_environment({"PAGER": "less", "TERM": "xterm-256color"}, ("PAGER", "TERM")).variables
    assert {name: made[name] for name in UNATTENDED} == dict(UNATTENDED)


def test_a_command_misses_only_what_it_names() -> None:
    environment = command_environment({"AWS_PROFILE": "a", "MYSQL_PWD": "b", "PWD": "/", "PATH": "/bin"}, (), "linux")
    assert environment.withheld_in(["sh", "-c", "echo ${AWS_PROFILE} $PWD $PATH"]) == ("AWS_PROFILE",)
    assert environment.withheld_in(["echo", "MY_AWS_PROFILE"]) == ()
