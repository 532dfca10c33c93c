"""Which variables of the environment the programs that localllm starts for a chat get: commands of models, commands
that the person types as `!command`, and servers of `mcp.json`.

Owns the list of names. What is on it is needed to find programs, folders, the display, the network and the language;
everything else stays here, whatever it is called, for nobody can list the names of all secrets. A person adds names by
the setting `command_variables`, and to an MCP server by its `env`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

SETTING = "command_variables"
# Every program: who and where, languages, temporary files, the terminal, certificates and proxies.
_USUAL = """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE LC_* TZ TZDIR TMPDIR TMP TEMP TERM TERMINFO TERMINFO_DIRS
    XDG_CACHE_HOME XDG_CONFIG_DIRS XDG_CONFIG_HOME XDG_DATA_DIRS XDG_DATA_HOME XDG_RUNTIME_DIR XDG_STATE_HOME
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS GIT_SSL_CAINFO NIX_SSL_CERT_FILE
"""
_USUAL_OF = {
    "win32": """
        ALLUSERSPROFILE APPDATA COMMONPROGRAMFILES COMMONPROGRAMFILES(X86) COMMONPROGRAMW6432 COMPUTERNAME COMSPEC
        HOMEDRIVE HOMEPATH LOCALAPPDATA NUMBER_OF_PROCESSORS OS PATHEXT PROCESSOR_ARCHITECTURE PROCESSOR_IDENTIFIER
        PROGRAMDATA PROGRAMFILES PROGRAMFILES(X86) PROGRAMW6432 PSMODULEPATH PUBLIC SYSTEMDRIVE SYSTEMROOT USERDOMAIN
        USERNAME USERPROFILE WINDIR
    """,
    "darwin": "__CF_USER_TEXT_ENCODING",
}
# Commands besides: where toolchains and their parts are, how they build, the display, and the agent of SSH.
_OF_COMMANDS = """
    VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_EXE CONDA_ROOT MAMBA_EXE MAMBA_ROOT_PREFIX PYENV_ROOT
    PYENV_VERSION PYENV_VIRTUAL_ENV PYTHONPATH PYTHONHOME PYTHONUTF8 PYTHONIOENCODING PYTHONUNBUFFERED
    PYTHONDONTWRITEBYTECODE PYTHONSAFEPATH PIPX_HOME PIPX_BIN_DIR UV_CACHE_DIR UV_PYTHON UV_PROJECT_ENVIRONMENT
    POETRY_HOME TOKENIZERS_PARALLELISM
    NODE_PATH NODE_ENV NVM_DIR NVM_BIN NVM_INC FNM_DIR FNM_MULTISHELL_PATH VOLTA_HOME PNPM_HOME BUN_INSTALL DENO_DIR
    GOPATH GOROOT GOBIN GOCACHE GOMODCACHE GOOS GOARCH CGO_ENABLED CARGO_HOME CARGO_TARGET_DIR RUSTUP_HOME
    RUSTUP_TOOLCHAIN RUSTFLAGS RUST_BACKTRACE JAVA_HOME JDK_HOME M2_HOME MAVEN_HOME GRADLE_HOME GRADLE_USER_HOME
    SDKMAN_DIR ANDROID_HOME ANDROID_SDK_ROOT ANDROID_NDK_HOME FLUTTER_ROOT GEM_HOME GEM_PATH BUNDLE_PATH RBENV_ROOT
    RBENV_VERSION rvm_path PERL5LIB OPAM_SWITCH_PREFIX OCAMLPATH CAML_LD_LIBRARY_PATH GHCUP_INSTALL_BASE_PREFIX
    DOTNET_ROOT DOTNET_CLI_HOME NUGET_PACKAGES COMPOSER_HOME MIX_HOME HEX_HOME ASDF_DIR ASDF_DATA_DIR MISE_DATA_DIR
    HOMEBREW_PREFIX HOMEBREW_CELLAR HOMEBREW_REPOSITORY NIX_PATH NIX_PROFILES NIX_STORE GUIX_PROFILE
    CC CXX CPP LD AR CFLAGS CXXFLAGS CPPFLAGS LDFLAGS CMAKE_PREFIX_PATH CMAKE_GENERATOR
    CMAKE_BUILD_PARALLEL_LEVEL PKG_CONFIG_PATH LD_LIBRARY_PATH LIBRARY_PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH
    CCACHE_DIR CUDA_HOME CUDA_PATH CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ROCM_PATH
    OMP_NUM_THREADS HF_HOME MANPATH INFOPATH
    DISPLAY WAYLAND_DISPLAY XAUTHORITY XDG_SESSION_TYPE XDG_CURRENT_DESKTOP SSH_AUTH_SOCK CI
    LOCALLLM_DATA_DIR LOCALLLM_CACHE_DIR LOCALLLM_CONFIG LOCALLLM_HOST LOCALLLM_PORT
