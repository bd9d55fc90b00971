import pytest

from hrx.errors import HrxError
from hrx.gift_eval.frequency import Frequency, leaderboard_season, parse, season


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("H", "h"),
        ("15T", "15min"),
        ("10S", "10s"),
        ("M", "ME"),
        ("Q", "QE"),
        ("A", "YE"),
        ("A", "Y"),
        ("5T", "5min"),
    ],
)
def test_old_and_new_aliases_mean_the_same_frequency_and_the_old_one_is_its_name(old: str, new: str) -> None:
    assert parse(old) == parse(new)
    assert parse(new).name == old


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("W-THU", Frequency("W", 1, "W")),
        ("Q-DEC", Frequency("Q", 1, "Q")),
        ("A-DEC", Frequency("A", 1, "A")),
        ("MS", Frequency("M", 1, "M")),
        ("1H", Frequency("H", 1, "H")),
        ("30min", Frequency("30T", 30, "T")),
    ],
)
def test_anchors_start_stamps_and_a_multiple_of_one_leave_the_name_alone(text: str, expected: Frequency) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10S", 360),
        ("S", 3600),
        ("5T", 288),
        ("10T", 144),
        ("15T", 96),
        ("15min", 96),
        ("7T", 1),
        ("H", 24),
        ("h", 24),
        ("6H", 4),
        ("5H", 1),
        ("48H", 1),
        ("D", 7),
        ("7D", 1),
        ("B", 5),
        ("W-SUN", 1),
        ("M", 12),
        ("ME", 12),
        ("3M", 4),
        ("Q", 4),
        ("A", 1),
        ("YE", 1),
    ],
)
def test_an_audit_takes_the_natural_season_and_the_leaderboard_has_none_for_days(text: str, expected: int) -> None:
    assert season(text) == expected
    assert leaderboard_season(text) == (1 if text == "D" else expected)


@pytest.mark.parametrize(
    "text", ["", "5", "0H", "-1H", "fortnight", "H-MON", "W-XXX", "15 min", "m", "D\n", f"{10**20}S"]
)
def test_an_unknown_frequency_is_named_in_a_sentence(text: str) -> None:
    with pytest.raises(HrxError, match="Unknown frequency"):
        parse(text)
