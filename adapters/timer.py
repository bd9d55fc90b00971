"""Timer (`sktime.libs.timer`): patches in, the next patches out, each new patch read through a key-value cache.

The official call is `generate`, which runs with transformers 4.40 only; the model's forward runs with any. `predict`
takes the steps of `generate` on that forward, with a cache of its own. A window is cut from the left to whole patches,
and `revin` standardises what each step reads by itself: the window in the first step, the newest patches alone in every
later one. Both are the library's default and are audited as such.

What Timer shares with TimeMoE, the other family that generates, is kept here: `GeneratingForecaster` and `KeyValues`.
"""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, cast

import torch
import transformers
from sktime.libs.timer import TimerForPrediction
from torch import Tensor

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Convert, Forecaster, Identity, Limits, ModelError, freeze

GENERATE_RUNS_WITH = "4.40."
"""The transformers release whose `generate` the library's own steps fit into. Newer ones renamed what they call."""


def load(checkpoint: Checkpoint, identity: Identity) -> Forecaster:
    """Opens a checkpoint directory with the library's own class; code that the directory names is never run."""
    return Timer(checkpoint, identity)


class KeyValues(transformers.Cache):  # type: ignore[misc]  # transformers is untyped here
    """Keys and values of the steps so far, with the two methods that the libraries call on every transformers.

    Nothing is written in place, so that gradients flow through it.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def get_usable_length(self, new_seq_length: int, layer_idx: int | None = 0) -> int:
        held = self._held.get(layer_idx or 0)
        return 0 if held is None else held[0].shape[-2]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, cache_kwargs: dict[str, Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        if layer_idx in self._held:
            keys, values = self._held[layer_idx]
            key_states = torch.cat([keys, key_states], dim=-2)
            value_states = torch.cat([values, value_states], dim=-2)
        self._held[layer_idx] = key_states, value_states
        return key_states, value_states


class GeneratingForecaster(Forecaster):
    """A checkpoint whose official call is `generate`."""

    official_call: ClassVar[Literal["generate", "forward"]] = (
        "generate" if transformers.__version__.startswith(GENERATE_RUNS_WITH) else "forward"
    )
    """What `official` runs here: the public call, or the library's forward where the public call cannot run."""
    library_class: ClassVar[Any]

    def __init__(self, checkpoint: Checkpoint, identity: Identity):
        self.identity = identity
        self._checkpoint = checkpoint
        self._model: Any = self._build()

    def official(self, x: Tensor, horizon: int) -> Tensor:
        """`(B, L) -> (B, H)`: `generate`, or where it cannot run the same forecast by the library's forward alone.

        The forward is then called with `use_cache=False` on the whole series anew for every step: the other way
        to compute what `generate` does, and another one than `predict` takes. `official_call` says which it was.
        """
        self.check(x, horizon)
        x = x.to(dtype=torch.float32)
        with torch.no_grad(), quiet():
            return self._generate(x, horizon) if self.official_call == "generate" else self._recompute(x, horizon)

    def converted(self, convert: Convert) -> Forecaster:
        other = copy.copy(self)
        other._model = convert(copy.deepcopy(self._model))
        return other

    def reload(self) -> Forecaster:
        return type(self)(self._checkpoint, self.identity)

    def unloaded(self) -> tuple[str, ...]:
        return self._checkpoint.differences(self._model)

    @abstractmethod
    def _generate(self, x: Tensor, horizon: int) -> Tensor: ...

    @abstractmethod
    def _recompute(self, x: Tensor, horizon: int) -> Tensor: ...

    def _build(self) -> torch.nn.Module:
        """The library's class with the file's weights.

        Not by `from_pretrained`: that of transformers 5 leaves the rotary tables, which no file holds, as unset memory,
        and rounds them to bfloat16 where `config.json` says that the weights were stored so.
        """
        config = self.library_class.config_class.from_dict(dict(self._checkpoint.config))
        model = self.library_class(config)
        # A weight that the file lacks stays as it was initialised: `unloaded` names it.
        model.load_state_dict(dict(self._checkpoint.tensors()), strict=False)
        return freeze(model)


class Timer(GeneratingForecaster):
    """The point forecast of a Timer checkpoint."""

    library_class = TimerForPrediction

    def __init__(self, checkpoint: Checkpoint, identity: Identity):
        super().__init__(checkpoint, identity)
        config = self._model.config
        self._patch: int = config.input_token_len
        if any(length % self._patch for length in config.output_token_lens):
            raise ModelError(
                f"{checkpoint.path}/config.json forecasts {config.output_token_lens} steps at once and reads patches "
                f"of {self._patch}. Timer feeds forecasts back as whole patches: give a checkpoint with multiples."
            )
        self.limits = Limits(
            shortest_lookback=self._patch, longest_lookback=self._patch * config.max_position_embeddings
        )

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        read, past = self._whole_patches(x.to(dtype=torch.float32)), KeyValues()
        flat = torch.zeros(len(x), 1, dtype=torch.bool)
        steps, patches, made = list[Tensor](), 0, 0
        with quiet():
            while made < horizon:
                # `revin` divides by the spread of what this step reads; once NaN, a series stays NaN.
                flat = flat | is_flat(read)
                patches += read.shape[1] // self._patch
                y = self._model(
                    input_ids=stand_in(read, flat),
                    attention_mask=torch.ones(len(x), patches, dtype=torch.long),
                    past_key_values=past,
                    use_cache=True,
                    revin=True,
                    max_output_length=horizon - made,
                    return_dict=True,
                ).logits
                steps.append(torch.where(flat, torch.nan, y))
                read, made = y, made + y.shape[1]
        return torch.cat(steps, dim=1)

    def _generate(self, x: Tensor, horizon: int) -> Tensor:
        return cast(Tensor, self._model.generate(x, max_new_tokens=horizon))

    def _recompute(self, x: Tensor, horizon: int) -> Tensor:
        read, standardised, steps, made = self._whole_patches(x), x[:, :0], list[Tensor](), 0
        while made < horizon:
            mean, std = read.mean(dim=-1, keepdim=True), read.std(dim=-1, keepdim=True)
            standardised = torch.cat([standardised, (read - mean) / std], dim=1)
            y = self._model(
                input_ids=standardised,
                attention_mask=torch.ones(len(x), standardised.shape[1] // self._patch, dtype=torch.long),
                use_cache=False,
                max_output_length=horizon - made,
                return_dict=True,
            ).logits
            read = y * std + mean
            steps.append(read)
            made += read.shape[1]
        return torch.cat(steps, dim=1)

    def _whole_patches(self, x: Tensor) -> Tensor:
        """What `generate` reads of a window: the oldest values that fill no patch are cut off."""
        return x[:, x.shape[1] % self._patch :]


def is_flat(x: Tensor) -> Tensor:
    """`(B, L) -> (B, 1)`: whether a series has no spread to divide by, so that the library's forecast is NaN."""
    return x.std(dim=-1, keepdim=True) == 0


def stand_in(x: Tensor, flat: Tensor) -> Tensor:
    """The series, with a ramp in place of a flat one: its forecast is discarded, and its gradient is zero, not NaN."""
    return torch.where(flat, torch.arange(x.shape[1]).to(x), x)


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' notice that the mask function the libraries call is about to move."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The attention mask API", category=FutureWarning)
        yield
