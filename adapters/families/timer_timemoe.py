"""Timer and TimeMoE (`sktime.libs`): two families whose official call is `generate`.

`generate` runs with transformers 4.40 only; the model's forward runs with any release, and `predict` repeats the steps
of `generate` on it.

Timer reads and forecasts patches. By default a window is cut from the left to whole patches, and `revin` standardises
the input of each step by itself: the window in the first step, only the newest patches in every later one.

TimeMoE reads one value per token and has heads of several lengths; two of many experts process each token. The official
recipe standardises the window by its mean and unbiased standard deviation, calls `generate`, takes the last `H` values
and undoes the scaling. `generate` uses the longest head that fits the remaining horizon, then the next. Experts are
selected by rank, so the forecast is smooth only between the inputs at which the selection changes.
"""

from abc import abstractmethod
from typing import Any, ClassVar, cast

import torch
import transformers
from sktime.libs.timemoe import TimeMoeForPrediction
from sktime.libs.timer import TimerForPrediction
from torch import Tensor

from hrx.adapters.checkpoint import CheckpointForecaster, ignore_warning
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard

TIMER = Family(
    "timer", f"{__name__}:Timer", "sktime", "timer", also=("transformers",),
    architectures=("TimerForPrediction",),
    released=(
        ModelCard(
            "timer-base", "thuml/timer-base-84m", "Apache-2.0", 84_000_000, 2880, 96, "UTSD and LOTSA",
            sources=("huggingface.co/thuml/timer-base-84m, README.md",),
        ),
    ),
)  # fmt: skip
TIMEMOE = Family(
    "timemoe", f"{__name__}:TimeMoe", "sktime", "timemoe", also=("transformers",),
    architectures=("TimeMoeForPrediction",),
    released=tuple(
        ModelCard(
            f"timemoe-{size.lower()}", f"Maple728/TimeMoE-{size}", "Apache-2.0", parameters, 4096, 64, "Time-300B",
            sources=(f"huggingface.co/Maple728/TimeMoE-{size}, {files}",),
        )
        for size, parameters, files in (
            ("50M", 113_000_000, "README.md and config.json"), ("200M", None, "README.md")
        )
    ),
)  # fmt: skip

GENERATE_RUNS_WITH = "4.40."
"""Release of transformers that the libraries' `generate` steps are written for. Newer ones renamed what they call."""
MASK_MOVES = "The attention mask API"
"""transformers' notice that the mask function which the libraries call is about to move."""


