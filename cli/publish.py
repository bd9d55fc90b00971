"""`hrx evaluate` and `hrx publish`: official scores, and the files that a model's page and a leaderboard show."""

import json

from hrx.adapters import load
from hrx.api.evaluate import evaluate as evaluate_model
from hrx.cli.main import EvaluateRequest, PublishRequest
from hrx.cli.terminal import incomplete_if_damaged, note, progress, show, terminal_width
from hrx.errors import Exit
from hrx.files import check_directory, check_target
from hrx.records.contract import read_contract
from hrx.records.evaluation import Evaluation
from hrx.reports.publish import Declared, write_publication
from hrx.reports.text import number_or_none, render_table

_SHOWN = {"MSE[mean]": "MSE", "MAE[0.5]": "MAE", "MASE[0.5]": "MASE", "mean_weighted_sum_quantile_loss": "CRPS"}


def evaluate(request: EvaluateRequest) -> int:
    """Print the scores of each configuration."""
    check_target(request.out, "--out")
    progress.say(f"loading {request.model}")
    found = evaluate_model(load(request.model), request.data, out=request.out, report=progress.say)
    progress.pause()
    missing = [row for row in found.rows if row.reason]
    if request.json:
        rows = [
            {"config": row.config, "instances": row.instances, "reason": row.reason or None}
            | {name: number_or_none(value) for name, value in row.metrics.items()}
            | {"seasonal_mase": number_or_none(row.seasonal_mase)}
            for row in found.rows
        ]
        about = {
            "model": found.model,
            "quantiles": found.quantiles,
            "relative_mase": number_or_none(found.relative_mase),
        }
        print(json.dumps(about | {"configurations": rows}, indent=1, allow_nan=False))
    else:
        cells = [
            (row.config, *(f"{row.metrics[name]:.4g}" for name in _SHOWN), f"{row.seasonal_mase:.4g}")
            for row in found.done
        ]
        show(render_table(("configuration", *_SHOWN.values(), "seasonal MASE"), cells, terminal_width(100)))
        done = f"{len(found.done)} of {len(found.rows)} configurations"
        show(f"{done}: MASE {found.relative_mase:.3f} of seasonal naive's (geometric mean). Scores: {request.out}")
    for reason in dict.fromkeys(row.reason for row in missing):
        note(f"hrx evaluate: {sum(row.reason == reason for row in missing)} configurations: {reason}")
    return Exit.INCOMPLETE if missing else Exit.DONE


@incomplete_if_damaged
def publish(request: PublishRequest) -> int:
    """Write the files and print what each is for."""
    check_directory(request.out, "--out")
    contract = None if request.contract is None else read_contract(request.contract)
    evaluation = None if request.evaluation is None else Evaluation.load(request.evaluation)
    declared = Declared(request.link, request.leakage, request.model_type, request.org, request.code)
    written = write_publication(
        request.ledger, request.out, declared, model=request.model, contract=contract, evaluation=evaluation
    )
    for path, what in written.files.items():
        show(f"{path}: {what}")
    if written.refused:
        note(f"hrx publish: no submission for GIFT-Eval: {written.refused}")
    return Exit.GATE_FAILED if written.refused and evaluation is not None else Exit.DONE
