"""Checks the inputs of the action, given as JSON in INPUTS, before anything is installed or run.

No input may be taken for an option, hold a line of its own in what the runner reads, or name another package.
"""

import json
import os
import re
import sys

NUMBER = ("[1-9][0-9]{0,5}", "a whole number from 1 to 999999")
EXTRA = "[A-Za-z0-9]+([-._][A-Za-z0-9]+)*"
FORMS = {
    "series": NUMBER,
    "seeds": NUMBER,
    "min-pairs": NUMBER,
    "strict": ("true|false", "true or false"),
    "undecided": ("(pass|fail)?", "pass, fail or empty"),
    "extras": (f"({EXTRA}(,{EXTRA})*)?", "extras such as chronos-bolt,gift-eval"),
    "out": (".+", "a directory"),
    "new": (".+", "a checkpoint"),
}
VERSION = r"installed|[0-9][A-Za-z0-9.!+_-]*|[a-z][a-z+.-]*://\S+"


def problem(name: str, value: str) -> str:
    """Return what is wrong with an input; empty where it is valid."""
    lines = value.splitlines() if name == "gates" else [value]
    if any(not line.isprintable() for line in lines):
        return "holds a control character, such as the end of a line"
    if any(line.lstrip().startswith("-") for line in lines):
        return "begins with a dash and would be taken for an option"
    form, what = FORMS.get(name, (".*", ""))
    if not re.fullmatch(form, value, re.DOTALL):
        return f"is not {what}"
    if name == "hrx" and value and not os.path.exists(value) and not re.fullmatch(VERSION, value):
        return "is not a version, an existing path, a URL or `installed`"
    if name == "base-ledger" and value and not os.path.isfile(value):
        return "is not a file. Restore the stored ledger, or give base"
    return ""


def main() -> int:
    inputs = json.loads(os.environ["INPUTS"])
    problems = [
        f"The input {name}, {json.dumps(value)}, {why}."
        for name, value in inputs.items()
        if (why := problem(name, value))
    ]
    if not inputs["base"] and not inputs["base-ledger"]:
        problems.append("Give the input base (a checkpoint) or base-ledger (a stored ledger).")
    for text in problems:
        print(f"::error::{text.replace('%', '%25')}")
    return 2 if problems else 0


sys.exit(main())
