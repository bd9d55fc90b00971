"""Files that hypothesis makes: each reader gives values or one sentence, and never raises anything else."""

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from faults.conftest import ALL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.registry import locate
from hrx.audit.request import AuditRequest
from hrx.errors import HrxError
from hrx.gift_eval import open_series, open_source
from hrx.gift_eval.catalogue import DATA_FILE, STATE_FILE
from hrx.gift_eval.series import UnusableSeries
from hrx.options import read_settings

CASES = 10_000 if ALL else 40
SUITE = "readers"
every_case = settings(
    max_examples=CASES,
    deadline=None,
    derandomize=not ALL,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
Figure = Callable[..., None]
DAYS = [f"2024-01-{day:02}" for day in range(1, 29)]
CELLS = st.one_of(
    st.sampled_from(DAYS),
    st.sampled_from(
        ["", "date", "v", "id", "1", "1.5", "1,5", "1.234.567", "-", "nan", "inf", "1e400", '"', ";", "\t"]
    ),
    st.sampled_from(["1/2/24", "13:00", "2024W05", "2024Q1", "20240101", "1700000000", "2024-03-31 02:30+01:00", "Z"]),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.text(max_size=4),
)
# A stretch of a file that is replaced by other bytes, as shares of its length.
DAMAGE = st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=12), st.integers(0, 12)), max_size=3)


def damaged(content: bytes, damage: list[tuple[float, bytes, int]]) -> bytes:
    for share, new, length in damage:
        place = int(share * len(content))
        content = content[:place] + new + content[place + length :]
    return content


def read_all(source: str) -> str:
    """Read every series of a source; what happened."""
    try:
        for dataset in open_source(source):
            if dataset.damage:
                return "refused"
            for index in range(min(dataset.count, 40)):
                try:
                    assert np.isfinite(dataset.read(index).values).all()
                except UnusableSeries as error:
                    assert_sentence(error)
    except HrxError as error:
        assert_sentence(error)
        return "refused"
    return "read"


def read_one(path: Path) -> str:
    """Read a file as `hrx explain` does, with the times of the next steps."""
    try:
        for timed in open_series(str(path)):
            assert np.isfinite(timed.series.values).all()
            timed.after(3)
    except HrxError as error:
        assert_sentence(error)
        return "refused"
    return "read"


def assert_sentence(error: HrxError) -> None:
    assert str(error).strip()
    assert "Traceback" not in str(error)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readers")


def test_a_csv_file_is_read_or_refused(folder: Path, figure: Figure) -> None:

    @every_case
    @given(
        rows=st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=12),
        header=st.sampled_from([["date", "v"], ["date", "id", "v"], ["unique_id", "ds", "y"], ["a"], []]),
        separator=st.sampled_from(",;\t|"),
        encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"]),
        damage=DAMAGE,
        whole=st.booleans(),
    )
    def read(
        rows: list[list[str]],
        header: list[str],
        separator: str,
        encoding: str,
        damage: list[tuple[float, bytes, int]],
        whole: bool,
    ) -> None:
        lines = [separator.join(row) for row in ([header] if header else []) + rows]
        path = folder / "x.csv"
        path.write_bytes(damaged("\n".join(lines).encode(encoding, "replace"), damage))
        read_all(f"csv:{path}") if whole else read_one(path)

    path = folder / "x.csv"
    path.write_text("date,v\n" + "".join(f"{day},1.5\n" for day in DAYS))
    assert (read_all(f"csv:{path}"), read_one(path)) == ("read", "read")
    path.write_text("date,v\n")
    assert (read_all(f"csv:{path}"), read_one(path)) == ("refused", "refused")
    read()
    figure(SUITE, "CSV: values or one sentence", made=CASES, handled=CASES)


def columns(count: int) -> st.SearchStrategy[Any]:
    """A column of a frame, of any type that Parquet has."""

    def of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(values, min_size=count, max_size=count)

    seconds = st.integers(-(2**40), 2**40)
    units = st.sampled_from(["s", "ms", "us", "ns"])
    return st.one_of(
        of(st.floats()),
        of(st.integers(-(2**63), 2**63 - 1)),
        of(st.booleans()),
        of(st.one_of(st.none(), st.sampled_from(DAYS), st.text(max_size=3))),
        of(st.one_of(st.none(), st.binary(max_size=4))),
        of(st.dates()),
        of(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-1000, max_value=1000)),
        of(st.lists(st.integers(0, 3), max_size=2)),
        st.tuples(of(seconds), units).map(lambda pair: np.array(pair[0], f"datetime64[{pair[1]}]")),
        st.tuples(seconds, st.sampled_from(["D", "h", "MS"])).map(
            lambda pair: pd.date_range(pd.Timestamp(abs(pair[0]) % 2**33, unit="s"), periods=count, freq=pair[1])
        ),
        st.just(pd.date_range("2024-01-01", periods=count, freq="D", tz="Europe/Berlin")),
        of(st.sampled_from("ab")).map(pd.Categorical),
    )


