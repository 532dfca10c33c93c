"""Rules for JSON numbers between two bounds. Pure.

Owns how digits are compared. Numbers have no exponent here, and at most 16 digits before and after the point. Beside an
end that does not belong to the range they have 15 in all: with more, one reads as that very end in binary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

MAX_DIGITS = 16  # as unbounded numbers have
_EXACT_DIGITS = 15  # two decimals of so many are two doubles
_LARGEST = 10**MAX_DIGITS - 1
_ANY_FRACTION = f'("." [0-9]{{1,{MAX_DIGITS}}})?'
_MOST_ZEROS = 8


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range, which belongs to it unless it `is_exclusive`."""

    value: Decimal
    is_exclusive: bool = False


def integers_between(low: Bound | None, high: Bound | None) -> str:
    """Return GBNF for the integers between `low` and `high`, "" where there are none."""
    first = -_LARGEST if low is None else _nearest(low, ROUND_CEILING, 1)
    last = _LARGEST if high is None else _nearest(high, ROUND_FLOOR, -1)
    first, last = max(first, -_LARGEST), min(last, _LARGEST)
    ways: list[str] = []
    if first < 0 and (least := max(1, -last)) <= -first:
        ways.append(f'"-" {_joined(_naturals(least, -first))}')
    if last >= 0 and max(first, 0) <= last:
        ways += _naturals(max(first, 0), last)
    return _joined(ways)


def numbers_between(low: Bound | None, high: Bound | None) -> str:
    """Return GBNF for the numbers between `low` and `high`, "" where there are none."""
    zero = Bound(Decimal(0))
    ways: list[str] = []
    if high is None or high.value > 0 or high == zero:
        ways.extend(_magnitudes(low if low and low.value >= 0 else zero, high))
    if low is None or low.value < 0:
        nearest = _negated(high) if high and high.value < 0 else Bound(Decimal(0), is_exclusive=True)
        ways.extend(f'"-" {way}' for way in _magnitudes(nearest, _negated(low) if low else None))
    return _joined(ways)


def _nearest(bound: Bound, rounding: str, step: int) -> int:
    """Return the first integer of a range that begins or ends at `bound`."""
    whole = int(bound.value.to_integral_value(rounding))
    return whole + step if bound.is_exclusive and whole == bound.value else whole


def _negated(bound: Bound) -> Bound:
    return Bound(-bound.value, bound.is_exclusive)


def _joined(ways: Iterator[str] | list[str]) -> str:
    found = list(ways)
    return f"({' | '.join(found)})" if found else ""


def _naturals(first: int, last: int) -> Iterator[str]:
    """Yield texts for the numbers from `first` to `last`, those of one length at a time."""
    for n_digits in range(len(str(first)), len(str(last)) + 1):
        least = max(first, 10 ** (n_digits - 1) if n_digits > 1 else 0)
        yield _same_length(str(least), str(min(last, 10**n_digits - 1)))


def _same_length(first: str, last: str) -> str:
    n_rest = len(first) - 1
    if not n_rest:
        return _digit(int(first), int(last))
    if first[0] == last[0]:
        return f'"{first[0]}" {_same_length(first[1:], last[1:])}'
    ways, low, high = [], int(first[0]), int(last[0])
    if first[1:].strip("0"):
        ways.append(f'"{low}" {_same_length(first[1:], "9" * n_rest)}')
        low += 1
    if last[1:].strip("9"):
        ways.append(f'"{high}" {_same_length("0" * n_rest, last[1:])}')
        high -= 1
    if low <= high:
        ways.insert(0, f"{_digit(low, high)} [0-9]{{{n_rest}}}")
    return _joined(ways)


def _digit(first: int, last: int) -> str:
    return f'"{first}"' if first == last else f"[{first}-{last}]"