"""
_OF_COMMANDS_OF = {
    "win32": """
        CHOCOLATEYINSTALL SCOOP INCLUDE LIB LIBPATH VCINSTALLDIR VCTOOLSINSTALLDIR VSINSTALLDIR VSCMD_VER
        WINDOWSSDKDIR WINDOWSSDKVERSION MSYSTEM MINGW_PREFIX
    """,
    "darwin": "DEVELOPER_DIR SDKROOT MACOSX_DEPLOYMENT_TARGET DYLD_LIBRARY_PATH DYLD_FRAMEWORK_PATH DYLD_FALLBACK_*",
    "linux": "WSL_DISTRO_NAME WSL_INTEROP WSLENV",
}
# The second line: what is on the list may hold a secret all the same, such as the password of a proxy.
_SECRET_VALUES = re.compile(
    r"://[^/\s?#]*@"  # an address with a user, a password or a token
    r"|^(?:sk-|[sr]k_(?:live|test)_|gh[oprsu]_|github_pat_|hf_|glpat-|npm_|pypi-|dop_v1_|xox[abeoprs]-|shpat_|SG\."
    r"|AKIA|ASIA|AIza|ya29\.|eyJ[A-Za-z0-9_-]{6,}\.)[A-Za-z0-9_.-]{8}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_OF_SHELLS = frozenset({"_", "PWD", "OLDPWD", "SHLVL"})  # each shell sets them itself
# Nobody turns pages or types a password, and control sequences are not shown.
UNATTENDED: Mapping[str, str] = MappingProxyType(
    {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "TERM": "dumb", "NO_COLOR": "1"}
)


@dataclass(frozen=True, slots=True)
class CommandEnvironment:
    """The variables that a command gets. `added` are those of them that only the person's setting lets through,
    `withheld` the names of those that it does not get; both are sorted."""

    variables: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()

    def withheld_in(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Return the names that are withheld and that `texts`, a command, name: it may miss them."""
        words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", " ".join(texts)))
        return tuple(name for name in self.withheld if name in words)


def command_environment(
    environment: Mapping[str, str], added: Sequence[str] = (), platform: str = sys.platform
) -> CommandEnvironment:
    """Return what of `environment` a command gets: the names on the list, unless their value looks like a secret, and
    those that `added` names; `NAME*` are all that begin so."""
    usual = _names(_USUAL, _USUAL_OF.get(platform, ""), _OF_COMMANDS, _OF_COMMANDS_OF.get(platform, ""))
    by_setting = {name for name in environment if _is_named(name, added, platform)}
    by_list = {
        name for name, value in environment.items() if _is_named(name, usual, platform) and not _is_secret(value)
    }
    passed = {name: value for name, value in environment.items() if name in by_setting | by_list}
    return CommandEnvironment(
        {**passed, **UNATTENDED},
        tuple(sorted(by_setting - by_list)),
        tuple(sorted(set(environment) - set(passed) - set(UNATTENDED) - _OF_SHELLS)),
    )


def server_environment(environment: Mapping[str, str], platform: str = sys.platform) -> dict[str, str]:
    """Return what of `environment` an MCP server gets beside the variables of its entry."""
    usual = _names(_USUAL, _USUAL_OF.get(platform, ""))
    return {
        name: value for name, value in environment.items() if _is_named(name, usual, platform) and not _is_secret(value)
    }


def _names(*tables: str) -> list[str]:
    return [name for table in tables for name in table.split()]


def _is_named(name: str, names: Iterable[str], platform: str) -> bool:
    """Return whether `names` has `name`; Windows takes variables in any case."""
    is_windows = platform == "win32"
    sought = name.upper() if is_windows else name
    for each in names:
        pattern = each.upper() if is_windows else each
        if sought == pattern or (pattern.endswith("*") and sought.startswith(pattern[:-1])):
            return True
    return False


def _is_secret(value: str) -> bool:
    # bash exports functions as values that begin so: code for each shell that is started
    return value.startswith("()") or _SECRET_VALUES.search(value) is not None
