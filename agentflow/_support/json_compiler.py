"""The engine of `agentflow._support.json_schema`: subschemas as nodes, their compilation, and the check of a value.

Rules:

1. A schema is compiled without recursion; a value is checked with recursion of limited depth (`MAX_LEVELS`).
2. Expensive steps are counted before they run: `Compiler.spend` for the schema, `SchemaCheck.spend` for a check.
3. The keywords are passed to the compiler as a table (`agentflow._support.json_keywords`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias, cast

from agentflow._support.patterns_outside import PatternError, SchemaPattern

MAX_COST: Final = 20_000
"""The maximum cost of one schema: subschemas, values of enumerations, names, and a share for each pattern."""
MAX_STEPS: Final = 500_000
"""The maximum number of steps of one check, which take a few tenths of a second."""
MAX_LEVELS: Final = 150
"""The maximum number of nested subschemas: one for each level of the value, and for each `$ref`, `allOf` and so on."""
_MAX_IN_PLACE: Final = 50
"""The maximum length of a chain of subschemas (by `$ref`, `allOf` and so on) for one value."""
_MAX_REF: Final = 1_000
"""The maximum length of a reference or `$id`, in characters."""
_MAX_SHOWN: Final = 200
"""The maximum length of a value in an error, in characters."""

Marks: TypeAlias = "set[str | int] | None"
"""The parts of a value that keywords have evaluated, if `unevaluated...` needs them."""
At: TypeAlias = "tuple[Any, str | int] | None"
"""A path: the parent path and one more step."""
Check: TypeAlias = "Callable[[Any, At, SchemaCheck, Marks], None]"


class Keywords(NamedTuple):
    """The known keywords.

    Attributes:
        make: Functions by keyword, each of which builds the keyword's check from its subschema, its name and its value;
            they return None if there is nothing to check.
        last: The keywords that depend on the parts that other keywords evaluated.
        new: The keywords that drafts before 2019 do not have.
    """

    make: Mapping[str, Callable[[Subschema, str, Any], Check | None]]
    last: frozenset[str]
    new: frozenset[str]


_MISSING: Final = object()
# Keywords with data, in which a `$id` or `$ref` has no meaning.
_DATA: Final = frozenset({"enum", "const", "default", "examples"})
# Keywords with objects whose keys are names of the schema's author, such as a property called `$id`.
_BY_NAME: Final = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)


class JsonSchemaError(ValueError):
    """A value is not a schema, or a schema exceeds a limit."""


class TooCostlyError(ValueError):
    """A check was aborted because it needs too many steps or levels."""


class Problem(NamedTuple):
    """A part of a value that does not match the schema.

    Attributes:
        at: The path of the part, as nested pairs (see `path`).
        keyword: The violated keyword; empty for the schema `false`.
        rule: The keyword's value in the schema.
        value: The actual value.
        forms: The problems of each alternative of `anyOf` and `oneOf`; empty if several alternatives match.
    """

    at: At
    keyword: str
    rule: Any
    value: Any
    forms: tuple[list[Problem], ...] = ()

    @property
    def path(self) -> list[str | int]:
        """The names and indices that lead to the value."""
        return steps_of(self.at)


class SchemaCheck:
    """A check of a value: the remaining steps, and the problems found so far."""

    __slots__ = ("depth", "found", "remaining")

    def __init__(self) -> None:
        self.remaining = MAX_STEPS
        self.depth = 0
        self.found: list[Problem] = []

    def spend(self, steps: int) -> None:
        self.remaining -= steps
        if self.remaining < 0:
            raise TooCostlyError(f"checking the value against the schema takes more than {MAX_STEPS} steps")

    def add(self, at: At, keyword: str, rule: Any, value: Any, forms: tuple[list[Problem], ...] = ()) -> None:
        self.spend(2)
        self.found.append(Problem(at, keyword, rule, value, forms))

    def problems_with(self, node: Node, value: Any, at: At, marks: Marks) -> list[Problem]:
        """Return the problems with one of several subschemas; if there are none, mark the evaluated parts."""
        self.spend(3)  # also for a subschema without problems, since nested alternatives multiply
        outer, self.found = self.found, []
        marked: Marks = None if marks is None else set()
        node.check(value, at, self, marked)
        found, self.found = self.found, outer
        if marks is not None and marked and not found:
            marks |= marked
        return found


class Node:
    """A subschema."""

    __slots__ = ("_checks", "in_place", "where")

    def __init__(self, where: At) -> None:
        self.where = where
        self.in_place: list[Node] = []  # the subschemas for the same value; a cycle of these would never end
        self._checks: tuple[tuple[Check, ...], tuple[Check, ...]] = ((), ())

    def fill(self, checks: list[Check], last: list[Check]) -> None:
        """Set the checks; those in `last` depend on the parts that the other checks of the same value have evaluated."""
        self._checks = tuple(checks), tuple(last)

    def check(self, value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
        checks, last = self._checks
        run.spend(1 + len(checks))
        run.depth += 1
        if run.depth > MAX_LEVELS:
            raise TooCostlyError(
                f"the value is nested too deeply: the schema opens more than {MAX_LEVELS} levels for it"
            )
        # `unevaluated...` sees only the parts that this subschema evaluated, so it needs a set of its own.
        marked: Marks = set() if last else marks
        for check in checks:
            check(value, at, run, marked)
        for check in last:
            check(value, at, run, marked)
        if last and marks is not None and marked:
            marks |= marked
        run.depth -= 1  # not in `finally`: an exception ends the whole check


class Compiler:
    """Compiles a schema to nodes; uses a list of subschemas instead of recursion."""

    def __init__(self, schema: Any, keywords: Keywords) -> None:
        self.cost = 0
        self._keywords = keywords
        self._schema = schema
        # By `id`, which is unique while `_schema` keeps the objects alive.
        self._nodes: dict[int, Node] = {}
        self._todo: list[tuple[Node, Any]] = []
        self._patterns: dict[str, SchemaPattern] = {}
        self._bases: dict[int, str] = {}  # the base URI of each object, also by `id`
        self._resources: dict[str, Any] = {"": schema}  # the subschemas with a `$id`, by URI
        self._anchors: dict[tuple[str, str], Any] = {}  # the subschemas with an anchor, by URI and name
        self._dynamic: set[str] = set()  # the dynamic anchors
        dialect = cast("dict[str, Any]", schema).get("$schema") if isinstance(schema, dict) else None
        dialect = dialect if isinstance(dialect, str) else ""
        self.old = any(f"draft-0{number}" in dialect for number in (4, 6, 7))
        if "draft-03" in dialect:
            raise JsonSchemaError("it uses draft 3, which is not supported. Use draft 4 or later")

    def compile_schema(self) -> Node:
        self._name_all()
        root = self.node(self._schema, None)
        while self._todo:
            node, raw = self._todo.pop()
            self._compile(node, raw)
        _refuse_cycles(self._nodes.values())
        return root

    def spend(self, cost: int) -> None:
        self.cost += cost
        if self.cost > MAX_COST:
            raise JsonSchemaError(f"it is too large: its subschemas, names and patterns cost more than {MAX_COST}")

    # ---- names

    def _name_all(self) -> None:
        """Collect the targets of references: `$id` and anchors."""
        todo: list[tuple[Any, str, bool]] = [(self._schema, "", False)]
        while todo:
            raw, base, by_name = todo.pop()
            if isinstance(raw, list):
                todo += [(subschema, base, False) for subschema in cast("list[Any]", raw)]
            elif isinstance(raw, dict):
                mapping = cast("dict[str, Any]", raw)
                base = base if by_name else self._named(mapping, base)
                self._bases[id(mapping)] = base
                todo += [
                    (value, base, not by_name and key in _BY_NAME)
                    for key, value in mapping.items()
                    if by_name or key not in _DATA
                ]

    def _named(self, raw: dict[str, Any], base: str) -> str:
        # Old drafts ignore the siblings of `$ref`, `$id` among them.
        if self.old and "$ref" in raw:
            return base
        name = raw.get("$id", raw.get("id") if self.old else None)
        if isinstance(name, str):
            address, _, anchor = self._join_address(base, name).partition("#")
            if address != base or not anchor:
                base = address
                self._resources.setdefault(base, raw)
            if anchor:
                self._anchors.setdefault((base, anchor), raw)
        if not self.old:
            for key in ("$anchor", "$dynamicAnchor"):
                anchor = raw.get(key)
                if isinstance(anchor, str):
                    self._anchors.setdefault((base, anchor), raw)
                    if key == "$dynamicAnchor":
                        self._refuse_repeated(f"{key} {_shortened(anchor)}")
            if raw.get("$recursiveAnchor") is True:
                self._refuse_repeated("$recursiveAnchor")
        return base

    def _refuse_repeated(self, anchor: str) -> None:
        """Refuse an anchor that is defined twice: its meaning would depend on the path of references to it."""
        if anchor in self._dynamic:
            raise JsonSchemaError(f"it defines {anchor} more than once, so references to it are ambiguous")
        self._dynamic.add(anchor)

    def _join_address(self, base: str, ref: str) -> str:
        if len(ref) > _MAX_REF or len(base) > _MAX_REF:
            raise JsonSchemaError(f"a reference or `$id` in it is longer than {_MAX_REF} characters: {_shortened(ref)}")
        if ref.startswith("#"):
            return base + ref  # even if the base is a URN, which cannot be joined
        from urllib.parse import urljoin  # not loaded with the package

        try:
            return urljoin(base, ref)
        except ValueError:
            raise JsonSchemaError(f"it refers to {_shortened(ref)}, which is not an address") from None

    def _resolve(self, ref: str, holder: dict[str, Any]) -> Any:
        address, _, fragment = self._join_address(self._bases.get(id(holder), ""), ref).partition("#")
        found: Any = self._resources.get(address, _MISSING)
        if "%" in fragment:
            from urllib.parse import unquote  # not loaded with the package

            fragment = unquote(fragment)
        if fragment.startswith("/"):
            for step in fragment[1:].split("/"):
                step = step.replace("~1", "/").replace("~0", "~")  # in this order, as RFC 6901 demands
                if isinstance(found, dict):
                    found = cast("dict[str, Any]", found).get(step, _MISSING)
                elif isinstance(found, list) and step.isdecimal() and len(step) < 6:  # `int` refuses long digits
                    entries = cast("list[Any]", found)
                    found = entries[int(step)] if int(step) < len(entries) else _MISSING
                else:
                    found = _MISSING
        elif fragment:
            found = self._anchors.get((address, fragment), _MISSING)
        if found is _MISSING:
            raise JsonSchemaError(
                f"it refers to {_shortened(ref)}, which is not in it. Inline the referenced schema: nothing is fetched"
            )
        return found

    # ---- nodes

    def node(self, raw: Any, where: At) -> Node:
        """Return the node of a subschema, which is filled in later."""
        self.spend(1)
        if not isinstance(raw, dict | bool):
            raise invalid_schema(where, "a schema must be an object, true or false", raw)
        schema = cast("dict[str, Any] | bool", raw)
        known = self._nodes.get(id(schema)) if isinstance(schema, dict) else None
        if known is None:
            known = Node(where)
            if schema is False:
                known.fill([_never], [])
            elif schema is not True:
                self._nodes[id(schema)] = known
                # Noted before it is compiled, so a schema that contains a reference to itself finds this node.
                self._todo.append((known, schema))
        return known

    def reference(self, ref: Any, holder: dict[str, Any], where: At) -> Node:
        if not isinstance(ref, str):
            raise invalid_schema(where, "a reference must be a string", ref)
        return self.node(self._resolve(ref, holder), (None, ref))

    def pattern(self, text: Any, where: At) -> SchemaPattern:
        if not isinstance(text, str):
            raise invalid_schema(where, "a pattern must be a string", text)
        found = self._patterns.get(text)
        if found is None:
            try:
                found = self._patterns[text] = SchemaPattern(text)
            except PatternError as error:
                raise JsonSchemaError(f"{error} (at {_named(where)})") from None
            self.spend(20 + found.weight // 2)  # compiling a pattern costs as much as many subschemas
        return found

    def _compile(self, node: Node, raw: dict[str, Any]) -> None:
        checks: list[Check] = []
        last: list[Check] = []
        subschema = Subschema(self, node, raw)
        keywords = self._keywords
        for key, rule in raw.items():
            if self.old and "$ref" in raw and key != "$ref":
                continue  # old drafts ignore the siblings of `$ref`
            make = keywords.make.get(key)
            if make is None or (self.old and key in keywords.new):
                continue
            check = make(subschema, key, rule)
            if check is not None:
                (last if key in keywords.last else checks).append(check)
        node.fill(checks, last)


class Subschema:
    """A subschema during compilation, for the keyword functions."""

    __slots__ = ("compiler", "node", "raw")

    def __init__(self, compiler: Compiler, node: Node, raw: dict[str, Any]) -> None:
        self.compiler = compiler
        self.node = node
        self.raw = raw

    def where(self, *steps: str | int) -> At:
        at = self.node.where
        for step in steps:
            at = (at, step)
        return at

    def inner(self, raw: Any, *steps: str | int) -> Node:
        """Return the node of a subschema for a part of the value."""
        return self.compiler.node(raw, self.where(*steps))

    def same(self, raw: Any, *steps: str | int) -> Node:
        """Return the node of a subschema for the same value."""
        return self.added(self.compiler.node(raw, self.where(*steps)))

    def added(self, node: Node) -> Node:
        self.node.in_place.append(node)
        return node

    def schemas(self, key: str, rule: Any) -> list[Node]:
        if not isinstance(rule, list) or not rule:
            raise invalid_schema(self.where(key), "it must be a list of schemas", rule)
        return [self.same(subschema, key, index) for index, subschema in enumerate(cast("list[Any]", rule))]

    def mapping(self, key: str, rule: Any) -> dict[str, Any]:
        if not isinstance(rule, dict):
            raise invalid_schema(self.where(key), "it must be an object", rule)
        return cast("dict[str, Any]", rule)

    def names(self, key: str, rule: Any) -> list[str]:
        if not isinstance(rule, list) or not all(isinstance(name, str) for name in cast("list[Any]", rule)):
            raise invalid_schema(self.where(key), "it must be a list of names", rule)
        names = cast("list[str]", rule)
        self.compiler.spend(len(names))
        return list(dict.fromkeys(names))

    def number(self, key: str, rule: Any) -> int | float:
        if not is_number(rule) or not isfinite(rule):
            raise invalid_schema(self.where(key), "it must be a number", rule)
        return rule

    def count(self, key: str, rule: Any) -> int:
        if not is_integer(rule) or rule < 0:
            raise invalid_schema(self.where(key), "it must be a whole number of at least 0", rule)
        return int(rule)


def _refuse_cycles(nodes: Iterable[Node]) -> None:
    """Refuse a schema that refers to itself, or applies too many subschemas, without a step into the value."""
    heights: dict[Node, int] = {}
    for start in nodes:
        # A depth-first search with a stack of its own, since a chain of references may be long.
        path: list[tuple[Node, Iterator[Node]]] = [(start, iter(start.in_place))] if start not in heights else []
        on_path = {start}
        while path:
            node, rest = path[-1]
            child = next(rest, None)
            if child is None:
                path.pop()
                on_path.discard(node)
                heights[node] = 1 + max((heights[inner] for inner in node.in_place), default=0)
                if heights[node] > _MAX_IN_PLACE:
                    raise JsonSchemaError(
                        f"more than {_MAX_IN_PLACE} subschemas follow each other for one value (at "
                        f"{_named(node.where)})"
                    )
            elif child in on_path:
                raise JsonSchemaError(
                    f"it refers to itself in a cycle (at {_named(child.where)}), so the check of a value would not end"
                )
            elif child not in heights:
                path.append((child, iter(child.in_place)))
                on_path.add(child)


# ---- values


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integer(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": is_integer,
    "null": lambda value: value is None,
    "number": is_number,
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def canonical(value: Any, spend: Callable[[int], None]) -> str:
    """Return a text that is equal only for equal values: 1 and 1.0 are equal, 1 and true are not."""
    spend(3)
    if isinstance(value, str):
        spend(len(value) >> 6)
        return json.dumps(value)
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        if not value.is_integer():
            return repr(value)
        value = int(value)
    if isinstance(value, int):
        spend(value.bit_length() >> 6)
        return f"{value:x}"  # hexadecimal takes linear time, and Python does not limit its digits
    if isinstance(value, dict):
        entries = sorted(cast("dict[str, Any]", value).items())
        return f"{{{','.join([f'{json.dumps(key)}:{canonical(member, spend)}' for key, member in entries])}}}"
    return f"[{','.join([canonical(item, spend) for item in value])}]"


def steps_of(at: At) -> list[str | int]:
    steps: list[str | int] = []
    while at is not None:
        at, step = at
        steps.append(step)
    return steps[::-1]


def _named(where: At) -> str:
    """Return a position in the schema, as a reference."""
    return _shortened("/".join([str(step) for step in ("#", *steps_of(where))]), str)


def _shortened(value: Any, shown: Callable[[Any], str] = repr) -> str:
    try:
        text = shown(value)
    except ValueError:  # an integer with more digits than Python converts
        return f"a {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def invalid_schema(where: At, demand: str, actual: Any) -> JsonSchemaError:
    return JsonSchemaError(f"{demand}, not {_shortened(actual)} (at {_named(where)})")


def _never(value: Any, at: At, run: SchemaCheck, marks: Marks) -> None:
    run.add(at, "", False, value)
