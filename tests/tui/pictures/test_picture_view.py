"""Previews of pictures: small, bounded, and with a reason where there is none."""

from __future__ import annotations

import io
import random
import struct
import zlib

import pytest
from PIL import Image
from textual.geometry import Size

from tui.pictures.picture_view import PictureError, Previews, cells_of, picture_bounds, read_preview
from tui.pictures.terminal_graphics import BLOCKS, TerminalGraphics


def encoded(kind: str, image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def lying_png(width: int, height: int) -> bytes:
    """A PNG whose header promises a size that nothing in it has."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    body = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_a_preview_is_small_and_knows_the_true_size(kind: str) -> None:
    preview = read_preview(encoded(kind, Image.new("RGB", (1600, 900), "red")))
    assert (preview.width, preview.height, preview.image.size) == (1600, 900, (640, 360))
    assert preview.image.getpixel((5, 5))[0] > 200


def test_transparent_parts_are_white() -> None:
    preview = read_preview(encoded("PNG", Image.new("RGBA", (4, 4), (0, 0, 0, 0))))
    assert preview.image.getpixel((0, 0)) == (255, 255, 255)


def test_a_picture_of_a_camera_stands_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    preview = read_preview(encoded("JPEG", Image.new("RGB", (800, 200)), exif=exif))
    assert preview.image.size == (160, 640)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cannot be shown"),
        (b"<svg/>", "cannot be shown"),
        (lying_png(100_000, 100_000), "too large for a preview: 100000×100000"),
        (lying_png(2000, 2000), "damaged"),
        (encoded("PNG", Image.effect_noise((200, 200), 50))[:9000], "damaged"),
        (encoded("JPEG", Image.effect_noise((200, 200), 50))[:9000], "damaged"),
    ],
)
def test_a_picture_that_cannot_be_shown_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(PictureError, match=reason):
        read_preview(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_damaged_pictures_only_fail_with_a_reason(kind: str) -> None:
    whole, chance = encoded(kind, Image.effect_noise((64, 48), 50).convert("RGB")), random.Random(kind)
    for _ in range(100):
        data = bytearray(whole[: chance.randrange(1, len(whole) + 1)])
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            read_preview(bytes(data))
        except PictureError:
            continue


async def test_the_latest_previews_are_not_made_again() -> None:
    previews, n_read = Previews(), 0

    async def read() -> bytes:
        nonlocal n_read
        n_read += 1
        return encoded("PNG", Image.new("RGB", (4, 4)))

    async def broken() -> bytes:
        return b""

    first = await previews.get("a", read)
    assert await previews.get("a", read) is first
    for number in range(30):
        await previews.get(str(number), read)
    await previews.get("a", read)
    assert n_read == 32
    for _ in range(2):
        with pytest.raises(PictureError):
            await previews.get("broken", broken)


@pytest.mark.parametrize(
    ("screen", "bounds"), [((80, 24), (40, 8)), ((120, 40), (60, 13)), ((200, 80), (60, 14)), ((80, 16), (0, 0))]
)
def test_a_picture_takes_a_third_of_the_screen_and_nothing_of_a_small_one(screen, bounds) -> None:
    assert picture_bounds(Size(*screen)) == Size(*bounds)


@pytest.mark.parametrize(
    ("graphics", "pixels", "cells"),
    [
        (BLOCKS, (640, 480), (21, 8)),
        (BLOCKS, (16, 16), (16, 8)),
        (BLOCKS, (8, 8), (8, 4)),
        (BLOCKS, (600, 60), (40, 2)),
        (BLOCKS, (4, 4000), (1, 8)),
        (TerminalGraphics("kitty", 6, 13), (640, 480), (23, 8)),
        (TerminalGraphics("kitty", 10, 20), (100, 100), (10, 5)),
        (TerminalGraphics("kitty", 10, 20), (1, 1), (1, 1)),
    ],
)
def test_a_picture_keeps_its_shape_and_is_never_made_larger(graphics, pixels, cells) -> None:
    assert cells_of(*pixels, graphics, Size(40, 8)) == Size(*cells)
