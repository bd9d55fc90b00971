"""Models that misbehave: what each does, where, and what an audit has to make of it."""

from typing import NamedTuple

FILE = """
import atexit, ctypes, gc, os, resource, signal, subprocess, sys, threading, time, warnings
import numpy as np
import torch
from pathlib import Path

{imported}

class Quiet(BaseException):
    pass

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.layer, self.calls = torch.nn.Linear(24, 8), 0

    def forward(self, x):
        self.calls += 1
        y = self.layer(x[:, -24:])
{forward}
        return y

{defined}

def build():
{built}
    return Line()
"""


class Case(NamedTuple):
    """A misbehaviour and its expected outcome."""

    kind: str
    name: str
    place: str
    """`imported`, `defined`, `built` or `forward`."""
    code: str
    status: str
    """`failed`, `excluded`, or `done` where the misbehaviour is harmless: then with the digits of a healthy model."""
    reason: str = ""
    """A regular expression."""

    def source(self) -> str:
        """The file of the model."""
        places = {"imported": "", "defined": "", "built": "    pass", "forward": "        pass"}
        indent = {"built": " " * 4, "forward": " " * 8}.get(self.place, "")
        places[self.place] = "\n".join(indent + line for line in self.code.splitlines())
        return FILE.format(**places)


def _everywhere(kind: str, name: str, code: str, reason: str) -> list[Case]:
    """The same fault while the file is imported, in the factory, and in the first and in a late forecast."""
    late = f"if self.calls == 12:\n    {code}"
    places = {"on import": "imported", "in the factory": "built", "in a forecast": "forward"}
    cases = [Case(kind, f"{name} {when}", place, code, "failed", reason) for when, place in places.items()]
    return [*cases, Case(kind, f"{name} in a late forecast", "forward", late, "failed", reason)]


