"""`PackageSkills` and `GitSkills`: skills from elsewhere, possibly hostile."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from agentflow import Agent, ToolUseBlock
from agentflow.errors import UsageError
from agentflow.plugins import GitSkills, PackageSkills, Skills
from agentflow.testing import ScriptedModel

TEXT = "---\nname: {name}\ndescription: A demo.\n---\nDo {name}.\n"


def run(*command: str, cwd: Path, **more: Any) -> str:
    """Run a command with a fixed author; its output."""
    who = {f"GIT_{role}_{what}": "a@example.com" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env = {**plain, **who, "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(command, cwd=cwd, env=env, check=True, capture_output=True, text=True, **more).stdout.strip()


class Repository:
    """A repository with two skills in `skills/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        for name in ("one", "two"):
            self.write(f"skills/{name}/SKILL.md", TEXT.format(name=name))
        self.write("skills/one/run.sh", "echo ran").chmod(0o755)
        self.first = self.commit()
        self.url = f"file://{folder}"

    def git(self, *arguments: str, **more: Any) -> str:
        return run("git", *arguments, cwd=self.folder, **more)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=x")
        return self.git("rev-parse", "HEAD")

    def store(self, kind: str, data: bytes) -> str:
        """Store an object that git itself would refuse to make; its hash."""
        whole = f"{kind} {len(data)}".encode() + b"\0" + data
        name = sha1(whole, usedforsecurity=False).hexdigest()
        path = self.folder / ".git" / "objects" / name[:2] / name[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(zlib.compress(whole))
        return name

    def tree(self, *entries: tuple[str, bytes, str]) -> str:
        """Store a tree of any (mode, name, hash)."""
        return self.store("tree", b"".join(f"{m} ".encode() + n + b"\0" + bytes.fromhex(h) for m, n, h in entries))

    def commit_of(self, tree: str) -> str:
        return self.git("commit-tree", tree, "-m", "x")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def source(tmp_path: Path, repository: Repository) -> Callable[..., GitSkills]:
    """Make a source of the repository, with a cache of its own."""

    def make(commit: str = repository.first, path: str = "skills", url: str = repository.url, **more: Any) -> GitSkills:
        return GitSkills(
            url, commit, path, **cast("Any", {"cache": tmp_path / "cache", "protocols": ("file",), **more})
        )

    return make


def files_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


BOTH = {"one/SKILL.md": TEXT.format(name="one"), "one/run.sh": "echo ran", "two/SKILL.md": TEXT.format(name="two")}


# ---- packages


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages; importing `acme` fails."""
    for package in ("acme/agents", "spaced"):
        folder = tmp_path / "site" / package / "skills" / "one"
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(TEXT.format(name="one"), "utf-8")
    for module in ("acme/__init__.py", "acme/agents/__init__.py", "plain.py"):
        (tmp_path / "site" / module).write_text("raise SystemExit('imported')", "utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    return tmp_path / "site"


def test_a_package_is_found_and_not_imported(site: Path) -> None:
    """Its folder is found from the outermost package, also that of a package without `__init__.py`."""
    found = [
        PackageSkills("acme.agents"),
        PackageSkills("acme", "agents/skills"),
        PackageSkills("spaced", "skills/one"),
    ]
    assert [list(Skills(one).skills) for one in found] == [["one"]] * 3
    assert not {"acme", "acme.agents", "spaced"} & set(sys.modules)


@pytest.mark.parametrize(
    ("package", "path", "why"),
    [
        ("nothing_here", "skills", "there is no package 'nothing_here'"),
        ("plain", "skills", "there is no package 'plain'"),
        ("__main__", "skills", "there is no package"),
        ("acme", "skills", "the package has no folder 'skills'"),
        ("acme..agents", "skills", "is not the name of a package"),
        ("../acme", "skills", "is not the name of a package"),
        ("", "skills", "is not the name of a package"),
        ("acme", "../spaced/skills", "must be a folder in it"),
        ("acme", "/etc", "must be a folder in it"),
        ("acme", "agents/./skills", "must be a folder in it"),
    ],
)
def test_packages_that_are_refused(site: Path, package: str, path: str, why: str) -> None:
    """A missing package or folder, and a name or path that leads elsewhere."""
    with pytest.raises(UsageError, match=why):
        Skills(PackageSkills(package, path))


# ---- a repository


async def test_a_repository_at_a_commit(repository: Repository, source: Callable[..., GitSkills]) -> None:
    """The model reads the skills of that commit, whatever the branch has now; the second time without the repository."""
    repository.write("skills/one/SKILL.md", TEXT.format(name="one") + "Later.")
    later = repository.commit()
    folder = source().folder()
    assert files_of(folder) == BOTH
    assert [stat.S_IMODE((folder / "one" / name).stat().st_mode) for name in ("run.sh", "SKILL.md")] == [0o555, 0o444]
    assert files_of(source(later).folder())["one/SKILL.md"].endswith("Later.")
    assert list(Skills(source(path="skills/two")).skills) == ["two"]
    repository.folder.rename(repository.folder.with_name("moved"))
    model = ScriptedModel([ToolUseBlock("t1", "read_skill", {"skill": "one", "file": "run.sh"}), "Done."])
    agent = Agent("a", model, hooks=[Skills(source())])
    await agent.call("go")
    assert [one.text for msg in agent.session().messages for one in msg.tool_results] == ["echo ran"]


def test_a_repository_that_is_one_skill(tmp_path: Path) -> None:
    """Its folder has the name of the repository."""
    whole = Repository(tmp_path / "demo.git")
    whole.write("SKILL.md", TEXT.format(name="demo"))
    cache = tmp_path / "cache"
    assert list(Skills(GitSkills(f"{whole.url}/", whole.commit(), cache=cache, protocols=["file"])).skills) == ["demo"]


@pytest.mark.parametrize(
    "name", ["main", "v1", "HEAD", "", "A" * 40, "a" * 39, "a" * 41, "main^{}", "--upload-pack=x", "a" * 40 + "\n"]
)
def test_names_of_commits_that_are_refused(source: Callable[..., GitSkills], repository: Repository, name: str) -> None:
    """Branches, tags and short hashes are refused before git is started."""
    repository.git("tag", "v1")
    with pytest.raises(UsageError, match="must be a full hash of 40"):
        source(name).folder()


def test_hashes_that_are_refused(source: Callable[..., GitSkills], repository: Repository, tmp_path: Path) -> None:
    """Those of a tag, tree, file, or nothing; nothing stays in the cache."""
    repository.git("tag", "--annotate", "v1", "--message=x")
    for name in ("v1", "HEAD^{tree}", "HEAD:skills/one/SKILL.md"):
        with pytest.raises(UsageError, match=r"not the hash of a commit|rev-parse failed"):
            source(repository.git("rev-parse", name)).folder()
    with pytest.raises(UsageError, match=r"git fetch failed: .*not our ref"):
        source("a" * 40).folder()
    with pytest.raises(UsageError, match="git ls-tree failed"):
        source(path="nothing").folder()
    assert files_of(tmp_path / "cache") == {}


def test_a_branch_with_the_name_of_a_hash(source: Callable[..., GitSkills], repository: Repository) -> None:
    """A branch or tag that is named like the commit does not replace it."""
    repository.write("skills/one/SKILL.md", TEXT.format(name="one") + "Replaced.")
    repository.git("update-ref", f"refs/heads/{repository.first}", repository.commit())
    repository.git("update-ref", f"refs/tags/{repository.first}", "HEAD")
    assert files_of(source().folder()) == BOTH


@pytest.mark.parametrize(
    ("url", "protocols", "why"),
    [
        ("ext::sh -c touch% owned", ("https",), "protocol 'ext' is not allowed"),
        ("ext::sh -c touch% owned", ("ext",), "must be among https, http, ssh, file"),
        ("--upload-pack=touch owned", ("https",), "protocol '' is not allowed"),
        ("file:///tmp/x", ("https",), "protocol 'file' is not allowed"),
        ("/tmp/x", ("file",), "protocol '' is not allowed"),
        ("git@example.com:a/b", ("ssh",), "protocol '' is not allowed"),
        ("https://me:secret@example.com/a", ("https",), "must not contain a password"),
        ("https://example.com/a\x1b[2J", ("https",), "must not contain a password or control"),
    ],
)
def test_addresses_that_are_refused(
    source: Callable[..., GitSkills],
    url: str,
    protocols: tuple[str, ...],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other protocols, options, passwords and control characters; the error repeats no password."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=why) as raised:
        source(url=url, protocols=protocols).folder()
    assert ("secret" in str(raised.value), "\x1b" in str(raised.value), (tmp_path / "owned").exists()) == (False,) * 3


# ---- hostile repositories


def test_nothing_is_executed(
    source: Callable[..., GitSkills], repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No filter, hook, submodule or setting of the user runs a program, and variables of git have no effect."""
    owned = tmp_path / "owned"
    settings = tmp_path / ".gitconfig"
    settings.write_text(
        f'[core]\nhooksPath = {tmp_path}/hooks\nfsmonitor = "touch {owned}"\n[filter "lfs"]\nsmudge = touch {owned}\n'
        f'[url "ext::sh -c touch% {owned}"]\ninsteadOf = {repository.url}\n[credential]\nhelper = "!touch {owned}"\n'
    )
    for name in ("post-checkout", "reference-transaction"):
        hook = tmp_path / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {owned}\n")
        hook.chmod(0o755)
    for name, value in {
        "GIT_CONFIG_GLOBAL": settings,
        "GIT_TEMPLATE_DIR": tmp_path / "hooks",
        "HOME": tmp_path,
        "GIT_DIR": tmp_path / "elsewhere",
        "GIT_CONFIG_COUNT": 1,
        "GIT_CONFIG_KEY_0": f"url.ext::sh -c touch% {owned}.insteadOf",
        "GIT_CONFIG_VALUE_0": repository.url,
    }.items():
        monkeypatch.setenv(name, str(value))
    repository.write(".gitattributes", "* filter=lfs export-subst\n")
    repository.write("skills/.gitattributes", "* filter=lfs\n")
    repository.write(
        ".gitmodules", f'[submodule "skills/three"]\npath = skills/three\nurl = ext::sh -c touch% {owned}\n'
    )
    repository.git("add", "--all")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{repository.first},skills/three")
    commit = repository.git("commit-tree", repository.git("write-tree"), "-m", "x")
    repository.git("reset", "--quiet", "--hard", commit)
    assert files_of(source(commit).folder()) == {".gitattributes": "* filter=lfs\n", **BOTH}
    assert (owned.exists(), (tmp_path / "elsewhere").exists()) == (False, False)


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../../../secret", "../../x", "a/../../../x", "..", "\udcff/../../../x"]
)
def test_a_link_that_leaves(source: Callable[..., GitSkills], repository: Repository, target: str) -> None:
    """It is refused, wherever it leads to."""
    (repository.folder / "skills" / "one" / "link").symlink_to(target)
    if target == "..":
        (repository.folder / "skills" / "link").symlink_to(target)
    with pytest.raises(UsageError, match=r"the symbolic link '.*link' leads out of its folder"):
        source(repository.commit()).folder()


def test_a_link_inside(source: Callable[..., GitSkills], repository: Repository) -> None:
    """It is left out, as in any folder of skills; a folder that is a link is none."""
    (repository.folder / "skills" / "one" / "link").symlink_to("../two/SKILL.md")
    (repository.folder / "linked").symlink_to("/etc")
    commit = repository.commit()
    assert files_of(source(commit).folder()) == BOTH
    with pytest.raises(UsageError, match="git ls-tree failed"):
        source(commit, "linked").folder()


@pytest.mark.parametrize(
    "name", [b"..", b".git", b".GIT", b"..\\up.md", b"a:b", b"a\x1b[2J", b"\xff", b"a/../../b", b"a\nb"]
)
def test_names_of_files(source: Callable[..., GitSkills], repository: Repository, name: bytes, tmp_path: Path) -> None:
    """Names that lead elsewhere on some system are refused by git or by us."""
    file = repository.git("rev-parse", "HEAD:skills/one/SKILL.md")
    commit = repository.commit_of(repository.tree(("100644", name, file)))
    with pytest.raises(UsageError, match=r"is not allowed|git fetch failed"):
        source(commit, "").folder()
    assert files_of(tmp_path / "cache") == {}


def test_a_tree_with_a_billion_files(source: Callable[..., GitSkills], repository: Repository) -> None:
    """Ten names for one tree, ten times: it is ended by its limit, and its processes are gone."""
    tree = repository.git("rev-parse", "HEAD:skills/two")
    for _ in range(9):
        tree = repository.tree(*(("40000", f"d{n}".encode(), tree) for n in range(10)))
    with pytest.raises(UsageError, match="larger than max_bytes=1000000"):
        source(repository.commit_of(tree), "", max_bytes=1_000_000).folder()


def test_large_files(source: Callable[..., GitSkills], repository: Repository) -> None:
    """A small repository with a large file, one with large objects, and one with many files."""
    repository.write("skills/one/zeros", "0" * 3_000_000)
    with pytest.raises(UsageError, match=r"more than 5000 files or 1000000 bytes"):
        source(repository.commit(), max_bytes=1_000_000).folder()
    for n in range(5_001):
        repository.write(f"skills/one/{n}", "")
    with pytest.raises(UsageError, match="more than 5000 files"):
        source(repository.commit()).folder()


# ---- servers


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None]) -> Generator[str]:
    """Serve HTTP on this machine; the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def backend(root: Path) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answer with git's own server."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        path, _, query = request.path.partition("?")
        said = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        env = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "REQUEST_METHOD": request.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(said)),
        }
        done = subprocess.run(["git", "http-backend"], env=env, input=said, check=True, capture_output=True)
        request.wfile.write(b"HTTP/1.0 200 OK\r\n" + done.stdout)

    return answer


def test_over_http(source: Callable[..., GitSkills], repository: Repository) -> None:
    """As from any server; a commit that is not the end of a branch too."""
    repository.write("more", "")
    repository.commit()
    with serving(backend(repository.folder.parent)) as url:
        assert files_of(source(url=f"{url}/repository", protocols=("http",)).folder()) == BOTH


def test_servers_that_do_not_serve(source: Callable[..., GitSkills], repository: Repository) -> None:
    """No password is requested, no redirect followed, and a server that never answers is abandoned."""
    asked: list[str] = []
    release = threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        if request.path.startswith("/password"):
            request.send_response(401)
            request.send_header("WWW-Authenticate", "Basic realm=x")
        elif request.path.startswith("/redirect"):
            request.send_response(302)
            request.send_header("Location", f"/elsewhere{request.path}")
        elif request.path.startswith("/stall"):
            release.wait(20)
            return
        request.end_headers()

    with serving(answer) as url:
        for name, why in (
            ("password", "could not read Username"),
            ("redirect", "302"),
            ("stall", "more than timeout=1 s"),
        ):
            with pytest.raises(UsageError, match=why):
                source(url=f"{url}/{name}", protocols=("http",), timeout=1 if name == "stall" else 30).folder()
        release.set()
    assert [path for path in asked if path.startswith("/elsewhere")] == []


def test_a_server_that_sends_too_much(source: Callable[..., GitSkills], repository: Repository) -> None:
    """The fetch ends while it runs."""
    (repository.folder / "noise").write_bytes(os.urandom(8_000_000))
    with pytest.raises(UsageError, match=r"larger than max_bytes=100000|more than"):
        source(repository.commit(), "", max_bytes=100_000).folder()


def test_without_git(source: Callable[..., GitSkills], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"git cannot be started: .*Install git"):
        source().folder()
