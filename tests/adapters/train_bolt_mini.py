"""Trains bolt-mini, the Chronos-Bolt checkpoint that ships with hrx, on synthetic series only.

A series is a level plus seasons plus noise with random weights, sometimes skewed or intermittent. All random numbers
come from one seeded generator and the arithmetic runs on one thread, so the same seed and step count write the same
file. The audit measures the skill of the result.
"""

import argparse
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

import torch
from chronos.chronos_bolt import ChronosBoltModelForForecasting
from torch import Tensor
from transformers import T5Config

CONFIG = Path(__file__).parents[2] / "adapters" / "bolt_mini"
CONTEXT, HORIZON, PATCH = 512, 96, 16
LENGTH = CONTEXT + HORIZON
CIRCLE = 1024  # stationary noise is generated on a longer circle, then cut
BATCH = 128
LEARNING_RATE = 3e-3
CLIP = 8.0  # standard deviations of the lookback; keeps exploding trends from dominating the loss
# Periods of the calendar, from quarters of a year to days of a year, in steps of the series.
CALENDAR = (4.0, 7.0, 12.0, 12.0, 24.0, 24.0, 24.0, 48.0, 52.0, 52.0, 96.0, 168.0, 288.0, 365.0, 365.0)


class Draw:
    """Random values from one generator: a column `(B, 1)`, one per series, or `(B, *shape)`."""

    def __init__(self, batch: int, generator: torch.Generator) -> None:
        self.batch, self.generator = batch, generator

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(self.batch, *(shape or (1,)), generator=self.generator)

    def uniform(self, low: float = 0.0, high: float = 1.0, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(self.batch, *(shape or (1,)), generator=self.generator)

    def log_uniform(self, low: float, high: float) -> Tensor:
        return self.uniform(math.log(low), math.log(high)).exp()

    def chance(self, probability: float) -> Tensor:
        return self.uniform() < probability

    def choice(self, values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values)[self.uniform(0, len(values)).long()]


def standardise(x: Tensor) -> Tensor:
    """(B, T) -> (B, T), each row with mean 0 and standard deviation 1."""
    x = x - x.mean(-1, keepdim=True)
    return x / x.std(-1, keepdim=True).clamp_min(1e-6)


def coloured_noise(draw: Draw, gain: Callable[[Tensor], Tensor]) -> Tensor:
    """Stationary Gaussian process with amplitude response `gain(frequency)`, cut from a longer circle."""
    omega = torch.linspace(0, math.pi, CIRCLE // 2 + 1)[None]
    spectrum = torch.view_as_complex(draw.normal(CIRCLE // 2 + 1, 2)) * gain(omega.clamp_min(math.pi / CIRCLE))
    return standardise(torch.fft.irfft(spectrum, n=CIRCLE))[:, :LENGTH]


def arma_noise(draw: Draw) -> Tensor:
    """ARMA(3, 1): a real root, a complex pair, a moving average and heavy tails, each off at random."""
    phi = torch.exp(-1 / draw.log_uniform(0.5, 200)) * draw.chance(0.6)
    radius = torch.exp(-1 / draw.log_uniform(1, 100)) * draw.chance(0.2)
    angle = 2 * math.pi / draw.log_uniform(3, 200)
    theta = draw.uniform(-0.8, 0.8) * draw.chance(0.3)

    def gain(omega: Tensor) -> Tensor:
        z = torch.polar(torch.ones_like(omega), -omega)
        poles = (1 - phi * z) * (1 - 2 * radius * torch.cos(angle) * z + radius**2 * z**2)
        return (1 + theta * z).abs() / poles.abs()

    volatility = torch.exp(draw.uniform(0, 0.8) * draw.chance(0.3) * draw.normal(LENGTH))
    return standardise(coloured_noise(draw, gain) * volatility)


def smooth_process(draw: Draw) -> Tensor:
    """Gaussian process: squared-exponential or power-law spectrum, from wiggles to slow drift."""
    scale, power, is_rough = draw.log_uniform(4, 400), draw.uniform(0.3, 2.0), draw.chance(0.5)
    return coloured_noise(draw, lambda w: torch.where(is_rough, w**-power, torch.exp(-((scale * w) ** 2) / 4)))


def integrated(draw: Draw) -> Tensor:
    """Random walks, level shifts (rare increments), piecewise-linear trends (rare slope changes)."""
    rare_rate = draw.log_uniform(1 / LENGTH, 0.03)
    rare = draw.normal(LENGTH) * (draw.uniform(0, 1, LENGTH) < rare_rate)
    kind = draw.uniform()
    slope = torch.cumsum(rare, -1) + 0.3 * draw.normal()
    steps = torch.where(kind < 0.4, draw.normal(LENGTH), torch.where(kind < 0.6, rare, slope))
    line = torch.linspace(-1.7, 1.7, LENGTH) * draw.normal() * draw.chance(0.4)
    return standardise(standardise(torch.cumsum(steps, -1)) + line)


def season(draw: Draw, period: Tensor) -> Tensor:
    """Harmonics of one period with falling amplitude."""
    harmonics = torch.arange(1, 7, dtype=torch.float32)[None, :, None]
    decay = draw.uniform(0.8, 3.0)[..., None]
    highest = torch.where(draw.chance(0.35), 1, period / 2)[..., None]
    amplitude = draw.normal(6, 1) * harmonics**-decay * (harmonics <= highest)
    phase = draw.uniform(0, 2 * math.pi, 6, 1)
    angle = 2 * math.pi * torch.arange(LENGTH, dtype=torch.float32) / period
    return standardise((amplitude * torch.cos(harmonics * angle[:, None] + phase)).sum(1))


def seasons(draw: Draw) -> Tensor:
    """One or two seasons, the first of drifting strength, the second seven times longer or of any length."""
    free = draw.log_uniform(4, 400)
    period = torch.where(draw.chance(0.5), free, draw.choice(CALENDAR))
    second = torch.where(draw.chance(0.4), 7 * period, draw.log_uniform(60, 3000))
    weight = draw.log_uniform(0.1, 3) * draw.chance(0.35)
    strength = torch.exp(draw.uniform(0, 0.6) * draw.chance(0.5) * smooth_process(draw))
    return standardise(season(draw, period) * strength + weight * season(draw, second))


def skewed(draw: Draw, x: Tensor) -> Tensor:
    """(B, T) -> (B, T): log-normal or intermittent (zero below a threshold) versions of some rows."""
    x = standardise(x)
    x = torch.where(draw.chance(0.15), torch.exp(draw.uniform(0.2, 1.2) * x), x)
    return torch.where(draw.chance(0.08), (standardise(x) - draw.uniform(-1, 0.8)).clamp_min(0), x)


def synthetic_series(batch: int, generator: torch.Generator) -> Tensor:
    """A batch of series `(B, 608)`: level, seasons and noise, each present or not, in random proportions."""
    draw = Draw(batch, generator)
    level = torch.where(draw.chance(0.5), integrated(draw), smooth_process(draw))
    parts = torch.stack([level, seasons(draw), arma_noise(draw)])
    weight = torch.stack([1.3 * draw.normal() for _ in parts]).exp()
    present = torch.stack([draw.chance(0.55), draw.chance(0.65), draw.chance(0.95)])
    x = skewed(draw, (present * weight * parts).sum(0))
    return standardise(x) + 1e-3 * draw.normal(LENGTH)  # the ripple keeps a flat lookback from having no scale


def build_model() -> ChronosBoltModelForForecasting:
    """An untrained Chronos-Bolt that forecasts up to 96 steps in one pass; the config.json of bolt-mini describes it.

    Two decoder layers are cheap, as the decoder has a single token; 128 buckets are one per distance of 33 tokens.
    """
    model = ChronosBoltModelForForecasting(T5Config.from_pretrained(CONFIG))
    # Under transformers 5 the library draws these with deviation 1 whatever their width.
    for name, layer in model.named_modules():
        if "patch_embedding." in name and isinstance(layer, torch.nn.Linear):
            torch.nn.init.normal_(layer.weight, std=0.7 * layer.in_features**-0.5)
    # Position reaches the decoder through the encoder's distance table only. Starting it with heads that
    # look near, further and everywhere saves about 200 steps at the start.
    distance = torch.arange(64, dtype=torch.float32).repeat(2)[:, None]  # buckets: 64 back, 64 ahead
    table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    table.data.copy_(-distance * torch.tensor([1.0, 0.3, 0.1, 0.0]))
    return model


def make_batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Lookbacks `(128, L)`, L from 64 to 512 and often 512, and targets `(128, 96)`."""
    series = synthetic_series(BATCH, generator)
    lookback = PATCH * int(torch.randint(4, 55, (), generator=generator))
    context = series[:, max(0, CONTEXT - lookback) : CONTEXT]
    mean, deviation = context.mean(-1, keepdim=True), context.std(-1, keepdim=True)
    return context, mean + deviation * ((series[:, CONTEXT:] - mean) / deviation).clamp(-CLIP, CLIP)


class Muon:
    """Momentum with orthogonalised updates; 400 steps reached a lower loss than 1200 of AdamW.

    `torch.optim.Muon` takes one bfloat16 matrix at a time, slower on a CPU than these fp32 stacks.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self.stacks = [[p for p in parameters if p.shape == s] for s in sorted({p.shape for p in parameters})]
        self.momenta = [torch.zeros(len(stack), *stack[0].shape) for stack in self.stacks]

    @staticmethod
    def orthogonalised(x: Tensor) -> Tensor:
        """(N, R, C) -> (N, R, C), singular values pushed towards 1 by five Newton-Schulz steps."""
        x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
        for _ in range(5):
            gram = x @ x.mT
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        return x

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for stack, momentum in zip(self.stacks, self.momenta, strict=True):
            gradient = torch.stack([p.grad for p in stack if p.grad is not None])
            momentum.lerp_(gradient, 0.05)
            update = self.orthogonalised(gradient.lerp(momentum, 0.95))
            scale = 0.2 * rate * max(momentum.shape[-2:]) ** 0.5  # as large as AdamW's update
            for parameter, direction in zip(stack, update, strict=True):
                parameter.sub_(scale * direction)


def train(steps: int, seed: int) -> ChronosBoltModelForForecasting:
    torch.manual_seed(seed)
    generator, model = torch.Generator().manual_seed(seed), build_model().train()
    matrices = {n: p for n, p in model.named_parameters() if ".block." in n and "bias" not in n and p.ndim == 2}
    muon = Muon(list(matrices.values()))
    adam = torch.optim.AdamW([p for n, p in model.named_parameters() if n not in matrices], betas=(0.9, 0.98))
    started, recent = time.perf_counter(), deque[float](maxlen=200)
    with ThreadPoolExecutor(max_workers=1) as worker:  # prepares the next batch meanwhile
        upcoming = worker.submit(make_batch, generator)
        for step in range(steps):
            context, target = upcoming.result()
            upcoming = worker.submit(make_batch, generator)
            loss = model(context=context, target=target).loss / HORIZON
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            rate = LEARNING_RATE * min(1.0, (step + 1) / 100) * (1 + math.cos(math.pi * step / steps)) / 2
            adam.param_groups[0]["lr"] = rate
            adam.step()
            muon.step(rate)
            recent.append(loss.item())
            if step % 200 == 0:
                print(f"{step=} loss={fmean(recent):.4f} seconds={time.perf_counter() - started:.0f}", flush=True)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for config.json and model.safetensors")
    parser.add_argument("--steps", type=int, default=4000, help="optimiser steps of 128 series (default 4000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the series (default 0)")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the result must not depend on the number of cores
    train(args.steps, args.seed).save_pretrained(args.out)


if __name__ == "__main__":
    main()
