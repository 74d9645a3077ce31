"""Compile untrusted JSON schemas, and check values against them, both within limits.

Both the schema and the value can be hostile: either can keep a validator that interprets the schema busy for hours, or
make it exhaust the stack.

Rules:

1. A schema is compiled to functions when it is loaded (`JsonSchema`); its JSON is not read again. Values that are not
   schemas, external references, and references to the same subschema without a step into the value are refused.
2. The compiled size is limited, and so are patterns (`agentflow._support.patterns_outside`). `JsonSchema.cost` is the
   size: a caller that loads many schemas should limit their sum.
3. A check has a limited number of steps: each keyword at each position of the value counts, as does each entry of a list
   or object and each match of a pattern. A check that would take more raises `TooCostlyError`: it neither passes nor
   fails.
4. Schemas follow draft 2020-12; the spellings of older drafts, from 4 on, are supported: `definitions`, lists in
   `items`, `dependencies`, booleans in `exclusiveMinimum`. `format` and `content...` are annotations and check nothing.
   A `$dynamicRef` works like a `$ref`; a schema in which the two differ is refused.

No library has such limits. In some of the 35 hostile cases in tests/tools/hostile_schemas.py, `jsonschema` and `fastjsonschema`
backtrack in `re` and do not end. `jsonschema-rs` matches in linear time, but has no limit on steps: nested `anyOf` or many
required names exhaust memory, which aborts the process, and nested `contains` block the interpreter for 17 seconds.
"""

from __future__ import annotations

from typing import Any

from agentflow._support.json_compiler import (
    Compiler,
    JsonSchemaError,
    Problem,
    SchemaCheck,
    TooCostlyError,
)
from agentflow._support.json_keywords import KEYWORDS


class JsonSchema:
    """A compiled schema.

    Args:
        schema: The schema as parsed JSON, which must not be changed afterwards.

    Attributes:
        cost: The size of the schema, in the units of `MAX_COST`.

    Raises:
        JsonSchemaError: It is not a schema, exceeds a limit, or has a reference to something outside it.

    Example:
        >>> schema = JsonSchema({"type": "array", "items": {"type": "string", "pattern": "^(a+)+$"}})
        >>> [(problem.path, problem.keyword) for problem in schema.problems(["aa", 5, "a" * 5000 + "!"])]
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
        """Return the problems of a value; an empty list if it matches the schema.

        Args:
            value: Parsed JSON.

        Raises:
            TooCostlyError: The check takes too many steps, or the value is too deep.
        """
        run = SchemaCheck()
        try:
            self._root.check(value, None, run, None)
        except RecursionError:
            raise TooCostlyError("the value is nested too deeply to be checked") from None
        return run.found
