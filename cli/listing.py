"""`hrx models`, `hrx datasets` and `hrx data`: what is known, what is here, and GIFT-Eval's official download."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hrx.adapters.families import families, short_names
from hrx.api.known import known_datasets, known_models
from hrx.cli.main import Download, ListDatasets, ListModels
from hrx.cli.terminal import note, progress, show, terminal_width
from hrx.errors import Exit, HrxError
from hrx.gift_eval import catalogue, data_root, open_source
from hrx.gift_eval.catalogue import Checked, Fetched, Folder, State, bytes_arrived, check, extra_files, fetch
from hrx.gift_eval.leaderboard import score
from hrx.reports import render_table
from hrx.reports.text import number_or_none

_PIPED_WIDTH = 80


def models(options: ListModels) -> int:
    """Show the embedded checkpoint and the short names, with their cards and whether their library is installed."""
    listed = known_models()
    if options.json:
        return _print_json(listed)
    rows = []
    for m in listed:
        millions = None if m["parameters"] is None else m["parameters"] / 1e6
        size = "unknown" if millions is None else f"{millions:.{0 if millions >= 10 else 1}f} M"
        rows.append((str(m["name"]), size, str(m["licence"]), str(m["gift_eval"]), str(m["installed"] or "no")))
    show(render_table(("name", "size", "licence", "GIFT-Eval", "installed"), rows, terminal_width(_PIPED_WIDTH)))
    show("\nGIFT-Eval: the part of the benchmark that the model is declared to have been trained on. More with --json.")
    reading = [(known.name, str(known.inputs), str(known.outputs)) for known in families().values()]
    show("\n" + render_table(("family", "reads", "gives"), reading, terminal_width(_PIPED_WIDTH)))
    show("\nA checkpoint may take less than its family: print(hrx.load(NAME)) says what.\n")
    commands = dict.fromkeys(str(m["install"]) for m in listed if not m["installed"])
    show("".join(f"\nTo install a missing library: {command}" for command in commands).lstrip("\n"))
    for known in families().values():
        if known.licence_note:
            show(textwrap.fill(f"{known.name}: {known.licence_note}", terminal_width(_PIPED_WIDTH)))
    for card in short_names().values():
        if card.download_advice:
            show(f"{card.name}: {card.download_advice}")
    also = "FAMILY:PATH, neuralforecast:DIR[:ALIAS], tslib:CHECKOUT:RUN, module:FILE.py:FACTORY"
    show(textwrap.fill(f"Also: a hub id, a local directory, {also}.", terminal_width(_PIPED_WIDTH)))
    return Exit.DONE


def datasets(options: ListDatasets) -> int:
    """Return the known datasets, the datasets of one source, or the scores of naive forecasts."""
    if options.scores:
        return _scores("gift-eval" if options.data is None else options.data, options.json)
    return _catalogue(options.json) if options.data is None else _source(options.data, options.json)


def _catalogue(as_json: bool) -> int:
    """Everything that has a name: the sample, GIFT-Eval's folders, and what the paper took from elsewhere."""
    root = data_root()
    known = known_datasets(root)
    if as_json:
        return _print_json([asdict(each) for each in known])
    rows = [
        (d.name, d.frequency, d.domain, str(d.variates), str(d.series), str(len(d.configurations)), d.on_disk)
        for d in known
        if not d.bring
    ]
    show(render_table(("name", "freq", "domain", "vars", "series", "terms", "on disk"), rows))
    here = sum(each.source == "gift-eval" and each.on_disk == "yes" for each in known)
    every = len(catalogue.folders())
    show(f"\nGIFT-Eval: {here} of {every} folders are in {root}. `hrx data fetch NAME` brings the others.")
    show("\nThe paper's other datasets have to be brought, as tslib:DIR or csv:FILE:")
    for sentence in dict.fromkeys(each.bring for each in known if each.bring):
        names = [f"{each.name} ({each.file})" if each.file else each.name for each in known if each.bring == sentence]
        show(textwrap.fill(f"{', '.join(names)}: {sentence}", 78, initial_indent="- ", subsequent_indent="  "))
    return Exit.DONE


def _source(spec: str, as_json: bool) -> int:
    """Show the datasets of a source. Series are counted, not read."""
    opened = open_source(spec)
    if as_json:
        names = {name: name for name in ("name", "frequency", "season", "domain")} | {"series": "count"}
        names |= {name: name for name in ("variates", "note", "damage")}
        return _print_json([{key: getattr(d, name) for key, name in names.items()} for d in opened])
    rows = [(d.name, d.frequency, str(d.season), str(d.count), d.damage or d.domain) for d in opened]
    show(render_table(("name", "frequency", "season", "series", "domain"), rows))
    for dataset in opened:
        if dataset.note:
            show(f"\n{dataset.name}: {dataset.note}")
    return Exit.DONE


