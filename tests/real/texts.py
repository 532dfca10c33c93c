"""What the real models read in these tests."""

from __future__ import annotations

__all__ = ["PASSAGE", "QUESTIONS", "SENTENCES", "TEXTS", "long_text"]

TEXTS = {
    "prose": (
        "The ferry left the harbour a little after six. On the upper deck two children counted the gulls that followed "
        "the ship, and their father read a newspaper from the day before. Nobody spoke about the storm, although the "
        "sky in the west had turned a dark yellow and the captain had asked everyone to stay away from the railing."
    ),
    "code": (
        "def average(numbers):\n"
        '    """Return the mean of a list of numbers."""\n'
        "    if not numbers:\n"
        '        raise ValueError("the list is empty")\n'
        "    total = 0\n"
        "    for number in numbers:\n"
        "        total += number\n"
        "    return total / len(numbers)\n"
    ),
    "facts": (
        "Water boils at 100 degrees Celsius at sea level. Paris is the capital of France, Rome is the capital of Italy"
        ", and Madrid is the capital of Spain. The Earth moves around the Sun once a year, and the Moon moves around "
        "the Earth once a month. A triangle has three sides, a square has four sides, and a hexagon has six."
    ),
    "odd": "Žluťoučký kůň – 東京タワー 🙂 ½ × 3,141.59 €\n\n\t<b>x &amp; y</b>  …  naïve café, Straße 12a; don't.",
}

QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three colours.",
    "How many days does a week have?",
)

SENTENCES = (
    "A cat sleeps on the sofa.",
    "The kitten is taking a nap on the couch.",
    "Interest rates were raised by the central bank.",
    "How do I bake bread with yeast?",
    "Ein Hund läuft durch den Wald.",
    "Straße, café, naïve: 12 € – 50 %!",
    "x",
    "The ferry left the harbour a little after six, and nobody spoke about the storm. " * 12,
)

PASSAGE = (
    "The lighthouse keeper wrote down the weather every evening. On the first day the wind came from the north, and on "
    "the second day it turned to the east. On the third day there was no wind at all, so he painted the door green and "
    "mended the old wooden boat. His sister arrived on the fourth day with bread, salt, candles and a letter.\n"
)


def long_text(n_paragraphs: int) -> str:
    """Return paragraphs of which none is like another, with `PASSAGE` as the first and, cut in half, as the last."""
    things = ("stones", "boats", "letters", "apples", "lamps", "ropes", "birds", "coins", "books", "bells", "maps")
    places = ("harbour", "garden", "cellar", "market", "tower", "library", "kitchen")
    lines = [
        f"Note {n}: {3 + n * 7 % 89} {things[n % 11]} were counted in the {places[n % 7]}, "
        f"{n * 13 % 17} of them broken.\n"
        for n in range(n_paragraphs)
    ]
    return PASSAGE + "".join(lines) + PASSAGE[: PASSAGE.index("so he painted")]
