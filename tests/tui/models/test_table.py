"""The table of the models screen, without a screen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.terminal import printable_line
from app.protocol.library import LocalModel, ModelFit
from tests.tui.model_scenes import GUIDE
from tui.models.rows import local_rows
from tui.models.table import columns, headings, row_line


def _row(**changes):
    (row,), _ = local_rows([replace(GUIDE, **changes)], used={"guide": "2 min"}, default="guide")
    return row


@given(name=st.text(), damaged=st.sampled_from(["", "not a GGUF: " + "the header is cut off, " * 20]),
       width=st.integers(51, 200))  # fmt: skip
def test_no_row_is_wider_than_its_list_and_none_obeys_a_terminal(name, damaged, width):
    (row,), _ = local_rows([replace(GUIDE, id=name, damaged=damaged)])
    line = row_line(row, columns(width, 200))
    assert line.cell_length <= width
    assert printable_line(line.plain.strip()) == " ".join(line.plain.split())


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (120, ["type", "size", "context", "fits", "writes", "used"]),
        (75, ["type", "size", "context", "fits", "writes"]),
        (60, ["type", "size", "fits"]),
        (40, ["size"]),
    ],
)
def test_a_narrow_list_gives_up_what_matters_least(width, shown):
    assert headings("", columns(width, 20)).plain.split() == shown


@pytest.mark.parametrize("width", [100, 140, 200])
def test_a_name_is_whole_where_there_is_room_for_it(width):
    name = "granite-embedding-107m-multilingual"
    assert name in row_line(_row(id=name), columns(width, len(name))).plain


def test_a_row_says_in_words_and_in_colour_whether_it_fits_how_fast_it_is_and_when_it_was_used():
    line = row_line(_row(), columns(140, 5))
    assert line.plain.split() == [
        "▶",
        "guide",
        "Q8_0",
        "5.5",
        "MB",
        "2k",
        "●",
        "yes",
        "812",
        "tok/s",
        "2",
        "min",
        "default",
    ]
    assert "$text-success" in [str(span.style) for span in line.spans]


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (None, "… …"),
        (ModelFit("fits", 30.0, 1, 0.3), "● yes ~30 tok/s"),
        (ModelFit("fits", 37.0, 1, 0.3, measured_tps=81.0), "● yes 81 tok/s"),
        (ModelFit("tight", 4.2, 1), "▲ tight 4.2 tok/s"),
        (ModelFit("partial", None, 1), "▲ partly"),
        (ModelFit("wont_run", None, 1), "✕ no"),
    ],
)
def test_a_fit_has_a_sign_a_word_and_a_speed_and_one_that_is_computed_says_so(fit, words):
    line = " ".join(row_line(_row(fit=fit), columns(140, 5)).plain.split())
    assert f" 2k {words} 2 min" in line


def test_an_error_takes_one_line_and_stays_in_it():
    damaged = "model.gguf is damaged: the tensor token_embd.weight ends behind the end of the file. Download it again."
    line = row_line(_row(damaged=damaged), columns(75, 20))
    assert line.plain.rstrip().endswith("…")
    assert "✕ model.gguf is damaged" in line.plain


@pytest.mark.parametrize(
    ("architecture", "role"),
    [
        ("llama", "chat"),
        ("bert", "embedding"),
        ("nomic-bert-moe", "embedding"),
        ("gemma-embedding", "embedding"),
        ("eagle3", "draft"),
    ],
)
def test_a_model_has_a_role_that_a_search_finds(architecture, role):
    model = LocalModel(id="m", where="library", path="/m.gguf", n_bytes=1, architecture=architecture)
    assert [row.role for row in local_rows([model], role)[0]] == [role]
