from __future__ import annotations

import pytest

from quantizer.system.errors import ErrorInfo, UserError, redact_paths


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("There is no file /home/me/my models/a.gguf.", "There is no file a.gguf."),
        ("failed to open '/tmp/x/a.gguf': gone", "failed to open 'a.gguf': gone"),
        (r"C:\Users\me\a.gguf is empty.", "a.gguf is empty."),
        (r"C:\Users\Jane Doe\a.gguf is empty.", "a.gguf is empty."),
        (r"\\server\share\a.gguf is empty.", "a.gguf is empty."),
        ("~/models/a.gguf is empty.", "a.gguf is empty."),
        ("/tmp/pip-x/vendor/ggml.c:12: GGML_ASSERT(a / b == c/d)", "ggml.c:12: GGML_ASSERT(a / b == c/d)"),
        ("D:/a/vendor/ggml.c:12: fatal", "ggml.c:12: fatal"),
        ('File "/opt/app/x.py", line 3', 'File "x.py", line 3'),
        ("/a/x.c:1: one / /b/y.c:2: two", "x.c:1: one / y.c:2: two"),
        ("/a/x.c:1: 3 tok/s of http://host/a/b", "x.c:1: 3 tok/s of http://host/a/b"),
        ("either and/or, 3/4 of http://host/a/b", "either and/or, 3/4 of http://host/a/b"),
        ("<s>a</s> ../ggml/ggml.c", "<s>a</s> ../ggml/ggml.c"),
    ],
)
def test_of_an_absolute_path_the_last_part_is_left(text: str, shown: str) -> None:
    assert redact_paths(text) == shown
    assert redact_paths(shown) == shown


@pytest.mark.parametrize(
    ("cause", "remedy", "shown"),
    [
        ("It cannot be loaded.", "Choose another.", "It cannot be loaded. Choose another."),
        ("llama.cpp says: failed to open a.gguf", "Try again.", "llama.cpp says: failed to open a.gguf. Try again."),
        ("Is it there?", "Look.", "Is it there? Look."),
        ("failed to open a.gguf", "", "failed to open a.gguf"),
    ],
)
def test_a_cause_in_the_words_of_a_library_does_not_run_into_the_remedy(cause: str, remedy: str, shown: str) -> None:
    assert str(UserError(cause, remedy)) == shown


def test_a_cause_that_quotes_a_megabyte_is_cut_where_that_shows() -> None:
    error = UserError("x" * 1_000_000, "Use a shorter one.")
    assert len(error.cause) == 2_001
    assert str(error).endswith("x… Use a shorter one.")
    assert ErrorInfo.of(error).error().cause == error.cause
