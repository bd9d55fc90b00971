"""Properties of windows with covariates: a clean model has them all, a planted violation is found by its own alone."""

import math
from collections.abc import Sequence

import pytest
import torch
from helpers.linear import LinearChannels
from torch import Tensor

from hrx.adapters.contract import Limits
from hrx.adapters.inputs import Column, Inputs, Role, Window
from hrx.audit.contract import CHANNEL_PROPERTIES, Examination
from hrx.audit.official_call import OfficialCall
from hrx.audit.properties import windows

L, H = 24, 6


class Clean(LinearChannels):
    """Every covariate of a role is read alike, and so is every other target."""

    def __init__(self) -> None:
        super().__init__(L, H, targets=3, past=2, future=2)
        self.limits = Limits(lookbacks=(L,), longest_horizon=H)
        for role in ("past", "future"):
            self.weights[role] = self.weights[role][:1, :, :1].expand(3, -1, 2, -1).clone()
        own, others = self.weights["target"][0, :, 0], self.weights["target"][0, :, 1]
        same = torch.eye(3, dtype=torch.bool)[:, None, :, None]
        self.weights["target"] = torch.where(same, own[:, None], others[:, None])

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        count = window.target.shape[2]
        held = self.weights
        self.weights = {role: w[:count] for role, w in held.items()}
        self.weights["target"] = self.weights["target"][:, :, :count]
        try:
            return super().official_window(window, horizon, columns) + self.more(window)
        finally:
            self.weights = held

    def more(self, window: Window) -> Tensor:
        return torch.zeros(())


class Late(Clean):
    """A value ahead moves later steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.weights["future"][..., L:] *= torch.ones(H, H).tril(-1)[:, None]


class Switches(Clean):
    def more(self, window: Window) -> Tensor:
        given = [values for role, values in window.roles() if role in ("past", "future")]
        flags = [bool(((one == 0) | (one == 1)).all()) for one in given]
        return torch.tensor(3.0 if any(flags) else 0.0)


class Ordered(Clean):
    def __init__(self) -> None:
        super().__init__()
        self.weights["past"][:, :, 1] *= 1.01


class Leaks(Clean):
    def more(self, window: Window) -> Tensor:
        return torch.zeros(()) if window.future is None else 0.01 * window.future.nan_to_num().amax()


class CountsColumns(Clean):
    def more(self, window: Window) -> Tensor:
        return torch.tensor(0.0 if window.past is None else 0.5)


def broken(model: LinearChannels) -> list[str]:
    found = Examination(OfficialCall(model), windows(L), H).contract(CHANNEL_PROPERTIES)
    assert [one.name for one in found.findings if one.verdict in ("not run", "does not apply")] == []
    return [one.name for one in found.findings if one.verdict != "holds"]


def test_a_clean_model_with_covariates_has_every_property() -> None:
    assert broken(Clean()) == []


@pytest.mark.parametrize(
    ("model", "name"), [*zip((Late, Switches, Ordered, Leaks, CountsColumns), CHANNEL_PROPERTIES, strict=True)]
)
def test_a_planted_violation_is_found_by_its_property_and_by_no_other(model: type[Clean], name: str) -> None:
    assert broken(model()) == [name]


def test_the_reach_of_values_ahead_is_in_words_and_its_figure_counts_own_steps() -> None:
    model = Clean()
    keep = torch.ones(H, H).tril()  # a value moves its own and later steps
    keep[0, 0] = 0
    model.weights["future"][..., L:] *= keep[:, None]
    found = Examination(OfficialCall(model), windows(L), H).finding("future-reach")
    assert found.figure == pytest.approx((H - 1) / H)
    assert found.says == "A value known ahead moves steps from step 2 on; 83% of 6 move their own step."


def test_a_model_that_takes_no_covariates_has_nothing_to_measure() -> None:
    contract = Examination(OfficialCall(lambda x, horizon: x[:, :horizon] * 1.0), windows(L), H)
    for name in CHANNEL_PROPERTIES:
        finding = contract.finding(name)
        assert (finding.verdict, math.isnan(finding.figure)) == ("does not apply", True)


def test_required_covariates_and_trained_names_are_given() -> None:
    seen: list[dict[str, tuple[str, ...]]] = []

    class Named(Clean):
        def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
            seen.append({**window.names})
            return super().official_window(window, horizon, columns)

    model = Named()
    model.inputs = Inputs((1, 1), past=Role("required", names=("price", "wind")), future=Role("optional"))
    found = Examination(OfficialCall(model), windows(L), H).contract(["two-valued", "channel-isolation"])
    assert [one.verdict for one in found.findings] == ["holds", "holds"]
    assert all(names["past"] == ("price", "wind") for names in seen if names)
