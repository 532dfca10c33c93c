"""The title of a chat that a model is asked for: when, how, and what of its answer is one (pure).

Small models answer in sentences ("Sure! Here is a title: …"), so the title is found by the words and shapes around it.
Where nothing looks like one, the question stays the title.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from app.chat.conversation import Message, MessageState, provisional_title
from app.common.terminal import printable_line

TITLE_REQUEST = "Give this conversation a title of two to six words. Answer with the title alone."
TITLE_TOKENS = 32

_TRIMMED = " \t#*_`\"'“”‘’«»„「」『』<>."
_MOST_WORDS, _MOST_CHARACTERS = 12, 100  # more is a sentence; without spaces, as in Chinese, the characters count
_BULLET = re.compile(r"^\s*(?:[-*•>]|\d{1,2}[.)])\s+")
_TAG = re.compile(r"</?title>", re.IGNORECASE)
_INTERJECTION = re.compile(
    r"^(?:absolutely|alright|certainly|great|hello|hi|no problem|of course|ok|okay|sure|sure thing|thanks|thank you)"
    r"\s*[!,.:–—]+\s*",
    re.IGNORECASE,
)
_TITLE_WORD = r"(?:titles?|titel|titre|titlu|titolo|título|titulo|tytuł|заголовок|название|标题|標題|タイトル|제목)"
_BEFORE = r"(?:a|an|the|my|our|one|possible|suggested|proposed|suitable|fitting|good|short|concise|chat|conversation)"
_AFTER = (
    r"(?:of|for|to|with|in|this|the|our|your|that|which|chat|conversation|discussion|exchange|is|are|could|would|might|"
    r"may|be|two|six|words|suggestion|fits|based|on|summarizes|it|you|requested|as)"
)
_OPENING = r"(?:here(?:['’]s| is| are)|i(?:['’]d| would)? (?:suggest|propose|recommend)|how about|perhaps|try)"
_LABELLED = re.compile(
    rf"^(?:{_OPENING}\s+)?(?:{_BEFORE}\s+)*{_TITLE_WORD}(?:\s+{_AFTER})*"
    r"\s*(?:[:：=]|\s[-–—]|(?<=\sis)\s|(?<=\sbe)\s)\s*(.*)$",
    re.IGNORECASE,
)
# How a sentence about the title, or another answer, begins: a title is only in quotes or behind a colon there.
_SENTENCE = re.compile(
    r"^(?:as an ai|based on|here(?:['’]s| is| are)\b|i(?:['’]d|['’]m|['’]ll)?\s|it (?:looks|seems|sounds)\b|"
    r"please\b|the (?:conversation|chat|user|title)\b|this (?:is|conversation|chat|title)\b|to summarize|we\s|you\s)",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"[\"“„«「『]([^\"”“»」』]{2,100})[\"”“»」』]")
_JSON = re.compile(r"[\"']title[\"']\s*:\s*[\"']([^\"']+)[\"']", re.IGNORECASE)
_COUNT = re.compile(r"\s*\(\d+ words?\)\s*$", re.IGNORECASE)
_NONE = re.compile(
    rf"^(?:{_BEFORE}\s+|new\s+|untitled\s*)*(?:{_TITLE_WORD}|untitled|conversation|chat|none|n/a|empty)?"
    rf"(?:\s+{_AFTER})*$",
    re.IGNORECASE,
)


def needs_title(branch: Sequence[Message]) -> bool:
    """Return whether the chat has exactly one question and its finished answer, with whatever that called."""
    if not branch or [message.role for message in branch].count("user") != 1 or branch[0].role != "user":
        return False
    answer = branch[-1]
    is_answered = answer.role == "assistant" and not answer.calls
    return is_answered and answer.state is MessageState.FINISHED and bool(answer.content)


def parse_title(answer: str) -> str:
    """Return the title in a model's response, without what is around it, shortened; "" where there is none."""
    if found := _JSON.search(answer):
        return _shown(found[1])
    for line in answer.splitlines():
        for candidate in _candidates(line):
            if title := _shown(candidate):
                return title
            if _words(candidate) > _MOST_WORDS:  # it began to answer something else
                return ""
    return ""


def _candidates(line: str) -> Iterator[str]:
    """Yield what of a line may be the title, the likeliest first; nothing of a sentence around it."""
    text = _TAG.sub("", _BULLET.sub("", printable_line(line))).strip(" \t#*_`")
    while (rest := _INTERJECTION.sub("", text)) != text:
        text = rest
    quoted = [found[1] for found in _QUOTED.finditer(text)]
    if labelled := _LABELLED.match(text.replace("*", "").replace("_", " ") if "*" in text else text):
        quoted_behind = _QUOTED.match(labelled[1].strip(" \t*_`"))
        yield quoted_behind[1] if quoted_behind else labelled[1]
    elif _SENTENCE.match(text):
        yield from quoted[:1]
        yield text.partition(":")[2]
    elif quoted and text[:1] in '"“„«「『':  # "Soup" is what I would call it
        yield quoted[0]
    else:
        yield text


def _words(text: str) -> int:
    return len(text.split()) if len(text) <= _MOST_CHARACTERS else _MOST_WORDS + 1


def _shown(candidate: str) -> str:
    """Return a title as it is stored, "" for what is none by its shape."""
    text = _COUNT.sub("", candidate.strip(_TRIMMED)).strip(_TRIMMED)
    is_none = not any(map(str.isalnum, text)) or _NONE.match(text) or _words(text) > _MOST_WORDS
    return "" if is_none or text.casefold() in TITLE_REQUEST.casefold() else provisional_title(text)
