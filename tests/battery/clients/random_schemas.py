"""Random JSON schemas and grammars: good ones that allow something, spoilt ones, and hostile ones. Pure, seeded.

Owns what is drawn. Independent of who is asked, and of what an answer should be beside that it fits.
"""

from __future__ import annotations

import copy
import json
import random
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["HOSTILE_GRAMMARS", "HOSTILE_SCHEMAS", "Matches", "random_grammar", "random_schema", "spoilt_schema"]

_DEPTH = 3
_PATTERNS = (
    r"^[a-z]{1,6}$",
    r"^\d{4}-\d{2}-\d{2}$",
    r"^(yes|no|[0-9]+)$",
    r"^[A-Z][a-z]+( [A-Z][a-z]+)?$",
    r"^[^\"\\x]{0,9}$",
    r"^a?b*c+$",
    r"^(ab|c){2,3}$",
)
_NAMES = ("name", "a", "ключ", 'quo"te', "back\\slash", "new\nline", "🙂", "", "$ref", "-", "a b", "x" * 60)
_DEEP = 10_000
_N_INLINE = 11  # 2,000 schemas when written out

Schema = dict[str, Any]
Matches: TypeAlias = Callable[[str], bool]
_Ends: TypeAlias = Callable[[str, int], set[int]]
_TIMES = {"": (1, 1), "?": (0, 1), "{1,3}": (1, 3), "{2}": (2, 2)}


