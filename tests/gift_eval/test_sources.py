import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hrx.errors import HrxError
from hrx.gift_eval import data_root, open_series, open_source


def names(spec: str) -> list[str]:
    return [dataset.name for dataset in open_source(spec)]


def test_the_sample_is_the_default() -> None:
    assert [dataset.name for dataset in open_source()] == names("sample")


def test_the_package_imports_no_model_library_and_no_library_of_the_extra_until_a_file_is_opened() -> None:
    script = (
        "import sys; from hrx.gift_eval import data_root, open_source; open_source()[0].read(0); "
        "print(*{'torch', 'datasets', 'huggingface_hub', 'transformers'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == ""


def test_names_choose_datasets_once_and_in_the_order_given() -> None:
    assert names("sample:elnino/M, co2/W,elnino/M") == ["elnino/M", "co2/W"]


def test_an_unknown_dataset_gets_near_matches() -> None:
    with pytest.raises(HrxError, match=r"Unknown dataset 'c02/W'\. Did you mean 'co2/W'"):
        open_source("sample:c02/W")


@pytest.mark.parametrize("spec", ["sample:", "sample:co2/W,"])
def test_an_empty_name_is_refused(spec: str) -> None:
    with pytest.raises(HrxError, match="empty dataset name"):
        open_source(spec)


def test_an_unknown_source_gets_near_matches() -> None:
    with pytest.raises(HrxError, match=r"Unknown source 'gift-evil'\. Did you mean 'gift-eval'"):
        open_source("gift-evil")


def test_a_directory_is_a_source_and_a_file_is_not(tmp_path: Path, save: Any) -> None:
    (path,) = save(tmp_path / "us_births" / "D", [[[1.0]]])
    assert names(str(tmp_path)) == ["us_births/D"]
    with pytest.raises(HrxError, match="is a file"):
        open_source(str(path))


def test_gift_eval_is_found_through_its_environment_variable(
    tmp_path: Path, save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "us_births" / "D", [[[1.0]]])
    save(tmp_path / "m4_hourly", [[[1.0]]], freq="H")
    monkeypatch.setenv("GIFT_EVAL", str(tmp_path))
    assert names("gift-eval") == ["m4_hourly", "us_births/D"]
    assert names("gift-eval:us_births/D") == ["us_births/D"]
    monkeypatch.setenv("GIFT_EVAL", str(tmp_path / "absent"))
    with pytest.raises(HrxError, match=r"GIFT_EVAL is .*not a directory"):
        open_source("gift-eval")


def test_the_root_is_what_was_given_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIFT_EVAL", "~/benchmark")
    monkeypatch.setenv("HOME", "/home/someone")
    assert data_root("elsewhere") == Path("elsewhere")
    assert data_root() == Path("/home/someone/benchmark")
    monkeypatch.setenv("GIFT_EVAL", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "hrx" / "gift-eval"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path("/home/someone/.cache/hrx/gift-eval")


def test_gift_eval_is_found_in_the_cache_and_missed_with_what_to_do(
    tmp_path: Path, save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GIFT_EVAL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(HrxError, match=r"hrx/gift-eval does not exist\. Download them with `hrx data fetch`"):
        open_source("gift-eval")
    save(tmp_path / "hrx" / "gift-eval" / "us_births" / "D", [[[1.0]]])
    assert names("gift-eval") == ["us_births/D"]
    with pytest.raises(HrxError, match=r"m4_hourly is not under .*`hrx data fetch m4_hourly`"):
        open_source("gift-eval:m4_hourly")
    with pytest.raises(HrxError, match=r"Unknown dataset 'us_birth/D'\. Did you mean 'us_births/D'"):
        open_source("gift-eval:us_birth/D")


def test_a_dataset_of_the_benchmark_has_the_papers_domain_and_another_has_none(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "bizitobs_service", [[[1.0]]], freq="10S")
    save(tmp_path / "hospital", [[[1.0]]], freq="M")
    save(tmp_path / "us_births" / "D", [[[1.0]]], freq="H")
    save(tmp_path / "mine" / "D", [[[1.0]]])
    domains = {dataset.name: dataset.domain for dataset in open_source(str(tmp_path))}
    assert domains == {"bizitobs_service": "Web", "hospital": "Healthcare", "us_births/D": "", "mine/D": ""}


def test_a_name_without_a_frequency_means_all_that_the_dataset_has(
    tmp_path: Path, save: Callable[..., list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [dataset.name for dataset in open_source("sample:co2,elnino/M,co2/W")] == ["co2/W", "elnino/M"]
    save(tmp_path / "us_births" / "D", [[[1.0, 2.0]]])
    save(tmp_path / "us_births" / "W", [[[1.0, 2.0]]], freq="W")
    save(tmp_path / "hospital", [[[1.0, 2.0]]], freq="M")
    monkeypatch.setenv("GIFT_EVAL", str(tmp_path))
    names = [dataset.name for dataset in open_source("gift-eval:us_births,hospital,us_births/W")]
    assert names == ["us_births/D", "us_births/W", "hospital"]
    with pytest.raises(HrxError, match=r"solar is not under .*hrx data fetch solar`"):
        open_source("gift-eval:solar")


@pytest.mark.parametrize(
    ("freq", "start", "first", "after"),
    [
        ("D", 0, "1970-01-02", ["1970-01-05", "1970-01-06"]),
        ("M", 30 * 86_400, "1970-02-28", ["1970-05-31", "1970-06-30"]),
        ("H", 3600, "1970-01-01 02:00", ["1970-01-01 05:00", "1970-01-01 06:00"]),
        ("D", None, None, None),
    ],
)
def test_a_named_series_of_gift_eval_has_the_dates_of_its_start_and_frequency(
    freq: str,
    start: int | None,
    first: str | None,
    after: list[str] | None,
    tmp_path: Path,
    save: Any,
    monkeypatch: Any,
) -> None:
    save(tmp_path / "us_births" / "D", [[[math.nan, 1.0, 2.0, 3.0]]], freq=freq, start=start)
    monkeypatch.setenv("GIFT_EVAL", str(tmp_path))
    (found,) = open_series("gift-eval:us_births/D:T0")
    assert found.series.values.tolist() == [1, 2, 3]
    if first is None:
        assert found.times is found.after(2) is None
    else:
        assert (found.times[0], len(found.times)) == (pd.Timestamp(first), 3)
        assert found.after(2).tolist() == [pd.Timestamp(time) for time in after]
