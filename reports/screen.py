"""First screen of an audit in at most 24 lines: finding, trust, a table by dataset, and the next commands."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size

from hrx.reports.commands import NextCommand, audit_words
from hrx.reports.summary import ModelSummary
from hrx.reports.text import clean, counted, escape_markdown, hanging, render_table, shorten

LINES = 24
HEADS = ("dataset", "MASE", "season", "g_margin", "main lags", "note")
MODEL_HEADS = ("model", "runs", "steps differ", "own row", "g_margin", "trust")
_NUMBERS = ("MASE", "season", "g_margin", "runs")
_LABEL = 10
_NARROWEST_NAME, _NARROWEST_NOTE = 12, 24
MOST_WEAKNESSES = 3
_LONGEST_REFUSAL = 200


@dataclass(frozen=True)
class FirstScreen:
    """What the terminal, a page, a notebook and Markdown show first."""

    title: str
    finding: tuple[tuple[str, str], ...]
    """Sentences, and what decides each; empty for several models."""
    trust: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """By dataset; of several models by model."""
    following: tuple[NextCommand, ...]
    channels: str = ""
    """What the covariates of a single model do."""

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Heads of the table with the class of their cells in HTML."""
        return [(head, "number" if head in _NUMBERS else "") for head in self.heads]

    def lines(self, width: int = 80, most: int = LINES) -> Iterator[str]:
        """As terminal text. Commands are never broken into lines, and the table has as many rows as fit."""
        head = list(_hanging("", self.title, width))
        sentence = max((cell_len(says) for says, _ in self.finding), default=0)
        beside = all(_LABEL + sentence + 2 + cell_len(decided) <= width for _, decided in self.finding)
        for index, (says, decided) in enumerate(self.finding):
            label = f"{'' if index else 'FINDING':<{_LABEL}}"
            if beside:
                head.append(f"{label}{says:<{sentence}}  {decided}".rstrip())
            else:
                head += _hanging(label, says, width)
                head += _hanging(" " * (_LABEL + 2), decided, width) if decided else []
        if self.trust:
            head += _hanging(f"{'TRUST':<{_LABEL}}", self.trust, width)
        if self.channels:
            head += _hanging(f"{'CHANNELS':<{_LABEL}}", self.channels, width)
        tail = list(self._commands(width))
        room = most - len(head) - len(tail) - 3
        yield from head
        if self.rows:
            shown = self.rows if len(self.rows) <= room else self.rows[: max(1, room - 1)]
            table = render_table(self.heads, _fitted(self.heads, shown, width), width).rstrip("\n").splitlines()
            yield from (line for index, line in enumerate(table) if index != 1)  # without the rule below the heads
            if rest := len(self.rows) - len(shown):
                yield f"… and {counted(rest, f'more {self.heads[0]}')}: see the page, or --verbose"
        yield from tail

    def _commands(self, width: int) -> Iterator[str]:
        longest = max((cell_len(one.line) for one in self.following), default=0)
        for index, one in enumerate(self.following):
            label = f"{'NEXT' if not index else '':<{_LABEL}}"
            beside = f"{label}{one.line}{' ' * (longest - cell_len(one.line))}  {one.purpose}"
            yield beside if cell_len(beside) <= max(width, 120) else f"{label}{one.line}  {one.purpose}"

    def to_markdown(self) -> str:
        """For a comment or a step summary."""
        parts = [f"### {escape_markdown(self.title)}"]
        parts += [
            f"- **{escape_markdown(says)}**{f' {escape_markdown(decided)}' if decided else ''}"
            for says, decided in self.finding
        ]
        parts += [f"- Trust: {escape_markdown(self.trust)}"] if self.trust else []
        parts += [f"- Channels: {escape_markdown(self.channels)}"] if self.channels else []
        if self.rows:
            lines = [self.heads, ["---"] * len(self.heads), *self.rows]
            parts.append("\n" + "\n".join(f"| {' | '.join(map(escape_markdown, line))} |" for line in lines) + "\n")
            parts[-1] = parts[-1].replace("| \\---", "| ---")
        parts += [f"- `{one.line}`: {escape_markdown(one.purpose)}" for one in self.following]
        return "\n".join(parts) + "\n"


