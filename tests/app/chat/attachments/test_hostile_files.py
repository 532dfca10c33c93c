"""Files that are made to harm end in a sentence, whoever attaches them goes on, and nothing outside them is read."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from PIL import Image

from app.chat.attachments import parser_process
from app.chat.attachments.kinds import WEB_PAGE
from app.chat.attachments.parser_process import ReadBudget, parse
from app.chat.attachments.parsing import ALL_PAGES, PageChoice
from app.chat.attachments.reader import read_data
from quantizer.system.errors import UsageError
from tests.app.chat.attachments.files import pdf_of, picture_of
from tests.app.chat.attachments.hostile_files import (
    docx_with,
    flate_pdf,
    locked_pdf,
    looping_pdf,
    nested_forms_pdf,
    picture_that_declares,
    repeated_page_pdf,
)
from tests.app.child_processes import children_that_run
from tests.patience import PATIENCE_S


def _paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


_LAUGHS = (
    '<!DOCTYPE l [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + level)} "{f"&{chr(97 + level)};" * 10}">' for level in range(9))
    + "]>"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        pytest.param(name, data, words, id=id_)
        for id_, name, data, words in (
            ("100,000 squared", "a.png", picture_that_declares(100_000, 100_000), "has 100,000 × 100,000 pixels"),
            ("2 Gi squared", "a.png", picture_that_declares(2**31 - 1, 2**31 - 1), "2,147,483,647"),
            ("a line", "a.png", picture_that_declares(50_000, 10), "is too narrow"),
            ("no pixels", "a.png", picture_that_declares(0, 5), "is damaged"),
            ("truncated", "a.png", picture_of((640, 480))[:300], "is damaged: image file is truncated"),
            ("pages in themselves", "a.pdf", looping_pdf(), "is damaged"),
            ("password", "a.pdf", locked_pdf(), "is protected by a password. Save it without one"),
            ("page as thin as a line", "a.pdf", pdf_of([""], size=(1_000_000, 1)), "no usable size"),
            ("nothing after its mark", "a.pdf", b"%PDF-1.7\n", "is damaged"),
            ("ZIP bomb", "a.docx", docx_with("<w:p/>" * 3_000_000), "would unpack to more than 32 MiB"),
            ("billion laughs", "a.docx", docx_with(_paragraph("&j;"), _LAUGHS), "is damaged: limit on input"),
            (
                "deep XML",
                "a.docx",
                docx_with("<w:sdt><w:sdtContent>" * 9_000 + "</w:sdtContent></w:sdt>" * 9_000),
                "deep",
            ),
            ("deep HTML", "a.html", b"<div>" * 20_000 + b"x", "is nested too deep"),
            ("deep JSON", "a.ipynb", b"[" * 200_000, "is nested too deep"),
            ("a long number", "a.ipynb", b'{"cells": ' + b"9" * 10_000 + b"}", "is no notebook"),
            ("a long table", "a.csv", b"a,b\n" * 900_000, "has more than 4,194,304 characters"),
            ("a wide table", "a.csv", b",".join([b"x"] * 2_000), "has 2,000 columns"),
        )
    ],
)
def test_a_file_that_is_made_to_harm_ends_in_a_sentence(name: str, data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=rf"^{name} .*{words}"):
        read_data(data, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"<div>" * 20_000 + b"x", "is nested too deep", id="deep"),
        pytest.param(b"<!--" * 100_000, "takes too long to read", id="comments"),
        pytest.param(b"", "has no text", id="nothing"),
    ],
)
def test_a_page_of_the_web_that_is_made_to_harm_ends_in_a_sentence(data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=f"^page {words}"):
        parse(data, WEB_PAGE, "page", ALL_PAGES)


@pytest.mark.slow
def test_a_page_of_the_web_reads_no_other_file() -> None:
    page = b'<!DOCTYPE html [<!ENTITY a SYSTEM "file:///etc/passwd">]><html><body><p>Soup &a; is hot.</p></html>'
    assert "root:" not in parse(page, WEB_PAGE, "page", ALL_PAGES).text


@pytest.mark.slow
def test_a_document_reads_no_other_file() -> None:
    prologue = '<!DOCTYPE l [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    read = read_data(docx_with(_paragraph("Soup&a;"), prologue), "a.docx")
    assert read.attachment.content == "Soup"


def test_scripts_in_a_document_do_not_run() -> None:
    script = "/OpenAction << /S /JavaScript /JS (while(true){}) >>"
    assert read_data(pdf_of(["Soup"], catalog=script), "a.pdf").attachment.content == "[Page 1]\n\nSoup"


def test_of_ten_thousand_frames_one_is_read() -> None:
    frame, end = _gif_frame(), b";"
    head = _gif()[: -len(frame) - 1]
    read = read_data(head + frame * 10_000 + end, "a.gif")
    assert "20 × 10, its first frame" in read.attachment.label


def _gif() -> bytes:
    written = io.BytesIO()
    Image.new("L", (20, 10), 7).save(written, "GIF")
    return written.getvalue()


def _gif_frame() -> bytes:
    data = _gif()
    return data[data.index(b",\0\0\0\0") : -1]


def test_a_file_of_two_kinds_is_what_it_begins_as() -> None:
    read = read_data(picture_of() + pdf_of(["Soup"]), "a.pdf")
    assert (read.attachment.media_type, read.attachment.content) == ("image/png", "")


@pytest.mark.slow
def test_a_page_larger_than_a_wall_becomes_a_picture_of_the_usual_size() -> None:
    read = read_data(pdf_of(["x"], size=(14_400, 14_400)), "a.pdf", PageChoice(as_pictures=True))
    (picture,) = read.contents.values()
    with Image.open(io.BytesIO(picture)) as image:
        assert image.size == (1568, 1568)


@pytest.mark.slow
def test_a_document_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_process, "TIMEOUT_S", 0.3)
    with pytest.raises(UsageError, match=r"^a\.pdf takes too long to read\."):
        read_data(nested_forms_pdf(10, 10), "a.pdf", PageChoice(as_pictures=True))


@pytest.mark.slow
def test_a_document_that_needs_too_much_memory_is_given_up() -> None:
    with pytest.raises(UsageError, match=r"^a\.pdf (needs too much memory|takes too long|cannot be read)"):
        read_data(flate_pdf(3 << 10), "a.pdf")


HEAVY = repeated_page_pdf(4_999, 5_000)  # a fifth of a second a page: never too long between two of them


@pytest.mark.slow
def test_pages_that_are_cheap_one_by_one_are_given_up_in_all() -> None:
    assert len(HEAVY) < 40_000
    budget = ReadBudget(1.0)
    with pytest.raises(UsageError, match=r"^a\.pdf takes too long to read\."):
        read_data(HEAVY, "a.pdf", ALL_PAGES, budget)
    assert budget.left_s < 0.5
    with pytest.raises(UsageError, match="takes too long"):  # what is left is for all files of the request
        read_data(HEAVY, "b.pdf", ALL_PAGES, budget)


@pytest.mark.slow
def test_a_long_honest_document_is_read() -> None:
    budget = ReadBudget()
    text = read_data(pdf_of(["Whales are mammals."] * 2_000), "a.pdf", ALL_PAGES, budget).attachment.content
    assert text.count("Whales") == 2_000
    assert 0.0 < budget.left_s < parser_process.TOTAL_S


@pytest.mark.slow
def test_pictures_that_are_too_large_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = pdf_of(["Whales"] * 3)
    assert len(read_data(pages, "a.pdf", PageChoice(as_pictures=True)).attachment.media) == 3
    monkeypatch.setattr(parser_process, "_MAX_PICTURES_BYTES", 100)
    with pytest.raises(UsageError, match="cannot be read"):
        read_data(pages, "a.pdf", PageChoice(as_pictures=True))


_PARSER = "app.chat.attachments.parse"


def _wait_for_a_parser(process: psutil.Process) -> psutil.Process:
    for _ in range(600):
        if found := children_that_run(_PARSER, process):
            return found[0]
        time.sleep(0.05)
    raise AssertionError("no parser was started")


@pytest.mark.parametrize("is_stopped_first", [False, True])
def test_a_reader_ends_when_nobody_waits_for_it(is_stopped_first: bool) -> None:
    budget, errors = ReadBudget(1e9), list[Exception]()
    if is_stopped_first:
        budget.stop()

    def read() -> None:
        try:
            read_data(HEAVY, "a.pdf", ALL_PAGES, budget)
        except UsageError as error:
            errors.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    if not is_stopped_first:
        parser = _wait_for_a_parser(psutil.Process())
        budget.stop()
        parser.wait(PATIENCE_S)
    reading.join(PATIENCE_S)
    assert not reading.is_alive()
    assert len(errors) == 1
    assert children_that_run(_PARSER) == []


@pytest.mark.slow
def test_a_reader_ends_with_the_process_that_started_it() -> None:
    program = (
        "from tests.app.chat.attachments.test_hostile_files import HEAVY\n"
        "from app.chat.attachments.parser_process import ReadBudget\n"
        "from app.chat.attachments.parsing import ALL_PAGES\n"
        "from app.chat.attachments.reader import read_data\n"
        "read_data(HEAVY, 'a.pdf', ALL_PAGES, ReadBudget(1e9))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=Path.cwd()) as parent:
        parser = _wait_for_a_parser(psutil.Process(parent.pid))
        while parser.cpu_times().user < 1.0:  # it reads by now
            time.sleep(0.05)
        parent.kill()
        parent.wait()
    gone, _ = psutil.wait_procs([parser], timeout=PATIENCE_S)
    assert gone == [parser]
