"use strict";
// The statistics of a filtered view: what Python computes for the whole ledger, over the runs that are left.

/** log Γ(x), by Lanczos' series. */
hrx.logGamma = function (x) {
  const series = [76.18009172947146, -86.50532032941677, 24.01409824083091, -1.231739572450155,
    0.1208650973866179e-2, -0.5395239384953e-5];
  const shifted = x + 5.5 - (x + 0.5) * Math.log(x + 5.5);
  const sum = series.reduce((total, term, k) => total + term / (x + 1 + k), 1.000000000190015);
  return Math.log((2.5066282746310005 * sum) / x) - shifted;
};

/** The distribution function of Beta(a, b) at x, by its continued fraction. */
hrx.betaShare = function (x, a, b) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - hrx.betaShare(1 - x, b, a);
  const front = Math.exp(
    hrx.logGamma(a + b) - hrx.logGamma(a) - hrx.logGamma(b) + a * Math.log(x) + b * Math.log(1 - x)) / a;
  const tiny = 1e-300;
  let c = 1;
  let d = 1 / (1 - ((a + b) * x) / (a + 1) || tiny);
  let value = d;
  for (let m = 1; m <= 400; m += 1) {
    const even = (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m));
    const odd = (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1));
    let change = 1;
    for (const term of [even, odd]) {
      d = 1 / (1 + term * d || tiny);
      c = 1 + term / c || tiny;
      change = c * d;
      value *= change;
    }
    if (Math.abs(change - 1) < 1e-12) break;
  }
  return front * value;
};

hrx.betaQuantile = function (share, a, b) {
  let low = 0;
  let high = 1;
  for (let k = 0; k < 40; k += 1) {
    const middle = (low + high) / 2;
    if (hrx.betaShare(middle, a, b) < share) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
};

/**
 * The percentile-bootstrap interval of a median in the limit of endless resamples: no random number is needed.
 * A resample's middle value is the one at the middle order statistic of n uniforms, which is a beta variable;
 * with an even n the two middle ones are averaged.
 */
hrx.medianInterval = function (values) {
  const n = values.length;
  if (!n) return [NaN, NaN];
  const ordered = Float64Array.from(values).sort();
  const lower = (n + 1) >> 1;
  const middles = n % 2 ? [lower] : [lower, lower + 1];
  const at = (share) => {
    const found = middles.map((place) => {
      const u = hrx.betaQuantile(share, place, n - place + 1);
      return ordered[Math.min(n - 1, Math.floor(n * u))];
    });
    return found.reduce((total, value) => total + value, 0) / found.length;
  };
  return [at(0.025), at(0.975)];
};

/** The mean over the seeds of each configuration; what is not a number is left out. */
hrx.fold = function (runs, values, configuration) {
  const sums = new Map();
  for (const run of runs) {
    const value = values[run];
    if (value === null) continue;
    const entry = sums.get(configuration[run]);
    if (entry) {
      entry.sum += value;
      entry.count += 1;
    } else sums.set(configuration[run], { sum: value, count: 1 });
  }
  return Array.from(sums.values(), (entry) => entry.sum / entry.count);
};

/** {median, low, high, positive, n} of one gain over some runs; the interval only where it is shown. */
hrx.statistic = function (runs, values, configuration, withInterval) {
  const folded = hrx.fold(runs, values, configuration);
  const [low, high] = withInterval ? hrx.medianInterval(folded) : [NaN, NaN];
  const positive = folded.length ? folded.filter((value) => value > 0).length / folded.length : NaN;
  return { median: hrx.median(folded), low, high, positive, n: folded.length };
};
