"""`Dataset`: cases with their checks and their task, in Python or in a YAML file.

Rules of the file:

1. It contains only data: it names checks, but no code is imported. Your own checks are passed to `Dataset.read`, and named in
   the file.
2. Unknown keys, values of a wrong type, and repeated keys and names are errors that name the line. Unquoted text is only
   converted if JSON has such a value: `no` is the text "no", and a date is a text.
3. Aliases are refused, and size and depth are limited, so that a small file cannot expand to a large one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import cleandoc
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias, TypedDict, Unpack, cast

from pydantic_core import ValidationError

from agentflow._support.json_text import read_json_text
from agentflow._support.shown import one_line
from agentflow._support.validation import adapter_of
from agentflow.errors import AgentFlowError, UsageError
from agentflow.plugins.evaluation import Case, Check, Contains, Judge, Matches, StaysWithin, UsesTools, name_of
from agentflow.testing.evaluation.report import Evaluation
from agentflow.testing.evaluation.running import Task, evaluate, named_cases
from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.ports.retry import RetryPolicy

Position: TypeAlias = tuple[str | int, ...]
"""A position in the data: keys and indexes."""

_MAX_BYTES: Final = 20_000_000
_MAX_DEPTH: Final = 100
# The numbers of JSON: YAML also reads 010, 1_000 and 12:30 as numbers, which are texts here.
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


class RunOptions(TypedDict, total=False):
    """The options that a dataset passes on to `evaluate`."""

    concurrency: int
    repeats: int
    retries: int | RetryPolicy
    timeout: float | None
    progress: bool | None


@dataclass(frozen=True, slots=True)
class _JudgeEntry:
    """A judging model decides whether the answer meets a requirement.

    Attributes:
        requirement: The requirement.
        model: The name of the judging model.
        rubric: The levels and their meaning.
        pass_at: The lowest level that passes.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}
    requirement: str
    model: str | None = None
    rubric: dict[int, str] | None = None
    pass_at: int | None = None


_FORMS: Final[Mapping[str, Any]] = {
    "contains": Contains,
    "matches": Matches,
    "tools": UsesTools,
    "within": StaysWithin,
    "judge": _JudgeEntry,
}
"""The checks that every file can name, with the classes of their values."""


@dataclass(frozen=True, slots=True)
class _CaseEntry:
    """A case.

    Attributes:
        input: The input: a text for an agent, any value for a function.
        name: The name in reports; by default, the position.
        expected: The expected output.
        checks: Checks of only this case.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}
    input: Any
    name: str = ""
    expected: Any = None
    checks: list[Any] = field(default_factory=list[Any])


@dataclass(frozen=True, slots=True)
class _File:
    """A dataset.

    Attributes:
        name: The name; a baseline is compared only with results of the same dataset.
        cases: The cases.
        checks: Checks of every case.
        repeats: How often each case is run.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}
    name: str
    cases: list[_CaseEntry]
    checks: list[Any] = field(default_factory=list[Any])
    repeats: int = 1


