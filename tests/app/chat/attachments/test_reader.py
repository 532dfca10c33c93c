"""Any file becomes an attachment, or is refused with a sentence."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from PIL import Image, ImageCms

from app.chat.attachments.parsing import PageChoice
from app.chat.attachments.reader import ReadAttachment, read_data, read_file
from app.chat.conversation import Attachment
from quantizer.system.errors import StorageError, UsageError
from tests.app.chat.attachments.files import docx_of, notebook_of, paragraph, pdf_of, picture_of, wav_of


def test_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("\ufeffSoup.\n", encoding="utf-8")
    assert read_file(tmp_path / "notes.md", "notes.md") == ReadAttachment(Attachment("notes.md", "Soup.\n"))


def test_a_picture_has_its_size_and_its_bytes(tmp_path: Path) -> None:
    data = picture_of((640, 480))
    (tmp_path / "photo.png").write_bytes(data)
    read = read_file(tmp_path / "photo.png", "photo.png")
    (file,) = read.attachment.media
    assert read.attachment.label == f"photo.png, 640 × 480, {len(data) / 1000:.0f} kB"
    assert (file.mime_type, file.n_bytes, file.sha256) == ("image/png", len(data), hashlib.sha256(data).hexdigest())
    assert read.contents == {file.sha256: data}
    assert read.attachment.content == ""


def test_a_picture_is_what_its_bytes_are_not_what_its_name_says() -> None:
    assert read_data(picture_of(format_="JPEG"), "photo.png").attachment.media[0].mime_type == "image/jpeg"


def test_a_picture_whose_metadata_alone_are_damaged_is_read_as_everywhere() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = bytearray(picture_of(icc_profile=profile))
    data[data.index(b"iCCP") + 20] ^= 1
    assert read_data(bytes(data), "photo.png").attachment.detail.startswith("64 × 48")


def test_a_picture_taken_upright_has_its_upright_size() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_data(picture_of((64, 48), "JPEG", exif=exif), "p.jpg").attachment.detail.startswith("48 × 64")


def test_of_a_moving_picture_the_first_frame_counts() -> None:
    written = io.BytesIO()
    frames = [Image.new("L", (20, 10), number) for number in range(3)]
    frames[0].save(written, "GIF", save_all=True, append_images=frames[1:])
    assert "20 × 10, its first frame" in read_data(written.getvalue(), "moving.gif").attachment.label


@pytest.mark.slow
def test_a_sound_has_its_length() -> None:
    read = read_data(wav_of(62.4), "talk.wav")
    assert read.attachment.label == "talk.wav, 1:02"
    assert read.attachment.media[0].is_sound


def test_a_pdf_is_text_with_the_numbers_of_its_pages() -> None:
    read = read_data(pdf_of(["Soup", "Water", "Salt"]), "paper.pdf")
    assert read.attachment == Attachment(
        "paper.pdf", "[Page 1]\n\nSoup\n\n[Page 2]\n\nWater\n\n[Page 3]\n\nSalt", "application/pdf", "3 pages"
    )


def test_pages_of_a_pdf_can_be_chosen() -> None:
    read = read_data(pdf_of(["Soup", "Water", "Salt"]), "paper.pdf", PageChoice(2, None))
    assert read.attachment.content == "[Page 2]\n\nWater\n\n[Page 3]\n\nSalt"
    assert read.attachment.label == "paper.pdf, pages 2–3 of 3"


@pytest.mark.slow
def test_pages_of_a_pdf_can_be_pictures() -> None:
    read = read_data(pdf_of(["Soup", "Water"]), "paper.pdf", PageChoice(2, 2, as_pictures=True))
    (file,) = read.attachment.media
    with Image.open(io.BytesIO(read.contents[file.sha256])) as picture:
        assert picture.size == (1212, 1568)  # a letter, scaled to the longest side
    assert (read.attachment.label, read.attachment.content) == ("paper.pdf, page 2 of 2", "")


@pytest.mark.slow
def test_a_scan_without_text_becomes_pictures() -> None:
    read = read_data(pdf_of(["", ""]), "scan.pdf")
    assert len(read.attachment.media) == 2
    assert read.attachment.content == ""


def test_of_a_long_scan_pages_have_to_be_chosen() -> None:
    with pytest.raises(UsageError, match=r"21 pictures, for its pages have no text.*#1-20,pictures"):
        read_data(pdf_of([""] * 21), "scan.pdf")


def test_a_page_that_a_pdf_lacks_is_named() -> None:
    with pytest.raises(UsageError, match="has 2 pages, not 7"):
        read_data(pdf_of(["a", "b"]), "paper.pdf", PageChoice(7, 7))


def test_a_word_document_is_markdown() -> None:
    read = read_data(docx_of(paragraph("Boil the water.") + paragraph("Add salt.")), "soup.docx")
    assert read.attachment.content == "Boil the water.\n\nAdd salt."
    assert read.attachment.media == ()


def test_an_html_page_is_markdown_without_its_scripts() -> None:
    page = b"<title>Soup</title><script>alert(1)</script><h2>How</h2><p>Boil <b>water</b>.<img src=x alt='a pot'></p>"
    assert read_data(page, "soup.html").attachment.content == "# Soup\n\n## How\n\nBoil **water**.a pot"


@pytest.mark.slow
def test_a_table_is_markdown_whatever_separates_its_cells() -> None:
    for data in (b'a,b\n1,"x|y"\n', b"a;b\n1;x|y\n", "a\tb\n1\tx|y\n".encode("utf-16")):
        read = read_data(data, "t.csv")
        assert read.attachment.content == "| a | b |\n| --- | --- |\n| 1 | x\\|y |"
        assert read.attachment.label == "t.csv, 1 row, 2 columns"


def test_a_notebook_is_text_code_and_what_it_printed() -> None:
    cells = (
        {"cell_type": "markdown", "source": ["# Soup\n", "It boils."]},
        {
            "cell_type": "code",
            "source": "1 + 1",
            "outputs": [
                {"output_type": "execute_result", "data": {"text/plain": ["2"], "image/png": "UE5H"}},
                {"output_type": "error", "ename": "ValueError", "evalue": "\x1b[31mtoo hot\x1b[0m"},
            ],
        },
    )
    assert read_data(notebook_of(*cells), "soup.ipynb").attachment.content == (
        "# Soup\nIt boils.\n\n```python\n1 + 1\n```\n\nOutput:\n\n```\n2\nValueError: too hot\n```"
    )


@pytest.mark.parametrize(
    ("data", "name", "words"),
    [
        (b"\0\0\0\x18ftypheic", "p.heic", "is a HEIC picture"),
        (b"\xff\x00", "notes.txt", "is not UTF-8 text"),
        (b"a\0b", "notes.txt", "is not UTF-8 text"),
    ],
)
def test_what_no_model_takes_is_refused_by_its_name(data: bytes, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"{name} {words}"):
        read_data(data, name)


def test_only_a_pdf_has_pages() -> None:
    with pytest.raises(UsageError, match="has no pages to choose"):
        read_data(b"Soup", "notes.md", PageChoice(2, 3))


def test_a_missing_file_and_a_folder_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read: No such file"):
        read_file(tmp_path / "none.png", "none.png")
    with pytest.raises(UsageError, match="is a folder"):
        read_file(tmp_path, "folder")


def test_a_text_larger_than_any_context_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match="more than 4 MiB"):
        read_file(tmp_path / "huge.txt", "huge.txt")
