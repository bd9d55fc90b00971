"""A process that has imported torch and hrx, and forks one audit after another: a start takes milliseconds.

The tests hold a `Nursery`; run as a script, this file is the process behind it. It never differentiates anything
itself, since autograd does not survive a fork.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any


class Child:
    """A forked audit."""

    def __init__(self, nursery: "Nursery", pid: int, log: Path):
        self._nursery, self.pid, self._log = nursery, pid, log

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code; negative for the signal that ended it."""
        return int(self._nursery.ask({"wait": self.pid}))

    @property
    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


class Nursery:
    """Starts audits."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._count = 0

    def ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def start(self, arguments: list[str], cwd: Path, *, largest_file: int = 0) -> Child:
        """`hrx` with these arguments, and with a limit on the size of a file."""
        self._count += 1
        log = cwd / f"said-{self._count}.txt"
        log.touch()
        question = {"arguments": arguments, "cwd": str(cwd), "log": str(log), "largest_file": largest_file}
        return Child(self, self.ask(question), log)

    def run(self, arguments: list[str], cwd: Path, **limits: Any) -> tuple[int, str]:
        """The exit code and what was said."""
        child = self.start(arguments, cwd, **limits)
        return child.wait(), child.said

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def _serve() -> None:
    # All that an audit would import on its way, before the first fork; pictures take longer than all the rest.
    import torch._dynamo  # noqa: F401

    from hrx.cli import audit, main

    audit.heatmaps = lambda *_: []  # type: ignore[attr-defined]
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            _, status = os.waitpid(question["wait"], 0)
            print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _be_a_child(question, main)
        print(pid, file=answers, flush=True)


def _be_a_child(question: dict[str, Any], main: Any) -> None:
    os.chdir(question["cwd"])
    log = os.open(question["log"], os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if question["largest_file"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (question["largest_file"], resource.RLIM_INFINITY))
    code = 70
    try:
        code = main(question["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def until(condition: Any, seconds: float = 60.0) -> None:
    """Waits for something to become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


if __name__ == "__main__":
    _serve()