def _scores(spec: str, as_json: bool) -> int:
    """Both naive forecasts on every official configuration of the source."""
    progress.say(f"opening {spec}")
    scored = []
    for each in score(open_source(spec)):
        scored.append(each)
        progress.say(f"{len(scored)} scored: {each.configuration}")
    progress.pause()
    if not scored:
        raise HrxError(
            f"{spec!r} holds no dataset of GIFT-Eval, and only these have official test windows. Give the benchmark's "
            "data directory, or drop --data."
        )
    damage = list(dict.fromkeys(each.damage for each in scored if each.damage))
    if as_json:
        documents: list[dict[str, object]] = []
        for each in scored:
            shown: dict[str, object] = {"config": each.configuration}
            for name, scores in (("naive", each.naive), ("seasonal", each.seasonal)):
                shown |= {f"{name}_{metric}": number_or_none(value) for metric, value in scores._asdict().items()}
            documents.append(shown | ({"damage": each.damage} if each.damage else {}))
        _print_json(documents)
    else:
        rows = [(each.configuration, *each.naive, *each.seasonal) for each in scored if not each.damage]
        headers = ("config", "naive MSE", "MAE", "MASE", "seasonal MSE", "MAE", "MASE")
        show(render_table(headers, rows, width=110))
    for reason in damage:
        note(f"hrx datasets: not scored: {reason}")
    return Exit.INCOMPLETE if damage else Exit.DONE


def data(options: Download) -> int:
    """Download GIFT-Eval's folders, or check them; incomplete where one of them is not right."""
    root, chosen = data_root(options.data), catalogue.choose(options.names)
    fetching, started = options.action == "fetch", list[str]()
    progress.expect(len(chosen), {folder.name: float(folder.bytes) for folder in chosen}, "folders")

    def report(folder: Folder) -> None:
        """Report each folder as it starts, and so the one before it as done."""
        if started:
            progress.step(started[-1], started[-1])
        started.append(folder.name)
        if fetching:
            progress.say(f"fetching {folder.name}, {_size(folder.bytes)}", lambda: float(bytes_arrived(root)))
        else:
            progress.say(f"checking {folder.name}, {_size(folder.bytes)}")

    if fetching:
        fetched = fetch(root, chosen, report=report)
        states = [each.state for each in fetched]
        _show_fetched(root, fetched, options.json)
    else:
        checked = check(root, chosen, report=report)
        states = [each.state for each in checked]
        _show_checked(root, checked, extra_files(root, chosen), options.json)
    return Exit.DONE if all(state is State.RIGHT for state in states) else Exit.INCOMPLETE


def _show_fetched(root: Path, results: Sequence[Fetched], as_json: bool) -> None:
    progress.pause()
    if as_json:
        _print_json({"root": str(root), "folders": [_named(each._asdict()) for each in results]})
    else:
        for each in results:
            if each.bytes:
                show(f"{each.folder}: {_size(each.bytes)} fetched")
        right = sum(each.state is State.RIGHT for each in results)
        show(f"{right} of {len(results)} folders are in {root} and verified.")
    for reason in dict.fromkeys(each.reason for each in results if each.reason):
        note(f"hrx data: {reason}")


def _show_checked(root: Path, results: Sequence[Checked], extra: Sequence[str], as_json: bool) -> None:
    progress.pause()
    if as_json:
        checked = [_named(each._asdict() | {"problems": [one._asdict() for one in each.problems]}) for each in results]
        _print_json({"root": str(root), "folders": checked, "extra": extra})
        return
    # A folder without any of its three files is listed by name alone.
    absent = [each for each in results if each.state is State.MISSING and len(each.problems) == 3]
    for problem in (one for each in results if each not in absent for one in each.problems):
        show(f"{problem.path}: {problem.reason}")
    if absent:
        show(f"Not here: {', '.join(each.folder for each in absent)}.")
    if extra:
        show(f"Extra, not part of GIFT-Eval: {', '.join(extra)}.")
    right = sum(each.state is State.RIGHT for each in results)
    show(f"{right} of {len(results)} folders in {root} are right.")
    if right < len(results):
        show("`hrx data fetch` brings what is missing and replaces what is damaged.")


def _named(result: dict[str, object]) -> dict[str, object]:
    return {"name": result.pop("folder"), **result}


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _print_json(value: object) -> int:
    print(json.dumps(value, indent=1))
    return Exit.DONE
