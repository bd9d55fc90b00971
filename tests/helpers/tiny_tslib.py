"""A stand-in for a checkout of the Time-Series-Library: a package of the same layout, with trained runs.

Nothing of the library is copied. The parts that hrx relies on are written anew: the arguments of `run.py`, a model
class per file, the evaluation step of the experiment, and time marks.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

LOOKBACK, LABEL, HORIZON = 32, 12, 8

RUN = """
raise RuntimeError("importing run.py would train")
parser.add_argument("--task_name", type=str, required=True, default="long_term_forecast")
parser.add_argument("--model", type=str, required=True, default="Marked")
parser.add_argument("--features", type=str, default="M")
parser.add_argument("--freq", type=str, default="h", help="frequency")
parser.add_argument("--seq_len", type=int, default=96)
parser.add_argument("--enc_in", type=int, default=3)
parser.add_argument("--dec_in", type=int, default=3)
parser.add_argument("--c_out", type=int, default=3)
parser.add_argument("--hidden", type=int, nargs="+", default=[6, 5])
parser.add_argument("--use_amp", action="store_true")
parser.add_argument("--no_bias", dest="bias", action="store_false")
parser.add_argument("--workers", type=int, default=count())
"""

EXPERIMENT = """
import torch
from data_provider.data_factory import data_provider
from exp.exp_basic import Basic


class Exp_Long_Term_Forecast(Basic):
    def vali(self, data, loader, criterion):
        self.model.eval()
        losses, steps = [], self.args.pred_len
        print("evaluating")
        with torch.no_grad():
            for window, target, window_mark, target_mark in loader:
                start = target[:, : self.args.label_len]
                decoder = torch.cat([start, torch.zeros_like(target[:, -steps:])], 1).float().to(self.device)
                output = self.model(window.float(), window_mark.float(), decoder, target_mark.float())
                first = -1 if self.args.features == "MS" else 0
                losses.append(criterion(output[:, -steps:, first:], target[:, -steps:, first:]).item())
        self.model.train()
        return sum(losses) / len(losses)
"""

MARKS = """
import numpy as np


def time_features(dates, freq="h"):
    return np.vstack([dates.hour / 23 - 0.5, dates.dayofweek / 6 - 0.5])
"""

LAYERS = """
import torch
from utils.scale import FACTOR


class Embedding(torch.nn.Module):
    def __init__(self, values, marks, width):
        super().__init__()
        self.value, self.mark = torch.nn.Linear(values, width), torch.nn.Linear(marks, width, bias=False)

    def forward(self, x, mark):
        return torch.tanh(self.value(x) + FACTOR * self.mark(mark))
"""

MARKED = """
import torch
from layers.embedding import Embedding


class Model(torch.nn.Module):
    '''Reads marks and decoder input; detaches the mean of a window and normalises in place.'''

    def __init__(self, configs):
        super().__init__()
        marks = 2 if configs.embed == "timeF" else 4
        self.encoder = Embedding(configs.enc_in, marks, configs.hidden[0])
        self.decoder = Embedding(configs.dec_in, marks, configs.hidden[0])
        self.context = torch.nn.Linear(configs.seq_len, configs.label_len + configs.pred_len, bias=configs.bias)
        self.dropout = torch.nn.Dropout(0.5)
        self.out = torch.nn.Linear(configs.hidden[0], configs.c_out)

    def forward(self, x, x_mark, dec, dec_mark):
        mean = x.mean(1, keepdim=True).detach()
        x = x - mean
        scale = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
        x /= scale
        read = self.context(self.encoder(x, x_mark).transpose(1, 2)).transpose(1, 2)
        mixed = self.dropout(read + self.decoder(dec, dec_mark).cumsum(1))
        return self.out(mixed) * scale + mean
"""

COUPLED = """
import torch


