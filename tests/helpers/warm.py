"""`hrx` and `python` that start in milliseconds: forks of one process that has imported the libraries.

`WarmPrograms` is a folder of these two programs for the front of PATH. Each passes its arguments, directory, variables
and standard streams to a server, which forks. Run as a script, this file is that server. It never computes anything
itself, since torch's threads do not survive a fork. Audits run their models in the fork, without worker processes.
"""

import atexit
import json
import os
import runpy
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path

PRELOADED = (
    "hrx.adapters.families.chronos", "hrx.api.explain", "hrx.cli.measure", "hrx.cli.explain", "hrx.cli.ledgers",
    "hrx.cli.measure", "hrx.reports", "matplotlib.backends.backend_agg", "matplotlib.pyplot", "scipy.stats",
    "torch._dynamo",
)  # fmt: skip
CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
words = json.dumps([{program!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(words).to_bytes(8, "big")], [0, 1, 2])
server.sendall(words)
sys.exit(int(server.recv(16) or b"70"))
"""


class WarmPrograms:
    """The two programs, in `folder`; its path must be short, as that of every socket."""

    def __init__(self, folder: Path):
        self.folder = folder
        address = str(folder / "socket")
        for program in ("hrx", "python"):
            file = folder / program
            file.write_text(CLIENT.format(python=sys.executable, address=address, program=program))
            file.chmod(0o755)
        variables = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
        self._server = subprocess.Popen([sys.executable, __file__, address], env=variables, stdout=subprocess.PIPE)
        assert self._server.stdout
        assert self._server.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self._server.kill()
        self._server.wait()


def _serve(address: str) -> None:
    for module in PRELOADED:
        __import__(module)
    from hrx.audit import request

    request.DEFAULT_WORKERS = 0  # type: ignore[misc]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    print("ready", flush=True)
    while True:
        client, _ = listener.accept()
        with suppress(ChildProcessError):  # collects the forks that have ended
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        if os.fork() == 0:
            listener.close()
            _run_child(client)
        client.close()


def _run_child(client: socket.socket) -> None:
    size, streams, _, _ = socket.recv_fds(client, 8, 3)
    program, arguments, folder, variables = json.loads(client.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    # New objects: those of the server remember what kind of file they wrote to.
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    code = 1
    try:
        code = _run_program(program, arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        client.sendall(str(code).encode())
        os._exit(code)


def _run_program(program: str, arguments: list[str]) -> int:
    if program == "hrx":
        from hrx.cli import main

        return main(arguments)
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1])
