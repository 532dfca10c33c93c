"""The plain English words that prompts are made of, and that synthetic tokenizers hold whole.

Owns the words; knows nothing of prompts or of tokens.
"""

from __future__ import annotations

__all__ = ["WORDS"]

WORDS: tuple[str, ...] = tuple(
    """
    the and with from into about after before under over near between through across behind beside against along around
    said asked told wrote read found made took gave kept held left moved turned walked opened closed carried followed
    watched waited worked played called showed brought started stopped finished counted measured painted planted
    repaired sailed climbed crossed gathered answered borrowed promised noticed remembered explained discovered
    river mountain valley forest meadow island harbour bridge village market station garden orchard mill tower castle
    kitchen library school hospital theatre museum workshop factory office window door floor roof wall corner street
    road path field stone water fire wind rain snow storm cloud summer winter autumn spring morning evening night day
    hour minute week month year season moment story letter book paper picture map song dance dinner breakfast bread
    butter cheese apple pear cherry potato onion carrot sugar salt pepper coffee tea milk honey bottle basket bucket
    hammer ladder rope wheel engine wagon boat ship train horse dog cat bird fish wolf bear fox deer mouse sheep goat
    teacher doctor farmer sailor soldier painter singer writer driver hunter keeper merchant neighbour stranger
    brother sister mother father cousin uncle aunt child friend captain judge clerk nurse tailor cook guard king queen
    red green blue yellow white black brown grey golden silver dark bright warm cold dry wet heavy light narrow wide
    short long old young new quiet loud quick slow gentle clever honest careful careless famous friendly hungry lonely
    patient proud simple strange sudden tired useful wooden empty broken hidden ancient common distant foreign secret
    always never often seldom again almost already slowly quickly quietly suddenly together alone outside inside
    everywhere somewhere tomorrow yesterday today early late once twice perhaps because although while until unless
    first second third last next another several many few most every each either neither both other same different
    money price value weight length number answer question reason problem idea plan rule law story lesson example
    paragraph chapter sentence language history science music weather nature travel journey distance direction
    evidence memory purpose pattern signal circuit channel balance pressure surface shadow mirror candle lantern
    blanket pocket button needle thread cotton leather marble copper iron steel glass timber canvas carpet curtain
    """.split()  # noqa: SIM905 - a list of 400 quoted words would hide them
)
