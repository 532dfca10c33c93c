from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.common import service_identity
from app.common.service_identity import ServiceIdentity, Statement, new_challenge
from app.settings.settings import Settings
from quantizer.system.errors import StorageError

ADDRESS = ("127.0.0.1", 11500)
SERVICE: Statement = "this is the service"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


def _accepts(client: ServiceIdentity, service: ServiceIdentity) -> bool:
    challenge = new_challenge()
    return client.is_proof(service.proof(SERVICE, challenge, ADDRESS), SERVICE, challenge, ADDRESS)


def test_processes_of_one_data_folder_recognise_each_other_whatever_else_they_are_set_to(settings: Settings) -> None:
    service = ServiceIdentity.create(settings)
    assert _accepts(ServiceIdentity(replace(settings, model="other", cache_dir=Path("elsewhere"))), service)
    assert _accepts(ServiceIdentity.create(settings), service), "the key is stored once"


def test_the_key_is_readable_by_its_owner_only(settings: Settings) -> None:
    ServiceIdentity.create(settings)
    assert (settings.data_dir / "service.key").stat().st_mode & 0o777 == 0o600
    assert settings.data_dir.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("statement", "change", "address"),
    [
        (SERVICE, lambda challenge: challenge, ("127.0.0.1", 11501)),
        (SERVICE, lambda challenge: challenge, ("127.0.0.2", 11500)),
        (SERVICE, lambda challenge: challenge, ("::1", 11500)),
        (SERVICE, lambda _: new_challenge(), ADDRESS),
        ("end the service", lambda challenge: challenge, ADDRESS),
    ],
)
def test_a_proof_is_good_for_one_challenge_one_address_and_one_statement(
    settings: Settings, statement: Statement, change: Callable[[str], str], address: tuple[str, int]
) -> None:
    service, challenge = ServiceIdentity.create(settings), new_challenge()
    proof = service.proof(SERVICE, challenge, ADDRESS)
    assert service.is_proof(proof, SERVICE, challenge, ADDRESS)
    assert not service.is_proof(proof, statement, change(challenge), address)


def test_an_address_of_ipv4_is_the_same_on_a_socket_of_ipv6(settings: Settings) -> None:
    service, challenge = ServiceIdentity.create(settings), new_challenge()
    proof = service.proof(SERVICE, challenge, ("::ffff:127.0.0.1", 11500))
    assert service.is_proof(proof, SERVICE, challenge, ADDRESS)


@pytest.mark.parametrize("given", [None, "", 7, "ä", [], "0" * 64])
def test_what_is_no_proof_is_refused_with_and_without_a_key(settings: Settings, given: object) -> None:
    identity = ServiceIdentity(settings)
    assert not identity.is_proof(given, SERVICE, new_challenge(), ADDRESS)
    ServiceIdentity.create(settings)
    assert not identity.is_proof(given, SERVICE, new_challenge(), ADDRESS)


def test_other_and_copied_data_folders_are_not_recognised(settings: Settings, tmp_path: Path) -> None:
    service = ServiceIdentity.create(settings)
    other = replace(settings, data_dir=tmp_path / "other")
    assert not _accepts(ServiceIdentity(other), service)
    assert not _accepts(ServiceIdentity.create(other), service)
    shutil.copytree(settings.data_dir, tmp_path / "copy")
    copied = ServiceIdentity.create(replace(settings, data_dir=tmp_path / "copy"))
    assert not _accepts(copied, service)
    (tmp_path / "link").symlink_to(settings.data_dir)
    assert _accepts(ServiceIdentity(replace(settings, data_dir=tmp_path / "link")), service)


def test_a_removed_key_is_replaced_for_all_processes(settings: Settings) -> None:
    service = ServiceIdentity.create(settings)
    (settings.data_dir / "service.key").unlink()
    client = ServiceIdentity(settings)
    assert not _accepts(client, service)
    second = ServiceIdentity.create(settings)
    assert _accepts(client, service)
    assert _accepts(client, second)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_that_others_could_read_is_not_used_but_replaced(settings: Settings, mode: int) -> None:
    before, path = ServiceIdentity.create(settings), settings.data_dir / "service.key"
    known = path.read_bytes()
    path.chmod(mode)
    assert not _accepts(before, before)
    assert _accepts(ServiceIdentity.create(settings), before)
    assert path.read_bytes() != known
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 33])
def test_a_damaged_key_is_replaced(settings: Settings, damage: bytes) -> None:
    ServiceIdentity.create(settings)
    (settings.data_dir / "service.key").write_bytes(damage)
    assert not _accepts(ServiceIdentity(settings), ServiceIdentity(settings))
    service = ServiceIdentity.create(settings)
    assert _accepts(ServiceIdentity(settings), service)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no user ids")
