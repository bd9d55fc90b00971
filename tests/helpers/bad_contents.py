"""Wrong contents for `helpers.bad_inputs`: tables, settings files, checkpoints, states of official folders."""

import json
import struct
from collections.abc import Callable
from datetime import date, timedelta

import pandas as pd

ESCAPE = "\x1b[31mred\x1b[0m\x07"
DEEP = 100_000


def rows(cell: Callable[[int], object] = lambda i: i % 7, count: int = 200, header: str = "day,v") -> str:
    """A daily CSV table with one column of values."""
    days = (date(2023, 1, 1) + timedelta(i) for i in range(count))
    return "\n".join([header, *(f"{day},{cell(i)}" for i, day in enumerate(days))]) + "\n"


def at(place: int, wrong: object) -> Callable[[int], object]:
    return lambda i: wrong if i == place else i % 7


CSV_CONTENTS: dict[str, str | bytes] = {
    "empty": "",
    "only line feeds": "\n\n\r\n",
    "only spaces": "   \n  \n",
    "a header alone": "day,v\n",
    "a header and empty rows": "day,v\n,\n,\n",
    "a workbook": b"PK\x03\x04" + bytes(100),
    "an old workbook": b"\xd0\xcf\x11\xe0" + bytes(100),
    "a Parquet file": b"PAR1" + bytes(100),
    "NUL bytes": b"day,v\n2023-01-01,\x001\n" * 50,
    "zeros": bytes(5000),
    "random bytes": bytes(range(256)) * 20,
    "one unclosed quotation mark": 'day,v\n2023-01-01,"1\n' + "2023-01-02,2\n" * 20,
    "too many cells": rows(at(7, "1,2,3")),
    "two columns of one name": rows(header="v,v"),
    "dates in the header": "2023-01-01,2023-01-02,2023-01-03\n1,2,3\n4,5,6\n",
    "a wrong date": rows().replace("2023-01-09", "2023-13-09"),
    "an empty date": rows().replace("2023-01-09", ""),
    "a spreadsheet's day number": rows().replace("2023-01-09", "44935"),
    "a year of five digits": rows().replace("2023-01-09", "20233-01-09"),
    "a date before 1678": rows().replace("2023-01-09", "1066-10-14"),
    "two rows of one date": rows().replace("2023-01-09", "2023-01-08"),
    "both orders of day and month": "day,v\n" + "13/01/2023,1\n01/13/2023,2\n" * 3,
    "a word for a number": rows(at(7, "many")),
    "a currency": rows(at(7, "12 EUR")),
    "a percentage": rows(at(7, "12%")),
    "an infinite value": rows(at(7, "inf")),
    "a negative infinite value": rows(at(7, "-Infinity")),
    "1e400": rows(at(7, "1e400")),
    "-1e999": rows(at(7, "-1e999")),
    "400 digits": rows(at(7, "9" * 400)),
    "whole numbers beyond 2^53": rows(lambda i: 2**60 + i % 7),
    "whole numbers beyond 2^64": rows(lambda i: 2**70 + i % 7),
    "one whole number beyond 2^53": rows(at(9, 2**53 + 1)),
    "control characters in a cell": rows(at(7, ESCAPE)),
    "control characters in a date": rows().replace("2023-01-09", ESCAPE),
    "a right-to-left override": rows(at(7, "1\u202e2")),
    "an ambiguous comma": 'day,v\n2023-01-01,"1,234"\n2023-01-02,"5,678"\n2023-01-03,"1,111"\n',
    "two decimal signs": 'day,v\n2023-01-01,"1,5"\n2023-01-02,"1,234,567.5"\n',
    "a formula": rows(at(7, "=1+1")),
    "every value missing": rows(lambda i: ""),
    "mixed time zones": rows().replace("2023-01-09", "2023-01-09 00:00+01:00"),
    "JSON": json.dumps({"day": ["2023-01-01"], "v": [1]}),
    "HTML": "<html><body><table><tr><td>1</td></tr></table></body></html>",
    "a number where a date is": "day,v\n" + "".join(f"{i},{i}\n" for i in range(50)).replace("\n7,", "\nseven,"),
    "a header of control characters": rows(at(7, "x"), header=f"day,{ESCAPE}"),
}  # fmt: skip
PARQUET_CONTENTS: dict[str, bytes | pd.DataFrame] = {
    "empty": b"",
    "text": rows().encode(),
    "magic alone": b"PAR1",
    "magic and zeros": b"PAR1" + bytes(200) + b"PAR1",
    "a footer length beyond the file": b"PAR1" + bytes(20) + struct.pack("<I", 2**31 - 1) + b"PAR1",
    "no rows": pd.DataFrame({"day": pd.to_datetime([]), "v": []}),
    "lists in cells": pd.DataFrame({"day": pd.date_range("2023", periods=3), "v": [[1], [2], [3]]}),
    "no dates": pd.DataFrame({"v": [1.0, 2.0], "w": ["a", "b"]}),
    "no numbers": pd.DataFrame({"day": pd.date_range("2023", periods=3), "v": list("abc")}),
    "an infinite value": pd.DataFrame({"day": pd.date_range("2023", periods=3), "v": [1.0, float("inf"), 2.0]}),
    "whole numbers beyond 2^53": pd.DataFrame({"day": pd.date_range("2023", periods=3), "v": [2**60, 2**60 + 1, 5]}),
    "every value missing": pd.DataFrame({"day": pd.date_range("2023", periods=3), "v": [float("nan")] * 3}),
    "booleans": pd.DataFrame({"day": pd.date_range("2023", periods=3), "v": [True, False, True]}),
    "a date after 2261": pd.DataFrame({"day": pd.to_datetime(["2261-12-31", "2262-01-01"]).as_unit("s"), "v": [1, 2]}),
    "a date before 1678": pd.DataFrame({"day": pd.to_datetime(["1677-12-31"]).as_unit("s"), "v": [1.0]}),
    "a repeated date": pd.DataFrame({"day": pd.to_datetime(["2023-01-01", "2023-01-01"]), "v": [1.0, 2.0]}),
    "a column named by control characters": pd.DataFrame({"day": list("ab"), ESCAPE: list("xy")}),
}
SOURCES = (
    "", ":", "csv", "csv:", "parquet:", "sampel", "sample:", "sample:,", "sample:nile", "sample:elnino/M,",
    "gift-eval:us_births", "gift-eval:", "~nobody-of-this-name/data", "/dev/null", "/dev/zero", "n" * 300, "no\0where",
    f"csv:{ESCAPE}", ESCAPE, "csv:a.csv?x=1", "csv:a.csv?date=", "csv:a.csv?date=day&date=day", "csv:a.csv?dayfirst=1",
    "csv:a.csv?decimal=x", "csv:a.csv?frequency=fortnight", "csv:a.csv?value=nothing", "csv:a.csv?value=day",
    f"csv:a.csv?value={ESCAPE}", "csv:a.csv?id=absent", "tslib:nothing", "http://x/y.csv",
)  # fmt: skip
TOML: dict[str, str | bytes] = {
    "no value": "series =",
    "no equals sign": "series",
    "a repeated key": "series = 1\nseries = 2",
    "an unknown option": "sereis = 3",
    "a path as a key": '"../x" = 1',
    "control characters in a key": '"\\u001b[31m" = 1',
    "control characters in a value": 'sweeps = "\\u001b[31mred"',
    "an option as a model": 'models = ["--ledger=stolen.db"]',
    "a short option as a model": 'models = ["-h"]',
    "an option as one model": 'models = "--json"',
    "two dashes as a model": 'models = ["--"]',
    "help": "help = true",
    "a config in a config": 'config = "b.toml"',
    "debug": "debug = true",
    "a word for a number": 'series = "three"',
    "a fraction": "series = 1.5",
    "a negative number": "series = -1",
    "a number of 5000 digits": f"series = {'9' * 5000}",
    "a huge number": f"series = {2**70}",
    "a date": "series = 2024-01-01",
    "a table": "series = {a = 1}",
    "a list of lists": "models = [[1]]",
    "a list of tables": "models = [{a = 1}]",
    "a truth value": "models = true",
    "a number for a truth value": "json = 1",
    "a word for a truth value": 'json = "yes"',
    "not a number": "memory = nan",
    "infinite memory": "memory = inf",
    "no memory": "memory = 0",
    "negative memory": "memory = -2",
    "an engine that does not exist": 'engine = "spark"',
    "an axis that does not exist": 'axis = "time"',
    "a NUL in a path": 'data = "csv:a\\u0000b"',
    "a NUL in a ledger": 'ledger = "a\\u0000b"',
    "a NUL in a directory": 'out = "a\\u0000b"',
    "a NUL in a model": 'models = ["a\\u0000b"]',
    "a python that does not exist": '[python]\ntimer = "nowhere/python"',
    "a family that does not exist": '[python]\nnone = "x"',
    "nested lists": f"models = {'[' * DEEP}{']' * DEEP}",
    "nested tables": ".".join(["a"] * 500) + " = 1",
    "Latin-1": "models = ['caf\xe9']".encode("latin-1"),
    "a byte order mark": b"\xff\xfes\0e\0",
    "two mebibytes": "# " + "x" * 2**21,
    "a gate that is none": 'gate = ["hello"]',
}
CONFIG_JSON: dict[str, str | bytes] = {
    "empty": "",
    "cut short": '{"architectures": ["Chronos',
    "a list": "[]",
    "a number": "1",
    "null": "null",
    "a word": '"text"',
    "nested lists": "[" * DEEP,
    "closed nested lists": "[" * DEEP + "]" * DEEP,
    "100 levels": '{"a":' * 100 + "1" + "}" * 100,
    "a number of 5000 digits": '{"a": ' + "9" * 5000 + "}",
    "Latin-1": b'{"a": "caf\xe9"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "NUL bytes": bytes(100),
    "no architecture": "{}",
    "an unknown architecture": '{"architectures": ["Prophet"]}',
    "an architecture of control characters": json.dumps({"architectures": [ESCAPE]}),
    "a number for an architecture": '{"architectures": [1]}',
    "a LoRA adapter": '{"peft_type": "LORA"}',
    "17 mebibytes": '{"a": "' + "x" * (17 * 2**20) + '"}',
    "two objects": "{} {}",
}
SAFETENSORS: dict[str, bytes] = {
    "empty": b"",
    "zeros": bytes(64),
    "a header beyond the file": struct.pack("<Q", 2**40) + b"{}",
    "a header that is not JSON": struct.pack("<Q", 4) + b"abcd",
    "nested JSON": struct.pack("<Q", DEEP) + b"[" * DEEP,
    "an offset beyond the file": struct.pack("<Q", 60)
    + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8000000]}}'.ljust(60),
    "a pickle": b"\x80\x04\x95\x00\x00",
}
STATES: dict[str, str] = {
    "not JSON": "{",
    "a list": "[]",
    "no data files": '{"_data_files": []}',
    "no list of data files": '{"_data_files": 3}',
    "a number for a name": '{"_data_files": [{"filename": 3}]}',
    "a path above": '{"_data_files": [{"filename": "../secret.arrow"}]}',
    "an absolute path": '{"_data_files": [{"filename": "/etc/hostname"}]}',
    "a path through a folder": '{"_data_files": [{"filename": "x/../../secret.arrow"}]}',
    "its own folder": '{"_data_files": [{"filename": "."}]}',
    "an empty name": '{"_data_files": [{"filename": ""}]}',
    "a name with a NUL": '{"_data_files": [{"filename": "a\\u0000b"}]}',
    "a name of control characters": '{"_data_files": [{"filename": "\\u001b[31m"}]}',
    "a link out of the folder": '{"_data_files": [{"filename": "link.arrow"}]}',
    "a file that is not there": '{"_data_files": [{"filename": "absent.arrow"}]}',
    "a file that is not Arrow": '{"_data_files": [{"filename": "text.arrow"}]}',
    "nested lists": "[" * DEEP,
    "17 mebibytes": '{"a": "' + "x" * (17 * 2**20) + '"}',
    "a name of 300 characters": '{"_data_files": [{"filename": "' + "n" * 300 + '"}]}',
}
