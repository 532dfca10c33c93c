from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantizer.figures import format_figure, format_number, format_speed

ROOT = Path(__file__).parents[2]
# Prometheus reads numbers in any form; one file has a form for numbers beyond all measure.
_ALLOWED = {"app/service/api/native/status.py", "quantizer/figures.py"}


@pytest.mark.parametrize(
    ("tps", "shown"), [(15_123.4, "15,123"), (2060.0, "2,060"), (106.3, "106"), (8.44, "8.4"), (0.521, "0.52")]
)
def test_a_speed_has_two_digits_or_all_before_the_point(tps: float, shown: str) -> None:
    assert format_speed(tps) == shown


@pytest.mark.parametrize(
    ("value", "n_digits", "shown"),
    [
        (15_123.4, 4, "15,123"),
        (2.06, 3, "2.06"),
        (2.0, 3, "2"),
        (9.996, 3, "10"),
        (0.000032, 2, "0.000032"),
        (-0.5, 3, "-0.5"),
        (0.0, 4, "0"),
        (math.nan, 4, "nan"),
        (-math.inf, 4, "-inf"),
        (1e300, 4, "1e+300"),
    ],
)
def test_a_figure_has_its_digits(value: float, n_digits: int, shown: str) -> None:
    assert format_figure(value, n_digits) == shown


def test_a_figure_of_a_column_keeps_its_zeros() -> None:
    assert [format_figure(value, 5, keeps_zeros=True) for value in (5.1, 123456.7, 0.0)] == [
        "5.1000",
        "123,457",
        "0.0000",
    ]


@pytest.mark.parametrize(
    ("value", "shown"), [(1e6, "1000000"), (0.00001, "0.00001"), (0.7, "0.7"), (1234567890, "1234567890"), (40.0, "40")]
)
def test_a_number_is_written_as_it_would_be_typed(value: float, shown: str) -> None:
    assert format_number(value) == shown
    assert float(shown) == value


@given(st.floats(1e-15, 1e14), st.integers(1, 12))
def test_a_figure_is_right_to_its_last_digit(value: float, n_digits: int) -> None:
    shown = float(format_figure(value, n_digits).replace(",", ""))
    assert shown == pytest.approx(value, rel=0.51 * 10.0 ** (1 - n_digits))


def _with_exponents(file: Path) -> list[str]:
    """Return where a file formats a number so that it may get an exponent, but for one that is made a number again."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    numbers = {
        id(argument)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "float"
        for argument in call.args
    }
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) and id(node) not in numbers]
    parts = [part for text in texts for part in text.values if isinstance(part, ast.FormattedValue)]
    specs = [(part, ast.unparse(part.format_spec)) for part in parts if part.format_spec is not None]
    return [f"{file}:{part.lineno}" for part, spec in specs if spec.rstrip("'\"")[-1:] in "eEgG"]


@pytest.mark.slow
def test_no_figure_that_people_read_is_formatted_with_an_exponent() -> None:
    files = [file for room in ("app", "offload", "quantizer", "tui") for file in sorted((ROOT / room).rglob("*.py"))]
    read = [file for file in files if file.relative_to(ROOT).as_posix() not in _ALLOWED]
    found = [place for file in read for place in _with_exponents(file)]
    assert not found, "use quantizer.figures"