@dataclass(frozen=True)
class Dataset:
    """Cases with their checks and their task.

    Attributes:
        name: The name; a baseline is compared only with results of the same dataset.
        cases: The cases.
        checks: Checks of every case.
        task: The agent or function to evaluate.
        repeats: How often each case is run.
        known: The checks that a file can name, for the schema.

    Raises:
        UsageError: There are no cases, or two have the same name.

    Example:
        >>> sums = Dataset("sums", [Case("1 + 2?", "3")], task=Agent("a", ScriptedModel(["3"])))
        >>> (await sums.evaluate()).rate.mean
        1.0
    """

    name: str
    cases: Sequence[Case | str]
    checks: Sequence[Check] = ()
    task: Task | None = None
    repeats: int = 1
    known: Sequence[Check] = ()

    def __post_init__(self) -> None:
        named_cases(self.cases)

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        task: Task | None = None,
        checks: Iterable[Check] = (),
        judge: str | Model | None = None,
    ) -> Dataset:
        """Read a dataset from a YAML file.

        Args:
            path: The file.
            task: The agent or function to evaluate.
            checks: Checks that the file can name.
            judge: The model for judges without a model in the file.

        Raises:
            UsageError: The file cannot be read, or is invalid; the message names the line.
        """
        file, known = _YamlFile(Path(path)), tuple(checks)
        found = file.checked(_File, file.data, ())
        factory = _CheckFactory(file, {name_of(check): check for check in known}, judge)
        cases: list[Case] = []
        for n, entry in enumerate(found.cases):
            position = ("cases", n)
            raw_case = file.data["cases"][n]
            if entry.name and any(case.name == entry.name for case in cases):
                raise file.error(
                    (*position, "name"), f"another case is named {entry.name!r:.80}. Names must be unique."
                )
            case = Case(entry.input, name=entry.name, checks=factory.of((*position, "checks"), entry.checks))
            # `expected: null` is an expectation too.
            cases.append(Case(case.input, entry.expected, case.name, case.checks) if "expected" in raw_case else case)
        if not cases:
            raise file.error(("cases",), "there are no cases.")
        if found.repeats < 1:
            raise file.error(("repeats",), "it must be at least 1.")
        return cls(found.name, tuple(cases), factory.of(("checks",), found.checks), task, found.repeats, known)

    @staticmethod
    def schema(checks: Iterable[Check] = ()) -> dict[str, Any]:
        """Return the JSON schema of the files, for completion in editors.

        Args:
            checks: Checks that the files can name.

        Example:
            >>> Dataset.schema()["required"]
            ['name', 'cases']
        """
        schema = _schema_of(_File)
        schema["$defs"]["_CaseEntry"] = _schema_of(_CaseEntry)
        entries: list[Any] = []
        for name, form in _FORMS.items():
            inner = _schema_of(form)
            value = {"anyOf": [next(iter(inner["properties"].values())), inner], "description": inner["description"]}
            entry = {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}
            entries.append(entry)
        if names := [name_of(check) for check in checks]:
            entries.append({"enum": names, "description": "A custom check."})
        schema["$defs"]["check"] = {"anyOf": entries}
        for owner in (schema, schema["$defs"]["_CaseEntry"]):
            owner["properties"]["checks"]["items"] = {"$ref": "#/$defs/check"}
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

    @classmethod
    def save_schema(cls, path: str | Path, checks: Iterable[Check] = ()) -> None:
        """Write the JSON schema of the files.

        A file with the first line `# yaml-language-server: $schema=dataset.schema.json` is completed and checked in editors.

        Raises:
            OSError: The file cannot be written.
        """
        Path(path).write_text(json.dumps(cls.schema(checks), indent=2) + "\n", "utf-8")

    async def evaluate(self, task: Task | None = None, **options: Unpack[RunOptions]) -> Evaluation:
        """Run the cases with `evaluate`.

        Args:
            task: The agent or function to evaluate instead of the dataset's own.
            options: `concurrency`, `repeats`, `retries`, `timeout`, `progress`.

        Raises:
            UsageError: There is no task.
        """
        target = self.task if task is None else task
        if target is None:
            raise UsageError(f"The dataset {self.name!r} has no task. Pass the agent or function: evaluate(agent).")
        chosen: RunOptions = {"repeats": self.repeats, **options}
        report = await evaluate(target, self.cases, self.checks, **chosen)
        return Evaluation(report.name, report.trials, self.name)


class _CheckFactory:
    """Creates the checks of a file."""

    def __init__(self, file: _YamlFile, known: Mapping[str, Check], judge: str | Model | None) -> None:
        self._file = file
        self._known = known
        self._judge = judge

    def of(self, position: Position, entries: Sequence[Any]) -> tuple[Check, ...]:
        """Return the checks of a list."""
        return tuple(self._check_from((*position, n), entry) for n, entry in enumerate(entries))

    def _check_from(self, position: Position, entry: Any) -> Check:
        legal = f"Allowed: {', '.join((*_FORMS, *self._known))}."
        if isinstance(entry, str):
            if entry not in self._known:
                if entry in _FORMS:
                    raise self._file.error(position, f"the check {entry!r} needs a value. {legal}")
                reason = "pass a check of that name to Dataset.read(checks=[...])"
                raise self._file.error(position, f"there is no check {entry!r:.80} without a value: {reason}. {legal}")
            return self._known[entry]
        if not isinstance(entry, dict) or len(cast("dict[str, Any]", entry)) != 1:
            raise self._file.error(position, f"a check is a name, or one name with its value. {legal}")
        name, value = next(iter(cast("dict[str, Any]", entry).items()))
        if name not in _FORMS:
            raise self._file.error(position, f"there is no check {name!r:.80}. {legal}")
        form = _FORMS[name]
        if not isinstance(value, dict):
            value = {fields(form)[0].name: value}
        check = self._file.checked(form, value, (*position, name))
        if not isinstance(check, _JudgeEntry):
            return cast("Check", check)
        model = self._judge if check.model is None else check.model
        if model is None:
            raise self._file.error(
                (*position, name), "the judge has no model. Name one, or pass Dataset.read(judge=...)."
            )
        try:
            return Judge(check.requirement, model, rubric=check.rubric, pass_at=check.pass_at)
        except AgentFlowError as error:
            raise self._file.error((*position, name), str(error)) from error