def test_the_key_of_another_user_is_neither_used_nor_replaced(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root meets it, who runs localllm with the home of another user."""
    theirs = ServiceIdentity.create(settings)
    stored = (settings.data_dir / "service.key").read_bytes()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    own = ServiceIdentity.create(settings)
    assert not _accepts(own, theirs)
    assert (settings.data_dir / "service.key").read_bytes() == stored


def test_a_data_folder_that_keeps_no_key_leaves_it_to_the_cache_folder(settings: Settings) -> None:
    settings.data_dir.write_text("no folder")
    service = ServiceIdentity.create(settings)
    assert not service.secret
    assert _accepts(ServiceIdentity(settings), service)


def test_where_no_key_can_be_kept_the_service_has_one_of_its_own(settings: Settings) -> None:
    for folder in (settings.data_dir, settings.cache_dir):
        folder.write_text("no folder")
    service = ServiceIdentity.create(settings)
    assert not _accepts(ServiceIdentity(settings), service)
    assert _accepts(ServiceIdentity(settings, service.secret), service)


def test_the_port_of_a_service_is_recorded_while_it_runs_and_only_where_it_is_another(settings: Settings) -> None:
    identity = ServiceIdentity.create(settings)
    with identity.recording(settings.port) as sentence:
        assert identity.recorded_port() == 0
        assert sentence == ""
    with identity.recording(40_123) as sentence:
        assert sentence == ""
        assert ServiceIdentity(settings).recorded_port() == 40_123
        assert ServiceIdentity(replace(settings, port=11_600)).recorded_port() == 0
    assert identity.recorded_port() == 0
    with ServiceIdentity(replace(settings, port=0)).recording(40_123) as sentence:
        assert sentence == ""
        assert ServiceIdentity(replace(settings, port=0)).recorded_port() == 0


@pytest.mark.parametrize("has_old_record", [False, True])
def test_a_port_that_no_folder_can_note_is_said_in_a_sentence_with_a_way_out(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, has_old_record: bool
) -> None:
    identity = ServiceIdentity.create(settings)
    if has_old_record:  # of a service that was killed
        identity.recording(40_122).__enter__()

    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(service_identity, "write_atomically", full)
    with identity.recording(40_123) as sentence:
        assert sentence.startswith("Other commands will not find the service at port 40123")
        assert f"{settings.data_dir} nor in {settings.cache_dir}" in sentence
        assert "set LOCALLLM_PORT=40123" in sentence


def test_a_service_that_ends_leaves_the_record_of_the_next_one(settings: Settings) -> None:
    identity = ServiceIdentity.create(settings)
    with identity.recording(40_124), identity.recording(40_123):
        pass
    with identity.recording(40_125):
        with identity.recording(40_126):
            first = identity.recorded_port()
        assert first == 40_126
    next_one = identity.recording(40_127)
    with identity.recording(40_126):
        next_one.__enter__()
    assert identity.recorded_port() == 40_127
    next_one.__exit__(None, None, None)
    assert identity.recorded_port() == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": "x"}', '{"port": 0}', '{"port": 70000}'])
def test_a_damaged_record_is_none(settings: Settings, text: str) -> None:
    identity = ServiceIdentity.create(settings)
    with identity.recording(40_123):
        (record,) = settings.data_dir.glob("service-*.json")
        assert json.loads(record.read_text()) == {"port": 40_123}
        record.write_text(text)
        assert identity.recorded_port() == 0


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_a_key_that_the_system_refuses_to_read_is_an_error_and_not_that_of_another_user(
    settings: Settings, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ServiceIdentity.create(settings)

    def refuses(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(service_identity, "open_regular", refuses)
    with pytest.raises(StorageError, match=r"service\.key cannot be read: "):
        ServiceIdentity(settings).proof("this is the service", new_challenge())
