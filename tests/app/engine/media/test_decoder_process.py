from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from app.engine.media.chunks import MAX_SIDE, MAX_SOUND_S
from app.engine.media.decode import MAX_PIXELS
from app.engine.media.decoder_process import DecoderProcess
from app.protocol.errors import RequestError
from tests.app.engine.media.files import picture, picture_file, sound_file


@pytest.fixture(scope="module")
def decoder() -> Iterator[DecoderProcess]:
    process = DecoderProcess()
    yield process
    process.close()


def png(width: int, height: int) -> bytes:
    """A PNG of one pixel that says it is larger."""
    data = bytearray(picture_file(1, 1))
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "BMP", "TIFF", "JPEG"])
def test_each_format_of_pictures_is_decoded(decoder: DecoderProcess, kind: str) -> None:
    found = decoder.picture(picture_file(kind=kind))
    assert (found.width, found.height) == (40, 30)
    if kind in ("PNG", "BMP", "TIFF"):
        assert found.rgb == picture().tobytes()


def test_a_transparent_picture_is_over_white(decoder: DecoderProcess) -> None:
    image = Image.new("RGBA", (2, 1), (10, 20, 30, 0))
    image.putpixel((1, 0), (10, 20, 30, 255))
    assert decoder.picture(saved(image, "PNG")).rgb == bytes([255, 255, 255, 10, 20, 30])


def test_a_palette_with_a_transparent_color_is_over_white(decoder: DecoderProcess) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([9, 9, 9, 50, 60, 70])
    image.putpixel((1, 0), 1)
    assert decoder.picture(saved(image, "PNG", transparency=0)).rgb == bytes([255, 255, 255, 50, 60, 70])


def test_a_picture_is_turned_as_its_exif_says(decoder: DecoderProcess) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    found = decoder.picture(saved(picture(40, 30), "PNG", exif=exif))
    assert (found.width, found.height) == (30, 40)
    assert found.rgb == picture(40, 30).transpose(Image.Transpose.ROTATE_270).tobytes()


def test_a_gray_picture_of_16_bits_keeps_its_range(decoder: DecoderProcess) -> None:
    image = Image.fromarray(np.array([[0, 32_768, 65_535]], np.uint16))
    assert list(decoder.picture(saved(image, "PNG")).rgb[::3]) == [0, 128, 255]


def test_a_gray_picture_without_a_range_is_scaled_by_its_largest_value(decoder: DecoderProcess) -> None:
    image = Image.fromarray(np.array([[0, 100, 200]], np.float32))
    assert list(decoder.picture(saved(image, "TIFF")).rgb[::3]) == [0, 128, 255]


@pytest.mark.slow
def test_the_first_frame_of_ten_thousand_is_decoded(decoder: DecoderProcess) -> None:
    frames = [Image.new("L", (8, 8), index % 256) for index in range(10_000)]
    found = decoder.picture(saved(frames[7], "GIF", save_all=True, append_images=frames[1:]))
    assert set(found.rgb) == {7}


@pytest.mark.slow
def test_a_large_picture_is_scaled_down(decoder: DecoderProcess) -> None:
    found = decoder.picture(saved(Image.new("RGB", (2 * MAX_SIDE, MAX_SIDE), (1, 2, 3)), "PNG"))
    assert (found.width, found.height) == (MAX_SIDE, MAX_SIDE // 2)


@pytest.mark.parametrize(("width", "height"), [(100_000, 100_000), (MAX_PIXELS + 1, 1), (1, 2**31 - 1)])
def test_a_huge_declared_size_is_refused_before_it_is_decoded(decoder: DecoderProcess, width: int, height: int) -> None:
    with pytest.raises(RequestError, match="pixels"):
        decoder.picture(png(width, height))


def test_a_picture_that_is_too_narrow_is_refused(decoder: DecoderProcess) -> None:
    with pytest.raises(RequestError, match="too narrow"):
        decoder.picture(png(4000, 2))


@pytest.mark.slow
def test_a_bomb_in_the_metadata_is_refused(decoder: DecoderProcess) -> None:
    text = zlib.compress(bytes(200 << 20), 9)
    chunk = b"zTXtbomb\0\0" + text
    bomb = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    data = picture_file(4, 4)
    with pytest.raises(RequestError):
        decoder.picture(data[:33] + bomb + data[33:])


@pytest.mark.slow
def test_a_child_that_takes_too_long_is_replaced() -> None:
    decoder = DecoderProcess(picture_timeout_s=0.0)
    with pytest.raises(RequestError, match="took more than"):
        decoder.picture(saved(Image.new("RGB", (6000, 6000)), "PNG"))
    decoder._picture_timeout_s = 60.0
    assert decoder.picture(picture_file()).width == 40
    decoder.close()


@pytest.mark.slow
def test_a_child_that_dies_is_replaced() -> None:
    decoder = DecoderProcess()
    decoder.picture(picture_file())
    assert decoder._child is not None
    decoder._child.kill()
    decoder._child.wait()
    with pytest.raises(RequestError, match="ended the media decoder"):
        decoder.picture(picture_file())
    assert decoder.picture(picture_file()).width == 40
    decoder.close()


def test_a_sound_is_decoded_to_one_channel_at_the_rate_asked_for(decoder: DecoderProcess) -> None:
    found = decoder.sound(sound_file(0.5, 44_100, 2), 16_000).samples
    assert abs(len(found) - 8000) <= 2
    assert found.dtype == np.float32
    assert 0.5 < np.abs(found).max() < 0.7


def test_a_sound_at_the_rate_asked_for_keeps_its_samples(decoder: DecoderProcess) -> None:
    data = sound_file(0.1)
    expected = np.frombuffer(data[44:], "<i2") / 32_768
    assert np.allclose(decoder.sound(data, 16_000).samples, expected, atol=1e-6)


def test_a_sound_of_three_hours_is_refused(decoder: DecoderProcess) -> None:
    with pytest.raises(RequestError, match=r"longer than 30 minutes \(180 minutes\)"):
        decoder.sound(sound_file(3 * 3600, 200), 16_000)


def test_a_sound_that_lies_about_its_length_is_decoded_up_to_the_limit(decoder: DecoderProcess) -> None:
    data = bytearray(sound_file(MAX_SOUND_S + 60, 1_000))
    data[40:44] = struct.pack("<I", 2000)
    assert len(decoder.sound(bytes(data), 1_000).samples) == 1000


def test_frames_of_an_mp3_tell_its_length(decoder: DecoderProcess) -> None:
    frame = b"\xff\xfb\x90\x00" + bytes(413)  # 417 bytes: 26 ms at 128 kbit/s
    with pytest.raises(RequestError, match=r"\(52 minutes\)"):
        decoder.sound(frame * 120_000, 16_000)
    assert len(decoder.sound(frame * 40, 16_000).samples) > 10_000


@pytest.mark.parametrize("kept", [44, 46, 10, 100])
def test_a_sound_that_is_cut_off_early_is_refused(decoder: DecoderProcess, kept: int) -> None:
    with pytest.raises(RequestError):
        decoder.sound(sound_file()[:kept], 16_000)


def test_a_sound_that_is_cut_off_late_is_decoded_up_to_there(decoder: DecoderProcess) -> None:
    assert len(decoder.sound(sound_file()[: 44 + 8000], 16_000).samples) == 4000


@pytest.mark.slow
def test_a_sound_that_is_too_short_is_refused(decoder: DecoderProcess) -> None:
    with pytest.raises(RequestError, match="has 99 ms"):
        decoder.sound(sound_file(0.099), 16_000)
    assert len(decoder.sound(sound_file(0.1), 16_000).samples) == 1600
