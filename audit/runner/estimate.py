"""Estimates the cost of the missing runs of a plan, model by model, in the workers of an executor."""

from collections.abc import Collection, Sequence

from hrx.adapters import ModelError
from hrx.audit.runner.cost import Costs, RunCost
from hrx.audit.runner.executors import Executor
from hrx.audit.runner.plan import ModelKey, Run, Setting
from hrx.audit.runner.scheduler import ListQueue, run_tasks
from hrx.audit.runner.worker import EstimateCosts, ModelCosts, Task, TaskFailed, TaskResult


def estimate_costs(runs: Sequence[Run], finished: Collection[str], executor: Executor) -> Costs:
    """Loads each model with missing runs and measures the cost of a run at each setting.

    A model that cannot be loaded is refused at every setting, or raises where it is the only one.
    """
    missing: dict[ModelKey, dict[Setting, list[Run]]] = {}
    for run in runs:
        if run.key not in finished:
            missing.setdefault(run.model_key, {}).setdefault(run.setting, []).append(run)
    only_model = len({run.model_key for run in runs}) == 1
    costs: dict[tuple[ModelKey, Setting], RunCost] = {}

    def collect(task: Task, result: TaskResult) -> None:
        assert isinstance(task, EstimateCosts)
        if isinstance(result, ModelCosts):
            costs.update({(task.model, setting): cost for setting, cost in result.by_setting.items()})
            return
        assert isinstance(result, TaskFailed)
        if only_model:
            raise ModelError(result.reason)
        costs.update({(task.model, setting): RunCost(refusal=result.reason) for setting in task.settings})

    run_tasks(ListQueue([EstimateCosts(key, settings) for key, settings in missing.items()], collect), executor)
    return costs
