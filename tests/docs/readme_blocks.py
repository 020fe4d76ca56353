"""README's fenced blocks: read from the page, run in a shell that knows nothing of the developer's."""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: All that a clean shell takes over: the system's programs, and how a package index is reached.
_TAKEN_OVER = re.compile(r"HOME|USER|LANG|PIP_\w+|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|https?_proxy|no_proxy", re.IGNORECASE)
#: A release must not be refused because the machine that runs this test is slow or busy.
_ANY_SPEED = "export TANDEM_GATE_LATENCY_MS=1000 TANDEM_GATE_BATCH_MS=10000"
#: The text that a person types after a program's own prompt.
_TYPED = "you> "


@dataclass(frozen=True)
class Command:
    """One command of a console block, the lines typed into it, and the lines that README shows of its output."""

    text: str
    typed: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()

    @property
    def patterns(self) -> list[str]:
        """Regular expressions of the lines shown: figures may differ, and `…` stands for anything."""
        return [_pattern(line) for line in self.shown]


@dataclass(frozen=True)
class Block:
    """`line`: where the block begins in README, from 1."""

    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[Command]:
        return list(_commands(self.text.splitlines()))


def blocks(page: str) -> list[Block]:
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [Block(page.count("\n", 0, it.start()) + 1, it[1], it[2]) for it in found]


def _commands(lines: Sequence[str]) -> Iterator[Command]:
    text, typed, shown = "", list[str](), list[str]()
    for line in lines:
        if text.endswith("\\"):
            text += f"\n{line}"
        elif line.startswith("$ "):
            if text:
                yield Command(text, tuple(typed), tuple(shown))
            text, typed, shown = line.removeprefix("$ "), [], []
        elif line.startswith(_TYPED):
            typed.append(line.removeprefix(_TYPED))
        else:
            shown.append(line)
    if text:
        yield Command(text, tuple(typed), tuple(shown))


def _pattern(line: str) -> str:
    words = (re.sub(r"[\d.,]*\d", r"[\\d.,]*\\d", re.escape(word).replace(r"\.", ".")) for word in line.split())
    return r"\s+".join(word.replace("…", ".*") for word in words)


def clean_environment(home: Path) -> dict[str, str]:
    """The environment of a terminal that was just opened, without a virtual environment. `home`: of the clone."""
    kept = {name: value for name, value in os.environ.items() if _TAKEN_OVER.fullmatch(name)}
    path = [part for part in os.environ["PATH"].split(":") if ".venv" not in part]
    return {**kept, "PATH": ":".join(path), "TERM": "dumb", "PWD": str(home)}


def script(commands: Sequence[Command], folder: Path, patience_s: int) -> str:
    """A shell script of one terminal: variables last from command to command, and the first failure ends it.

    A command's output goes to `folder`/N.out. An answer that a busy machine refuses is asked for again, for
    `patience_s` seconds, as a person would.
    """
    lines = ["set -m", _ANY_SPEED]
    for number, command in enumerate(commands):
        typed = folder / f"{number}.in"
        typed.write_text("".join(f"{line}\n" for line in command.typed))
        run = f"{{ {command.text}\n}} >{folder}/{number}.out 2>&1 <{typed}"
        if re.search(r"realtime_service (call|chat)\b", command.text):
            run = f"until=$((SECONDS + {patience_s})); until {run}; do [ $SECONDS -lt $until ] || exit 1; sleep 1; done"
        lines += [f"echo {number} >{folder}/at", run + " || exit 1"]
    return "\n".join(lines) + "\n"


def run_console(block: Block, clone: Path, folder: Path, skipped: Sequence[str]) -> None:
    """Run a block's commands in one shell; its background jobs end with it. Fails with what the command printed."""
    folder.mkdir(parents=True)
    commands = [command for command in block.commands if not command.text.startswith(tuple(skipped))]
    path = folder / "block.sh"
    path.write_text(script(commands, folder, patience_s=60))
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", str(path)],
        cwd=clone,
        env=clean_environment(clone),
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    outputs = [(folder / f"{number}.out") for number in range(len(commands))]
    if done.returncode:
        at = int((folder / "at").read_text())
        raise AssertionError(f"README:{block.line}: `{commands[at].text}`:\n{outputs[at].read_text()}{done.stderr}")
    for command, output in zip(commands, outputs, strict=True):
        printed = output.read_text()
        missing = [
            line for line, like in zip(command.shown, command.patterns, strict=True) if not re.search(like, printed)
        ]
        assert not missing, f"README:{block.line}: `{command.text}` does not print {missing}, but:\n{printed}"


def run_python(block: Block, clone: Path, folder: Path) -> None:
    """Run a block as a program of the clone's environment, found without a PATH that names it."""
    folder.mkdir(parents=True)
    program = folder / "block.py"
    program.write_text(block.text)
    done = subprocess.run(
        [str(clone / ".venv/bin/python"), str(program)],
        cwd=clone,
        env=clean_environment(clone),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"README:{block.line}:\n{done.stdout}{done.stderr}"
