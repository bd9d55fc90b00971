"""Estimators by name, their settings, and estimators of other packages."""

import json
import sys
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from helpers.tiny import series

from hrx.adapters import from_module
from hrx.audit import Protocol, attribution, explain
from hrx.audit.attribution import (
    AttributionTask,
    Estimate,
    Estimator,
    Settings,
    estimators,
    find_estimator,
    parse_estimator_settings,
    setting,
)
from hrx.audit.attribution.explanation import estimate
from hrx.errors import ProtocolError

DOCUMENT = Path(__file__).parents[2] / "docs" / "estimators.md"


@dataclass(frozen=True)
class Distance(Settings):
    power: float = setting(1.0, "how fast importance falls", "this test", least=0)


def recency(task: AttributionTask, settings: Distance) -> Estimate:
    """The later, the more important."""
    row = torch.linspace(0, 1, task.x.shape[1]) ** settings.power
    return Estimate(row.expand(len(task.x), len(task.picks), -1))


RECENCY = Estimator("recency", f"{__name__}:recency", Distance)


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch):
    """entries(name="module:object", …) replaces the installed entry points."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or sys.modules["__main__"])

    def install(**values: str) -> None:
        result = [EntryPoint(name, value, attribution.GROUP) for name, value in values.items()]
        monkeypatch.setattr(attribution, "entry_points", lambda group: result if group == attribution.GROUP else [])
        attribution._registered.cache_clear()

    yield install
    attribution._registered.cache_clear()


def test_an_installed_entry_point_is_an_estimator_like_the_others(entries) -> None:
    entries(recency=f"{__name__}:RECENCY")
    assert "recency" in estimators()
    protocol = Protocol(estimator="recency", estimator_settings='{"power": 2}')
    result = estimate(from_module(torch.nn.Linear(40, 12)), series(2, 40), 12, protocol)
    assert result.matrix.shape == (2, 8, 40)
    assert torch.equal(result.matrix[1, 3], torch.linspace(0, 1, 40) ** 2)
    assert json.loads(result.settings) == {"power": 2.0}


def test_a_broken_entry_point_fails_only_when_it_is_used(entries) -> None:
    entries(broken="no_such_package:THING")
    assert find_estimator("saliency").name == "saliency"
    assert explain(from_module(torch.nn.Linear(40, 12)), series(1, 40), 12).shape == (1, 12, 40)
    with pytest.raises(ProtocolError, match="'no_such_package:THING', which cannot be loaded: ModuleNotFoundError"):
        find_estimator("broken")


def test_a_name_that_is_taken_is_refused(entries) -> None:
    entries(saliency=f"{__name__}:RECENCY")
    with pytest.raises(ProtocolError, match="registers 'saliency', which is taken"):
        estimators()
    assert find_estimator("saliency").package == ""


def test_an_entry_point_that_is_not_an_estimator_of_its_name_is_refused(entries) -> None:
    entries(other=f"{__name__}:RECENCY", path="pathlib:Path")
    for name in ("other", "path"):
        with pytest.raises(ProtocolError, match=f"not an Estimator named '{name}'"):
            find_estimator(name)


@pytest.mark.parametrize(
    ("estimator", "settings", "sentence"),
    [
        ("integrated_gradient", "{}", "Did you mean 'integrated_gradients'"),
        ("dynamask", '{"arae": 0.1}', "Unknown setting of dynamask 'arae'. Did you mean 'area'"),
        ("saliency", '{"points": 3}', "saliency has no settings"),
        ("integrated_gradients", '{"points": 2.5}', "Give a whole number, such as 32"),
        ("integrated_gradients", '{"points": 0}', "at least 1"),
        ("integrated_gradients", '{"points": true}', "Give a whole number"),
        ("dynamask", '{"area": 1.5}', "from 0 to 1"),
        ("dynamask", '{"area": "much"}', "Give a number, such as 0.2"),
        ("dynamask", '{"area": NaN}', "from 0 to 1"),
        ("occlusion", '{"replacement": "zero"}', "Give rearranged or mean"),
        ("occlusion", "[1]", "Give a JSON object"),
        ("occlusion", "{", "are not JSON"),
    ],
)
def test_a_protocol_refuses_an_unknown_estimator_or_setting(estimator: str, settings: str, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        Protocol(estimator=estimator, estimator_settings=settings)
    with pytest.raises(ProtocolError, match=sentence):
        explain(from_module(torch.nn.Linear(40, 12)), series(1, 40), 12, estimator=estimator, settings=settings)


def test_equal_settings_have_one_canonical_form() -> None:
    written = ['{"area":0.1,"time":2}', '{ "time": 2.0, "area": 0.1, "momentum": 0.9 }']
    result = {Protocol(estimator="dynamask", estimator_settings=text).estimator_settings for text in written}
    assert len(result) == 1
    assert Protocol(estimator="dynamask", estimator_settings='{"area": 0.2}') == Protocol(estimator="dynamask")


def test_a_protocol_stores_every_setting_with_its_value() -> None:
    kept = json.loads(Protocol(estimator="occlusion", estimator_settings='{"spans": 4}').estimator_settings)
    assert kept == {"spans": 4, "replacement": "rearranged", "draws": 2}


def test_an_explanation_carries_every_setting_with_its_value() -> None:
    protocol = Protocol(estimator="occlusion", estimator_settings='{"spans": 4}')
    result = estimate(from_module(torch.nn.Linear(40, 12)), series(1, 40), 12, protocol)
    assert json.loads(result.settings) == {"spans": 4, "replacement": "rearranged", "draws": 2}


def test_command_line_pairs_become_json() -> None:
    pairs = ["points=64", "area=0.1", "replacement=mean"]
    assert json.loads(parse_estimator_settings(pairs)) == {"points": 64, "area": 0.1, "replacement": "mean"}
    assert parse_estimator_settings([]) == "{}"


@pytest.mark.parametrize("pairs", [["points"], ["=3"], ["points="], ["points=3", "points=4"]])
def test_a_setting_that_is_not_a_pair_or_is_given_twice_is_refused(pairs: list[str]) -> None:
    with pytest.raises(ProtocolError, match=r"Give NAME=VALUE|Give it once"):
        parse_estimator_settings(pairs)


def test_the_documentation_has_a_section_of_every_estimator_with_a_place_for_its_settings() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in attribution.BUILT_IN:
        section = text.split(f"### `{name}`")[1].split("\n### ")[0]
        assert (f"<!-- settings: {name} -->" in section) == bool(fields(find_estimator(name).settings)), name


def test_a_settings_default_is_a_value_it_accepts() -> None:
    for estimator in attribution.BUILT_IN.values():
        defaults = estimator.settings()
        assert estimator.settings.read(defaults.as_json(), estimator.name) == defaults