class KeyValues(transformers.Cache):  # type: ignore[misc]  # transformers is untyped here
    """Keys and values of the previous steps, with the two methods that the libraries call on every transformers.

    Nothing is written in place, so gradients flow through it.
    """

    def __init__(self) -> None:
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}

    def get_usable_length(self, new_seq_length: int, layer_idx: int | None = 0) -> int:
        stored = self._stored.get(layer_idx or 0)
        return 0 if stored is None else stored[0].shape[-2]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, cache_kwargs: dict[str, Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        if layer_idx in self._stored:
            keys, values = self._stored[layer_idx]
            key_states = torch.cat([keys, key_states], dim=-2)
            value_states = torch.cat([values, value_states], dim=-2)
        self._stored[layer_idx] = key_states, value_states
        return key_states, value_states


class GeneratingForecaster(CheckpointForecaster):
    """A checkpoint whose official call is `generate`. Code in the checkpoint's directory is never run."""

    generates: ClassVar[bool] = transformers.__version__.startswith(GENERATE_RUNS_WITH)
    """Whether `official` runs the public call here, or the library's forward because the public call cannot run."""
    library_class: ClassVar[Any]

    def prepare(self) -> None:
        called = "generate" if self.generates else "forward, uncached"
        self.official_call = f"{self.library_class.__name__}.{called}"

    def open_library(self) -> Any:
        """Build the library's class and load the file's weights.

        Not by `from_pretrained`: in transformers 5 it leaves the rotary tables, which are not in the file, as unset
        memory, and rounds them to bfloat16 if `config.json` says that the weights were stored so.
        """
        config = self.library_class.config_class.from_dict(dict(self.checkpoint.config))
        model = self.library_class(config)
        # A weight that is missing from the file keeps its random initialisation: `unloaded` names it.
        model.load_state_dict(dict(self.checkpoint.tensors()), strict=False)
        return model

    def official(self, x: Tensor, horizon: int) -> Tensor:
        """`(B, L) -> (B, H)`: `generate`, or where it cannot run the same forecast by the library's forward alone.

        The forward is then called with `use_cache=False` on the whole series at every step: another computation of
        the forecast of `generate` than that of `predict`. `official_call` names the one that ran.
        """
        self.check(x, horizon)
        x = x.to(dtype=torch.float32)
        with torch.no_grad(), ignore_warning(MASK_MOVES):
            return self._generate(x, horizon) if self.generates else self._recompute(x, horizon)

    @abstractmethod
    def _generate(self, x: Tensor, horizon: int) -> Tensor: ...

    @abstractmethod
    def _recompute(self, x: Tensor, horizon: int) -> Tensor: ...


class Timer(GeneratingForecaster):
    """Point forecast of a Timer checkpoint."""

    library_class = TimerForPrediction

    def read_limits(self) -> Limits:
        config, patch = self.module.config, self.module.config.input_token_len
        if any(length % patch for length in config.output_token_lens):
            raise ModelError(
                f"{self.checkpoint.path}/config.json forecasts {config.output_token_lens} steps at once and reads "
                f"patches of {patch}. Timer feeds forecasts back as whole patches: give a checkpoint with multiples."
            )
        return Limits(shortest_lookback=patch, longest_lookback=patch * config.max_position_embeddings)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        patch, past = self.module.config.input_token_len, KeyValues()
        # As in `generate`, the oldest values that do not fill a patch are cut off.
        inputs = x[:, x.shape[1] % patch :].to(dtype=torch.float32)
        flat = torch.zeros(len(x), 1, dtype=torch.bool)
        steps, patches, done = list[Tensor](), 0, 0
        with ignore_warning(MASK_MOVES):
            while done < horizon:
                # `revin` divides by the standard deviation of this step's input; once NaN, a series stays NaN.
                flat = flat | is_flat(inputs)
                patches += inputs.shape[1] // patch
                y = self.module(
                    input_ids=replace_flat(inputs, flat),
                    attention_mask=torch.ones(len(x), patches, dtype=torch.long),
                    past_key_values=past,
                    use_cache=True,
                    revin=True,
                    max_output_length=horizon - done,
                    return_dict=True,
                ).logits
                steps.append(torch.where(flat, torch.nan, y))
                inputs, done = y, done + y.shape[1]
        return torch.cat(steps, dim=1)

    def _generate(self, x: Tensor, horizon: int) -> Tensor:
        return cast(Tensor, self.module.generate(x, max_new_tokens=horizon))

    def _recompute(self, x: Tensor, horizon: int) -> Tensor:
        patch = self.module.config.input_token_len
        inputs, standardised, steps, done = x[:, -(x.shape[1] // patch * patch) :], x[:, :0], list[Tensor](), 0
        while done < horizon:
            mean, std = inputs.mean(dim=-1, keepdim=True), inputs.std(dim=-1, keepdim=True)
            standardised = torch.cat([standardised, (inputs - mean) / std], dim=1)
            y = self.module(
                input_ids=standardised,
                attention_mask=torch.ones(len(x), standardised.shape[1] // patch, dtype=torch.long),
                use_cache=False,
                max_output_length=horizon - done,
                return_dict=True,
            ).logits
            inputs = y * std + mean
            steps.append(inputs)
            done += inputs.shape[1]
        return torch.cat(steps, dim=1)


class TimeMoe(GeneratingForecaster):
    """Point forecast of a TimeMoE checkpoint."""

    library_class = TimeMoeForPrediction

    def read_limits(self) -> Limits:
        # A single value has no unbiased standard deviation.
        return Limits(shortest_lookback=2, longest_lookback=self.module.config.max_position_embeddings)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        x = x.to(dtype=torch.float32)
        flat = is_flat(x)
        window = replace_flat(x, flat)
        mean, std = window.mean(dim=-1, keepdim=True), window.std(dim=-1, keepdim=True)
        inputs, past, steps, tokens, done = (window - mean) / std, KeyValues(), list[Tensor](), 0, 0
        with ignore_warning(MASK_MOVES):
            while done < horizon:
                tokens += inputs.shape[1]
                # With a trailing axis: otherwise the library adds it in place to the caller's tensor.
                y = self.module(
                    input_ids=inputs[..., None],
                    attention_mask=torch.ones(len(x), tokens, dtype=torch.long),
                    past_key_values=past,
                    use_cache=True,
                    max_horizon_length=horizon - done,
                    return_dict=True,
                ).logits
                inputs = y[:, -1]
                steps.append(inputs)
                done += inputs.shape[1]
        return torch.where(flat, torch.nan, torch.cat(steps, dim=1) * std + mean)

    def _generate(self, x: Tensor, horizon: int) -> Tensor:
        mean, std = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True)
        series = self.module.generate((x - mean) / std, max_new_tokens=horizon)
        return cast(Tensor, series[:, -horizon:] * std + mean)

    def _recompute(self, x: Tensor, horizon: int) -> Tensor:
        mean, std = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True)
        series = (x - mean) / std
        while (missing := x.shape[1] + horizon - series.shape[1]) > 0:
            y = self.module(
                input_ids=series[..., None], use_cache=False, max_horizon_length=missing, return_dict=True
            ).logits
            series = torch.cat([series, y[:, -1]], dim=1)
        return series[:, -horizon:] * std + mean


def is_flat(x: Tensor) -> Tensor:
    """`(B, L) -> (B, 1)`: whether a series has standard deviation 0, so that the library's forecast is NaN."""
    return x.std(dim=-1, keepdim=True) == 0


def replace_flat(x: Tensor, flat: Tensor) -> Tensor:
    """Series with a ramp in place of each flat one, so that its gradient is zero and not NaN.

    The forecast of the ramp is discarded.
    """
    return torch.where(flat, torch.arange(x.shape[1]).to(x), x)
