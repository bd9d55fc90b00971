import pytest

from hrx.errors import without_paths


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
