from __future__ import annotations

import hmac
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.keys import ALL_SCOPES, KeyFile, KeyScope, key_file, lmstudio_token, own_key, owner_of
from app.settings.settings import Settings
from quantizer.system.errors import StorageError, UsageError

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a user's folder from others by itself")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "keys.json"


def test_a_key_is_found_again_by_whoever_reads_the_file_with_what_it_may_do(path: Path) -> None:
    made = KeyFile(path).add("laptop", [KeyScope.INFER])
    assert KeyFile(path).known() == (made,)
    assert KeyFile(path).scopes_of(made.secret) == {KeyScope.INFER}
    assert len(made.secret) > 40


def test_no_two_keys_are_alike(path: Path) -> None:
    keys = KeyFile(path)
    assert len({keys.add(str(number), ALL_SCOPES).secret for number in range(20)}) == 20


@given(st.text(max_size=60))
def test_what_is_no_key_may_do_nothing(guess: str) -> None:
    assert KeyFile(Path("nowhere")).scopes_of(guess) == frozenset()


@pytest.mark.parametrize("guess", ["", "llm-", "right to its last", "é" * 40])
def test_a_guess_takes_as_long_whatever_it_begins_with(path: Path, monkeypatch: pytest.MonkeyPatch, guess: str) -> None:
    """Every key is compared, and by nothing but the function that takes the same time for all bytes."""
    made = [KeyFile(path).add(name, ALL_SCOPES).secret for name in ("laptop", "phone")]
    compared: list[bytes] = []

    def compare(given: bytes, wanted: bytes) -> bool:
        compared.append(wanted)
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    guess = made[0][:-1] + "\0" if guess == "right to its last" else guess
    for tried in (guess, *made):
        compared.clear()
        assert KeyFile(path).scopes_of(tried) == frozenset()
        assert compared == [secret.encode() for secret in made]


@POSIX
def test_nobody_else_can_read_the_file(path: Path) -> None:
    before = os.umask(0)
    try:
        KeyFile(path).add("laptop", ALL_SCOPES)
        KeyFile(path).add("phone", ALL_SCOPES)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@POSIX
def test_a_file_that_others_can_read_is_refused(path: Path) -> None:
    KeyFile(path).add("laptop", ALL_SCOPES)
    path.chmod(0o644)
    with pytest.raises(StorageError, match="chmod 600"):
        KeyFile(path).known()


def test_a_name_is_given_once(path: Path) -> None:
    keys = KeyFile(path)
    keys.add("laptop", ALL_SCOPES)
    with pytest.raises(UsageError, match="laptop"):
        keys.add("laptop", ALL_SCOPES)
    keys.remove("laptop")
    with pytest.raises(UsageError, match="no key 'laptop'"):
        keys.remove("laptop")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"keys": [{}]}', '{"keys": [{"name": "x", "key": "", "scopes": [], "made_s": 1}]}', "\0"]
)
def test_a_damaged_file_is_an_error_and_left_as_it_is(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(StorageError, match="damaged"):
        KeyFile(path).add("laptop", ALL_SCOPES)
    assert path.read_text() == text


def test_the_first_key_that_may_do_everything_is_made_once_whoever_asks_first(path: Path) -> None:
    KeyFile(path).add("first", [KeyScope.INFER])
    with ThreadPoolExecutor() as threads:
        secrets = {key.secret for key in threads.map(lambda _: KeyFile(path).first("first"), range(8))}
    assert len(secrets) == 1
    assert [key.scopes for key in KeyFile(path).known()] == [{KeyScope.INFER}, ALL_SCOPES]


def test_many_who_make_keys_at_once_lose_none(path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda number: KeyFile(path).add(str(number), ALL_SCOPES), range(12)))
    assert len(KeyFile(path).known()) == 12


def test_a_client_sends_the_key_that_its_service_needs(tmp_path: Path) -> None:
    here, beyond = Settings(data_dir=tmp_path), Settings(data_dir=tmp_path, host="192.0.2.1")
    assert own_key(beyond) == ""
    key_file(here).add("phone", [KeyScope.INFER])
    first = key_file(here).first("first")
    assert (own_key(here), own_key(beyond)) == ("", first.secret)
    assert own_key(Settings(data_dir=tmp_path, api_key="sesame")) == "sesame"


@given(st.text(st.characters(max_codepoint=255), min_size=1), st.text(st.characters(max_codepoint=255), min_size=1))
def test_both_forms_of_a_key_are_one_owners_and_other_keys_are_others(secret: str, other: str) -> None:
    assert owner_of(secret) == owner_of(lmstudio_token(secret))
    assert (owner_of(secret) == owner_of(other)) == (other in {secret, lmstudio_token(secret)})
