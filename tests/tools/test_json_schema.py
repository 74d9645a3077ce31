"""Foreign JSON schemas: which values fit them, their cost, and that none of them blocks the process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nursery import Nursery
from thorough import THOROUGH

from agentflow._support.json_compiler import MAX_COST, MAX_LEVELS
from agentflow._support.json_schema import JsonSchema, JsonSchemaError, TooCostlyError
from agentflow._support.patterns_outside import PatternError, SchemaPattern
from agentflow.errors import ToolArgumentError, UsageError
from agentflow.tools import external_tool
from agentflow.vocabulary.messages import ToolUseBlock

SECONDS = 60
"""Of processor time for all hostile cases; a validator that backtracks would need years for the first."""


def test_no_schema_and_no_value_holds_the_process(commands: Nursery) -> None:
    """Each is refused, given up, or answered: in a process that the system ends after a minute of work."""
    program = Path(__file__).parent / "hostile_schemas.py"
    ended = commands.run([str(program), str(SECONDS)], dict(os.environ), seconds=10 * SECONDS)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "pattern": "pattern",
        "pattern of names": "propertyNames",
        "patternProperties": "fits",
        "additional beside patterns": "additionalProperties",
        "pattern that is large": "refused",
        "patterns that are many": "refused",
        "pattern that looks around": "refused",
        "pattern that refers back": "refused",
        "text for a large pattern": "given up",
        "circle": "refused",
        "circle of two": "refused",
        "circle in not": "refused",
        "long way in one place": "refused",
        "anyOf of anyOf": "given up",
        "oneOf of oneOf": "given up",
        "allOf of allOf": "given up",
        "if of if": "given up",
        "deep schema": "fits",
        "deep value": "given up",
        "deep value in enum": "given up",
        "deep value in uniqueItems": "given up",
        "uniqueItems": "given up",
        "uniqueItems of numbers that collide": "fits",
        "uniqueItems at each level": "given up",
        "contains in contains": "given up",
        "names that are required": "given up",
        "value that is large": "given up",
        "properties that are many": "refused",
        "enum that is large": "refused",
        "schema that is large": "refused",
        "numbers without end": "given up",
        "multiples of a small number": "fits",
        "names that are long": "refused",
        "schema of deep data": "refused",
        "format": "fits",
    }


def test_a_tool_says_what_its_schema_asks_for() -> None:
    """A schema is refused when the tool is made; arguments that cannot be checked do not reach the tool."""
    with pytest.raises(
        UsageError, match=r"'find': its JSON schema cannot be used: the pattern '\(\?=a\)' looks around"
    ):
        external_tool("find", "Find.", {"properties": {"a": {"pattern": "(?=a)"}}})
    with pytest.raises(UsageError, match=r"its JSON schema has \d+ bytes; the maximum is 524288"):
        external_tool("find", "Find.", {"description": "x" * 600_000})
    find = external_tool("find", "Find.", {"properties": {"a": {"items": {"items": {"type": "integer"}}}}})
    find.validate(ToolUseBlock("t1", "find", {"a": [[1, 2], [3]]}))
    with pytest.raises(
        ToolArgumentError, match=r"'find' was not run: its arguments cannot be checked: .* more than 500000 steps"
    ):
        find.validate(ToolUseBlock("t1", "find", {"a": [[1] * 1000] * 1000}))


def test_many_problems_are_counted_and_some_are_shown() -> None:
    """However large the value is, the model gets some lines."""
    find = external_tool("find", "Find.", {"properties": {"a": {"items": {"type": "string"}}}})
    with pytest.raises(ToolArgumentError) as caught:
        find.validate(ToolUseBlock("t1", "find", {"a": list(range(50_000))}))
    lines = str(caught.value).splitlines()
    assert lines[1] == "- a[0]: should be a string; got 0"
    assert lines[-1] == "- and 49990 more"
    assert len(lines) == 12


def test_a_value_of_the_greatest_depth() -> None:
    """The limit of levels is where it is said to be, and far enough from the interpreter's own."""
    schema = JsonSchema({"items": {"$ref": "#"}})
    value: Any = []
    for _ in range(MAX_LEVELS // 2 - 1):  # a list takes a level, and the reference to its schema another
        value = [value]
    assert schema.problems(value) == []
    with pytest.raises(TooCostlyError, match="nested too deeply"):
        schema.problems([value])


def test_the_cost_of_a_schema() -> None:
    """It is the number of subschemas, including those in lists; a schema at the limit is accepted, and one beyond it
    is not.
    """
    assert JsonSchema({"properties": {"a": {"type": "string"}, "b": True}}).cost == 3
    assert JsonSchema({"allOf": [True] * (MAX_COST - 1)}).cost == MAX_COST
    with pytest.raises(JsonSchemaError, match="too large"):
        JsonSchema({"allOf": [True] * MAX_COST})


WRONG: list[tuple[Any, str]] = [
    ([], "a schema must be an object, true or false, not [] (at #)"),
    ({"properties": []}, "it must be an object, not [] (at #/properties)"),
    ({"properties": {"a": 1}}, "a schema must be an object, true or false, not 1 (at #/properties/a)"),
    ({"anyOf": []}, "it must be a list of schemas, not [] (at #/anyOf)"),
    (
        {"anyOf": [{"type": "text"}]},
        "it must be one or several of array, boolean, integer, null, number, object, string, not",
    ),
    ({"required": "a"}, "it must be a list of names, not 'a' (at #/required)"),
    ({"enum": 1}, "it must be a list of values, not 1 (at #/enum)"),
    ({"minimum": "1"}, "it must be a number, not '1' (at #/minimum)"),
    ({"multipleOf": 0}, "it must be a number above 0, not 0 (at #/multipleOf)"),
    ({"minLength": -1}, "it must be a whole number of at least 0, not -1 (at #/minLength)"),
    ({"uniqueItems": 1}, "it must be true or false, not 1 (at #/uniqueItems)"),
    ({"pattern": 1}, "a pattern must be a string, not 1 (at #/pattern)"),
    ({"$ref": 1}, "a reference must be a string, not 1 (at #/$ref)"),
    ({"$ref": "#/a/9999999"}, "it refers to '#/a/9999999', which is not in it"),
    ({"$id": "http://a/", "$ref": "//[x"}, "it refers to '//[x', which is not an address"),
    ({"prefixItems": {}}, "it must be a list of schemas, not {} (at #/prefixItems)"),
    ({"$schema": "http://json-schema.org/draft-03/schema#"}, "it uses draft 3"),
    ({"items": {"minItems": 10**5000}}, ""),
    ({"items": {"minItems": -(10**5000)}}, "it must be a whole number of at least 0, not a int (at #/items/minItems)"),
    ({"$dynamicAnchor": "a", "items": {"$dynamicAnchor": "a"}}, "it defines $dynamicAnchor 'a' more than once"),
    ({"dependentRequired": {"a": {}}}, "it must be a list of names, not {} (at #/dependentRequired)"),
]


@pytest.mark.parametrize(("schema", "text"), WRONG)
def test_what_is_no_schema_is_refused(schema: Any, text: str) -> None:
    """With the place, and the legal values."""
    if not text:
        JsonSchema(schema)
        return
    with pytest.raises(JsonSchemaError) as caught:
        JsonSchema(schema)
    assert str(caught.value).startswith(text)


# ---- the same as an independent validator

SCALARS: list[Any] = [
    None,
    False,
    True,
    *range(-4, 5),
    0.5,
    1.0,
    2.5,
    "",
    "a",
    "b",
    "1",
    "ab",
    "b1",
    "aab",
    "1a1",
    "bbb",
]


def some_values(count: int) -> list[Any]:
    """Scalars, and lists and objects of some depth: drawn once, since drawing them takes longer than a comparison."""
    random = Random(0)
    made = [*SCALARS, [], {}]
    while len(made) < count:
        if random.random() < 0.5:
            made.append(random.choices(made, k=random.randint(1, 4)))
        else:
            made.append({name: random.choice(made) for name in random.sample("abc", random.randint(1, 3))})
    return made


VALUES = st.sampled_from(some_values(600))
NAMES = st.sampled_from("abc")
COUNTS = st.integers(0, 3)
# `jsonschema` takes an empty pattern of `patternProperties`, which matches every name, for none.
PATTERNS = st.sampled_from(["a", "^a", "b$", "^[ab]+$", r"\d", "^(a|b1)*$", "", r"^\w{2,3}$"])
KINDS = ["array", "boolean", "integer", "null", "number", "object", "string"]
TYPES = st.sampled_from(KINDS)
REFS = st.sampled_from(["#/$defs/x", "#/$defs/y", "#y"])


def keywords_over(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """The keywords, each with its rules, over smaller schemas."""
    many = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    return {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "minimum": st.integers(-3, 3),
        "maximum": st.integers(-3, 3),
        "exclusiveMinimum": st.integers(-3, 3),
        "exclusiveMaximum": st.integers(-3, 3),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": COUNTS,
        "maxLength": COUNTS,
        "pattern": PATTERNS,
        "format": st.just("email"),
        "items": inner,
        "prefixItems": many,
        "contains": inner,
        "minContains": COUNTS,
        "maxContains": COUNTS,
        "minItems": COUNTS,
        "maxItems": COUNTS,
        "uniqueItems": st.booleans(),
        "unevaluatedItems": inner,
        "properties": named,
        "patternProperties": st.dictionaries(PATTERNS.filter(bool), inner, min_size=1, max_size=2),
        "additionalProperties": inner,
        "propertyNames": inner,
        "unevaluatedProperties": inner,
        "required": st.lists(NAMES, min_size=1, max_size=2, unique=True),
        "minProperties": COUNTS,
        "maxProperties": COUNTS,
        "dependentRequired": st.dictionaries(
            NAMES, st.lists(NAMES, min_size=1, max_size=2, unique=True), min_size=1, max_size=2
        ),
        "dependentSchemas": named,
        "allOf": many,
        "anyOf": many,
        "oneOf": many,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "$ref": REFS,
    }


def keywords_of_draft_7(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """The keywords as they are in draft 7; it ignores newer ones."""
    return keywords_over(inner) | {
        "items": inner | st.lists(inner, min_size=1, max_size=3),
        "additionalItems": inner,
        "dependencies": st.dictionaries(
            NAMES, inner | st.lists(NAMES, min_size=1, max_size=2, unique=True), min_size=1, max_size=2
        ),
    }


def of_keywords(
    inner: st.SearchStrategy[Any],
    always: tuple[str, ...] = (),
    beside: tuple[str, ...] = (),
    known: Callable[[st.SearchStrategy[Any]], dict[str, st.SearchStrategy[Any]]] = keywords_over,
) -> st.SearchStrategy[Any]:
    """Schemas of some keywords: those that must be there, and some others."""
    keywords = known(inner)
    others = st.lists(st.sampled_from(sorted(beside or keywords)), max_size=3, unique=True)

    @cache
    def of_names(names: frozenset[str]) -> st.SearchStrategy[Any]:
        return st.fixed_dictionaries({name: keywords[name] for name in sorted(names)})

    return others.flatmap(lambda chosen: of_names(frozenset((*always, *chosen))))


LEAVES = st.sampled_from(
    [False, True, *({"type": kind} for kind in KINDS), *({"const": value} for value in some_values(60))]
)
SCHEMAS = LEAVES | of_keywords(LEAVES) | of_keywords(LEAVES | of_keywords(LEAVES))
NUMBERS = st.integers(-4, 4) | st.sampled_from([-0.5, 0.5, 1.0, 2.5])
FITTING = (
    NUMBERS
    | st.text("ab1", max_size=3)
    | st.lists(VALUES, max_size=4)
    | st.dictionaries(NAMES, VALUES, min_size=1, max_size=3)
)
BESIDE: dict[str, tuple[str, ...]] = {
    "unevaluatedItems": ("prefixItems", "contains", "items", "if", "then", "else", "anyOf", "allOf", "$ref"),
    "unevaluatedProperties": ("properties", "patternProperties", "if", "then", "else", "dependentSchemas", "$ref"),
    "additionalProperties": ("properties", "patternProperties"),
    "then": ("if", "type", "else"),
    "else": ("if", "type", "then"),
    "minContains": ("contains", "maxContains"),
    "maxContains": ("contains", "minContains"),
    "items": ("prefixItems", "type"),
}
"""The keywords that another one looks at."""


@cache
def with_keyword(keyword: str) -> st.SearchStrategy[Any]:
    """Schemas of a keyword, and of some that it looks at."""
    needed = ("contains",) if keyword.endswith("Contains") else ("if",) if keyword in ("then", "else") else ()
    return of_keywords(SCHEMAS, (keyword, *needed), BESIDE.get(keyword, ()))


@pytest.mark.parametrize("keyword", sorted(keywords_over(LEAVES)))
@given(data=st.data())
@settings(max_examples=40 if THOROUGH else 15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_keyword_agrees_with_an_independent_validator(keyword: str, data: st.DataObject) -> None:
    """Beside the keywords that it looks at, and on values of the kind that it looks at: the same values fit."""
    schema = data.draw(with_keyword(keyword))
    agree(schema, data.draw(SCHEMAS), data.draw(st.lists(FITTING, min_size=4, max_size=8)))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS, SCHEMAS, st.lists(VALUES, min_size=1, max_size=6))
def test_it_agrees_with_an_independent_validator(schema: Any, inner: Any, values: list[Any]) -> None:
    """Any schema of any keywords, with references: the same values fit."""
    agree(schema, inner, values)


OLD_SCHEMAS = st.sampled_from(sorted(keywords_of_draft_7(LEAVES))).flatmap(
    lambda keyword: of_keywords(
        LEAVES | of_keywords(LEAVES, known=keywords_of_draft_7), (keyword,), (), keywords_of_draft_7
    )
)


@settings(max_examples=200 if THOROUGH else 100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OLD_SCHEMAS, st.lists(FITTING, min_size=4, max_size=8))
def test_a_schema_of_draft_7_agrees_with_an_independent_validator(schema: Any, values: list[Any]) -> None:
    """The keywords of draft 7 have their old meanings, such as a list in `items`; newer keywords are ignored."""
    agree(schema, True, values, "http://json-schema.org/draft-07/schema#")


@pytest.mark.parametrize(
    ("dialect", "keywords"),
    [
        ("https://json-schema.org/draft/2020-12/schema", ("prefixItems", "items")),
        ("http://json-schema.org/draft-07/schema#", ("items", "additionalItems")),
    ],
)
@given(*[st.lists(TYPES, min_size=1, max_size=3)] * 2, st.lists(VALUES, max_size=4))
def test_the_first_entries_and_the_others(
    dialect: str, keywords: tuple[str, str], first: list[str], others: list[str], values: list[Any]
) -> None:
    """The schemas of the first entries are not those of the others, in any dialect."""
    rules = [{"type": name} for name in first], {"type": others}
    agree(dict(zip(keywords, rules, strict=True)), True, [values], dialect)


@pytest.mark.parametrize("draft", ["04", "06", "07"])
def test_required_of_an_old_draft(draft: str) -> None:
    """A list of names is checked. The form of draft 3, `true` beside a property's type, is ignored."""
    a = {"type": "integer", "required": True}
    schema = JsonSchema(
        {"$schema": f"http://json-schema.org/draft-{draft}/schema#", "properties": {"a": a}, "required": ["b"]}
    )
    assert [len(schema.problems(value)) for value in ({"b": 1}, {"a": 1}, {"a": "", "b": 1})] == [0, 1, 1]


def agree(
    schema: Any, inner: Any, values: list[Any], dialect: str = jsonschema.Draft202012Validator.META_SCHEMA["$id"]
) -> None:
    """Compare with `jsonschema` which values fit."""
    y = {"items": inner}
    definitions = {"$defs": {"x": {"type": ["integer", "object"]}, "y": y}}
    if "2020" in dialect:
        y["$anchor"] = "y"
    else:
        definitions["definitions"] = {"z": {"$id": "#y", **y}}  # where old drafts look for an anchor
    whole = {"$schema": dialect, "allOf": [schema], **definitions}
    try:
        ours = JsonSchema(whole)
    except JsonSchemaError as error:
        if "in a cycle" in str(error):
            return  # it would never end there
        raise
    theirs = jsonschema.validators.validator_for(whole)(whole)
    for value in values:
        assert (not ours.problems(value)) == theirs.is_valid(value), (whole, value)


# ---- patterns

MATCHES: list[tuple[str, str, bool]] = [
    ("^(a+)+$", "aaa", True),
    ("^(a+)+$", "aaa!", False),
    (r"^\d{4}-\d{2}$", "2024-01", True),
    (r"^\d+$", "١", False),
    (r"^\w+$", "é", False),
    (r"^[\w.-]+@[\w-]+\.\w+$", "a.b@c.de", True),
    (r"^[a&&b]$", "&", True),
    (r"^[a[b]$", "[", True),
    (r"^[+--]$", ",", True),
    (r"^[--/]$", ".", True),
    (r"^[a\-z]$", "-", True),
    (r"^[^]$", "\n", True),
    (r"[]", "a", False),
    (r"^[\d\-x]+$", "1-x", True),
    (r"^[\W_]+$", "-_", True),
    (r"^[^\s]+$", "a b", False),
    (r"^[\b]$", "\x08", True),
    (r"\bfoo\b", "a foo b", True),
    (r"\Bfoo", "afoo", True),
    (r"\bfoo\b", "éfooé", True),
    (r"\Bfoo", "éfoo", False),
    (r"^\Bé\B$", "é", True),
    (r"\B", "aéb", False),
    ("a{,3}", "a{,3}", True),
    ("^}]$", "}]", True),
    (r"^\/\-\_\<\#$", "/-_<#", True),
    (r"^(?<year>\d)(?P<day>\d)$", "12", True),
    ("(?i)ABC", "xabc", True),
    ("(?i:A)b", "aB", False),
    (r"^\u0041\x42\u{43}$", "ABC", True),
    (r"^[\uD83D\uDE00]$", "😀", True),
    (r"^\cA\0$", "\x01\x00", True),
    (r"^.$", "\r", False),
    ("(?s)^.$", "\n", True),
    ("a$", "a\n", False),
    (r"\Aabc\Z", "abc", True),
    (r"^\p{L}+$", "é", True),
    ("^(?:a|b)*?c$", "abc", True),
    ("", "a", True),
    ("^😀+$", "😀😀", True),
]
REFUSED: list[tuple[str, str]] = [
    ("(?=a)b", "looks around ('(?='), which needs backtracking"),
    ("(?!a)b", "looks around ('(?!'), which needs backtracking"),
    ("(?<=a)b", "looks around ('(?<='), which needs backtracking"),
    ("(?<!a)b", "looks around ('(?<!'), which needs backtracking"),
    (r"(a)\1", r"refers back ('\1'), which needs backtracking"),
    (r"(?<a>b)\k<a>", r"refers back ('\k'), which needs backtracking"),
    ("(", "has a group that is not closed"),
    (")", "closes a group that is not open"),
    ("[a", "has a class that is not closed"),
    ("*", "repeats nothing"),
    ("a**", "repeats nothing"),
    ("a++", "repeats nothing"),
    ("^*", "repeats nothing"),
    ("a{99999}", "repeats too much"),
    ("((a{100}){100}){100}", "repeats too much"),
    (r"(\p{L}{1,9}){1,9}", "repeats too much"),
    ("(?>a)", "has a group of an unknown kind ('(?>a')"),
    ("(?x) a", "has a group of an unknown kind ('(?x)')"),
    ("bcdef(?#a)", "has a group of an unknown kind ('(?#a')"),
    (r"\q", r"has an unknown escape ('\q')"),
    ("a\\", "has an unknown escape ('\\')"),
    (r"\uD83D", "names an invalid character (U+D83D)"),
    ("[z-a]", "is not a regular expression (invalid character class range"),
    ("(" * 300 + ")" * 300, "is not a regular expression"),
    ("a" * 5000, "a pattern of 5000 characters is too long; the maximum is 4000"),
]


@pytest.mark.parametrize(("pattern", "text", "found"), MATCHES)
def test_patterns_match_as_ecma_says(pattern: str, text: str, found: bool) -> None:
    """Where Rust, Python and ECMA 262 differ, it is ECMA's meaning."""
    assert SchemaPattern(pattern).found_in(text) is found


@pytest.mark.parametrize(("pattern", "why"), REFUSED)
def test_patterns_that_are_refused(pattern: str, why: str) -> None:
    """What would need backtracking, is too large, or is none: and the error says which."""
    with pytest.raises(PatternError) as caught:
        SchemaPattern(pattern)
    assert why in str(caught.value)


def test_the_weight_of_a_pattern() -> None:
    """It grows with the repeated part, as the automaton does."""
    weights = {"a": 1, "a{10}": 11, "(ab){3,5}": 16, "(a{10}){10}": 121, "[^a]{2}": 17}
    weights |= {r"[\d]{2}": 3, r"[\W]{2}": 17, r"[a\W]{2}": 17, r"[\Wa]{2}": 17, "[aé]{2}": 17, r"[\-a]{2}": 3}
    assert {text: SchemaPattern(text).weight for text in weights} == weights