def test_a_parquet_file_is_read_or_refused(folder: Path, figure: Figure) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install 'hrx[gift-eval]')")
    names = st.lists(
        st.sampled_from(["date", "v", "id", "index", "unique_id", "ds", "y", "w"]), unique=True, max_size=4
    )

    @every_case
    @given(
        data=st.data(),
        count=st.integers(0, 9),
        names=names,
        damage=st.one_of(st.just([]), DAMAGE),
        whole=st.booleans(),
    )
    def read(
        data: st.DataObject, count: int, names: list[str], damage: list[tuple[float, bytes, int]], whole: bool
    ) -> None:
        frame = pd.DataFrame({name: data.draw(columns(count)) for name in names}, index=range(count))
        stream = io.BytesIO()
        try:
            frame.to_parquet(stream)
        except (pyarrow.ArrowException, OverflowError, ValueError, TypeError):  # no Parquet file holds it
            return
        path = folder / "x.parquet"
        path.write_bytes(damaged(stream.getvalue(), damage))
        read_all(f"parquet:{path}") if whole else read_one(path)

    path = folder / "x.parquet"
    pd.DataFrame({"date": pd.to_datetime(DAYS), "v": 1.5}).to_parquet(path)
    assert (read_all(f"parquet:{path}"), read_one(path)) == ("read", "read")
    path.write_bytes(path.read_bytes()[:-9])
    assert (read_all(f"parquet:{path}"), read_one(path)) == ("refused", "refused")
    read()
    figure(SUITE, "Parquet: values or one sentence", made=CASES, handled=CASES)


def test_an_official_folder_is_read_or_refused(folder: Path, figure: Figure) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed (pip install 'hrx[gift-eval]')")
    pyarrow = pytest.importorskip("pyarrow")
    place = folder / "official"
    place.mkdir()
    # All rows of a file have columns of one type.
    targets = (
        st.lists(st.one_of(st.none(), st.floats()), max_size=6),
        st.lists(st.lists(st.floats(), max_size=3), max_size=2),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
        st.lists(st.text(max_size=2), max_size=2),
        st.none(),
    )
    starts = (st.one_of(st.none(), st.datetimes()), st.integers(-(2**62), 2**62), st.text(max_size=4))
    frequencies = (st.sampled_from(["D"]), st.sampled_from(["H", "15T", "ME", "fortnight"]), st.none(), st.integers())
    rows = st.tuples(*map(st.sampled_from, (starts, frequencies, targets))).flatmap(
        lambda kinds: st.lists(st.tuples(st.text(max_size=3), *kinds), min_size=1, max_size=3)
    )
    json_values = st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=5), st.just(DATA_FILE), st.just("../x")),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["filename", "a"]), inner),
        max_leaves=4,
    )
    right = {"_data_files": [{"filename": DATA_FILE}]}
    states = st.one_of(st.just(right), json_values.map(lambda value: {"_data_files": value}), json_values)

    @every_case
    @given(
        rows=rows,
        state=states,
        damage=st.one_of(st.just([]), DAMAGE),
    )
    def read(rows: list[tuple[Any, ...]], state: object, damage: list[tuple[float, bytes, int]]) -> None:
        try:
            values = zip(("item_id", "start", "freq", "target"), zip(*rows, strict=True), strict=True)
            batch = pyarrow.RecordBatch.from_pydict({name: list(column) for name, column in values})
        except (pyarrow.ArrowException, OverflowError, TypeError):  # no Arrow file holds it
            return
        stream = io.BytesIO()
        with pyarrow.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        (place / DATA_FILE).write_bytes(damaged(stream.getvalue(), damage))
        (place / STATE_FILE).write_text(json.dumps(state))
        read_all(str(place))

    read()
    batch = pyarrow.RecordBatch.from_pydict({"item_id": ["a"], "start": [0], "freq": ["D"], "target": [[1.0, 2.0]]})
    with pyarrow.OSFile(str(place / DATA_FILE), "wb") as file, pyarrow.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    (place / STATE_FILE).write_text(json.dumps(right))
    assert read_all(str(place)) == "read"
    (place / DATA_FILE).write_bytes((place / DATA_FILE).read_bytes()[:-9])
    assert read_all(str(place)) == "refused"
    figure(SUITE, "official folder: values or one sentence", made=CASES, handled=CASES)


