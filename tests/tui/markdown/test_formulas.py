"""Formulas are shown in Unicode where that can be, and else as written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tui.hostile import controls_in
from tests.tui.markdown.test_document import pen, text_of
from tui.markdown.document import MarkdownDocument, code_blocks
from tui.markdown.formulas import as_unicode


def shown(source: str, width: int = 100) -> str:
    lines = MarkdownDocument(source).draw(pen(width))
    return text_of([*map(lines.__getitem__, range(len(lines)))])


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (r"\frac{a+b}{2c} \le \sqrt{x_1}", "(a+b)/(2c) ≤ √x₁"),
        (r"\sum_{i=1}^{n} x_i^2", "∑ᵢ₌₁ⁿ xᵢ²"),
        (r"\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}", "∫₀^∞ e^(-x²) dx = √π/2"),
        (r"x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}", "x = (-b ± √(b² - 4ac))/(2a)"),
        (r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}", "(a b; c d)"),
        (r"\begin{aligned} x &= 1 \\ y &= 2 \end{aligned}", "x = 1\ny = 2"),
        (r"\lim_{x \to 0} \frac{\sin x}{x} = 1", "lim_(x → 0) (sin x)/x = 1"),
        (r"\sin\theta + \log_2 x", "sin θ + log₂ x"),
        (r"\vec{v} \in \mathbb{R}^n, \text{ if so}", "v\u20d7 ∈ ℝⁿ, if so"),
        (r"\sqrt[3]{8} = 2, \frac12", "∛8 = 2, 1/2"),
    ],
)
def test_a_formula_becomes_unicode(formula, text):
    assert as_unicode(formula) == text


@pytest.mark.parametrize(
    "formula", [r"\unknown{x}", "x^", "a}b", "{a", r"\frac{a}", r"\begin{tikz}\end{tikz}", "{" * 99]
)
def test_a_formula_with_something_unknown_is_not_converted(formula):
    assert as_unicode(formula) is None


SIGNS = [*"\\{}^_$&' a1[", r"\frac", r"\sqrt", r"\left", r"\\", r"\begin"]


@given(st.lists(st.sampled_from(SIGNS)))
def test_any_signs_are_read_without_an_error(signs):
    assert not controls_in(as_unicode("".join(signs)) or "")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (r"So \(x_1 * y_2 * z\) is.", "So x₁ * y₂ * z is."),
        (r"So \[\alpha\] is.", "So α is."),
        ("So:\n\\[\nE = mc^2\n- 1\n\\]\nend", "So:\n\nE = mc² - 1\n\nend"),
        ("$$\n\\alpha\n$$", "α"),
        ("$$a^2$$ and $b^2$", "a² and b²"),
        ("- first\n\n  \\[\n  \\beta\n  \\]", " • first\n   β"),
        ("| a |\n|---|\n| $x^2$ |\n", "\n a\n ──\n x²\n"),
    ],
)
def test_formulas_between_their_signs_are_converted(source, text):
    assert shown(source).strip() == text.strip()


@pytest.mark.parametrize(
    "source",
    [
        r"It is \(\unknown{x}\).",
        r"It is \[\unknown{x}\] so.",
        r"a \\ b \( c",
        r"C:\\Users and \\server",
        "It costs $5 and $10, not $6.",
        "from $HOME/bin to $PATH$",
        "$5-10$ or US$5-US$6",
        "$my_variable$",
        "$ x $",
    ],
)
def test_what_is_no_formula_or_unknown_stays_as_written(source):
    assert shown(source) == source


def test_code_is_no_formula():
    assert shown(r"`\(x^2\)` and `$x^2$`") == r"\(x^2\) and $x^2$"
    assert r"\(x^2\)" in shown("```\n\\(x^2\\)\n```")
    assert code_blocks("```tex\n\\[x^2\\]\n```")[0].text == r"\[x^2\]"
