"""A Ray cluster of real processes on this machine, started by `ray start` and ended by process id."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from helpers.fork_server import running, wait_until
from hrx.audit.runner.ray import _unreachable


class RayCluster:
    """A head and further nodes, each in a process group of its own."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        # A short path, since Ray puts sockets into it, and a temporary one, since it leaves its logs behind.
        self._folder = tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
        self.host, self.port = host, _free_port()
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.audits: list[subprocess.Popen[bytes]] = []
        """Audits on this cluster, which are ended before it."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        # A cluster of this test alone, on the loopback interface: it needs no token.
        # Ray's own setting of how soon a node that does not answer counts as lost, a minute otherwise.
        checks = {"period_ms": "1000", "timeout_ms": "2000", "failure_threshold": "3", "initial_delay_ms": "1000"}
        health = {f"RAY_health_check_{name}": value for name, value in checks.items()}
        return os.environ | {"RAY_TMPDIR": self._folder.name, "RAY_AUTH_MODE": "disabled"} | health

    def start_head(self, cpus: int = 1) -> None:
        options = ["--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self._folder.name}"]
        self._start([*options, f"--num-cpus={cpus}"])

    def start_node(self, cpus: int = 1, **variables: str) -> None:
        """One more node; `variables` are added to the environment of its workers."""
        self._start([f"--address={self.address}", f"--num-cpus={cpus}"], **variables)

    def _start(self, options: list[str], **variables: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options]
        node = subprocess.Popen(
            [*command, f"--node-ip-address={self.host}", "--disable-usage-stats", "--object-store-memory=100000000"],
            env=self.environment | variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.nodes.append(node)
        wait_until(lambda: "raylet" in self._programs(node.pid))
        wait_until(self._listening)
        time.sleep(2)  # the node registers with the head

    def kill(self, index: int, number: int = signal.SIGKILL) -> None:
        """Sends a signal to every process of a node."""
        for pid in self._processes(self.nodes[index].pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_program(self, index: int, name: str) -> None:
        """Kills one program of a node, such as gcs_server."""
        for pid in self._processes(self.nodes[index].pid):
            if name in _command(pid).split(" ")[0]:
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for node in self.nodes:
            tree = self._processes(node.pid)
            for pid in tree:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            node.wait()
            wait_until(lambda: not any(map(running, tree)))  # noqa: B023
        self._folder.cleanup()

    def _listening(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _programs(self, pid: int) -> str:
        return " ".join(_command(one).split(" ")[0] for one in self._processes(pid))

    @staticmethod
    def _processes(pid: int) -> list[int]:
        """The processes of the session that a node started: also those whose parent has ended."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == pid:
                    found.append(int(folder.name))
        return found


def find_no_cluster(pipe: Connection, settings: object, address: str, *rest: object) -> None:
    """Stands in for the driver on a machine without a cluster."""
    pipe.send(_unreachable(address, "Could not find any running Ray instance."))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
