r"""Formulas in Markdown: `\(…\)`, `\[…\]`, `$$…$$`, and `$…$` where it cannot be an amount or a variable of a shell.

The parser's rules say what a formula is; it is converted to Unicode (`\frac{a}{b} \le \sqrt{x_1}`: `a/b ≤ √x₁`) if all
its commands are known, and otherwise stays as written, as do a backslash before a bracket and two backslashes:
CommonMark would take one away. Converting takes linear time and never fails, whatever a model writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline


_CLOSING = {r"\(": r"\)", r"\[": r"\]", "$$": "$$"}
_KEPT = {*_CLOSING, r"\)", r"\]", r"\\"}
_DOLLAR = re.compile(r"(?<![\w$\\])\$(?![\s$])([^$\n`]*[^\s$`\\])\$(?![\w$])")
_NO_WORD = re.compile(r"\\[A-Za-z]+|\{[A-Za-z ]*\}")  # commands, and texts in braces
_WORD = re.compile(r"[^\W\d_]{3}")
_SIGN = re.compile(r"[\\^_=<>+*/|()-]")
_MAX_DOLLAR = 200

_MAX_LENGTH, _MAX_DEPTH = 4000, 30
_TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|\s+|.", re.DOTALL)
_SPACES = {
    **dict.fromkeys((",", ":", ";", " ", "quad", "qquad", "enspace", "space", "thinspace"), " "),
    **dict.fromkeys(("!", "displaystyle", "textstyle", "limits", "nolimits", "nonumber", "notag", "hline"), ""),
    **dict.fromkeys(("big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr", "middle"), ""),
}
_ESCAPED = {**{sign: sign for sign in "{}%$_&#"}, "|": "‖", "\\": "\n"}
_MARKED = ("hat", "widehat", "tilde", "widetilde", "bar", "overline", "underline", "vec", "dot", "ddot")
_COMBINING = dict(zip(_MARKED, "\u0302\u0302\u0303\u0303\u0304\u0305\u0332\u20d7\u0307\u0308", strict=True))
_SUPERSCRIPTS = {
    **dict(zip("0123456789+-=()", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾", strict=True)),
    **dict(zip("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ", strict=True)),
    **dict(zip("ABDEGHIJKLMNOPRTUVW", "ᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂ", strict=True)),
    **dict(zip("βγδθφχ∘⊤′*†", "ᵝᵞᵟᶿᵠᵡ°ᵀ′*†", strict=True)),
}
_SUBSCRIPTS = {
    **dict(zip("0123456789+-=()", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎", strict=True)),
    **dict(zip("aehijklmnoprstuvx", "ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True)),
    **dict(zip("βγρφχ", "ᵦᵧᵨᵩᵪ", strict=True)),
}
_ENVIRONMENTS: Mapping[str, Sequence[str] | None] = {
    **dict.fromkeys(
        ("align", "align*", "aligned", "gather", "gather*", "gathered", "split", "equation", "equation*"), None
    ),
    **dict.fromkeys(("matrix", "array", "smallmatrix"), ("", "")),
    **dict(zip(("pmatrix", "bmatrix", "Bmatrix", "vmatrix", "Vmatrix"), ("()", "[]", "{}", "||", "‖‖"), strict=True)),
    "cases": ("{ ", ""),
}
_ROOTS = {"": "√", "2": "√", "3": "∛", "4": "∜"}
_SIMPLE = re.compile(r"[^\W\d_]\W?|\d+(\.\d+)?|[^\W\d_]?[₀-₉]+|\([^()]*\)|[^\W_]{1}[⁰¹²³⁴-⁹]|[A-Za-z]{2,}")
_SIMPLE_ABOVE = re.compile(r"[^\s+\-±∓,/]+|\([^()]*\)")


def add_formulas(parser: MarkdownIt) -> None:
    parser.inline.ruler.before("escape", "formula", _inline)
    parser.block.ruler.before("fence", "formula", _block, {"alt": ["paragraph", "reference", "blockquote", "list"]})


def _inline(state: StateInline, silent: bool) -> bool:
    begin = state.src[state.pos : state.pos + 2]
    if begin in _CLOSING:
        end = state.src.find(_CLOSING[begin], state.pos + 2, state.posMax)
        if end > state.pos + 1 and (formula := state.src[state.pos + 2 : end]).strip():
            return _take(state, formula, end + 2, silent=silent)
    if begin.startswith("$"):
        found = _DOLLAR.match(state.src, state.pos, min(state.posMax, state.pos + _MAX_DOLLAR))
        if found is not None and _is_formula(found[1]):
            return _take(state, found[1], found.end(), silent=silent)
    if begin in _KEPT and begin != "$$":
        if not silent:
            state.pending += begin
        state.pos += 2
        return True
    return False


def _take(state: StateInline, formula: str, end: int, *, silent: bool) -> bool:
    if not silent:
        text = as_unicode(formula) or state.src[state.pos : end]
        first, *others = text.split("\n")
        state.pending += first
        for line in others:
            state.push("hardbreak", "br", 0)
            state.pending += line
    state.pos = end
    return True


def _block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take rows from one that begins with a delimiter up to the closing one, or to an empty row."""
    if state.is_code_block(start):
        return False
    begin = _row(state, start)[:2]
    if begin not in {r"\[", "$$"}:
        return False
    if (at := _row(state, start).find(_CLOSING[begin], 2)) >= 0 and at + 2 < len(_row(state, start).rstrip()):
        return False  # a formula within a paragraph
    if silent:
        return True
    state.line = start
    while state.line < end and not state.isEmpty(state.line) and state.sCount[state.line] >= state.blkIndent:
        text = _row(state, state.line)[2 if state.line == start else 0 :]
        state.line += 1
        if text.rstrip().endswith(_CLOSING[begin]):
            break
    state.push("paragraph_open", "p", 1).map = [start, state.line]
    inline = state.push("inline", "", 0)
    inline.content = state.getLines(start, state.line, state.blkIndent, keepLastLF=False).strip()
    inline.map, inline.children = [start, state.line], []
    state.push("paragraph_close", "p", -1)
    return True