def _magnitudes(low: Bound, high: Bound | None) -> Iterator[str]:
    """Yield texts for the numbers that are not negative from `low` to `high`."""
    first, last = int(low.value), _LARGEST if high is None else int(min(high.value, Decimal(_LARGEST)))
    if first > _LARGEST or (high is not None and (low.value, first) > (high.value, last)):
        return  # beyond 28 digits Decimal has no fraction to give either
    low_digits = _fraction_digits(low)
    high_digits = None if high is None or high.value > _LARGEST else _fraction_digits(high)
    is_low_open, is_high_open = low.is_exclusive, high is not None and high.is_exclusive
    if first == last:
        yield from _with_fraction(first, low_digits, high_digits, is_low_open, is_high_open)
        return
    is_low_free = not low_digits and not is_low_open
    is_high_free = high_digits is None
    if not is_low_free:
        yield from _with_fraction(first, low_digits, None, is_low_open, is_high_open)
    begin, end = first + (not is_low_free), last - (not is_high_free)
    if is_high_open and not high_digits and begin <= end:  # numbers just below `last` may be too close
        yield from _with_fraction(end, None, None, is_low_open=False, is_high_open=True)
        end -= 1
    if begin <= end:
        yield f"{_joined(_naturals(begin, end))} {_ANY_FRACTION}"
    if not is_high_free:
        yield from _with_fraction(last, None, high_digits, is_low_open, is_high_open)


def _fraction_digits(bound: Bound) -> str:
    digits = format(bound.value % 1, "f").partition(".")[2]
    return digits[:MAX_DIGITS].rstrip("0")


def _with_fraction(
    whole: int, low: str | None, high: str | None, is_low_open: bool, is_high_open: bool
) -> Iterator[str]:
    """Yield the number `whole` with the fractions from the digits `low` to `high`; None is no bound."""
    comparison = _Comparison(is_low_open, is_high_open)
    low = None if low == "" and not is_low_open else low
    if comparison.may_end(low, high):
        yield f'"{whole}"'
    n_most = max(0, _EXACT_DIGITS - len(str(whole))) if is_low_open or is_high_open else MAX_DIGITS
    if digits := comparison.digits(low, high, n_most, is_first=True):
        yield f'"{whole}." {digits}'


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Fractions between two, digit by digit: `low` and `high` are what is left of the ends that the text equals."""

    is_low_open: bool
    is_high_open: bool

    def may_end(self, low: str | None, high: str | None) -> bool:
        is_above = low is None or (low == "" and not self.is_low_open)
        return is_above and (high is None or high != "" or not self.is_high_open)

    def digits(self, low: str | None, high: str | None, n_most: int, *, is_first: bool = False) -> str:
        """Return GBNF for what may follow, at most `n_most` digits, "" where none can; only `is_first` needs one."""
        least = int(is_first)
        if low == "" and not self.is_low_open:
            low = None
        if n_most == 0:
            return ""
        if low is None and high is None:
            return f"[0-9]{{{least},{n_most}}}"
        if high == "":  # only zeros do not exceed it
            is_possible = low is None and not self.is_high_open
            return f'"0"{{{least},{min(_MOST_ZEROS, n_most)}}}' if is_possible else ""
        if low == "" and high is None:
            n_zeros = min(_MOST_ZEROS, n_most // 2)
            return f'"0"{{0,{n_zeros}}} [1-9] [0-9]{{0,{n_most - n_zeros - 1}}}'
        ways = [f"{_digit(*span)} {rest}" for span, rest in self._ways(low, high, n_most - 1)]
        if not ways:
            return ""
        is_optional = not is_first and self.may_end(low, high)
        return _joined(ways) + ("?" if is_optional else "")

    def _ways(self, low: str | None, high: str | None, n_rest: int) -> Iterator[tuple[tuple[int, int], str]]:
        """Yield the spans of the next digit, with what may follow each, at most `n_rest` digits."""
        lowest = 0 if low is None else int(low[:1] or 0)
        highest = 9 if high is None else int(high[:1])
        low_rest = None if low is None else low[1:]
        high_rest = None if high is None else high[1:]
        ends = [(lowest, low_rest, high_rest if lowest == highest else None)]
        if high is not None and highest > lowest:
            ends.append((highest, None, high_rest))
        tight = {digit for digit, kept_low, kept_high in ends if kept_low is not None or kept_high is not None}
        for digit, kept_low, kept_high in ends:
            if digit in tight:
                rest = self.digits(kept_low, kept_high, n_rest)
                if rest or self.may_end(kept_low, kept_high):
                    yield (digit, digit), rest
        free = [digit for digit in range(lowest, highest + 1) if digit not in tight]
        if free:
            yield (free[0], free[-1]), self.digits(None, None, n_rest)
