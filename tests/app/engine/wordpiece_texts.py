"""Texts on which WordPiece tokenizers differ, and a vocabulary that knows every character of them."""

from __future__ import annotations

from unicodedata import normalize

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

__all__ = ["SPECIALS", "TEXTS", "reference", "words"]

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXTS = [
    *("", "  ", "Hello, world! It's 3.14 – isn't it?", "snake_case a^b~c`d|e<f>g=h+i $5 €6"),
    *("##ing ## un##aff", "L’élève naïf a mangé Œuf à Noël", "ẞ ß ſ Đura ŁÓDŹ"),
    *("İstanbul IĞDIR ışık i\u0307", "Tiếng Việt ỘỮ", "Å K Ω ﬁ ǅ", "ΟΔΥΣΣΕΥΣ ἀρχὴ ᾧ ; ´"),
    *("Съешь ЁЖИК Їжак", "שָׁלוֹם ״מה״", "مرحبًا، أهلاً إسلام", "გამარჯობა ᲒᲐ", "ⰰ Ꭰ ꭰ"),
    *("नमस्ते दुनिया, हिन्दी क़ख़। ऱ", "ওহে বাংলা কোয়ার ড়", "வணக்கம் தமிழ் கொள்ளை ொ", "മലയാളം ൊ"),
    *("ශ්\u200dරී ලංකා", "สวัสดี น้ำ", "བཀྲ་ཤིས། གཱ", "안녕하세요 세계, 값 닭"),
    *("대한민국의 수도는 서울이다", "한English국 ABC가나다123", "ㅎㅏㄴ ᄒᆞᆫ ﾡ", "가" * 33, "가" * 34),
    *("값" * 34, "你好，世界！English混在", "𠀀𠮷 㐀 豈 丽 \U0002b820 \U0002b920", "こんにちは ガギ ﾊﾟ パ"),
    *("「日本語」・々〇", "Ａｂｃ １２３ ① ½ ²", "a\x00b\x01c\x7fd\x1ce", "a\x0bb\x0cc\x85d", "a\tb\nc\rd"),
    *("a\xa0b\u2003c\u3000d\u2028e", "a\u200bb\u200dc\xadd\ufeffe", "a\ufffdb \ue000c \ufdd0d"),
    *("e\u0301 a\u0323\u0302 \u0301", "x" * 100, "x" * 101, "é" * 100, "é" * 101, "a▁b ▁ x▁i"),
    *("😀👍🏽👨\u200d👩\u200d👧 🇩🇪 ☎️", "[SEP] a [MASK]b [UNK]"),
]


def words() -> list[str]:
    """Return the vocabulary without its special tokens, in BERT's form: every character of `TEXTS` at the beginning of
    a word and within one, as it is, in lower case and decomposed, and a few longer pieces."""
    forms = (
        form for text in TEXTS for form in (text, text.lower(), normalize("NFD", text), normalize("NFD", text.lower()))
    )
    characters = sorted({character for text in forms for character in text if not character.isspace()} - {"▁"})
    longer = ["hello", "##ello", "world", "##일", "안", "##ᆼ", "नम", "##ते", "isn", "##xxx"]
    return list(dict.fromkeys([*characters, *(f"##{character}" for character in characters), *longer]))


def reference(is_lowercased: bool, strips_accents: bool | None) -> Tokenizer:
    """Return the original: BERT's tokenizer of the library that trains them."""
    vocabulary = {word: i for i, word in enumerate([*SPECIALS, *words()])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(lowercase=is_lowercased, strip_accents=strips_accents)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(list(SPECIALS))
    return made
