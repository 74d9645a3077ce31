"""The keywords of JSON schema, for `agentflow._support.json_schema`: each is compiled to a function that checks a value.

A keyword function takes the subschema (`Subschema`), the keyword's name and its value. Similar keywords, such as
`minLength` and `maxItems`, share a function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from math import isfinite
from typing import Any, Final, cast

from agentflow._support.json_compiler import (
    TYPES,
    At,
    Check,
    Keywords,
    Marks,
    Node,
    Problem,
    SchemaCheck,
    Subschema,
    canonical,
    invalid_schema,
    is_number,
)
from agentflow._support.patterns_outside import SchemaPattern


def _ref(schema: Subschema, key: str, rule: Any) -> Check:
    return schema.added(schema.compiler.reference(rule, schema.raw, schema.where(key))).check


def _type(schema: Subschema, key: str, rule: Any) -> Check:
    names: Any = [rule] if isinstance(rule, str) else rule
    if not isinstance(names, list) or not all(
        isinstance(name, str) and name in TYPES for name in cast("list[Any]", names)
    ):
        raise invalid_schema(schema.where(key), f"it must be one or several of {', '.join(TYPES)}", rule)
    known = [TYPES[name] for name in dict.fromkeys(cast("list[str]", names))]
    if len(known) == 1:
        [fits] = known
    else:

        def fits(value: Any, /) -> bool:
            return any(check(value) for check in known)

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if not fits(value):
            run.add(at, key, rule, value)

    return check


def _enum(schema: Subschema, key: str, rule: Any) -> Check:
    if key == "enum" and not isinstance(rule, list):
        raise invalid_schema(schema.where(key), "it must be a list of values", rule)
    values = cast("list[Any]", rule if key == "enum" else [rule])
    known = frozenset([canonical(member, schema.compiler.spend) for member in values])

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if canonical(value, run.spend) not in known:
            run.add(at, key, rule, value)

    return check


def _limit(schema: Subschema, key: str, rule: Any) -> Check | None:
    """Compile `minimum`, `maximum` and their exclusive forms."""
    if isinstance(rule, bool) and key.startswith("exclusive"):  # draft 4: it modifies the other keyword
        return None
    limit = schema.number(key, rule)
    if schema.raw.get(f"exclusive{key.capitalize()}") is True:  # draft 4
        key = f"exclusive{key.capitalize()}"

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if is_number(value) and not _OF_LIMITS[key](value, limit):
            run.add(at, key, limit, value)

    return check


_OF_LIMITS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
}


def _multiple_of(schema: Subschema, key: str, rule: Any) -> Check:
    divisor = schema.number(key, rule)
    if divisor <= 0:
        raise invalid_schema(schema.where(key), "it must be a number above 0", rule)
    # The decimal number as written: the float 0.1 is not exactly a tenth, so 0.3 would be no multiple of it.
    exact = Fraction(repr(divisor)) if isinstance(divisor, float) else divisor

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if not is_number(value):
            return
        if isinstance(value, int):
            run.spend((value.bit_length() >> 8) ** 2 >> 6)  # dividing long integers takes quadratic time
        elif not isfinite(value):  # `Fraction` cannot represent it
            run.add(at, key, rule, value)
            return
        if (Fraction(repr(value)) if isinstance(value, float) else value) % exact:
            run.add(at, key, rule, value)

    return check


def _length(schema: Subschema, key: str, rule: Any) -> Check:
    """Compile `minLength`, `maxItems` and similar."""
    limit = schema.count(key, rule)
    kind = str if key.endswith("Length") else list if key.endswith("Items") else dict
    least = key.startswith("min")

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, kind):
            size = len(cast("Collection[Any]", value))
            if size < limit if least else size > limit:
                run.add(at, key, limit, cast("Any", value))

    return check


def _matches(pattern: SchemaPattern, text: str, run: SchemaCheck) -> bool:
    run.spend(1 + (len(text) * pattern.weight >> 5))
    return pattern.found_in(text)


def _pattern(schema: Subschema, key: str, rule: Any) -> Check:
    pattern = schema.compiler.pattern(rule, schema.where(key))

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, str) and not _matches(pattern, value, run):
            run.add(at, key, rule, value)

    return check


def _all_of(schema: Subschema, key: str, rule: Any) -> Check:
    nodes = schema.schemas(key, rule)

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        for node in nodes:
            node.check(value, at, run, marks)

    return check


def _any_of(schema: Subschema, key: str, rule: Any) -> Check:
    nodes = schema.schemas(key, rule)

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        forms: list[list[Problem]] = []
        fits = 0
        for node in nodes:
            found = run.problems_with(node, value, at, marks)
            if found:
                forms.append(found)
                continue
            fits += 1
            # If parts are marked for `unevaluated...`, each alternative that fits has to mark its own.
            if key == "anyOf" and marks is None:
                return
        if not fits:
            run.add(at, key, rule, value, tuple(forms))
        elif fits > 1 and key == "oneOf":
            run.add(at, key, rule, value)

    return check


def _not(schema: Subschema, key: str, rule: Any) -> Check:
    node = schema.same(rule, key)

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        # No marks: parts that `not` evaluates do not count as evaluated.
        if not run.problems_with(node, value, at, None):
            run.add(at, key, rule, value)

    return check


def _if(schema: Subschema, key: str, rule: Any) -> Check:
    node = schema.same(rule, key)
    then, otherwise = [schema.same(schema.raw[name], name) if name in schema.raw else None for name in ("then", "else")]

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        branch = otherwise if run.problems_with(node, value, at, marks) else then
        if branch is not None:
            branch.check(value, at, run, marks)

    return check


# ---- lists


def _items(schema: Subschema, key: str, rule: Any) -> Check:
    """Compile `items`: a list of schemas as in older drafts, or a schema for the entries after those of `prefixItems`."""
    if isinstance(rule, list):
        return _prefix_items(schema, key, cast("Any", rule))
    first = schema.raw.get("prefixItems")
    # Old drafts do not know `prefixItems`.
    after = len(cast("list[Any]", first)) if isinstance(first, list) and not schema.compiler.old else 0
    return _entries(schema.inner(rule, key), after)


def _additional_items(schema: Subschema, key: str, rule: Any) -> Check | None:
    first = schema.raw.get("items")
    return _entries(schema.inner(rule, key), len(cast("list[Any]", first))) if isinstance(first, list) else None


def _entries(node: Node, after: int) -> Check:
    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, list):
            entries = cast("list[Any]", value)
            if marks is not None:
                run.spend(len(entries))
                marks.update(range(len(entries)))
            for index in range(after, len(entries)):
                node.check(entries[index], (at, index), run, None)

    return check


def _prefix_items(schema: Subschema, key: str, rule: Any) -> Check:
    if not isinstance(rule, list):
        raise invalid_schema(schema.where(key), "it must be a list of schemas", rule)
    nodes = [schema.inner(subschema, key, index) for index, subschema in enumerate(cast("list[Any]", rule))]

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, list):
            for index, (node, entry) in enumerate(zip(nodes, cast("list[Any]", value), strict=False)):
                node.check(entry, (at, index), run, None)
                if marks is not None:
                    marks.add(index)

    return check


def _contains(schema: Subschema, key: str, rule: Any) -> Check:
    node = schema.inner(rule, key)
    raw = {} if schema.compiler.old else schema.raw
    least = schema.count("minContains", raw["minContains"]) if "minContains" in raw else 1
    most = schema.count("maxContains", raw["maxContains"]) if "maxContains" in raw else None

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if not isinstance(value, list):
            return
        entries = cast("list[Any]", value)
        fits = [index for index, item in enumerate(entries) if not run.problems_with(node, item, (at, index), None)]
        if marks is not None:
            marks.update(fits)
        if len(fits) < least:
            run.add(at, key, least, entries)
        if most is not None and len(fits) > most:
            run.add(at, "maxContains", most, entries)

    return check


def _unique_items(schema: Subschema, key: str, rule: Any) -> Check | None:
    if not isinstance(rule, bool):
        raise invalid_schema(schema.where(key), "it must be true or false", rule)

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, list):
            entries = cast("list[Any]", value)
            if len({canonical(item, run.spend) for item in entries}) < len(entries):
                run.add(at, key, rule, entries)

    return check if rule else None


def _unevaluated_items(schema: Subschema, key: str, rule: Any) -> Check:
    node = schema.inner(rule, key)

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, list) and marks is not None:
            entries = cast("list[Any]", value)
            run.spend(len(entries))
            rest = [index for index in range(len(entries)) if index not in marks]
            for index in rest:
                node.check(entries[index], (at, index), run, None)
            marks.update(rest)

    return check


# ---- objects


def _properties(schema: Subschema, key: str, rule: Any) -> Check:
    nodes = {name: schema.inner(subschema, key, name) for name, subschema in schema.mapping(key, rule).items()}

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            # The smaller side limits the steps, whichever of schema and value is hostile.
            fewer, more = (nodes, members) if len(nodes) < len(members) else (members, nodes)
            run.spend(len(fewer))
            for name in fewer:
                if name in more:
                    nodes[name].check(members[name], (at, name), run, None)
                    if marks is not None:
                        marks.add(name)

    return check


def _patterns_of(schema: Subschema) -> dict[SchemaPattern, Node]:
    rule = schema.mapping("patternProperties", schema.raw.get("patternProperties", {}))
    return {
        schema.compiler.pattern(text, schema.where("patternProperties")): schema.inner(
            subschema, "patternProperties", text
        )
        for text, subschema in rule.items()
    }


def _pattern_properties(schema: Subschema, key: str, rule: Any) -> Check:
    nodes = _patterns_of(schema)

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, dict):
            for name, item in cast("dict[str, Any]", value).items():
                for pattern, node in nodes.items():
                    if _matches(pattern, name, run):
                        node.check(item, (at, name), run, None)
                        if marks is not None:
                            marks.add(name)

    return check


def _additional_properties(schema: Subschema, key: str, rule: Any) -> Check:
    node = schema.inner(rule, key)
    known = frozenset(schema.mapping("properties", schema.raw.get("properties", {})))
    patterns = list(_patterns_of(schema))

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            run.spend(len(members))
            for name in members:
                if name not in known and not any(_matches(pattern, name, run) for pattern in patterns):
                    _of_name(node, key, rule, members, name, at, run)
                    if marks is not None:
                        marks.add(name)

    return check


def _unevaluated_properties(schema: Subschema, key: str, rule: Any) -> Check:
    node = schema.inner(rule, key)

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, dict) and marks is not None:
            members = cast("dict[str, Any]", value)
            run.spend(len(members))
            rest = [name for name in members if name not in marks]
            for name in rest:
                _of_name(node, key, rule, members, name, at, run)
            marks.update(rest)

    return check


def _of_name(node: Node, key: str, rule: Any, members: dict[str, Any], name: str, at: At, run: SchemaCheck) -> None:
    """Check a property that no other keyword covers."""
    # A problem that names this keyword explains more than one of the schema `false`.
    if rule is False:
        run.add((at, name), key, rule, members[name])
    else:
        node.check(members[name], (at, name), run, None)


def _property_names(schema: Subschema, key: str, rule: Any) -> Check:
    node = schema.inner(rule, key)

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, dict):
            for name in cast("dict[str, Any]", value):
                if run.problems_with(node, name, (at, name), None):
                    run.add((at, name), key, rule, name)

    return check


def _required(schema: Subschema, key: str, rule: Any) -> Check | None:
    if isinstance(rule, bool) and schema.compiler.old:  # the form of draft 3, which some schemas still use
        return None
    names = schema.names(key, rule)

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, dict):
            _need(names, cast("dict[str, Any]", value), at, run)

    return check


def _need(names: list[str], members: dict[str, Any], at: At, run: SchemaCheck) -> None:
    run.spend(len(names))
    for name in names:
        if name not in members:
            run.add((at, name), "required", True, None)


def _dependencies(schema: Subschema, key: str, rule: Any) -> Check | None:
    """Compile `dependentRequired`, `dependentSchemas`, and the older `dependencies`, which combines both."""
    if key == "dependencies" and not schema.compiler.old:
        return None
    names: dict[str, list[str]] = {}
    nodes: dict[str, Node] = {}
    for name, dependency in schema.mapping(key, rule).items():
        if key == "dependentRequired" or (isinstance(dependency, list) and key == "dependencies"):
            names[name] = schema.names(key, cast("Any", dependency))
        else:
            nodes[name] = schema.same(dependency, key, name)

    def check(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            run.spend(len(names) + len(nodes))
            for name, needed in names.items():
                if name in members:
                    _need(needed, members, at, run)
            for name, node in nodes.items():
                if name in members:
                    node.check(members, at, run, marks)

    return check


_LAST: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_NEW: Final = _LAST | {
    "$dynamicRef",
    "dependentRequired",
    "dependentSchemas",
    "prefixItems",
}
_MAKE: Final[Mapping[str, Callable[[Subschema, str, Any], Check | None]]] = {
    "$dynamicRef": _ref,
    "$recursiveRef": _ref,
    "$ref": _ref,
    "additionalItems": _additional_items,
    "additionalProperties": _additional_properties,
    "allOf": _all_of,
    "anyOf": _any_of,
    "const": _enum,
    "contains": _contains,
    "dependencies": _dependencies,
    "dependentRequired": _dependencies,
    "dependentSchemas": _dependencies,
    "enum": _enum,
    "exclusiveMaximum": _limit,
    "exclusiveMinimum": _limit,
    "if": _if,
    "items": _items,
    "maxItems": _length,
    "maxLength": _length,
    "maxProperties": _length,
    "maximum": _limit,
    "minItems": _length,
    "minLength": _length,
    "minProperties": _length,
    "minimum": _limit,
    "multipleOf": _multiple_of,
    "not": _not,
    "oneOf": _any_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "prefixItems": _prefix_items,
    "properties": _properties,
    "propertyNames": _property_names,
    "required": _required,
    "type": _type,
    "unevaluatedItems": _unevaluated_items,
    "unevaluatedProperties": _unevaluated_properties,
    "uniqueItems": _unique_items,
}

KEYWORDS: Final = Keywords(_MAKE, _LAST, _NEW)
