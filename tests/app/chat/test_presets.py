"""Presets: kept, read again, written by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.chat.conversation import ChatSettings
from app.chat.presets import MAX_PROMPT_BYTES, Presets, PromptLibrary, shipped_presets, shipped_prompts
from app.chat.sampling_options import valid_options
from app.chat.store.database import storable
from quantizer.system.errors import StorageError, UsageError

PRECISE = ChatSettings(system='Say "yes"\nor no.', options={"temperature": 0.0, "top_k": 1})


def test_no_file_is_no_preset(tmp_path: Path) -> None:
    assert Presets(tmp_path).all() == {}
    with pytest.raises(UsageError, match=r"no preset none.*precise.*/options"):
        Presets(tmp_path).get("none")


def test_the_presets_that_ship_are_valid_and_give_way_to_a_namesake(tmp_path: Path) -> None:
    shipped = shipped_presets()
    assert list(shipped) == ["precise", "balanced", "creative", "brief"]
    assert all(valid_options(each.options) == each.options for each in shipped.values())
    assert Presets(tmp_path).get("precise").options == {"temperature": 0.2}
    Presets(tmp_path).save("precise", PRECISE)
    assert Presets(tmp_path).get("precise") == PRECISE
    assert "creative" not in (tmp_path / "presets.toml").read_text()


def test_the_prompts_that_ship_have_variables_and_give_way_to_a_namesake(tmp_path: Path) -> None:
    shipped = shipped_prompts()
    assert {"explain", "translate", "proofread", "review-code", "summarise", "commit-message"} <= set(shipped)
    assert all("{{" in text and "}}" in text for text in shipped.values())
    assert PromptLibrary(tmp_path).get("translate") == shipped["translate"]
    assert PromptLibrary(tmp_path).get("tra") == shipped["translate"]
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "example.md").write_text("text")
    with pytest.raises(UsageError, match="no prompt e"):  # the beginning of more than one
        PromptLibrary(tmp_path).get("e")
    (tmp_path / "prompts" / "translate.md").write_text("To Latin: {{text}}")
    assert PromptLibrary(tmp_path).get("translate") == "To Latin: {{text}}"


def test_a_file_that_vanishes_before_it_is_read_is_no_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert Presets(tmp_path).all() == {}


def test_what_is_saved_is_there_beside_what_was_and_replaces_its_namesake(tmp_path: Path) -> None:
    Presets(tmp_path / "new").save("wild", ChatSettings(options={"temperature": 2}))
    Presets(tmp_path / "new").save(" precise ", PRECISE)
    Presets(tmp_path / "new").save("wild", ChatSettings(options={"temperature": 1.5}))
    assert Presets(tmp_path / "new").all() == {"wild": ChatSettings(options={"temperature": 1.5}), "precise": PRECISE}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["presets.toml"]


def test_a_preset_may_be_written_by_hand(tmp_path: Path) -> None:
    (tmp_path / "presets.toml").write_text('[mine]  # a comment\nsystem = "Be brief."\nmin_p = 0.05\nseed = 3\n')
    assert Presets(tmp_path).get("mine") == ChatSettings("Be brief.", {"min_p": 0.05, "seed": 3})
    with pytest.raises(UsageError, match="Presets: mine"):
        Presets(tmp_path).get("yours")


@pytest.mark.parametrize(
    "text",
    ["[a", "a = 1", "[a]\ntop_p = 2", "[a]\ntop_k = true", "[a]\nfoo = 1", "[a]\nsystem = 1", "[a]\nseed = 1979-05-27"],
)
def test_a_file_that_will_not_do_is_refused_and_not_overwritten(tmp_path: Path, text: str) -> None:
    file = tmp_path / "presets.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"presets\.toml"):
        Presets(tmp_path).save("b", PRECISE)
    assert file.read_text() == text


def test_a_nameless_preset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a name"):
        Presets(tmp_path).save(" ", PRECISE)


def test_a_failing_disk_raises(tmp_path: Path) -> None:
    (tmp_path / "presets.toml").mkdir()
    with pytest.raises(StorageError, match="cannot be read"):
        Presets(tmp_path).all()


def test_a_folder_that_cannot_be_created_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StorageError, match="cannot be written: Permission denied"):
        Presets(tmp_path / "data").save("a", PRECISE)


@pytest.mark.slow
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(min_size=1).filter(str.strip), system=st.text(), temperature=st.floats(0, 100))
def test_any_name_and_text_come_back(tmp_path: Path, name: str, system: str, temperature: float) -> None:
    kept = ChatSettings(system, {"temperature": temperature})
    Presets(tmp_path).save(name, kept)
    found = Presets(tmp_path).get(storable(name.strip()))
    assert found == ChatSettings(storable(system), {"temperature": temperature})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prompts").mkdir()
    return tmp_path / "prompts"


def test_text_files_are_prompts_by_their_name_without_the_ending(folder: Path) -> None:
    for name in ("summary.md", "code review.txt", ".hidden.md", "notes.pdf"):
        (folder / name).write_text(f"About {{{{topic}}}}: {name}\n")
    library = PromptLibrary(folder.parent)
    assert library.names() == ("code review", "summary")
    assert library.get("summary") == "About {{topic}}: summary.md"


def test_without_a_folder_there_are_no_prompts_and_the_refusal_says_where_to_write_one(tmp_path: Path) -> None:
    assert PromptLibrary(tmp_path).names() == ()
    with pytest.raises(UsageError, match=r"no prompt summary.*prompts"):
        PromptLibrary(tmp_path).get("summary")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sub/deep", "", "summary.md"])
def test_a_name_that_leads_elsewhere_is_unknown(folder: Path, name: str) -> None:
    (folder / "summary.md").write_text("text")
    (folder.parent / "secret.md").write_text("secret")
    with pytest.raises(UsageError, match="Prompts: summary"):
        PromptLibrary(folder.parent).get(name)


@pytest.mark.skipif(os.name == "nt", reason="needs FIFOs and links")
def test_a_fifo_or_a_link_is_no_prompt_and_never_opened(folder: Path) -> None:
    os.mkfifo(folder / "pipe.md")
    (folder / "link.md").symlink_to("/etc/hostname")
    (folder / "folder.md").mkdir()
    assert PromptLibrary(folder.parent).names() == ()


@pytest.mark.parametrize(
    ("data", "reason"), [(b"x" * (MAX_PROMPT_BYTES + 1), "larger than 64 KiB"), (b"caf\xe9", "not UTF-8: byte 3")]
)
def test_a_prompt_that_is_too_large_or_no_text_is_refused(folder: Path, data: bytes, reason: str) -> None:
    (folder / "bad.md").write_bytes(data)
    with pytest.raises(UsageError, match=reason):
        PromptLibrary(folder.parent).get("bad")


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("a file")
    with pytest.raises(StorageError, match="cannot be read"):
        PromptLibrary(tmp_path).names()
