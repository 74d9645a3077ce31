"""The tests of the model adapter on each release of LiteLLM that the project names, each in an environment of its own.

    python .ci/litellm_versions.py                      # all releases
    python .ci/litellm_versions.py 1.109.1 -k thinking  # one of them, with arguments for pytest
    python .ci/litellm_versions.py --keep DIR           # environments are kept in DIR and used again

It ends with one line for each release and, if every release passed, with exit code 0.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The oldest that is allowed, the last of its line, the last of the next, and the newest.
RELEASES = ("1.105.2", "1.105.7", "1.108.11", "1.109.1")
TESTS = ("tests/models", "tests/wire", "tests/end_to_end")
# LiteLLM asks for the certifi of the month, which an index may lack; every test here speaks to this machine.
LEFT_OUT = ("certifi",)
RUNNER = ("pytest", "pytest-asyncio", "hypothesis")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def requirements_of(python: Path) -> list[str]:
    """What a release of LiteLLM requires, by its own metadata, without the extras."""
    code = (
        "from importlib.metadata import requires\n"
        "for line in requires('litellm') or (): print(line) if 'extra ==' not in line else None"
    )
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if _name(line) not in LEFT_OUT]


def _name(requirement: str) -> str:
    found = _NAME.match(requirement)
    return found[0].lower().replace("_", "-") if found is not None else ""


def built(home: Path, release: str) -> Path:
    """The Python of an environment with the project and this release; made unless it is there."""
    python = home / "bin" / "python"
    done = home / "ready"
    if done.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = [*project["dependencies"], *project["optional-dependencies"]["sql"]]
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", f"litellm=={release}"], check=True)
    needed = [*(line for line in own if _name(line) != "litellm"), *requirements_of(python)]
    subprocess.run([*pip, *needed, *RUNNER], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
    subprocess.run([python, "-m", "compileall", "-q", "-j", "0", home / "lib"], check=False, capture_output=True)
    done.touch()
    return python


def tried(home: Path, release: str, arguments: list[str]) -> tuple[bool, str]:
    """Whether the tests pass on a release, and what the runner said last."""
    python = built(home, release)
    command = [python, "-m", "pytest", *TESTS, *arguments]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    said = next((line for line in reversed(lines) if " in " in line and re.search(r"\d+ \w+", line)), "nothing was run")
    if done.returncode:
        print("\n".join(lines[-200:]), done.stderr[-4000:], sep="\n", flush=True)
    return done.returncode == 0, said.strip("= ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", help=f"releases to try, by default {', '.join(RELEASES)}")
    parser.add_argument("--keep", type=Path, help="a folder in which the environments stay")
    given, arguments = parser.parse_known_args()
    failed = False
    told: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        for release in given.releases or RELEASES:
            home = (given.keep or Path(place)) / release
            passed, said = tried(home, release, arguments)
            failed = failed or not passed
            told.append(f"litellm {release}: {said}")
            print(told[-1], flush=True)
    print("", *told, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
