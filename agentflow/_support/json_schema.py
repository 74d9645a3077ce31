"""JSON schemas from outside, compiled once within limits, and values checked against them within limits.

Both the schema and the value can be hostile. A validator that interprets the schema directly can be kept busy for
hours, or made to exhaust the stack, by either of them.

Rules:

1. A schema is compiled to functions when it is loaded (`JsonSchema`); its JSON is not read again. A value that is not a
   schema, refers to something outside, or refers to itself without a step into the value, is refused there.
2. The compiled size is limited, and so are patterns (`agentflow._support.patterns_outside`). `JsonSchema.cost` is the
   size: a caller that loads many schemas should limit their sum.
3. A check takes a limited number of steps: each keyword at each position of the value counts, and so does each entry of
   a list or object and each match of a pattern. A check that would take more raises `TooCostlyError`: it neither passes
   nor fails.
4. It follows the draft of 2020-12, and supports the older spellings of drafts from 4 on: `definitions`, lists in
   `items`, `dependencies`, booleans in `exclusiveMinimum`. `format` and `content...` are annotations and check nothing.
   A `$dynamicRef` works like a `$ref`; a schema in which that would make a difference is refused.

No library does this. Of the 35 hostile cases in tests/tools/hostile_schemas.py, `jsonschema` and `fastjsonschema` backtrack in
`re` and do not end. `jsonschema-rs` matches in linear time, but counts no steps: nested `anyOf` or many required names exhaust
memory, which aborts the whole process (as Rust does), and a `contains` in a `contains` holds the interpreter for 17 seconds.
"""

from __future__ import annotations

from typing import Any

from agentflow._support.json_compiler import (
    MOST_COST,
    MOST_LEVELS,
    MOST_STEPS,
    Compiler,
    JsonSchemaError,
    Problem,
    SchemaCheck,
    TooCostlyError,
)
from agentflow._support.json_keywords import KEYWORDS

__all__ = ["MOST_COST", "MOST_LEVELS", "MOST_STEPS", "JsonSchema", "JsonSchemaError", "Problem", "TooCostlyError"]


class JsonSchema:
    """A compiled schema.

    Args:
        schema: The schema: JSON, as parsed. It is not changed, and must not change.

    Attributes:
        cost: Its size, in the units of `MOST_COST`.

    Raises:
        JsonSchemaError: It is not a schema, passes a limit, or has a reference that it does not contain.

    Example:
        >>> schema = JsonSchema({"type": "array", "items": {"type": "string", "pattern": "^(a+)+$"}})
        >>> [(one.path, one.keyword) for one in schema.problems(["aa", 5, "a" * 5000 + "!"])]
        [([1], 'type'), ([2], 'pattern')]
    """

    __slots__ = ("_root", "cost")

    def __init__(self, schema: Any) -> None:
        compiler = Compiler(schema, KEYWORDS)
        try:
            self._root = compiler.compile_schema()
        except RecursionError:
            raise JsonSchemaError("a value in it is nested too deeply") from None
        self.cost = compiler.cost

    def problems(self, value: Any) -> list[Problem]:
        """Return the problems of a value; an empty list if it fits.

        Args:
            value: JSON, as parsed.

        Raises:
            TooCostlyError: The check takes too many steps, or the value is too deep.
        """
        run = SchemaCheck()
        try:
            self._root.check(value, None, run, None)
        except RecursionError:
            raise TooCostlyError("the value is nested too deeply to be checked") from None
        return run.found
