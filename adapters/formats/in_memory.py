"""Models that people hold as objects: a forecaster, a module, a function, or a fitted `NeuralForecast`."""

from typing import Any

from hrx.adapters.contract import Forecaster, ModelError
from hrx.adapters.formats.module import from_module

NEURALFORECAST = "neuralforecast"


def held_models(model: Any) -> list[Forecaster]:
    """The forecasters of an object: one, or all models of a fitted `NeuralForecast`."""
    if isinstance(model, Forecaster):
        return [model]
    package, kind = type(model).__module__.partition(".")[0], type(model).__name__
    if package == NEURALFORECAST and kind == "NeuralForecast":
        from hrx.adapters.formats.neuralforecast import fitted_models  # imports the library

        return fitted_models(model)
    if package == NEURALFORECAST:
        raise ModelError(f"A {kind} alone has no scaler of its series. Give the NeuralForecast that holds it.")
    if callable(model):
        return [from_module(model)]
    raise ModelError(
        f"A {kind} is not a model. Give hrx.load(NAME), a name, a torch.nn.Module (B, L) -> (B, H), or a fitted "
        "NeuralForecast."
    )


def held_model(model: Any) -> Forecaster:
    """The forecaster of an object that holds one."""
    found = held_models(model)
    if len(found) > 1:
        names = [one.identity.model for one in found]
        raise ModelError(
            f"This NeuralForecast holds {len(found)} models: {', '.join(names)}. Save it with .save('DIR') and give "
            f"one by its name, as in '{NEURALFORECAST}:DIR:{names[0]}'."
        )
    return found[0]
