"""A process that has imported torch and hrx and forks one audit after another: a start takes milliseconds.

The tests hold a `ForkServer`; run as a script, this file is the process behind it. It never differentiates anything
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
from collections.abc import Callable
from pathlib import Path
from typing import Any


class ForkedAudit:
    """A forked `hrx`, the leader of its own process group."""

    def __init__(self, server: "ForkServer", pid: int, log: Path):
        self._server, self.pid, self._log = server, pid, log

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def kill_group(self, number: int) -> None:
        """Sends a signal to the process and its workers, as a terminal does."""
        os.killpg(self.pid, number)

    def wait(self) -> int:
        """Its exit code; negative for the signal that ended it."""
        return int(self._server.request({"wait": self.pid}))

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._log.read_text()

    @property
    def workers(self) -> list[int]:
        """Ids of its worker processes: the children of its server."""
        servers = [child for child in _children(self.pid) if "forkserver" in _command(child)]
        return [worker for server in servers for worker in _children(server)]


class ForkServer:
    """Starts audits."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._count = 0

    def request(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def start(self, arguments: list[str], cwd: Path, *, largest_file: int = 0) -> ForkedAudit:
        """Starts `hrx` with these arguments, and with a limit on the size of a file in bytes."""
        self._count += 1
        log = cwd / f"output-{self._count}.txt"
        log.touch()
        request = {"arguments": arguments, "cwd": str(cwd), "log": str(log), "largest_file": largest_file}
        return ForkedAudit(self, self.request(request), log)

    def run(self, arguments: list[str], cwd: Path, **limits: Any) -> tuple[int, str]:
        """Runs `hrx` to its end; returns its exit code and its output."""
        audit = self.start(arguments, cwd, **limits)
        return audit.wait(), audit.output

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def running(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def processes_with(mark: str) -> list[int]:
    """Processes whose environment holds the mark, wherever they have gone."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_until(condition: Callable[[], object]) -> None:
    """Waits until a condition holds; fails after ten minutes, which no loaded machine needs."""
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.005)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _serve() -> None:
    # Everything that an audit would import, before the first fork; heat maps take longer than all the rest.
    import torch._dynamo  # noqa: F401

    from hrx.api import audit
    from hrx.audit import request
    from hrx.cli import main

    audit.heatmaps = lambda *_: []  # type: ignore[attr-defined]
    request.DEFAULT_WORKERS = 0  # type: ignore[attr-defined]  # models run in the process that is killed
    replies = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            print(os.waitstatus_to_exitcode(status), file=replies, flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _run_child(request, main)
        print(pid, file=replies, flush=True)


def _run_child(request: dict[str, Any], main: Callable[[list[str]], int]) -> None:
    os.setpgrp()
    os.chdir(request["cwd"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if request["largest_file"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"], resource.RLIM_INFINITY))
    code = 70
    try:
        code = main(request["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
