import json
import pickle
import re
from pathlib import Path
from textwrap import shorten

import pytest
import torch

from hrx.adapters.checkpoint import read_state
from hrx.errors import HrxError, describe_error, stored_reason, without_paths


@pytest.mark.parametrize(
    ("output", "kept"),
    [
        ("no /data/alice/weights.bin here", "no weights.bin here"),
        ("cannot read:/data/alice/weights.bin", "cannot read:weights.bin"),
        ("path=/data/alice/weights.bin, line 3", "path=weights.bin, line 3"),
        ("No such file: '/data/Jane Doe/weights.bin'", "No such file: 'weights.bin'"),
        ('No such file: "/data/Jane Doe/weights.bin"', 'No such file: "weights.bin"'),
        ("it's in '/data/Jane Doe/a', not in /b/c", "it's in 'a', not in c"),
        ("File /opt/alice/model.py:12: failed", "File model.py:12: failed"),
        (r"C:\Users\alice\weights.bin is locked", "weights.bin is locked"),
        ("file:///data/alice/weights.bin", "weights.bin"),
        ("~alice/models/a and ../alice/b", "a and b"),
        ("cannot open /data/Jane Doe/My Models/weights.bin", "cannot open weights.bin"),
        (r"\\server\share dir\alice\weights.bin is locked", "weights.bin is locked"),
        ("file:///data/Jane Doe/weights.bin", "weights.bin"),
        (r"D:\Jane Doe\weights.bin, line 3", "weights.bin, line 3"),
        ("D:/Jane Doe/weights.bin: no", "weights.bin: no"),
    ],
)
def test_a_path_is_reduced_to_its_last_name(output: str, kept: str) -> None:
    assert without_paths(output) == kept


@pytest.mark.parametrize(
    "output",
    [
        "amazon/chronos-2 on us_births/D",
        "see https://huggingface.co/amazon/chronos-2",
        "1/2 and/or 3 / 4",
        "96x24: 0.5",
    ],
)
def test_other_text_stays(output: str) -> None:
    assert without_paths(output) == output


SECRETS = {
    "hf_AbCdEfGhIjKlMnOp": "401 for token hf_AbCdEfGhIjKlMnOp",
    "eyJhbGci.1234": "Authorization: Bearer eyJhbGci.1234",
    "s3cr3t": "cannot reach https://alice:s3cr3t@hub.example/api",
    "abc123": "GET https://hub.example/file?token=abc123&x=1 failed",
    "1ff2ee": "https://bucket.example/x?X-Amz-Signature=1ff2ee expired",
    "k-99-zz": "api_key=k-99-zz is wrong",
    "pa55word": "{'password': 'pa55word'}",
    "ghp_0123456789ab": "remote said ghp_0123456789ab",
    "Jane Doe": "cannot open /home/Jane Doe/models/weights.bin",
    "fileserver": r"\\fileserver\share\alice\weights.bin",
    "alice": "file:///home/alice/My Models/weights.bin",
}


@pytest.mark.parametrize(("secret", "text"), SECRETS.items())
def test_tokens_and_paths_do_not_pass_even_with_the_text_of_a_library(
    secret: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert secret in text
    monkeypatch.setenv("HRX_DEBUG", "1")
    kept = stored_reason(ValueError(text))
    assert secret not in kept
    assert kept.startswith("ValueError: ")
    monkeypatch.delenv("HRX_DEBUG")
    assert stored_reason(ValueError(text)) == "ValueError (--debug keeps its text)"


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    """The error as it is caught."""
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def test_the_reason_of_a_library_is_its_type_and_place() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        reason = stored_reason(error)
    assert re.fullmatch(r"JSONDecodeError at json\.decoder:\d+ \(--debug keeps its text\)", reason)


def test_the_sentence_of_hrx_stays_without_what_it_quotes_of_a_library() -> None:
    cause = ValueError("bad magic in /home/alice/w.bin\nsecond line")
    for quoted in (f"{cause}", describe_error(cause), shorten(str(cause), 24)):
        error = raised(HrxError(f"lib could not load w.bin: {quoted}. Check that the directory is complete."), cause)
        reason = stored_reason(error)
        assert "magic" not in reason
        assert reason.startswith("lib could not load w.bin: ")
        assert reason.endswith(" Check that the directory is complete.")
    assert stored_reason(raised(HrxError("no library was involved"))) == "no library was involved"


@pytest.mark.parametrize(
    "content", [{"a": print}, pickle.dumps({"a": print}, protocol=2)], ids=["saved by torch", "a bare pickle"]
)
def test_torch_s_advice_to_load_weights_unsafely_is_not_passed_on(content: object, tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    with pytest.raises(HrxError) as caught:
        read_state(file)
    assert "weights_only" in str(caught.value.__cause__)
    assert re.search(r"weights: UnpicklingError: \w.+ Restore it, or save it as safetensors\.$", str(caught.value))
    assert "weights_only" not in str(caught.value)
    assert stored_reason(caught.value).count("…") == 1


def test_a_sentence_is_not_changed_by_a_cause_with_a_short_text() -> None:
    assert stored_reason(raised(HrxError("row 0 has 10 values"), KeyError(0))) == "row 0 has 10 values"