def _is_formula(text: str) -> bool:
    """Return whether a text between dollar signs has a letter, no words, and a sign unless it is a single letter."""
    has_letter = any(map(str.isalpha, text))
    is_signed = len(text) == 1 or _SIGN.search(text) is not None
    return has_letter and is_signed and _WORD.search(_NO_WORD.sub("", text)) is None


def _row(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SYMBOLS = _pairs(
    "alpha α beta β gamma γ delta δ epsilon ε varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ "
    "lambda λ mu μ nu ν xi ξ pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi φ varphi φ chi χ "
    "psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω times × "
    "cdot · div ÷ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet • oplus ⊕ ominus ⊖ otimes ⊗ odot ⊙ wedge ∧ vee ∨ cap ∩ "
    "cup ∪ setminus ∖ land ∧ lor ∨ lnot ¬ neg ¬ le ≤ leq ≤ leqslant ≤ ge ≥ geq ≥ geqslant ≥ ne ≠ neq ≠ ll ≪ gg ≫ "
    "approx ≈ equiv ≡ sim ∼ simeq ≃ cong ≅ propto ∝ prec ≺ succ ≻ perp ⊥ parallel ∥ mid ∣ nmid ∤ models ⊨ "
    "vdash ⊢ in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ nsubseteq ⊈ emptyset ∅ varnothing ∅ "
    "forall ∀ exists ∃ nexists ∄ sum ∑ prod ∏ coprod ∐ int ∫ iint ∬ iiint ∭ oint ∮ bigcup ⋃ bigcap ⋂ bigoplus ⨁ "
    "bigotimes ⨂ partial ∂ nabla ∇ infty ∞ to → rightarrow → Rightarrow ⇒ implies ⟹ leftarrow ← gets ← "
    "Leftarrow ⇐ leftrightarrow ↔ Leftrightarrow ⇔ iff ⟺ mapsto ↦ longrightarrow ⟶ longleftarrow ⟵ "
    "Longrightarrow ⟹ uparrow ↑ downarrow ↓ hookrightarrow ↪ rightleftharpoons ⇌ ldots … dots … cdots ⋯ vdots ⋮ "
    "ddots ⋱ hbar ℏ ell ℓ Re ℜ Im ℑ aleph ℵ angle ∠ degree ° prime ′ top ⊤ bot ⊥ therefore ∴ because ∵ square □ "
    "Box □ blacksquare ■ triangle △ dagger † ddagger ‡ checkmark ✓ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ langle ⟨ "
    "rangle ⟩ lbrace { rbrace } lbrack [ rbrack ] vert | lvert | rvert | Vert ‖ lVert ‖ rVert ‖ backslash \\ "
    "cdotp · colon : triangleq ≜ coloneqq ≔ doteq ≐ asymp ≍ lt < gt >"
)
_FUNCTIONS = _names(
    "arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom inf ker lg lim liminf limsup ln log max "
    "min Pr sec sin sinh sup tan tanh bmod mod"
)
_PLAIN = _names(
    "text textrm textbf textit texttt textsf mathrm mathbf mathit mathsf mathtt mathcal mathscr mathfrak boldsymbol bm "
    "operatorname operatorname* mbox hbox boxed emph pmb"
)
_DOUBLE_STRUCK = _pairs("A 𝔸 B 𝔹 C ℂ D 𝔻 E 𝔼 F 𝔽 H ℍ K 𝕂 N ℕ P ℙ Q ℚ R ℝ S 𝕊 T 𝕋 Z ℤ 1 𝟙")


class _UnknownError(Exception):
    """The formula contains what has no form in Unicode."""


def as_unicode(formula: str) -> str | None:
    """Return a formula without its delimiters as text, a line for each of its rows; None if it contains an unknown
    command or is not well-formed."""
    if len(formula) > _MAX_LENGTH:
        return None
    reader = _Formula(_TOKEN.findall(formula))
    try:
        text = reader.read_until(None)
    except _UnknownError:
        return None
    lines = (" ".join(line.split()) for line in text.replace("&", " ").split("\n"))
    return "\n".join(filter(None, lines)) or None


class _Formula:
    """The signs of a formula, read once from the left."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = [*tokens]
        self._next = 0
        self._depth = 0

    def read_until(self, end: str | None) -> str:
        """Return what stands before the sign `end`, which is passed over; None is the end of the formula."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _UnknownError
        parts: list[str] = []
        while (sign := self._take()) != end:
            if sign is None or sign == "}":
                raise _UnknownError
            part = self._part(sign)
            needs_space = sign.startswith("\\") and sign[1:] in _FUNCTIONS and parts and parts[-1][-1:].isalnum()
            is_script = sign in {"^", "_"}
            follows_function = bool(parts) and parts[-1].strip() in _FUNCTIONS and part[:1].isalnum() and not is_script
            parts.append(f" {part}" if needs_space or follows_function else part)
        self._depth -= 1
        return "".join(parts)

    def _take(self) -> str | None:
        if self._next == len(self._tokens):
            return None
        self._next += 1
        return self._tokens[self._next - 1]

    def _part(self, sign: str) -> str:
        if sign == "{":
            return self.read_until("}")
        if sign in {"^", "_"}:
            return _script(sign, self.argument())
        if sign.startswith("\\"):
            return self._command(sign[1:])
        return {"'": "′", "~": " "}.get(sign, " " if sign.isspace() else sign)

    def argument(self) -> str:
        sign = self._take()
        while sign is not None and sign.isspace():
            sign = self._take()
        if sign is None or sign in {"}", "^", "_", "&"}:
            raise _UnknownError
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _UnknownError
        text = self._part(sign).strip()
        self._depth -= 1
        return text

    def _command(self, name: str) -> str:
        for table in (_SYMBOLS, _SPACES, _ESCAPED):
            if name in table:
                return table[name]
        if name in _FUNCTIONS:
            return name
        if name in _PLAIN:
            return self.argument()
        if name in _COMBINING:
            mark, text = _COMBINING[name], self.argument()
            if len(text) > 1 and mark not in "\u0305\u0332":  # a hat sits on one letter, a line on any number
                raise _UnknownError
            return "".join(letter + mark for letter in text)
        if name in _READERS:
            return _READERS[name](self)
        raise _UnknownError

    def fraction(self) -> str:
        numerator, denominator = self.argument(), self.argument()
        return f"{_bracketed(numerator, _SIMPLE_ABOVE)}/{_bracketed(denominator, _SIMPLE)}"

    def root(self) -> str:
        degree = ""
        if self._next < len(self._tokens) and self._tokens[self._next] == "[":
            self._next += 1
            degree = self.read_until("]").strip()
        sign = _ROOTS.get(degree) or f"{_script('^', degree)}√"
        return sign + _bracketed(self.argument(), _SIMPLE)

    def delimiter(self) -> str:
        r"""Return what stands behind `\left` or `\right`."""
        delimiter = self.argument()
        return "" if delimiter == "." else delimiter

    def environment(self) -> str:
        name = self._name()
        if name not in _ENVIRONMENTS:
            raise _UnknownError
        if name == "array":
            self.argument()
        text = self.read_until(r"\end")
        if self._name() != name:
            raise _UnknownError
        brackets = _ENVIRONMENTS[name]
        if brackets is None:
            return text
        rows = (" ".join(row.replace("&", " ").split()) for row in text.split("\n"))
        return brackets[0] + "; ".join(filter(None, rows)) + brackets[1]

    def _name(self) -> str:
        if self._take() != "{":
            raise _UnknownError
        return self.read_until("}")


_READERS: Mapping[str, Callable[[_Formula], str]] = {
    **dict.fromkeys(("frac", "dfrac", "tfrac", "cfrac"), _Formula.fraction),
    **dict.fromkeys(("left", "right"), _Formula.delimiter),
    "binom": lambda formula: f"C({formula.argument()}, {formula.argument()})",
    "sqrt": _Formula.root,
    "mathbb": lambda formula: "".join(_DOUBLE_STRUCK.get(letter, letter) for letter in formula.argument()),
    "not": lambda formula: formula.argument() + "\u0338",
    "tag": lambda formula: f" ({formula.argument()})",
    "pmod": lambda formula: f" (mod {formula.argument()})",
    "begin": _Formula.environment,
}


def _bracketed(text: str, simple: re.Pattern[str]) -> str:
    return text if simple.fullmatch(text) else f"({text})"


def _script(sign: str, text: str) -> str:
    """Return a superscript (`^`) or a subscript (`_`)."""
    table = _SUPERSCRIPTS if sign == "^" else _SUBSCRIPTS
    letters = "".join(text.split())
    if letters and all(letter in table for letter in letters):
        return "".join(table[letter] for letter in letters)
    return f"{sign}{text}" if len(text) == 1 else f"{sign}({text})"