RAISED = [
    *_everywhere("raises", "ValueError", "raise ValueError('wrong')", "ValueError"),
    *_everywhere("raises", "SystemExit 0", "raise SystemExit(0)", "SystemExit"),
    *_everywhere("raises", "KeyboardInterrupt", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    Case("raises", "sys.exit with a text", "forward", "sys.exit('bye')", "failed", "SystemExit"),
    Case("raises", "GeneratorExit", "forward", "raise GeneratorExit", "failed", "GeneratorExit"),
    Case("raises", "its own BaseException", "forward", "raise Quiet('q')", "failed", "Quiet"),
    Case("raises", "an exception without a text", "forward", "raise Mute", "failed", "Mute"),
    Case("raises", "an exception without a text in the factory", "built", "raise Mute", "failed", "Mute"),
    Case("raises", "recursion", "forward", "return self.forward(x)", "failed", "RecursionError"),
    Case("raises", "only in the official call", "forward",
         "if not torch.is_grad_enabled():\n    raise OSError('lost')", "failed", "OSError"),
    Case("raises", "in the second call", "forward",
         "if self.calls == 2:\n    raise OSError('lost')", "failed", "OSError"),
    Case("raises", "a factory that returns None", "defined",
         "del Line\ndef Line(): return None", "failed", "failed to create a model: TypeError"),
]  # fmt: skip

ENDED = [
    *_everywhere("ends its process", "os._exit 0", "os._exit(0)", r"died twice \(exit code 0\)"),
    *_everywhere("ends its process", "SIGKILL", "os.kill(os.getpid(), signal.SIGKILL)", r"died twice \(SIGKILL: out"),
    Case("ends its process", "os._exit 255", "forward", "os._exit(255)", "failed", r"died twice \(exit code 255\)"),
    Case("ends its process", "abort", "forward", "os.abort()", "failed", r"died twice \(SIGABRT\)"),
    Case("ends its process", "segmentation fault", "forward", "ctypes.string_at(0)", "failed", r"died twice \(SIGSEGV"),
    Case("ends its process", "closes all files", "forward", "os.closerange(3, 4096)", "failed", "died twice"),
    Case("ends its process", "kills its group", "forward", "os.killpg(0, signal.SIGKILL)", "failed", "died twice"),
]

HUNG = [
    *_everywhere("hangs", "sleeps", "time.sleep(10**8)", "took longer than .* s, the limit of --timeout"),
    Case("hangs", "computes forever", "forward", "while True:\n    pass", "failed", "took longer than"),
    Case("hangs", "stops itself", "forward", "os.kill(os.getpid(), signal.SIGSTOP)", "failed", "took longer than"),
    Case("hangs", "waits for its own lock", "forward",
         "lock = threading.Lock()\nlock.acquire()\nlock.acquire()", "failed", "took longer than"),
]  # fmt: skip

_LIMIT = (
    "pages = int(Path('/proc/self/statm').read_text().split()[0])\n"
    "resource.setrlimit(resource.RLIMIT_AS, [pages * 4096 + 2**29] * 2)\n"
)
MEMORY = [
    Case("exhausts memory", "by lists", "forward",
         _LIMIT + "kept = []\nwhile True:\n    kept.append(bytearray(2**24))", "failed",
         "out of memory: MemoryError|died twice"),
    Case("exhausts memory", "by one tensor", "forward", _LIMIT + "torch.empty(2**32)", "failed",
         "out of memory|died twice"),
    Case("exhausts memory", "MemoryError", "forward", "raise MemoryError", "failed", "out of memory: MemoryError"),
]  # fmt: skip

OUTPUTS = [
    Case("output", "too few steps", "forward", "y = y[:, :3]", "failed", "returned shape"),
    Case("output", "one window less", "forward", "y = y[1:]", "failed", "returned shape"),
    Case("output", "one axis", "forward", "y = y.sum(1)", "failed", "returned shape"),
    Case("output", "three axes", "forward", "y = y[..., None]", "failed", "returned shape"),
    Case("output", "None", "forward", "y = None", "failed", "returned NoneType"),
    Case("output", "a list", "forward", "y = y.tolist()", "failed", "returned list"),
    Case("output", "an array", "forward", "y = np.zeros((len(x), 8))", "failed", "returned ndarray"),
    Case("output", "whole numbers", "forward", "y = (100 * y).long()", "failed", "returned torch.int64"),
    Case("output", "truth values", "forward", "y = y > 0", "failed", "returned torch.bool"),
    Case("output", "complex", "forward", "y = torch.complex(y, y)", "failed", "returned torch.complex64"),
    Case("output", "NaN", "forward", "y = y * float('nan')", "excluded", "NaN or infinite"),
    Case("output", "infinity", "forward", "y = y + float('inf')", "excluded", "derivative: inf"),
    Case("output", "beyond float32", "forward", "y = y * 1e38 * 1e38", "excluded", "NaN or infinite"),
    Case("output", "subnormal", "forward", "y = y * 1e-42", "excluded", "subnormal forecast|constant forecast"),
    Case("output", "constant", "forward", "y = 0 * y + 1", "excluded", "the forecast ignores its input"),
    Case("output", "detached", "forward", "y = y.detach()", "done"),
    Case("output", "random", "forward", "y = y + torch.rand_like(y)", "excluded", "determinism|equivalence"),
    Case("output", "depends on the batch", "forward", "y = y + x.mean()", "excluded", "isolation"),
    Case("output", "drifts by call", "forward", "y = y * (1 + 3e-7 * self.calls)",
         "excluded", "determinism|trained head"),
    Case("output", "changes after the admission", "forward",
         "self.calls += 10**6 * (16 < len(x) != 512)\ny = y if self.calls < 10**6 else 2 * y",
         "excluded", "determinism: .* the forecast depends on earlier calls"),
    Case("output", "writes into its input", "forward", "x.zero_()", "done"),
]  # fmt: skip

BATCHES = [
    *(Case("wrong in a batch", f"above {rows} windows", "forward", f"y = y + (len(x) > {rows})",
           "excluded", "isolation") for rows in (20, 64, 250, 500)),
    Case("wrong in a batch", "by 1e-4", "forward", "y = y * (1 + 1e-4 * (len(x) > 64))", "excluded", "isolation"),
    Case("wrong in a batch", "windows after the 64th", "forward", "y = torch.cat([y[:64], y[64:] + 1])",
         "excluded", "isolation"),
    Case("wrong in a batch", "the last window", "forward", "y = torch.cat([y[:-1], y[-1:] + (len(y) > 64)])",
         "excluded", "isolation"),
    Case("wrong in a batch", "another order", "forward", "y = y.flip(0) if len(y) > 64 else y",
         "excluded", "isolation"),
    Case("wrong in a batch", "not a number", "forward", "y = y / (len(y) <= 64) * 1.0", "excluded", "isolation"),
    Case("wrong in a batch", "less its mean", "forward", "y = y - y.mean(0)", "excluded", "isolation"),
    Case("wrong in a batch", "only the official call", "forward",
         "y = y if torch.is_grad_enabled() else y + (len(x) > 64)", "excluded", "isolation"),
    Case("wrong in a batch", "none of the sizes of the admission", "forward", "y = y + (16 < len(x) != 512)",
         "excluded", "isolation"),
]  # fmt: skip

HARMLESS = [
    Case("changes its process", "default dtype", "forward", "torch.set_default_dtype(torch.float64)",
         "excluded", "trained head"),
    Case("changes its process", "gradients off", "built", "torch.set_grad_enabled(False)", "done"),
    Case("changes its process", "threads", "built", "torch.set_num_threads(1)", "done"),
    Case("changes its process", "seeds", "forward", "torch.manual_seed(self.calls); np.random.seed(1)", "done"),
    Case("changes its process", "deterministic algorithms", "built", "torch.use_deterministic_algorithms(True)",
         "done"),
    Case("changes its process", "torch itself", "forward",
         "if self.calls > 10**6:\n    torch.Tensor.abs = None\ntorch.nn.Conv1d = None", "done"),
    Case("changes its process", "working directory", "built", "os.chdir('/')", "done"),
    Case("changes its process", "signal handlers", "built",
         "for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):\n    signal.signal(n, signal.SIG_DFL)", "done"),
    Case("changes its process", "signals to itself", "built",
         "os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGINT)", "done"),
    Case("changes its process", "garbage collection", "built", "gc.disable()", "done"),
    Case("changes its process", "environment", "built", "os.environ.clear()", "done"),
    Case("changes its process", "deletes its own file", "imported",
         "Path(__file__).unlink()", "failed", "FileNotFoundError"),
    Case("prints", "text", "forward", "print('{\"not\": the document')", "done"),
    Case("prints", "ANSI sequences", "built", "print('\\x1b[2J\\x1b[31mred')", "done"),
    Case("prints", "by the descriptor", "forward", "os.write(1, b'}}} garbage')", "done"),
    Case("prints", "a megabyte", "built", "print('x' * 2**20)", "done"),
    Case("prints", "by a child process", "built", "subprocess.run(['echo', '}{'])", "done"),
    Case("prints", "closes standard output", "built", "os.closerange(1, 2)", "done"),
    Case("leaves behind", "a forked child", "built",
         "if os.fork() == 0:\n    time.sleep(10**6)\n    os._exit(0)", "done"),
    Case("leaves behind", "a child process", "built",
         "subprocess.Popen(['sleep', '1000000'], stdin=subprocess.DEVNULL)", "done"),
    Case("leaves behind", "a thread", "built", "threading.Thread(target=time.sleep, args=(10**6,)).start()", "done"),
    Case("leaves behind", "an exit handler", "built", "atexit.register(lambda: time.sleep(10**6))", "done"),
    Case("odd classes", "repr raises", "defined", "def _no(self): raise OSError\nLine.__repr__ = _no", "done"),
    Case("odd classes", "copy raises", "defined",
         "def _no(self, memo): raise OSError\nLine.__deepcopy__ = _no", "done"),
    Case("odd classes", "destructor raises", "defined", "def _no(self): raise OSError\nLine.__del__ = _no", "done"),
]  # fmt: skip

CASES = [*RAISED, *ENDED, *HUNG, *MEMORY, *OUTPUTS, *BATCHES, *HARMLESS]
