"""Numbers as people read them: never in scientific notation, which `:g` turns to for large and small ones. Pure."""

from __future__ import annotations

_MOST_DECIMALS = 30
_MOST = 1e15  # beyond it a float has no digit for each place


def format_speed(tps: float) -> str:
    """Return tokens per second with two significant digits: 15,100, 106, 32, 8.4, 0.52."""
    digits = 0 if tps >= 10 else 1 if tps >= 1 else 2
    return f"{tps:,.{digits}f}"


def format_figure(value: float, n_digits: int, *, keeps_zeros: bool = False, has_commas: bool = True) -> str:
    """Return a number with `n_digits` significant digits, but all before the point: 15,123, 2.06, 0.000032. Zeros at
    its end are left out unless it `keeps_zeros`, as columns do; `has_commas` separate thousands."""
    if not abs(value) < _MOST:  # nor where it is no number
        return f"{value:.{n_digits}g}"
    exponent = int(f"{value:.{n_digits - 1}e}".partition("e")[2])  # of the rounded number: 9.99 may be 10
    n_decimals = min(max(0, n_digits - 1 - exponent), _MOST_DECIMALS)
    text = f"{value:,.{n_decimals}f}" if has_commas else f"{value:.{n_decimals}f}"
    return text if keeps_zeros or not n_decimals else text.rstrip("0").rstrip(".")


def format_number(value: float) -> str:
    """Return a number as a person would type it: 1000000, 0.7, 0.00001; of a fraction six significant digits."""
    return str(value) if isinstance(value, int) else format_figure(value, 6, has_commas=False)