def model_screen(
    summary: ModelSummary, following: Iterable[NextCommand] = (), most_weaknesses: int | None = None
) -> FirstScreen:
    """Screen of one model, with at most so many weaknesses."""
    datasets = counted(len(summary.datasets), "dataset")
    states = [f"{n} {word}" for n, word in ((summary.excluded, "excluded"), (summary.failed, "failed")) if n]
    runs = counted(summary.runs, "run") + (f" ({', '.join(states)})" if states else "")
    admitted = {True: "admitted", False: "NOT admitted", None: "admission unknown"}[summary.admitted]
    finding = [(claim.says, claim.decided) for claim in summary.claims]
    if not finding:
        finding = [(f"{summary.headline}.", ""), (shorten(clean(summary.figures), _LONGEST_REFUSAL), "")]
    return FirstScreen(
        " · ".join(filter(None, (shorten(clean(summary.model), 40), summary.output, runs, datasets, admitted))),
        tuple(finding),
        _trust(summary, most_weaknesses),
        HEADS,
        tuple(row.cells for row in summary.datasets),
        tuple(following),
        summary.channels,
    )


def several_screen(
    summaries: Sequence[ModelSummary], following: Iterable[NextCommand] = (), models: str = ""
) -> FirstScreen:
    """Screen of several models or backbones, a row each; `models` says what they are where not all are models."""
    rows = []
    for one in summaries:
        answers: list[str] = [claim.answer for claim in one.claims] or [one.headline, ""]
        margin = one.beating_naive.evidence["g_margin"]
        name = shorten(clean(one.model), 28)
        rows.append((name, str(one.runs), *answers, str(margin) if margin.n else "-", one.trust.level))
    runs = counted(sum(one.runs for one in summaries), "run")
    datasets = counted(len({row.dataset for one in summaries for row in one.datasets}), "dataset")
    title = f"{models or counted(len(summaries), 'model')} · {runs} · {datasets}"
    return FirstScreen(title, (), "", MODEL_HEADS, tuple(rows), tuple(following))


def _trust(summary: ModelSummary, most: int | None) -> str:
    level, weaknesses = summary.trust.level, summary.trust.weaknesses
    more = 0 if most is None else len(weaknesses) - most
    shown = [*weaknesses[:most], *([f"{more} more: --verbose"] if more > 0 else [])]
    return f"{level}: {'; '.join(shown) or 'nothing in the records weakens it'}"


def _hanging(label: str, text: str, width: int) -> list[str]:
    return hanging(label, clean(text), width)


def _fitted(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """Rows whose names, then notes, are shortened so that no cell is broken into lines."""
    columns = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
    over = max(0, sum(columns) + 2 * len(columns) - 2 - width)
    last = max(len(heads[-1]), min(columns[-1], _NARROWEST_NOTE), columns[-1] - over)
    over -= columns[-1] - last
    name = max(_NARROWEST_NAME, columns[0] - over)
    return [[shorten(row[0], name), *row[1:-1], _cut(row[-1], last)] for row in rows]


def _cut(text: str, width: int) -> str:
    """A note in at most `width` columns; its end is cut."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def next_commands(
    summaries: Sequence[ModelSummary], ledger: Path | str, asked: Mapping[str, Any], page: Path | None
) -> list[NextCommand]:
    """Commands that lead on: the page first, then what the weakest point of a single model asks for.

    `asked` holds the settings of the audit by the names of their options; without them no audit is suggested. On the
    page itself there is no `page`.
    """
    found = [] if page is None else [NextCommand(("hrx", "report", str(ledger), "--out", str(page)), "the page")]
    errors = NextCommand(("hrx", "tables", str(ledger), "--table", "accuracy"), "errors beside the naive ones")
    if len(summaries) != 1:
        return [*found, errors]
    (summary,) = summaries

    def again(purpose: str, **changed: str) -> NextCommand:
        return NextCommand(tuple(audit_words({**asked, **changed}, short=True)), purpose)

    models, data = list(asked.get("models") or []), str(asked.get("data") or "sample")
    undecided = any(claim.answer in ("too few", "not decided") for claim in summary.claims)
    if summary.admitted is False:
        return [
            *found,
            NextCommand(("hrx", "verify", *(models or [summary.model])), "which checks fail, and by how much"),
        ]
    if asked and (summary.failed or (summary.plan and summary.plan.stored < summary.plan.planned)):
        found.append(again("the missing runs"))
    if asked and undecided and data.startswith("sample:"):
        found.append(again("all nine datasets", data="sample"))
    elif asked and undecided and (data == "sample" or data.startswith("gift-eval:")):
        found.append(again("more datasets, after hrx data fetch", data="gift-eval"))
    if asked and summary.padded and summary.unpadded:
        found.append(again("without padded runs", settings=",".join(summary.unpadded)))
    if len(found) < 3 and any("naive" in one for one in summary.trust.weaknesses):
        found.append(errors)
    return found[:3]