class Model(torch.nn.Module):
    '''A weight from the mean over the batch.'''

    def __init__(self, configs):
        super().__init__()
        self.linear = torch.nn.Linear(configs.seq_len, configs.pred_len)

    def forward(self, x, x_mark, dec, dec_mark):
        return self.linear(x.transpose(1, 2)).transpose(1, 2) * (1 + x.abs().mean())
"""

SAMPLED = """
import torch


class Sampled(torch.nn.Module):
    '''Samples its forecast; the class has the name of its file.'''

    def __init__(self, configs):
        super().__init__()
        self.linear = torch.nn.Linear(configs.seq_len, configs.pred_len)

    def forward(self, x, x_mark, dec, dec_mark):
        return self.linear((x + torch.randn_like(x)).transpose(1, 2)).transpose(1, 2)
"""

FILES = {
    "run.py": RUN,
    "exp/__init__.py": "",
    "exp/exp_basic.py": "class Basic:\n    def __init__(self, args):\n        raise RuntimeError('needs data')\n",
    "exp/exp_long_term_forecasting.py": EXPERIMENT,
    "data_provider/__init__.py": "",
    "data_provider/data_factory.py": "import a_package_that_only_training_needs\n",
    "utils/timefeatures.py": MARKS,
    "utils/scale.py": "FACTOR = 0.7\n",
    "layers/embedding.py": LAYERS,
    "models/__init__.py": "",
    "models/Marked.py": MARKED,
    "models/Un_Marked.py": MARKED,
    "models/TimesNet.py": COUPLED,
    "models/Sampled.py": SAMPLED,
    "models/FEDformer.py": "",
}


def checkout(path: Path, **changed: str) -> Path:
    """Writes the stand-in; `changed` replaces files, as `scale="FACTOR = 2"` for utils/scale.py."""
    for name, text in FILES.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(changed.get(file.stem, text), encoding="utf-8")
    return path


def run_name(model: str, features: str = "S", embed: str = "timeF", task: str = "long_term_forecast") -> str:
    """Name that the library gives to the folder of a run."""
    sizes = f"sl{LOOKBACK}_ll{LABEL}_pl{HORIZON}_dm16_nh2_el2_dl1_df32_expand2_dc4_fc3"
    return f"{task}_my_id_{model}_ETTh1_ft{features}_{sizes}_eb{embed}_dtTrue_Exp_0"


def train(path: Path, model: str, name: str = "", arguments: dict[str, Any] | None = None, **names: str) -> str:
    """Saves a run with random weights, by the code of the stand-in itself; the MODEL that names it."""
    name = name or run_name(model, **names)
    folder = path / "checkpoints" / name
    folder.mkdir(parents=True)
    if arguments is not None:
        (folder / "args.json").write_text(json.dumps(arguments), encoding="utf-8")
    variates = 1 if names.get("features", "S") == "S" else 3
    sizes = {"seq_len": LOOKBACK, "label_len": LABEL, "pred_len": HORIZON, "hidden": [6, 5], "bias": True}
    channels = dict.fromkeys(("enc_in", "dec_in", "c_out"), variates)
    configs = SimpleNamespace(**sizes | channels | {"embed": names.get("embed", "timeF")} | (arguments or {}))
    torch.manual_seed(3)
    torch.save(build(path, model)(configs).state_dict(), folder / "checkpoint.pth")
    return f"tslib:{path}:{name}"


def build(path: Path, model: str) -> Any:
    """Class of a model, from the sources alone: no import system."""
    scope: dict[str, Any] = {}
    for file in ("utils/scale.py", "layers/embedding.py", f"models/{model}.py"):
        lines = (path / file).read_text(encoding="utf-8").splitlines()
        exec("\n".join(line for line in lines if not line.startswith(("from utils", "from layers"))), scope)
    return scope.get("Model") or scope[model]


def traces() -> tuple[list[str], set[str]]:
    """Import path, and the imported modules that have a name of a checkout's packages."""
    roots = {"models", "layers", "utils", "exp", "data_provider"}
    return list(sys.path), {name for name in sys.modules if name.partition(".")[0] in roots}
