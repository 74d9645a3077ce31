"""`Skills`: folders with instructions and files for tasks, listed in the prompt and read by the model when needed.

A skill is a folder with a `SKILL.md` in the form of https://agentskills.io: YAML front matter with `name` and `description`,
then instructions.

Rules:

1. A skill is text from its author. A skill gets no permissions: its `allowed-tools` are ignored, and its scripts run
   only through a tool of the agent, with that tool's hooks and approvals.
2. The files are listed once, when the hook is created. Only listed regular files are read, by their exact names; no path is
   built from a model's text, and symbolic links are neither listed nor followed.
3. The number of files, the depth of folders, the size of files and the length of names are limited.
"""

from __future__ import annotations

import html
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from agentflow._support.shown import one_line
from agentflow._support.validation import is_a
from agentflow.errors import ToolArgumentError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.plugins.skill_sources import GitSkills, PackageSkills
from agentflow.tools.tool import Tool, tool
from agentflow.vocabulary.events import HookEvent, PreReasoning
from agentflow.vocabulary.message_views import with_first
from agentflow.vocabulary.messages import Msg, TextBlock

MAIN: Final = "SKILL.md"
_MAX_NAME_LENGTH: Final = 64
_MAX_DESCRIPTION_LENGTH: Final = 1024
_MAX_FILES: Final = 1_000
_MAX_DEPTH: Final = 8
_HINT: Final = (
    "Before a task that one of these skills describes, read it with read_skill and follow it within your rules."
)


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill.

    Attributes:
        name: The skill's name, which is also its folder's name.
        description: The skill's purpose, for the list in the prompt.
        body: The instructions.
        folder: The skill's folder.
        files: The skill's other files, by their path in the folder.
    """

    name: str
    description: str
    body: str
    folder: Path
    files: Mapping[str, Path]


class Skills(Hook):
    """Lists skills in the system prompt, and adds the tool `read_skill` for their instructions and files.

    Priority 45 (system).

    Args:
        folders: Folders of skills, or folders that contain such folders; also folders of a package or of a repository.
        max_bytes: The size limit of each file.

    Raises:
        UsageError: A folder has no skills, a skill is not valid, or two have the same name.

    Example:
        >>> skill = Path("skills", "greeting")
        >>> skill.mkdir(parents=True)
        >>> _ = Path(skill, "SKILL.md").write_text("---\\nname: greeting\\ndescription: Greet people.\\n---\\nSay hello.")
        >>> agent = Agent("writer", "openai/gpt-5", hooks=[Skills("skills")])
    """

    priority = 45
    events = (PreReasoning,)

    def __init__(self, *folders: str | Path | PackageSkills | GitSkills, max_bytes: int = 100_000) -> None:
        if max_bytes < 1:
            raise UsageError(f"Skills(max_bytes={max_bytes}) is invalid; use at least 1 byte.")
        wrong = next((folder for folder in folders if not is_a(folder, str | Path | PackageSkills | GitSkills)), None)
        if wrong is not None:
            raise UsageError(
                f"Skills(...) takes folders, each as an argument, not {wrong!r:.60}. Write Skills('a', 'b')."
            )
        self.max_bytes = max_bytes
        self.skills: dict[str, Skill] = {}
        for skill in read_skills(folders, max_bytes):
            if (other := self.skills.setdefault(skill.name, skill)) is not skill:
                raise UsageError(f"Two skills are named {skill.name!r}: {other.folder} and {skill.folder}. Remove one.")
        # Escaped, so that no description can end the list.
        listed = "\n".join(f"- {name}: {html.escape(one_line(s.description))}" for name, s in self.skills.items())
        self._text = f"<available_skills>\n{_HINT}\n{listed}\n</available_skills>"

    def on_event(self, event: HookEvent) -> HookEvent:
        """Add the list to the system prompt, which is the first message."""
        if isinstance(event, PreReasoning) and event.tools:  # without tools, no skill can be read
            first = event.input_messages[0] if event.input_messages else None
            if first is not None and first.role == "system":
                own = replace(first, content=(*first.content, TextBlock(f"\n\n{self._text}")))
                event.input_messages = with_first(event.input_messages, own, instead=True)
            else:
                own = Msg.system(self._text, id=event.context.new_id("msg_"))
                event.input_messages = with_first(event.input_messages, own, instead=False)
        return event

    def tools(self) -> Iterable[Tool[..., Any]]:
        """Return the tool that reads skills."""
        return (self.read_skill,)

    @tool(type="read", in_thread=True, idempotent=True)
    def read_skill(self, skill: str, file: str = MAIN) -> str:
        """Read the instructions of a skill, or one of its files.

        Args:
            skill: The name of the skill.
            file: The file, as listed in the instructions of the skill.
        """
        found = self.skills.get(skill)
        if found is None:
            raise ToolArgumentError(f"There is no skill {skill!r:.80}. The skills: {', '.join(self.skills)}.")
        if file == MAIN:
            files = "\n".join(found.files) or "(none)"
            return f"{found.body}\n\nFolder: {found.folder}\nFiles:\n{files}"
        path = found.files.get(file)
        if path is None:
            raise ToolArgumentError(f"The skill {skill} has no file {file!r:.200}. Read {MAIN}, which lists its files.")
        try:
            return _read(path, self.max_bytes)
        except (OSError, ValueError) as error:
            raise ToolArgumentError(f"{file} of the skill {skill} cannot be read: {_reason_for(error)}.") from error


def read_skills(folders: Iterable[str | Path | PackageSkills | GitSkills], max_bytes: int = 100_000) -> Iterator[Skill]:
    """Read the skills of folders; each is a skill, or contains skills.

    Raises:
        UsageError: A folder has no skills, or a skill is not valid.
    """
    for source in folders:
        root = Path(source.folder() if isinstance(source, PackageSkills | GitSkills) else source).resolve()
        try:
            inner = [folder for folder in sorted(root.iterdir()) if folder.is_dir() and not folder.is_symlink()]
        except OSError as error:
            raise UsageError(f"Skills: the folder {source} cannot be read: {_reason_for(error)}.") from error
        found = [root] if (root / MAIN).exists() else [folder for folder in inner if (folder / MAIN).exists()]
        if not found:
            raise UsageError(f"Skills: {source} has no skills. A skill is a folder with a file {MAIN}.")
        for folder in found:
            try:
                yield _skill(folder, max_bytes)
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"The skill {folder} is not valid: {_reason_for(error)}. Correct it, or remove it."
                ) from error


def _skill(folder: Path, max_bytes: int) -> Skill:
    text = _read(folder / MAIN, max_bytes).removeprefix("\ufeff")  # a byte order mark, which editors on Windows write
    first, _, rest = text.partition("\n")
    lines = rest.splitlines(keepends=True)
    end = next((n for n, line in enumerate(lines) if line.rstrip() == "---"), None)
    if first.rstrip() != "---" or end is None:
        raise ValueError(f"{MAIN} does not begin with YAML between two lines of ---")
    fields = _front_matter("".join(lines[:end]))
    name, description = fields.get("name", "").strip(), fields.get("description", "").strip()
    if problem := _problem(unicodedata.normalize("NFKC", name), unicodedata.normalize("NFKC", folder.name)):
        raise ValueError(problem)
    if not 0 < len(description) <= _MAX_DESCRIPTION_LENGTH:
        raise ValueError(f"description has {len(description)} characters; it must have 1 to {_MAX_DESCRIPTION_LENGTH}")
    files = {path.relative_to(folder).as_posix(): path for path in _files(folder, _MAX_DEPTH)}
    if len(files) > _MAX_FILES:
        raise ValueError(f"it has more than {_MAX_FILES} files")
    files.pop(MAIN, None)
    return Skill(name, description, "".join(lines[end + 1 :]).strip(), folder, files)


def _problem(name: str, folder: str) -> str:
    """Return why a name is not legal; empty if it is."""
    if not name or len(name) > _MAX_NAME_LENGTH:
        return f"name has {len(name)} characters; it must have 1 to {_MAX_NAME_LENGTH}"
    legal = all(part and all(char.isalnum() for char in part) for part in name.split("-"))
    if not legal or name != name.lower():
        return f"name {name!r} must have lower-case letters and digits, with single hyphens between them"
    return "" if name == folder else f"name {name!r} differs from its folder's, {folder!r}"


def _front_matter(text: str) -> dict[str, str]:
    """Return the texts of a YAML mapping. Nothing is constructed: tags and aliases have no effect."""
    import yaml  # loaded only for agents with skills

    library = cast("Any", yaml)
    try:
        node = library.compose(text, Loader=library.BaseLoader)
    except (library.YAMLError, RecursionError) as error:
        raise ValueError(f"its front matter is not YAML: {one_line(str(error))[:200]}") from None
    if not isinstance(node, library.MappingNode):
        raise ValueError("its front matter is not a mapping")  # noqa: TRY004 - a value of a file
    pairs = [(key.value, value) for key, value in node.value if isinstance(key.value, str)]
    if twice := [name for n, (name, _) in enumerate(pairs) if name in [before for before, _ in pairs[:n]]]:
        raise ValueError(f"its front matter has {twice[0]!r:.80} twice")
    return {name: value.value for name, value in pairs if isinstance(value.value, str)}


def _files(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the regular files below a folder, without symbolic links, in order, up to one more than the limit."""
    pending = [(folder, depth)]
    count = 0
    while pending and count <= _MAX_FILES:
        directory, deep = pending.pop()
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False) and deep:
                pending.append((Path(entry.path), deep - 1))
            elif entry.is_file(follow_symlinks=False) and count <= _MAX_FILES:
                count += 1
                yield Path(entry.path)


def _read(path: Path, max_bytes: int) -> str:
    """Read a text file, unless it or a folder above it has become a symbolic link.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is not a regular file, is too large, or is not text.
    """
    if path.resolve() != path:
        raise ValueError("its path contains a symbolic link")
    # Opening a pipe would block without O_NONBLOCK; Windows has neither flag.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes} bytes")
    if b"\0" in data:
        raise ValueError("it is not a text file")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def _reason_for(error: Exception) -> str:
    return error.strerror or "unknown" if isinstance(error, OSError) else str(error)
