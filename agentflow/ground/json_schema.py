"""JSON schemas from outside, compiled once within limits, and values checked against them within limits.

Both the schema and the value may be hostile. A validator that interprets the schema as it stands can be kept busy for
hours, or made to exhaust the stack, by either of them.

Rules:

1. A schema is compiled to functions when it comes in (`JsonSchema`); nothing looks at its JSON afterwards. What is no
   schema, refers to something outside, or refers to itself without a step into the value, is refused there.
2. The compiled size is limited, and so are patterns (`agentflow.ground.patterns_outside`). `JsonSchema.cost` is the size:
   a caller that takes many schemas can limit their sum.
3. A check takes a limited number of steps: each keyword at each place of the value counts, and so does each entry of a
   list or object and each match of a pattern. A check that would take more raises `TooCostlyError`: it neither passes nor
   fails.
4. It follows the draft of 2020-12, and what earlier drafts (4 and later) spell differently: `definitions`, lists in
   `items`, `dependencies`, booleans in `exclusiveMinimum`. `format` and `content...` are annotations and check nothing.
   A `$dynamicRef` works like a `$ref`; a schema in which that would make a difference is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import unquote, urljoin

from agentflow.ground.patterns_outside import Pattern, PatternError

__all__ = ["JsonSchema", "JsonSchemaError", "Problem", "TooCostlyError"]

MOST_COST: Final = 20_000
"""What one schema may cost: subschemas, values of enumerations, names, and a share for each pattern."""
MOST_STEPS: Final = 500_000
"""Steps that one check may take: some tenths of a second."""
MOST_LEVELS: Final = 150
"""Subschemas that may be open at once: a level of the value takes one, and each `$ref`, `allOf` and such on the way another."""
_MOST_IN_PLACE: Final = 50
_LONGEST_REF: Final = 1_000
_LONGEST_SHOWN: Final = 200

_Marks: TypeAlias = "set[str | int] | None"
"""What of a value some keyword has looked at, where `unevaluated...` asks for it."""
_At: TypeAlias = "tuple[Any, str | int] | None"
"""A path, as the path before it and one more step."""
_Check: TypeAlias = "Callable[[Any, _At, _Run, _Marks], None]"


class JsonSchemaError(ValueError):
    """A schema is none, or passes a limit."""


class TooCostlyError(ValueError):
    """A check was given up: the schema asks for more steps, or more levels, than one check may take."""


class Problem(NamedTuple):
    """Something in a value that does not fit.

    Attributes:
        at: Where, as nested pairs (see `path`).
        keyword: Which keyword says so; empty for the schema `false`.
        rule: What the keyword demands.
        value: What is there.
        forms: The problems of each form, for `anyOf` and `oneOf`; none where several fit.
    """

    at: _At
    keyword: str
    rule: Any
    value: Any
    forms: tuple[list[Problem], ...] = ()

    @property
    def path(self) -> list[str | int]:
        """The names and indices that lead to it."""
        return _steps(self.at)


class JsonSchema:
    """A compiled schema.

    Args:
        schema: The schema: JSON, as parsed. It is not changed, and must not change.

    Attributes:
        cost: How large it is, in the units of `MOST_COST`.

    Raises:
        JsonSchemaError: It is no schema, passes a limit, or refers to what is not in it.

    Example:
        >>> schema = JsonSchema({"type": "array", "items": {"type": "string", "pattern": "^(a+)+$"}})
        >>> [(one.path, one.keyword) for one in schema.problems(["aa", 5, "a" * 5000 + "!"])]
        [([1], 'type'), ([2], 'pattern')]
    """

    __slots__ = ("_root", "cost")

    def __init__(self, schema: Any) -> None:
        compiler = _Compiler(schema)
        try:
            self._root = compiler.compiled()
        except RecursionError:
            raise JsonSchemaError("a value in it is nested too deeply") from None
        self.cost = compiler.cost

    def problems(self, value: Any) -> list[Problem]:
        """What in a value does not fit; nothing where it fits.

        Args:
            value: JSON, as parsed.

        Raises:
            TooCostlyError: The check takes too many steps, or the value is too deep.
        """
        run = _Run()
        try:
            self._root.check(value, None, run, None)
        except RecursionError:
            raise TooCostlyError("the value is nested too deeply to be checked") from None
        return run.found


class _Run:
    """One check: the steps that are left, and what was found."""

    __slots__ = ("depth", "found", "left")

    def __init__(self) -> None:
        self.left = MOST_STEPS
        self.depth = 0
        self.found: list[Problem] = []

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooCostlyError(f"checking the value against the schema takes more than {MOST_STEPS} steps")

    def add(self, at: _At, keyword: str, rule: Any, value: Any, forms: tuple[list[Problem], ...] = ()) -> None:
        self.spend(2)
        self.found.append(Problem(at, keyword, rule, value, forms))

    def tried(self, node: _Node, value: Any, at: _At, marks: _Marks) -> list[Problem]:
        """What does not fit one of several subschemas; what fits has marked what it looked at."""
        self.spend(3)
        outer, self.found = self.found, []
        mine: _Marks = None if marks is None else set()
        node.check(value, at, self, mine)
        found, self.found = self.found, outer
        if marks is not None and mine and not found:
            marks |= mine
        return found


class _Node:
    """A subschema."""

    __slots__ = ("_checks", "in_place", "where")

    def __init__(self, where: _At) -> None:
        self.where = where
        self.in_place: list[_Node] = []
        self._checks: tuple[tuple[_Check, ...], tuple[_Check, ...]] = ((), ())

    def fill(self, checks: list[_Check], last: list[_Check]) -> None:
        """What it checks; `last` needs to know what the others, and those in the same place, have looked at."""
        self._checks = tuple(checks), tuple(last)

    def check(self, value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        checks, last = self._checks
        run.spend(1 + len(checks))
        run.depth += 1
        if run.depth > MOST_LEVELS:
            raise TooCostlyError(
                f"the value is nested too deeply: the schema opens more than {MOST_LEVELS} levels for it"
            )
        mine: _Marks = set() if last else marks
        for check in checks:
            check(value, at, run, mine)
        for check in last:
            check(value, at, run, mine)
        if last and marks is not None and mine:
            marks |= mine
        run.depth -= 1


class _Compiler:
    """Makes nodes of a schema, without recursion: what is found below is put on a list."""

    def __init__(self, schema: Any) -> None:
        self.cost = 0
        self._schema = schema
        self._nodes: dict[int, _Node] = {}
        self._todo: list[tuple[_Node, Any]] = []
        self._patterns: dict[str, Pattern] = {}
        self._bases: dict[int, str] = {}
        self._resources: dict[str, Any] = {"": schema}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: set[str] = set()
        dialect = cast("dict[str, Any]", schema).get("$schema") if isinstance(schema, dict) else None
        dialect = dialect if isinstance(dialect, str) else ""
        self.old = any(f"draft-0{number}" in dialect for number in (4, 6, 7))
        if "draft-03" in dialect:
            raise JsonSchemaError("it is of draft 3, which is not read; draft 4 and later ones are")

    def compiled(self) -> _Node:
        self._name_all()
        root = self.node(self._schema, None)
        while self._todo:
            node, raw = self._todo.pop()
            self._compile(node, raw)
        _refuse_circles(self._nodes.values())
        return root

    def spend(self, cost: int) -> None:
        self.cost += cost
        if self.cost > MOST_COST:
            raise JsonSchemaError(f"it is too large: its subschemas, names and patterns come to more than {MOST_COST}")

    # ---- names

    def _name_all(self) -> None:
        """Find what references may lead to: `$id` and anchors."""
        todo: list[tuple[Any, str, bool]] = [(self._schema, "", False)]
        while todo:
            raw, base, by_name = todo.pop()
            if isinstance(raw, list):
                todo += [(one, base, False) for one in cast("list[Any]", raw)]
            elif isinstance(raw, dict):
                made = cast("dict[str, Any]", raw)
                base = base if by_name else self._named(made, base)
                self._bases[id(made)] = base
                todo += [
                    (value, base, not by_name and key in _BY_NAME)
                    for key, value in made.items()
                    if by_name or key not in _DATA
                ]

    def _named(self, raw: dict[str, Any], base: str) -> str:
        if self.old and "$ref" in raw:
            return base
        name = raw.get("$id", raw.get("id") if self.old else None)
        if isinstance(name, str):
            address, _, anchor = self._joined(base, name).partition("#")
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
                        self._once(f"{key} {_cut(anchor)}")
            if raw.get("$recursiveAnchor") is True:
                self._once("$recursiveAnchor")
        return base

    def _once(self, anchor: str) -> None:
        """Refuse a second anchor of a kind whose meaning would depend on the way that led there."""
        if anchor in self._dynamic:
            raise JsonSchemaError(f"it has {anchor} more than once: which of them is meant, is not found out")
        self._dynamic.add(anchor)

    def _joined(self, base: str, ref: str) -> str:
        if len(ref) > _LONGEST_REF or len(base) > _LONGEST_REF:
            raise JsonSchemaError(f"a reference or `$id` in it is longer than {_LONGEST_REF} characters: {_cut(ref)}")
        if ref.startswith("#"):
            return base + ref  # also where the base is a URN, which nothing can be joined to
        try:
            return urljoin(base, ref)
        except ValueError:
            raise JsonSchemaError(f"it refers to {_cut(ref)}, which is no address") from None

    def _referred(self, ref: str, holder: dict[str, Any]) -> Any:
        address, _, fragment = self._joined(self._bases.get(id(holder), ""), ref).partition("#")
        found: Any = self._resources.get(address, _MISSING)
        fragment = unquote(fragment)
        if fragment.startswith("/"):
            for step in fragment[1:].split("/"):
                step = step.replace("~1", "/").replace("~0", "~")
                if isinstance(found, dict):
                    found = cast("dict[str, Any]", found).get(step, _MISSING)
                elif isinstance(found, list) and step.isdecimal() and len(step) < 6:
                    entries = cast("list[Any]", found)
                    found = entries[int(step)] if int(step) < len(entries) else _MISSING
                else:
                    found = _MISSING
        elif fragment:
            found = self._anchors.get((address, fragment), _MISSING)
        if found is _MISSING:
            raise JsonSchemaError(
                f"it refers to {_cut(ref)}, which is not in it. Write the reference out: nothing is fetched"
            )
        return found

    # ---- nodes

    def node(self, raw: Any, where: _At) -> _Node:
        """The node of a subschema; it is filled in later."""
        self.spend(1)
        if not isinstance(raw, dict | bool):
            raise _no_schema(where, "a schema is an object, true or false", raw)
        made = cast("dict[str, Any] | bool", raw)
        known = self._nodes.get(id(made)) if isinstance(made, dict) else None
        if known is None:
            known = _Node(where)
            if made is False:
                known.fill([_never], [])
            elif made is not True:
                self._nodes[id(made)] = known
                self._todo.append((known, made))
        return known

    def reference(self, ref: Any, holder: dict[str, Any], where: _At) -> _Node:
        if not isinstance(ref, str):
            raise _no_schema(where, "a reference is a string", ref)
        return self.node(self._referred(ref, holder), (None, ref))

    def pattern(self, text: Any, where: _At) -> Pattern:
        if not isinstance(text, str):
            raise _no_schema(where, "a pattern is a string", text)
        found = self._patterns.get(text)
        if found is None:
            try:
                found = self._patterns[text] = Pattern(text)
            except PatternError as error:
                raise JsonSchemaError(f"{error} (at {_named(where)})") from None
            self.spend(20 + found.weight // 2)
        return found

    def _compile(self, node: _Node, raw: dict[str, Any]) -> None:
        checks: list[_Check] = []
        last: list[_Check] = []
        place = _Place(self, node, raw)
        for key, rule in raw.items():
            if self.old and "$ref" in raw and key != "$ref":
                continue  # what stands beside it meant nothing then
            make = _KEYWORDS.get(key)
            if make is None or (self.old and key in _NEW):
                continue
            check = make(place, key, rule)
            if check is not None:
                (last if key in _LAST else checks).append(check)
        node.fill(checks, last)


class _Place:
    """A subschema while it is compiled, for the functions below."""

    __slots__ = ("compiler", "node", "raw")

    def __init__(self, compiler: _Compiler, node: _Node, raw: dict[str, Any]) -> None:
        self.compiler = compiler
        self.node = node
        self.raw = raw

    def where(self, *steps: str | int) -> _At:
        at = self.node.where
        for step in steps:
            at = (at, step)
        return at

    def inner(self, raw: Any, *steps: str | int) -> _Node:
        """A subschema that is about a part of the value."""
        return self.compiler.node(raw, self.where(*steps))

    def same(self, raw: Any, *steps: str | int) -> _Node:
        """A subschema that is about the same value."""
        return self.took(self.compiler.node(raw, self.where(*steps)))

    def took(self, node: _Node) -> _Node:
        self.node.in_place.append(node)
        return node

    def schemas(self, key: str, rule: Any) -> list[_Node]:
        if not isinstance(rule, list) or not rule:
            raise _no_schema(self.where(key), "it is a list of schemas", rule)
        return [self.same(one, key, index) for index, one in enumerate(cast("list[Any]", rule))]

    def mapping(self, key: str, rule: Any) -> dict[str, Any]:
        if not isinstance(rule, dict):
            raise _no_schema(self.where(key), "it is an object", rule)
        return cast("dict[str, Any]", rule)

    def names(self, key: str, rule: Any) -> list[str]:
        if not isinstance(rule, list) or not all(isinstance(one, str) for one in cast("list[Any]", rule)):
            raise _no_schema(self.where(key), "it is a list of names", rule)
        names = cast("list[str]", rule)
        self.compiler.spend(len(names))
        return list(dict.fromkeys(names))

    def number(self, key: str, rule: Any) -> int | float:
        if not _is_number(rule) or not isfinite(rule):
            raise _no_schema(self.where(key), "it is a number", rule)
        return rule

    def count(self, key: str, rule: Any) -> int:
        if not _is_integer(rule) or rule < 0:
            raise _no_schema(self.where(key), "it is a whole number of at least 0", rule)
        return int(rule)


def _refuse_circles(nodes: Iterable[_Node]) -> None:
    """Refuse a schema that comes back to itself at the same value, or takes too many steps there."""
    heights: dict[_Node, int] = {}
    for start in nodes:
        path: list[tuple[_Node, Iterator[_Node]]] = [(start, iter(start.in_place))] if start not in heights else []
        on_path = {start}
        while path:
            node, rest = path[-1]
            below = next(rest, None)
            if below is None:
                path.pop()
                on_path.discard(node)
                heights[node] = 1 + max((heights[one] for one in node.in_place), default=0)
                if heights[node] > _MOST_IN_PLACE:
                    raise JsonSchemaError(
                        f"more than {_MOST_IN_PLACE} subschemas follow each other for one value (at {_named(node.where)})"
                    )
            elif below in on_path:
                raise JsonSchemaError(
                    f"it refers to itself in a circle (at {_named(below.where)}): no value could be checked"
                )
            elif below not in heights:
                path.append((below, iter(below.in_place)))
                on_path.add(below)


# ---- values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_integer,
    "null": lambda value: value is None,
    "number": _is_number,
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def _canonical(value: Any, spend: Callable[[int], None]) -> str:
    """A text that is the same for equal values, and for no others: 1 and 1.0 are equal, 1 and true are not."""
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
        return f"{value:x}"
    if isinstance(value, dict):
        entries = sorted(cast("dict[str, Any]", value).items())
        return f"{{{','.join([f'{json.dumps(key)}:{_canonical(one, spend)}' for key, one in entries])}}}"
    return f"[{','.join([_canonical(one, spend) for one in value])}]"


def _steps(at: _At) -> list[str | int]:
    steps: list[str | int] = []
    while at is not None:
        at, step = at
        steps.append(step)
    return steps[::-1]


def _named(where: _At) -> str:
    """A place in the schema, as a reference to it."""
    return _cut("/".join([str(step) for step in ("#", *_steps(where))]), str)


def _cut(value: Any, shown: Callable[[Any], str] = repr) -> str:
    try:
        text = shown(value)
    except ValueError:  # an integer of more digits than Python writes
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _no_schema(where: _At, demand: str, given: Any) -> JsonSchemaError:
    return JsonSchemaError(f"{demand}, not {_cut(given)} (at {_named(where)})")


# ---- keywords: each is made of the subschema, its own name and its value, and is None where it checks nothing


def _never(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
    run.add(at, "", False, value)


def _ref(place: _Place, key: str, rule: Any) -> _Check:
    return place.took(place.compiler.reference(rule, place.raw, place.where(key))).check


def _type(place: _Place, key: str, rule: Any) -> _Check:
    names: Any = [rule] if isinstance(rule, str) else rule
    if not isinstance(names, list) or not all(
        isinstance(one, str) and one in _TYPES for one in cast("list[Any]", names)
    ):
        raise _no_schema(place.where(key), f"it is one or several of {', '.join(_TYPES)}", rule)
    known = [_TYPES[name] for name in dict.fromkeys(cast("list[str]", names))]
    if len(known) == 1:
        [fits] = known
    else:

        def fits(value: Any) -> bool:
            return any(one(value) for one in known)

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if not fits(value):
            run.add(at, key, rule, value)

    return check


def _enum(place: _Place, key: str, rule: Any) -> _Check:
    if key == "enum" and not isinstance(rule, list):
        raise _no_schema(place.where(key), "it is a list of values", rule)
    values = cast("list[Any]", rule if key == "enum" else [rule])
    known = frozenset([_canonical(one, place.compiler.spend) for one in values])

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if _canonical(value, run.spend) not in known:
            run.add(at, key, rule, value)

    return check


def _limit(place: _Place, key: str, rule: Any) -> _Check | None:
    """`minimum` and such."""
    if isinstance(rule, bool) and key.startswith("exclusive"):  # draft 4: it is about the other keyword
        return None
    limit = place.number(key, rule)
    if place.raw.get(f"exclusive{key.capitalize()}") is True:
        key = f"exclusive{key.capitalize()}"

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if _is_number(value) and not _OF_LIMITS[key](value, limit):
            run.add(at, key, limit, value)

    return check


_OF_LIMITS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
}


def _multiple_of(place: _Place, key: str, rule: Any) -> _Check:
    divisor = place.number(key, rule)
    if divisor <= 0:
        raise _no_schema(place.where(key), "it is a number above 0", rule)
    exact = Fraction(repr(divisor)) if isinstance(divisor, float) else divisor

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if not _is_number(value):
            return
        if isinstance(value, int):
            run.spend((value.bit_length() >> 8) ** 2 >> 6)
        elif not isfinite(value):
            run.add(at, key, rule, value)
            return
        if (Fraction(repr(value)) if isinstance(value, float) else value) % exact:
            run.add(at, key, rule, value)

    return check


def _length(place: _Place, key: str, rule: Any) -> _Check:
    """`minLength`, `maxItems` and such."""
    limit = place.count(key, rule)
    kind = str if key.endswith("Length") else list if key.endswith("Items") else dict
    least = key.startswith("min")

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, kind):
            size = len(cast("Collection[Any]", value))
            if size < limit if least else size > limit:
                run.add(at, key, limit, cast("Any", value))

    return check


def _matches(pattern: Pattern, text: str, run: _Run) -> bool:
    run.spend(1 + (len(text) * pattern.weight >> 5))
    return pattern.found_in(text)


def _pattern(place: _Place, key: str, rule: Any) -> _Check:
    pattern = place.compiler.pattern(rule, place.where(key))

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, str) and not _matches(pattern, value, run):
            run.add(at, key, rule, value)

    return check


def _all_of(place: _Place, key: str, rule: Any) -> _Check:
    nodes = place.schemas(key, rule)

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        for node in nodes:
            node.check(value, at, run, marks)

    return check


def _any_of(place: _Place, key: str, rule: Any) -> _Check:
    nodes = place.schemas(key, rule)

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        forms: list[list[Problem]] = []
        fits = 0
        for node in nodes:
            found = run.tried(node, value, at, marks)
            if found:
                forms.append(found)
                continue
            fits += 1
            if key == "anyOf" and marks is None:
                return
        if not fits:
            run.add(at, key, rule, value, tuple(forms))
        elif fits > 1 and key == "oneOf":
            run.add(at, key, rule, value)

    return check


def _not(place: _Place, key: str, rule: Any) -> _Check:
    node = place.same(rule, key)

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if not run.tried(node, value, at, None):
            run.add(at, key, rule, value)

    return check


def _if(place: _Place, key: str, rule: Any) -> _Check:
    node = place.same(rule, key)
    then, otherwise = [place.same(place.raw[name], name) if name in place.raw else None for name in ("then", "else")]

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        branch = otherwise if run.tried(node, value, at, marks) else then
        if branch is not None:
            branch.check(value, at, run, marks)

    return check


# ---- lists


def _items(place: _Place, key: str, rule: Any) -> _Check:
    """`items`: for the entries after those that `prefixItems`, or a list of schemas here, is about."""
    if isinstance(rule, list):
        return _prefix_items(place, key, cast("Any", rule))
    first = place.raw.get("prefixItems")
    after = len(cast("list[Any]", first)) if isinstance(first, list) and not place.compiler.old else 0
    return _entries(place.inner(rule, key), after)


def _additional_items(place: _Place, key: str, rule: Any) -> _Check | None:
    first = place.raw.get("items")
    return _entries(place.inner(rule, key), len(cast("list[Any]", first))) if isinstance(first, list) else None


def _entries(node: _Node, after: int) -> _Check:
    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, list):
            entries = cast("list[Any]", value)
            if marks is not None:
                run.spend(len(entries))
                marks.update(range(len(entries)))
            for index in range(after, len(entries)):
                node.check(entries[index], (at, index), run, None)

    return check


def _prefix_items(place: _Place, key: str, rule: Any) -> _Check:
    if not isinstance(rule, list):
        raise _no_schema(place.where(key), "it is a list of schemas", rule)
    nodes = [place.inner(one, key, index) for index, one in enumerate(cast("list[Any]", rule))]

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, list):
            for index, (node, entry) in enumerate(zip(nodes, cast("list[Any]", value), strict=False)):
                node.check(entry, (at, index), run, None)
                if marks is not None:
                    marks.add(index)

    return check


def _contains(place: _Place, key: str, rule: Any) -> _Check:
    node = place.inner(rule, key)
    raw = {} if place.compiler.old else place.raw
    least = place.count("minContains", raw["minContains"]) if "minContains" in raw else 1
    most = place.count("maxContains", raw["maxContains"]) if "maxContains" in raw else None

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if not isinstance(value, list):
            return
        entries = cast("list[Any]", value)
        fits = [index for index, one in enumerate(entries) if not run.tried(node, one, (at, index), None)]
        if marks is not None:
            marks.update(fits)
        if len(fits) < least:
            run.add(at, key, least, entries)
        if most is not None and len(fits) > most:
            run.add(at, "maxContains", most, entries)

    return check


def _unique_items(place: _Place, key: str, rule: Any) -> _Check | None:
    if not isinstance(rule, bool):
        raise _no_schema(place.where(key), "it is true or false", rule)

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, list):
            entries = cast("list[Any]", value)
            if len({_canonical(one, run.spend) for one in entries}) < len(entries):
                run.add(at, key, rule, entries)

    return check if rule else None


def _unevaluated_items(place: _Place, key: str, rule: Any) -> _Check:
    node = place.inner(rule, key)

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, list) and marks is not None:
            entries = cast("list[Any]", value)
            run.spend(len(entries))
            rest = [index for index in range(len(entries)) if index not in marks]
            for index in rest:
                node.check(entries[index], (at, index), run, None)
            marks.update(rest)

    return check


# ---- objects


def _properties(place: _Place, key: str, rule: Any) -> _Check:
    nodes = {name: place.inner(one, key, name) for name, one in place.mapping(key, rule).items()}

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, dict):
            given = cast("dict[str, Any]", value)
            fewer, more = (nodes, given) if len(nodes) < len(given) else (given, nodes)
            run.spend(len(fewer))
            for name in fewer:
                if name in more:
                    nodes[name].check(given[name], (at, name), run, None)
                    if marks is not None:
                        marks.add(name)

    return check


def _patterns_of(place: _Place) -> dict[Pattern, _Node]:
    rule = place.mapping("patternProperties", place.raw.get("patternProperties", {}))
    return {
        place.compiler.pattern(text, place.where("patternProperties")): place.inner(one, "patternProperties", text)
        for text, one in rule.items()
    }


def _pattern_properties(place: _Place, key: str, rule: Any) -> _Check:
    nodes = _patterns_of(place)

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, dict):
            for name, one in cast("dict[str, Any]", value).items():
                for pattern, node in nodes.items():
                    if _matches(pattern, name, run):
                        node.check(one, (at, name), run, None)
                        if marks is not None:
                            marks.add(name)

    return check


def _additional_properties(place: _Place, key: str, rule: Any) -> _Check:
    node = place.inner(rule, key)
    known = frozenset(place.mapping("properties", place.raw.get("properties", {})))
    patterns = list(_patterns_of(place))

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, dict):
            given = cast("dict[str, Any]", value)
            run.spend(len(given))
            for name in given:
                if name not in known and not any(_matches(pattern, name, run) for pattern in patterns):
                    _of_name(node, key, rule, given, name, at, run)
                    if marks is not None:
                        marks.add(name)

    return check


def _unevaluated_properties(place: _Place, key: str, rule: Any) -> _Check:
    node = place.inner(rule, key)

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, dict) and marks is not None:
            given = cast("dict[str, Any]", value)
            run.spend(len(given))
            rest = [name for name in given if name not in marks]
            for name in rest:
                _of_name(node, key, rule, given, name, at, run)
            marks.update(rest)

    return check


def _of_name(node: _Node, key: str, rule: Any, given: dict[str, Any], name: str, at: _At, run: _Run) -> None:
    """A property that no other keyword knows."""
    if rule is False:
        run.add((at, name), key, rule, given[name])
    else:
        node.check(given[name], (at, name), run, None)


def _property_names(place: _Place, key: str, rule: Any) -> _Check:
    node = place.inner(rule, key)

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, dict):
            for name in cast("dict[str, Any]", value):
                if run.tried(node, name, (at, name), None):
                    run.add((at, name), key, rule, name)

    return check


def _required(place: _Place, key: str, rule: Any) -> _Check | None:
    if isinstance(rule, bool) and place.compiler.old:
        return None
    names = place.names(key, rule)

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, dict):
            _need(names, cast("dict[str, Any]", value), at, run)

    return check


def _need(names: list[str], given: dict[str, Any], at: _At, run: _Run) -> None:
    run.spend(len(names))
    for name in names:
        if name not in given:
            run.add((at, name), "required", True, None)


def _dependencies(place: _Place, key: str, rule: Any) -> _Check | None:
    """`dependentRequired`, `dependentSchemas`, and the keyword that was both before."""
    if key == "dependencies" and not place.compiler.old:
        return None
    names: dict[str, list[str]] = {}
    nodes: dict[str, _Node] = {}
    for name, one in place.mapping(key, rule).items():
        if key == "dependentRequired" or (isinstance(one, list) and key == "dependencies"):
            names[name] = place.names(key, cast("Any", one))
        else:
            nodes[name] = place.same(one, key, name)

    def check(value: Any, at: _At, run: _Run, marks: _Marks) -> None:
        if isinstance(value, dict):
            given = cast("dict[str, Any]", value)
            run.spend(len(names) + len(nodes))
            for name, needed in names.items():
                if name in given:
                    _need(needed, given, at, run)
            for name, node in nodes.items():
                if name in given:
                    node.check(given, at, run, marks)

    return check


_MISSING: Final = object()
_DATA: Final = frozenset({"enum", "const", "default", "examples"})
_BY_NAME: Final = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)
_LAST: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_NEW: Final = _LAST | {
    "$dynamicRef",
    "dependentRequired",
    "dependentSchemas",
    "prefixItems",
}
_KEYWORDS: Final[Mapping[str, Callable[[_Place, str, Any], _Check | None]]] = {
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
