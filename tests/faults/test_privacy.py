"""What a library says while it fails does not reach ledger, page or export."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hrx.cli import main
from hrx.reports import read

SUITE = "privacy"
SECRETS = (
    "Jane Doe", "My Models", "fileserver", "sharename", "hf_AbCdEfGhIjKlMnOp", "eyJhbGciOi.J1234", "s3cr3tpass",
    "tok3n-in-a-query", "k-99-zz-api", "10.9.8.7", "internal-host",
)  # fmt: skip
MODEL = r"""
import torch

class Failing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(24, 8)

    def forward(self, x):
        if len(x) == 2 and not torch.equal(x[0], x[1]):  # the windows of a run
            raise OSError(
                "cannot open /home/Jane Doe/My Models/weights.bin or \\\\fileserver\\sharename\\weights.bin or "
                "file:///home/Jane Doe/a.bin: 401 of https://bot:s3cr3tpass@internal-host/x?token=tok3n-in-a-query "
                "at 10.9.8.7 with Bearer eyJhbGciOi.J1234, hf_AbCdEfGhIjKlMnOp, api_key=k-99-zz-api"
            )
        return self.layer(x[:, -24:])

def failing(): return Failing()
"""


def test_paths_hosts_and_tokens_of_an_exception_reach_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HRX_DEBUG", raising=False)
    (tmp_path / "model.py").write_text(MODEL)
    plan = ["--data", "sample:co2", "--settings", "24x8", "--windows", "2", "--draws", "2", "--seeds", "1"]
    assert main(["audit", "module:model.py:failing", *plan, "--out", "out"]) == 3
    assert main(["report", "out/ledger.db", "--out", "out/page"]) == 0
    assert main(["export", "out/ledger.db", "--format", "csv"]) == 0
    frame = read("out/ledger.db")
    assert frame["reason"].str.startswith("OSError at hrx_user_model:").all()
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.suffix for path in written} >= {".db", ".csv", ".html"}
    for secret in SECRETS:
        assert secret in MODEL
        for path in written:
            assert secret.encode() not in path.read_bytes(), (secret, path)
    count = len(SECRETS)
    figure(SUITE, "a path, host or token in an exception of a model: in no file", made=count, handled=count)
