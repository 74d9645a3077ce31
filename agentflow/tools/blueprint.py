"""The common part of a tool and its copies: function, options, lock, hooks, and data read once from the function."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from pydantic.errors import PydanticInvalidForJsonSchema

from agentflow.errors import UsageError
from agentflow.tools.argument_errors import explain
from agentflow.tools.schema import add_descriptions, json_schema, may_hold_floats, may_read_floats, read_docstring
from agentflow.tools.schema_arguments import SchemaArguments, WithSchema
from agentflow.tools.signature import ArgumentPlan, plain_function, read_plan, return_hint
from agentflow.vocabulary.specs import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentflow.hooks.scope import HookScope
    from agentflow.tools.contracts import Contract
    from agentflow.vocabulary.specs import ToolType


@dataclass(repr=False, eq=False)
class Blueprint:
    """The common part of a tool and its copies (bound to objects, or under other names).

    Args:
        function: The function.
        name: The tool's name.
        description: The description; the docstring by default.
        in_thread: Whether the function runs in a thread.
        external: Whether the function never runs, because calls are answered from outside.
        fixed: Parameters with fixed values.
        contract: The contract of the tool's type.
    """

    function: Callable[..., object]
    name: str
    description: str | None
    in_thread: bool
    external: bool
    fixed: Mapping[str, object]
    contract: Contract | None

    def __post_init__(self) -> None:
        self.owner: str | None = None
        self.scope: HookScope | None = None
        self.names: Mapping[str, object] = {}
        self._doc: tuple[str, dict[str, str]] | None = None
        self._plan: ArgumentPlan | None = None
        self._schema: dict[str, Any] | None = None

    def plan(self) -> ArgumentPlan:
        """Read the signature and check it against the contract, once."""
        if self._plan is None:
            plan = self._read()
            if self.external and plan.fills:
                raise UsageError(
                    f"Tool {self.name!r} is external: its function never runs, so nothing can be filled into "
                    f"{', '.join(name for name, _ in plan.fills)}. Leave such parameters out."
                )
            # Set before the contract is checked, since the check reads the schema, which reads the plan.
            self._plan = plan
            if self.contract is not None:
                self._check_contract(self.contract)
            self.names = {}  # the frames' values are no longer needed
        return self._plan

    def _read(self) -> ArgumentPlan:
        return read_plan(
            self.name,
            self.function,
            is_method=self.owner is not None,
            in_thread=self.in_thread,
            fixed=self.fixed,
            names=self.names,
        )

    def _check_contract(self, contract: Contract) -> None:
        if contract.runs:
            contract.judge(return_hint(self.function, self.names))
        else:
            contract.judge_parameters(len(self.keys()))

    def doc(self) -> tuple[str, dict[str, str]]:
        """Return the docstring's text, and its descriptions of the parameters."""
        if self._doc is None:
            plain = self.function if isinstance(self.function, FunctionType) else plain_function(self.function)
            self._doc = read_docstring(plain.__doc__ if plain is not None else None)
        return self._doc

    def spec(self, kind: ToolType, tags: frozenset[str], *, requires_approval: bool, streaming: bool) -> ToolSpec:
        """Return the tool as a model sees it; description and schema are built when they are first read."""
        return ToolSpec(
            self.name,
            self.describe,
            self.parameters,
            type=kind,
            tags=tags,
            requires_approval=requires_approval,
            streaming=streaming,
        )

    def describe(self) -> str:
        """Return the description for the model."""
        return self.description if self.description is not None else self.doc()[0]

    def parameters(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments."""
        if self._schema is None:
            self._schema = self._make_schema()
        return self._schema

    def _make_schema(self) -> dict[str, Any]:
        plan = self.plan()
        descriptions = {plan.aliases.get(name, name): text for name, text in self.doc()[1].items()}
        if plan.schema is not None:
            add_descriptions(plan.schema["properties"], descriptions)
            return plan.schema
        try:
            return json_schema(plan.core, descriptions)
        except PydanticInvalidForJsonSchema as error:
            raise UsageError(
                f"Tool {self.name!r}: no JSON schema can be built for its parameters ({error.message}). Use types "
                "that JSON can describe, or Dep[X] for objects from the call's deps=."
            ) from error

    def may_read_floats(self) -> bool:
        """Whether valid arguments could contain a float. This does not build the JSON schema, which may never be used."""
        return may_read_floats(self.plan().core)

    def keys(self) -> list[tuple[str, bool]]:
        """Return the arguments' names, each with whether it is required."""
        schema = self.parameters()
        required = schema.get("required", ())
        return [(name, name in required) for name in schema.get("properties", ())]

    def explain(self, tool: str, raw: str, error: ValueError) -> str:
        """Return the message for the model about refused arguments."""
        return explain(tool, raw, error, self.keys())


class SchemaBlueprint(Blueprint):
    """The blueprint of a tool with a schema instead of a signature (see `external_tool` and `schema_tool`)."""

    def __init__(
        self, function: WithSchema, name: str, description: str | None, external: bool, contract: Contract | None
    ) -> None:
        super().__init__(cast("Callable[..., object]", function), name, description, False, external, {}, contract)
        self._with_schema = function
        self._arguments: SchemaArguments = function.arguments

    def _read(self) -> ArgumentPlan:
        return self._with_schema.plan()

    def _check_contract(self, contract: Contract) -> None:
        if not contract.runs:
            contract.judge_parameters(len(self.keys()))

    def may_read_floats(self) -> bool:
        """Whether arguments of the schema could contain a float."""
        return may_hold_floats(self.parameters())

    def _make_schema(self) -> dict[str, Any]:
        return self._arguments.schema