class _YamlFile:
    """A YAML file with the lines of its values.

    Args:
        path: The file.

    Raises:
        UsageError: The file cannot be read, is too large, or contains YAML that is not supported.
    """

    def __init__(self, path: Path) -> None:
        import yaml

        self._path = path
        self._lines: dict[Position, int] = {}
        library = cast("Any", yaml)
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise UsageError(f"The dataset {path} is larger than {_MAX_BYTES:,} bytes.")
            text = path.read_text("utf-8")
            self._scan(text, library)
            root = library.compose(text, Loader=library.SafeLoader)
            self.data: Any = self._value(root, (), library)
        except OSError as error:
            raise UsageError(f"The dataset {path} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"The dataset {path} is not UTF-8 text.") from error
        except library.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = one_line(str(getattr(error, "problem", None) or error))[:200]
            raise self._at(0 if mark is None else mark.line, f"it is not YAML: {problem}.") from error

    def _scan(self, text: str, library: Any) -> None:
        """Refuse aliases and deep nesting, before any value is built."""
        depth = 0
        for token in library.scan(text):
            name = type(token).__name__
            depth += name.endswith(("SequenceStartToken", "MappingStartToken"))
            depth -= name in ("BlockEndToken", "FlowSequenceEndToken", "FlowMappingEndToken")
            if name == "AliasToken":
                raise self._at(token.start_mark.line, "aliases (*name) are not supported. Write the value out.")
            if depth > _MAX_DEPTH:
                raise self._at(token.start_mark.line, f"it is nested more than {_MAX_DEPTH} levels deep.")

    def _value(self, node: Any, position: Position, library: Any) -> Any:
        if node is None:
            return None
        self._lines[position] = node.start_mark.line
        if isinstance(node, library.SequenceNode):
            return [self._value(each, (*position, n), library) for n, each in enumerate(node.value)]
        if not isinstance(node, library.MappingNode):
            return self._scalar(node)
        mapping: dict[str | int, Any] = {}
        for key, value in node.value:
            name = self._scalar(key) if isinstance(key, library.ScalarNode) else None
            if not isinstance(name, str | int):
                raise self._at(key.start_mark.line, "a key must be a text or a whole number.")
            if name in mapping:
                raise self._at(key.start_mark.line, f"the key {name!r:.80} occurs twice.")
            mapping[name] = self._value(value, (*position, name), library)
            self._lines[*position, name] = key.start_mark.line
        return mapping

    def _scalar(self, node: Any) -> Any:
        """Return a scalar as a JSON value; unquoted text that is not valid JSON is a text."""
        text, kind = str(node.value), str(node.tag).removeprefix("tag:yaml.org,2002:")
        # The last three are plain text that YAML resolves by its form: a date, `=` and `<<`.
        if kind not in ("null", "bool", "int", "float", "str", "timestamp", "value", "merge"):
            raise self._at(node.start_mark.line, f"the tag {node.tag!r:.80} is not supported.")
        if kind == "null":
            return None
        is_json = kind in ("bool", "int", "float") and (text in ("true", "false") or _NUMBER.fullmatch(text))
        return read_json_text(text) if is_json else text

    def checked(self, form: Any, value: Any, position: Position) -> Any:
        """Validate a value, and name the line if it is wrong."""
        try:
            return adapter_of(form).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)[0]
            raise self.error((*position, *found["loc"]), f"{found['msg'].removeprefix('Value error, ')}.") from error
        except AgentFlowError as error:
            raise self.error(position, str(error)) from error

    def error(self, position: Position, text: str) -> UsageError:
        """Return an error for a position in the data, with the line of this position or the closest enclosing one."""
        known = next(position[:n] for n in range(len(position), -1, -1) if position[:n] in self._lines or not n)
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in position)
        return self._at(self._lines.get(known, 0), f"{path.lstrip('.') or 'the file'}: {text}")

    def _at(self, line: int, text: str) -> UsageError:
        return UsageError(f"{self._path}, line {line + 1}: {text}")


def _schema_of(form: Any) -> dict[str, Any]:
    """Return the JSON schema of a dataclass, with the descriptions of its docstring."""
    schema = adapter_of(form).json_schema()
    about = re.sub(r"\n {6,}", " ", cleandoc(form.__doc__))  # Python 3.13 removes the indentation itself
    schema["description"] = about.partition("\n")[0]
    described: dict[str, str] = dict(re.findall(r"^ {4}(\w+): (.+)$", about, re.MULTILINE))
    for name, inner in schema["properties"].items():
        inner.update(description=described[name])
        inner.pop("title", None)
        inner.pop("default", None)
    return schema