def random_schema(chance: random.Random) -> Schema:
    """Return a schema of supported keywords that some value fits."""
    schema = _value(chance, _DEPTH)
    if chance.random() < 0.2:
        schema = {"$defs": {"part": schema}, "type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 3}
    return schema


def _value(chance: random.Random, depth: int) -> Schema:
    kinds: list[Callable[[random.Random, int], Schema]] = [_text, _whole, _number, _listed, _plain]
    if depth:
        kinds += [_object, _object, _array, _union]
    return chance.choice(kinds)(chance, depth - 1)


def _plain(chance: random.Random, _depth: int) -> Schema:
    return {"type": chance.choice(("boolean", "null", ["null", "integer"], ["boolean", "string"]))}


def _text(chance: random.Random, _depth: int) -> Schema:
    if chance.random() < 0.5:
        return {"type": "string", "pattern": chance.choice(_PATTERNS)}
    shortest = chance.randrange(4)
    return {"type": "string", "minLength": shortest, "maxLength": shortest + chance.randrange(20)}


def _whole(chance: random.Random, _depth: int) -> Schema:
    low = chance.choice((0, -1, chance.randint(-(10**9), 10**9)))
    return {"type": "integer", "minimum": low, "maximum": low + chance.choice((0, 1, 9, 10, chance.randrange(10**7)))}


def _number(chance: random.Random, _depth: int) -> Schema:
    low = round(chance.uniform(-1000, 1000), chance.randrange(4))
    return {"type": "number", "exclusiveMinimum": low, "maximum": low + chance.choice((0.01, 1, 1000.5))}


def _listed(chance: random.Random, _depth: int) -> Schema:
    values = [
        None,
        True,
        0,
        -1.5,
        "",
        "x",
        'a "quoted"\n',
        "\u0000",
        [1, [2]],
        {"a": {"b": None}},
        1e21,
        "🙂",
    ]
    if chance.random() < 0.3:
        return {"const": chance.choice(values)}
    return {"enum": chance.sample(values, chance.randint(1, len(values)))}


def _object(chance: random.Random, depth: int) -> Schema:
    names = chance.sample(_NAMES, chance.randrange(5))
    properties = {name: _value(chance, depth) for name in names}
    required = [name for name in names if chance.random() < 0.7]
    schema: Schema = {"type": "object", "properties": properties, "required": required}
    more = chance.choice((None, False, True, "schema"))
    if more is not None:
        schema["additionalProperties"] = _value(chance, 0) if more == "schema" else more
    return schema


def _array(chance: random.Random, depth: int) -> Schema:
    if chance.random() < 0.2:
        return {"type": "array", "prefixItems": [_value(chance, depth) for _ in range(chance.randint(1, 3))]}
    shortest = chance.randrange(3)
    most = shortest + chance.randrange(1, 4)
    return {"type": "array", "items": _value(chance, depth), "minItems": shortest, "maxItems": most}


def _union(chance: random.Random, depth: int) -> Schema:
    ways = [_value(chance, depth) for _ in range(chance.randint(1, 3))]
    return {"anyOf": ways}


def spoilt_schema(chance: random.Random) -> Schema:
    """Return a good schema in which one value or keyword was replaced by something random."""
    schema = copy.deepcopy(random_schema(chance))
    places = list(_places(schema))
    holder, key = chance.choice(places)
    junk = (None, -1, 1.5, "", "x", [], {}, [{}], True, 10**30, "^(", {"$ref": "#/nowhere"}, {"not": {}}, ["object", 3])
    if isinstance(holder, dict) and chance.random() < 0.3:
        holder[chance.choice(("not", "if", "minimum", "pattern", "items", "$ref", "allOf", "enum"))] = holder.pop(key)
    else:
        holder[key] = copy.deepcopy(chance.choice(junk))
    return schema


def _places(value: object) -> list[tuple[Any, Any]]:
    children = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [place for key, child in children for place in ((value, key), *_places(child))]


def random_grammar(chance: random.Random) -> tuple[str, Matches]:
    """Return a GBNF grammar of a regular language, and whether a text is of it."""
    rules: list[str] = []
    body, ends = _ways(chance, _DEPTH, rules)
    return "\n".join([f"root ::= {body}", *rules]) + "\n", lambda text: len(text) in ends(text, 0)


def _ways(chance: random.Random, depth: int, rules: list[str]) -> tuple[str, _Ends]:
    ways = [_sequence(chance, depth, rules) for _ in range(chance.randint(1, 3))]
    return " | ".join(way for way, _ in ways), _either([ends for _, ends in ways])


def _sequence(chance: random.Random, depth: int, rules: list[str]) -> tuple[str, _Ends]:
    parts = [_item(chance, depth, rules) for _ in range(chance.randint(1, 3))]
    return " ".join(part for part, _ in parts), _after([ends for _, ends in parts])


def _item(chance: random.Random, depth: int, rules: list[str]) -> tuple[str, _Ends]:
    kind = chance.choice(("literal", "class", "group", "rule") if depth else ("literal", "class"))
    if kind == "literal":
        text = "".join(chance.choices(string.ascii_letters + "äß日", k=chance.randint(1, 5)))
        body, ends = f'"{text}"', _literal(text)
    elif kind == "class":
        low, high = sorted(chance.sample(string.ascii_lowercase, 2))
        negated = chance.choice(("", "^"))
        body, ends = f"[{negated}{low}-{high}]", _character(low, high, is_inside=not negated)
    else:
        body, ends = _ways(chance, depth - 1, rules)
        if kind == "rule":
            name = f"r{len(rules)}"
            rules.append(f"{name} ::= {body}")
            body = name
        body = f"({body})"
    times = chance.choice(("", "", "?", "{1,3}", "{2}"))
    return body + times, _repeated(ends, *_TIMES[times])


# Where a part of a grammar that begins at an index of a text may end. A regular expression would try for minutes.


def _literal(part: str) -> _Ends:
    return lambda text, begin: {begin + len(part)} if text.startswith(part, begin) else set()


def _character(low: str, high: str, *, is_inside: bool) -> _Ends:
    return lambda text, begin: {begin + 1} if begin < len(text) and (low <= text[begin] <= high) == is_inside else set()


def _either(ways: Sequence[_Ends]) -> _Ends:
    return lambda text, begin: {end for way in ways for end in way(text, begin)}


def _after(parts: Sequence[_Ends]) -> _Ends:
    def ends(text: str, begin: int) -> set[int]:
        found = {begin}
        for part in parts:
            found = {end for start in found for end in part(text, start)}
        return found

    return ends


def _repeated(part: _Ends, least: int, most: int) -> _Ends:
    return _either([_after([part] * times) for times in range(least, most + 1)])


def _nested(depth: int, begin: str, end: str, middle: str) -> str:
    return begin * depth + middle + end * depth


def _doubling(n_levels: int) -> Schema:
    """Return a schema of which each level refers twice to the next."""
    parts = {
        str(level): {"type": "array", "prefixItems": [{"$ref": f"#/$defs/{level + 1}"}] * 2}
        for level in range(n_levels)
    }
    inline: Any = {"type": "null"}
    for _ in range(_N_INLINE):
        inline = {"anyOf": [{"type": "array", "items": inline}, {"type": "object", "properties": {"a": inline}}]}
    return {"$defs": parts | {str(n_levels): inline}, "$ref": "#/$defs/0"}


# What must be refused, each with a cause.
HOSTILE_SCHEMAS: Mapping[str, object] = {
    "a list": [],
    "a number": 3,
    "false": False,
    "a type that is none": {"type": "tuple"},
    "a type that is a number": {"type": 3},
    "not": {"not": {"type": "string"}},
    "a reference to itself": {"$ref": "#"},
    "two that refer to each other": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "a reference to a page": {"$ref": "http://localhost/schema"},
    "a reference to a file": {"$ref": "file:///etc/passwd"},
    "a reference to nothing": {"$ref": "#/$defs/none"},
    "a lower maximum": {"type": "integer", "minimum": 5, "maximum": 4},
    "a length below 0": {"type": "string", "minLength": -1},
    "a length past all": {"type": "string", "minLength": 10**9},
    "a list past all": {"type": "array", "items": {"type": "null"}, "minItems": 10**6},
    "no way": {"anyOf": []},
    "no value": {"enum": []},
    "a broken pattern": {"type": "string", "pattern": "^(a"},
    "a pattern of repetitions": {"type": "string", "pattern": "^((a{500}){500}){500}$"},
    "a deep pattern": {"type": "string", "pattern": "^" + _nested(1000, "(", ")", "a") + "$"},
    "a pattern that looks back": {"type": "string", "pattern": r"^(a)\1$"},
    "properties as a list": {"type": "object", "properties": [1]},
    "required as a text": {"type": "object", "properties": {"a": {}}, "required": "a"},
    "a hundred levels": json.loads(_nested(100, '{"type":"array","items":', "}", "{}")),
    "five hundred ways of objects": _doubling(30),
    "a million values": {"enum": list(range(100_000))},
    "many properties": {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(5000)}},
}
HOSTILE_GRAMMARS: Mapping[str, str] = {
    "nothing": " ",
    "no root": 'x ::= "a"',
    "a rule that is missing": "root ::= missing",
    "a rule that begins with itself": 'root ::= root "a" | "b"',
    "two that begin with each other": 'root ::= a "x"\na ::= b\nb ::= a "y" | "z"',
    "an open text": 'root ::= "abc',
    "an open class": "root ::= [a-z",
    "an open group": 'root ::= ("a"',
    "deep groups": "root ::= " + _nested(_DEEP, "(", ")", '"a"'),
    "a chain of rules": "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1}\n" for n in range(_DEEP)) + f'r{_DEEP} ::= "a"',
    "many repetitions": 'root ::= (("a"{2000}){2000}){2000}',
    "repetitions past all": 'root ::= "a"{99999999999999999999}',
    "a lower end": 'root ::= "a"{5,2}',
    "a long text": 'root ::= "' + "a" * (1 << 20) + '"',
    "a bad escape": r'root ::= "\xZZ"',
    "half a pair": r'root ::= "\ud800"',
    "a repetition of nothing": "root ::= *",
}
