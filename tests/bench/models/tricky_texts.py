"""Texts that tokenizers disagree on: emoji, scripts, spaces, code, control characters, digits, special tokens in text.

Some are written by hand, the rest are random joins of their parts; the same seed gives the same texts.
"""

from __future__ import annotations

import random

__all__ = ["N_TEXTS", "tricky_texts"]

N_TEXTS = 300
_BY_HAND = (
    *(
        "",
        " ",
        "  ",
        "   leading",
        "trailing   ",
        "a  b   c    d",
        "\t",
        "\n",
        "\n\n\n",
        "\r\n",
        " \n \n  \n",
        "\t\ttabs\t",
    ),
    *(
        "Hello, world!",
        "hello world",
        "HELLO",
        "HeLLo WoRLD",
        "camelCaseAndPascalCase",
        "snake_case_name",
        "kebab-case",
    ),
    *(
        "I'm you're he'll we've they'd it's",
        "I'M YOU'RE HE'LL WE'VE THEY'D IT'S",
        "don’t",
        "'tis 'twas",
        "rock 'n' roll",
    ),
    *(
        "0",
        "12",
        "123",
        "1234",
        "12345678901234567890",
        "3.14159",
        "1,000,000",
        "1e-9",
        "0xDEADBEEF",
        "v1.2.3-rc4",
        "٣٤٥ ۱۲۳",
    ),
    *(
        "def f(x):\n    return x + 1\n",
        "for (int i = 0; i < n; ++i) { a[i] *= 2; }",
        '{"key": [1, 2, null]}',
        "<a href='#'>x</a>",
    ),
    *(
        "if x:\n\tpass\n\n\nelse:\n        pass",
        "// comment\n/* block */",
        "SELECT * FROM t WHERE a='b';",
        "$HOME/.config",
        "C:\\dir",
    ),
    *(
        "日本語のテキスト",
        "今天天气很好。",
        "한국어 문장입니다.",
        "你好，世界！",
        "カタカナとひらがな",
        "我想在apple工作1314151天～",
        "「引用」",
    ),
    *(
        "Привет, мир!",
        "Γειά σου Κόσμε",
        "שלום עולם",
        "مرحبا بالعالم",
        "नमस्ते दुनिया",
        "สวัสดีชาวโลก",
        "កាន់តែពិសេសអាច",
        "Հայերեն",
    ),
    *("🚀", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "😀😃😄", "🇩🇪🇫🇷", "a🙂b", "☕️ ✅ ❤️", "🦙🦙 3 33 333"),
    *(
        "café",
        "cafe\u0301",
        "naïve résumé",
        "Zürich",
        "ﬁne ﬂow",
        "Ⅷ ½ ²",
        "ＦＵＬＬ　ｗｉｄｔｈ",
        "İstanbul ı",
        "ŠĐČĆŽ",
        "Å Å",
    ),
    *(
        "\u200b zero width",
        "soft\u00adhyphen",
        "no\u00a0break",
        "em\u2003space",
        "line\u2028sep",
        "\ufeffbom",
        "\u0007bell",
        "\u001b[31m",
    ),
    *(
        "...",
        "!!!???",
        "------======",
        "''''''```````\"\"\"\"",
        "(((nested)))",
        "a/b/c//d",
        "@user #tag",
        "50% & more",
        "~`^|\\",
        "—–…",
    ),
    *(
        "<|endoftext|>",
        "text<|endoftext|>text",
        "<s>",
        "</s> after",
        "a<s>b</s>c",
        "<|im_start|>user\nhi<|im_end|>\n",
        "<unk>",
        "[CLS]",
    ),
    *(
        "<0x0A>",
        "▁",
        "a▁b",
        "Ġ",
        "##ing",
        "[PAD5]",
        "<think>\nwhy\n</think>",
        "\u0000",
        "x\u0000y",
        "\u0001\u0002\u007f\u0085",
    ),
    *(
        "supercalifragilisticexpialidocious",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "Donaudampfschifffahrt",
        "ǅ ǈ ǋ",
        "ʰʷ ªº",
        "x̄ ŷ",
    ),
)


def tricky_texts(seed: int = 7, n_texts: int = N_TEXTS) -> list[str]:
    """The texts by hand, then random ones, `n_texts` in all."""
    rng = random.Random(seed)
    texts = list(_BY_HAND)
    while len(texts) < n_texts:
        parts = [rng.choice(_BY_HAND) for _ in range(rng.randint(2, 6))]
        texts.append(rng.choice(("", " ", "\n", "  ")).join(parts))
    return texts[:n_texts]