def test_the_files_of_a_checkpoint_are_read_or_refused(folder: Path, figure: Figure) -> None:
    place = folder / "checkpoint"
    place.mkdir()
    anything = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    )
    names = st.one_of(st.sampled_from(["a.weight", "b", "__metadata__"]), st.text(max_size=4))
    tensors = st.tuples(st.sampled_from([*BITS, "X"]), st.lists(st.integers(0, 3), max_size=3)).map(entry)
    entries = st.dictionaries(names, st.one_of(tensors, tensors, tensors, anything), max_size=3)
    known = [
        {"architectures": ["ChronosBoltModelForForecasting"], "chronos_config": {}},
        {"model_type": "tinytimemixer", "context_length": 96},
        {"architectures": [{}], "model_type": 3},
    ]

    @every_case
    @given(
        entries=st.one_of(entries, anything),
        wrong_length=st.one_of(st.just(0), st.just(0), st.integers(-9, 2**62)),
        more=st.one_of(st.just(b""), st.binary(max_size=8)),
        config=st.one_of(st.sampled_from(known), anything),
        damage=st.one_of(st.just([]), DAMAGE),
    )
    def read(
        entries: object, wrong_length: int, more: bytes, config: object, damage: list[tuple[float, bytes, int]]
    ) -> None:
        weights.write_bytes(damaged(safetensors_file(entries, wrong_length) + more, damage))
        (place / "config.json").write_bytes(damaged(json.dumps(config).encode(), damage[:1]))
        read_checkpoint()

    def read_checkpoint() -> str:
        try:
            checkpoint = Checkpoint(place, "x", "x")
            assert checkpoint.stored.keys() == {name for name, _ in checkpoint.tensors()}
            _ = locate(str(place)).identity
        except HrxError as error:
            assert_sentence(error)
            return "refused"
        return "read"

    weights = place / "model.safetensors"
    (place / "config.json").write_text(json.dumps(known[0]))
    weights.write_bytes(safetensors_file({"a.weight": entry(("F32", [2])), "b": entry(("BF16", [3]))}))
    assert read_checkpoint() == "read"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert read_checkpoint() == "refused"
    read()
    figure(SUITE, "safetensors header and config.json: values or one sentence", made=CASES, handled=CASES)


BITS = {"F64": 64, "C64": 64, "U64": 64, "F32": 32, "F16": 16, "BF16": 16, "I8": 8, "BOOL": 8, "F8_E4M3": 8, "F4": 4}


def entry(tensor: tuple[str, list[int]]) -> dict[str, Any]:
    """What the header of a safetensors file says of a tensor, with its size for its place; `X` is no type."""
    kind, shape = tensor
    return {"dtype": kind, "shape": shape, "data_offsets": math.prod(shape) * BITS.get(kind, 8) // 8}


def safetensors_file(entries: object, wrong_length: int = 0) -> bytes:
    """A file of zeros, one tensor behind the other."""
    end = 0
    if isinstance(entries, dict):
        for name, one in entries.items():
            if isinstance(one, dict) and isinstance(one.get("data_offsets"), int):
                entries = {**entries, name: one | {"data_offsets": [end, end + one["data_offsets"]]}}
                end += one["data_offsets"]
    header = json.dumps(entries).encode()
    return ((len(header) + wrong_length) % 2**64).to_bytes(8, "little") + header + bytes(end)


def test_a_settings_file_is_read_or_refused(folder: Path, figure: Figure) -> None:
    keys = st.one_of(
        st.sampled_from(
            ["models", "settings", "series", "windows", "memory", "json", "python", "draws", "data", "gate"]
        ),
        st.text(max_size=4).map(json.dumps),
    )
    values = st.recursive(
        st.one_of(
            st.integers(-(2**70), 2**70).map(str),
            st.floats().map(lambda number: "nan" if math.isnan(number) else repr(number)),
            st.text(max_size=6).map(json.dumps),
            st.sampled_from(["true", "2024-01-01", '"96x24"', '"star"', '"bolt-mini"', "''", "1e400"]),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda some: f"[{', '.join(some)}]"),
            st.tuples(keys, inner).map(lambda pair: f"{{ {pair[0]} = {pair[1]} }}"),
        ),
        max_leaves=4,
    )
    lines = st.one_of(
        st.tuples(keys, values).map(lambda pair: f"{pair[0]} = {pair[1]}"),
        keys.map(lambda key: f"[{key}]"),
        st.text(max_size=8),
    )

    @every_case
    @given(lines=st.lists(lines, max_size=4), damage=st.one_of(st.just([]), DAMAGE))
    def read(lines: list[str], damage: list[tuple[float, bytes, int]]) -> None:
        path.write_bytes(damaged("\n".join(lines).encode("utf-8", "replace"), damage))
        try:
            read_settings(AuditRequest, path)
        except HrxError as error:
            assert_sentence(error)

    path = folder / "x.toml"
    path.write_text('models = ["bolt-mini"]\nseries = 3\n')
    assert read_settings(AuditRequest, path) == {"models": ("bolt-mini",), "series": 3}
    read()
    figure(SUITE, "settings file: values or one sentence", made=CASES, handled=CASES)
