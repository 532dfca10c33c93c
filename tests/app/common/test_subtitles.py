"""Transcripts as SubRip and WebVTT."""

from __future__ import annotations

from app.common.subtitles import srt, vtt
from app.protocol.transcript import Segment

SEGMENTS = [Segment(0, 0.0, 29.9996, 0.0, "Hello\n\nthere"), Segment(1, 3600.5, 3661.25, 0.0, "a --> b <i> & c")]


def test_subrip_has_numbers_times_and_one_line_of_text() -> None:
    assert srt(SEGMENTS) == (
        "1\n00:00:00,000 --> 00:00:30,000\nHello there\n\n2\n01:00:00,500 --> 01:01:01,250\na → b <i> & c\n"
    )
    assert srt([]) == ""


def test_webvtt_has_a_header_and_text_that_is_no_markup() -> None:
    assert vtt(SEGMENTS) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:30.000\nHello there\n\n"
        "01:00:00.500 --> 01:01:01.250\na → b &lt;i&gt; &amp; c\n"
    )
    assert vtt([]) == "WEBVTT\n"
