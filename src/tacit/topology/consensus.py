"""How far nodes' models stand apart because of noise, and how that compares with their mean.

Where gradients do not answer to the noise (no curvature, no clipping), models are linear in it:

    m_i(k) = beta m_i(k-1) + xi_i(k),                       momentum, for which beta may be 0
    x(k+1) = P_R ... P_1 (x(k) - gamma_k m(k)),             adapt-then-combine
    x(k+1) = P_R ... P_2 (P_1 x(k) - gamma_k m(k)),         combine-then-adapt

with the mixing matrices of the R rounds of step k, push-sum weights w that are mixed alike, and
models z = x / w. The noise of a step, in each coordinate and in units of the **mean** over a batch,
has the covariance

    S(k) = h_k^2 (diag(own_i^2) + rho^2 rms(own)^2 L),

L the Laplacian of the pairs whose noise cancels, rho what their deviation is over the root mean
square of `own`. A row of 1 times S(k) is that of own noise alone, since the noise of pairs cancels
in the mean; what is said of the mean is therefore the same for every rho.

So z(k) = - sum over steps j of N(k, j) xi(j), and the matrices N `[nodes, nodes]` follow from the
end back to the start, a product a step. They tend to w 1^T / n times a number, at which node and
mean get the same noise and pairs cancel: there the sum over nodes ends, and that of the mean goes
on alone. So many steps cost no more than it takes to mix. A fixed symmetric matrix is diagonal in
its eigenvectors, and all steps are summed up at once.

**The figure** of a node is the deviation of its model over that of the mean of all models: 1 is
perfect mixing. Real gradients pull models together where the loss is curved, and answer to where
they stand: this is a forecast, no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tacit.topology.checks import is_circulant
from tacit.topology.mixing import Mixing

Matrix = NDArray[np.float64]
GossipOrder = Literal["adapt-then-combine", "combine-then-adapt"]
"""Whether a step mixes what its own noise has moved, or the models of before."""

MIXED = 1e-6
"""What is left of a noise apart from the mean, below which it counts as mixed."""
MOST_NUMBERS = 4_000_000
"""Steps times nodes that are summed up before what is left counts as mixed."""


_NOTHING = 1e-40  # smaller numbers change no sum, and slow it down


@dataclass(frozen=True, eq=False)
class NoiseFlow:
    """What decides how noise moves models.

    Args:
        mixing: weights of the graphs, one a round.
        own: deviation of each node's own noise in a coordinate of the batch mean, `[nodes]`; only
            its shape counts for the figure.
        rates: gamma_k, `[steps]`.
        shape: h_k, by which `own` is multiplied at each step, `[steps]`.
        pairs: whose noise cancels, `[pairs, 2]`.
        rounds: R, of a step.
        momentum: beta.
        final_rounds: that follow the last step.
        held: every so many steps begins a stretch in all of whose steps the noise of its first one
            is applied (a released anchor); 1: noise is applied once.
        active: who adds noise at a step, bool `[steps, nodes]`; None: everybody. A pair is active
            where both of its ends are.
        partner: where the first round of a step averages pairs, with whom, `[steps, nodes]`.
    """

    mixing: Mixing
    order: GossipOrder
    own: Matrix
    rates: Matrix
    shape: Matrix
    pairs: NDArray[np.int64]
    rounds: int = 1
    momentum: float = 0.0
    final_rounds: int = 0
    held: int = 1
    active: NDArray[np.bool_] | None = None
    partner: NDArray[np.int64] | None = None

    @property
    def nodes(self) -> int:
        """How many."""
        return len(self.own)

    @property
    def steps(self) -> int:
        """K."""
        return len(self.rates)

    def weights(self, k: int) -> Matrix:
        """Push-sum weights after k steps (and, at k = K, the final rounds), `[nodes]`."""
        if not self._pushes:
            return np.ones(self.nodes)
        last = k * self.rounds + (self.final_rounds if k == self.steps else 0)
        return self._weights_after(last)

    @cached_property
    def _pushes(self) -> bool:
        rows = [np.bincount(p.targets, p.values, self.nodes) for p in self.mixing.weights]
        return any(np.abs(row - 1).max() > 1e-12 for row in rows)

    def _weights_after(self, last: int) -> Matrix:
        w: Matrix = np.ones(self.nodes)
        seen, period, t = w, len(self.mixing.weights), 0
        while t < last:
            p = self.mixing.at(t)
            w = np.bincount(p.targets, p.values * w[p.sources], self.nodes).astype(np.float64)
            t += 1
            if t % period == 0:  # what has become periodic needs no more steps
                if np.abs(w - seen).max() < 1e-14 * self.nodes:
                    t += (last - t) // period * period
                seen = w
        return w


@dataclass(frozen=True, eq=False)
class ModelSpread:
    """Variances in a coordinate after some steps; of pairs, where rho = 1.

    Args:
        steps: after how many steps, `[points]`; the last step includes the final rounds.
        mean: of the mean of all models, by own noise alone, `[points]`.
        own: of each node's model by own noise, `[points, nodes]`.
        paired: of each node's model by the noise of pairs, `[points, nodes]`.
        own_apart: of a node's difference to the mean of all models, mean over nodes, `[points]`.
        paired_apart: likewise, by the noise of pairs.
    """

    steps: tuple[int, ...]
    mean: Matrix
    own: Matrix
    paired: Matrix
    own_apart: Matrix
    paired_apart: Matrix

    def figures(self, pair_noise: float) -> Matrix:
        """The deviation of each node's model over that of the mean, `[points, nodes]`.

        `pair_noise` is rho.
        """
        variances = self.own + pair_noise**2 * self.paired
        # Where nobody has added noise yet, nothing stands apart.
        mean = self.mean[:, None]
        return np.sqrt(np.divide(variances, mean, out=np.ones_like(variances), where=mean > 0))

    def apart(self, pair_noise: float) -> Matrix:
        """Root mean square over nodes of the deviation from the mean model, `[points]`.

        Of one coordinate; times sqrt(d) it is the expected distance in the l2 norm. `pair_noise` is
        rho.
        """
        return np.sqrt(self.own_apart + pair_noise**2 * self.paired_apart)


def spread(flow: NoiseFlow, steps: Sequence[int], memory: int | None = None) -> ModelSpread:
    """The variances of nodes' models after some numbers of steps, each from 1 to K.

    It costs a product of matrices `[nodes, nodes]` for every step that has not mixed yet, at each
    of the points; sums alone where all matrices have their eigenvectors in common. `memory` is how
    many steps before a point add noise, or a few more where noise is held; None: all.
    """
    windows = _by_eigenvectors(flow) or _step_by_step(flow)
    rows = [_point(flow, k, memory, windows) for k in steps]
    mean, own, paired, own_apart, paired_apart = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    return ModelSpread(tuple(steps), mean, own, paired, own_apart, paired_apart)


@dataclass(frozen=True, eq=False)
class _Window:
    """Sums over some last steps, before which all noise is mixed: the mean's among them.

    All but their number are as in `ModelSpread`, at one point.
    """

    length: int
    own: Matrix
    paired: Matrix
    own_apart: float
    paired_apart: float


_Windows = Callable[[int, int, Matrix], _Window]
"""From k, the first step that counts, and how far the noise of each step moves the mean, `[k]`."""


def _point(
    flow: NoiseFlow, k: int, memory: int | None, windows: _Windows
) -> tuple[float, Matrix, Matrix, float, float]:
    """The fields of `ModelSpread` after k steps."""
    moved = _held(_filtered(flow.rates[:k], flow.momentum), flow.held)
    present = np.ones((1, flow.nodes)) if flow.active is None else flow.active[:k]
    of_mean = (moved * flow.shape[:k]) ** 2 * (present @ flow.own**2) / flow.nodes**2
    start = 0 if memory is None else max(0, k - memory)
    start -= start % flow.held
    last = windows(k, start, moved)
    older = of_mean[start : k - last.length].sum()
    return of_mean[start:].sum(), last.own + older, last.paired, last.own_apart, last.paired_apart


def _filtered(values: Any, momentum: float) -> Any:
    """y_j = values_j + momentum y_{j+1}, from the last row `[rows, ...]` to the first."""
    y = values.copy()
    factor, shift = momentum, 1
    while factor > 1e-18 and shift < len(y):
        y[:-shift] += factor * y[shift:].copy()
        factor, shift = factor**2, 2 * shift
    return y


def _held(moved: Any, every: int) -> Any:
    """How far each noise moves, `[rows, ...]`, where that of every so many steps is held."""
    if every == 1:
        return moved
    starts = np.arange(0, len(moved), every)
    held = moved.copy()
    held[starts] = np.add.reduceat(moved, starts, axis=0)
    return held


def _laplacian(flow: NoiseFlow) -> Matrix:
    graph = np.zeros((flow.nodes, flow.nodes))
    a, b = flow.pairs[:, 0], flow.pairs[:, 1]
    np.add.at(graph, (np.append(a, b), np.append(a, b)), 1.0)
    np.add.at(graph, (np.append(a, b), np.append(b, a)), -1.0)
    return graph


def _by_eigenvectors(flow: NoiseFlow) -> _Windows | None:
    """Where all matrices have orthogonal eigenvectors in common, and everybody adds noise."""
    found = None if flow.active is not None or flow.partner is not None else _common(flow.mixing)
    if found is None:
        return None
    vectors, values = found  # the first vector is 1 / sqrt(n)
    unit = float(np.mean(flow.own**2))
    turned = vectors.conj().T
    own = turned @ (flow.own[:, None] ** 2 * vectors)
    paired = unit * (turned @ _laplacian(flow) @ vectors)
    n, period = flow.nodes, len(values)
    # The rounds of a step: its first, those after it, all of them, for every phase.
    turns = np.arange(period)[:, None] * flow.rounds + np.arange(flow.rounds)
    whole = values[turns % period].prod(1)
    adapts = flow.order == "adapt-then-combine"
    follows = whole if adapts else values[turns[:, 1:] % period].prod(1)
    final = values[(flow.steps * flow.rounds + np.arange(flow.final_rounds)) % period].prod(0)
    slowest = max(float(np.abs(values.prod(0)[1:]).max(initial=0.0)), 0.0) ** (1 / period)
    slowest = max(slowest**flow.rounds, flow.momentum, 1e-300)
    needed = math.inf if slowest > 1 - 1e-12 else math.log(MIXED) / math.log(slowest)

    def windows(k: int, start: int, moved: Matrix) -> _Window:
        # Twice, since momentum and mixing may be equally slow; and a period, which is not even.
        most = min(k, MOST_NUMBERS // n)
        first = max(start, k - math.ceil(min(2 * needed + 2 * period, most)))
        first -= first % flow.held
        phases = np.arange(first, k) % period
        last = final if k == flow.steps else np.ones(n)
        with np.errstate(under="ignore"):
            later = np.concatenate([whole[phases[1:]], last[None]])[::-1].cumprod(0)[::-1]
            left = follows[phases] * later
        left[np.abs(left) < _NOTHING] = 0.0
        each = _held(_filtered(flow.rates[first:k, None] * left, flow.momentum), flow.held)
        # Of the mean, noise of before this window counts too.
        each[:, 0] = moved[first:]
        each *= flow.shape[first:k, None]
        gram = each.T @ each.conj()

        def diagonal(noise: Any) -> Matrix:
            return np.asarray(((vectors @ (noise * gram)) * vectors.conj()).sum(1).real, np.float64)

        def apart(noise: Any) -> float:
            return float((noise * gram)[1:, 1:].trace().real) / n

        return _Window(k - first, diagonal(own), diagonal(paired), apart(own), apart(paired))

    return windows


def _common(mixing: Mixing) -> tuple[Any, Any] | None:
    """Orthonormal eigenvectors of all matrices, columns `[nodes, nodes]`, that of 1 first; values.

    The eigenvalues are of each matrix, `[period, nodes]`. None: it is neither that one symmetric
    matrix is all, nor that every row of all is the first one, moved.
    """
    n = mixing.schedule.nodes
    if all(map(is_circulant, mixing.weights)):
        vectors = np.exp(2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n) / math.sqrt(n)
        rows = [weights.block(np.array([0]), np.arange(n))[0] for weights in mixing.weights]
        return vectors, np.fft.ifft(rows, axis=1) * n
    matrix = mixing.weights[0].matrix()
    if len(mixing.weights) > 1 or not np.allclose(matrix, matrix.T, rtol=0, atol=1e-14):
        return None
    values, vectors = np.linalg.eigh(matrix)
    vectors = vectors[:, ::-1] * np.sign(vectors[:, -1].sum())
    return vectors, values[None, ::-1]


def _step_by_step(flow: NoiseFlow) -> _Windows:
    """Of any flow: back from the last step, until what its noise moves is mixed."""
    products = _Products(flow)
    constant = np.ptp(flow.rates) == np.ptp(flow.shape) == 0
    repeats = constant and flow.active is None and flow.partner is None
    known: dict[tuple[int, int], _Window] = {}

    def windows(k: int, start: int, moved: Matrix) -> _Window:
        # With the same matrices, and steps enough to mix in, the same sums.
        where = k * flow.rounds % products.period, k % flow.held
        follows = k == flow.steps and flow.final_rounds > 0
        if where in known and not follows and known[where].length <= k - start:
            return known[where]
        found = _summed(flow, k, start, products)
        if repeats and not follows and found.length < k - start:
            known[where] = found
        return found

    return windows


def _summed(flow: NoiseFlow, k: int, start: int, products: _Products) -> _Window:
    n, w = flow.nodes, flow.weights(k)
    mixed = np.repeat(w[:, None] / n, n, axis=1)
    after, response, held = products.final(k), np.zeros((n, n)), np.zeros((n, n))
    total = np.zeros((2, n))
    of_mean, most = np.zeros(2), 0.0
    for j in range(k - 1, start - 1, -1):
        into, after = products.back(j, after)
        response = flow.rates[j] * into + flow.momentum * response
        begins = j % flow.held == 0
        held = held + response
        moves = (held if begins else response) / w[:, None]
        own, paired = products.noise(j)
        mean = moves.mean(0)
        power = flow.shape[j] ** 2
        total += power * np.stack([moves**2 @ own, ((moves @ paired) * moves).sum(1)])
        of_mean += power * np.array([mean**2 @ own, mean @ paired @ mean])
        left = float(np.abs(response - response.sum(0).mean() * mixed).max())
        most = max(most, left)
        if begins:
            held = np.zeros((n, n))
            coming = float(np.abs(after - mixed).max()) * products.largest[j]
            if max(left * flow.momentum, coming) <= MIXED * most:
                break
    own_apart, paired_apart = np.maximum(total.mean(1) - of_mean, 0.0)
    return _Window(k - j, total[0], total[1], float(own_apart), float(paired_apart))


class _Products:
    """Products of the matrices of a step's rounds, kept for every phase of the period."""

    def __init__(self, flow: NoiseFlow) -> None:
        self._flow = flow
        self._matrices = [weights.matrix() for weights in flow.mixing.weights]
        self._kept: dict[int, tuple[Matrix, Matrix]] = {}
        self._noise = flow.own**2, float(np.mean(flow.own**2)) * _laplacian(flow)
        self.period = len(self._matrices)
        self.largest = np.maximum.accumulate(flow.rates)  # rate up to each step

    def noise(self, j: int) -> tuple[Matrix, Matrix]:
        """Variances of own noise `[nodes]`, covariance of that of pairs, for those active."""
        if self._flow.active is None:
            return self._noise
        chosen = self._flow.active[j]
        pairs = self._flow.pairs
        among = replace(self._flow, pairs=pairs[chosen[pairs].all(1)])
        return self._noise[0] * chosen, float(np.mean(self._flow.own**2)) * _laplacian(among)

    def final(self, k: int) -> Matrix:
        """What the final rounds do to models after step K; nothing elsewhere."""
        product = np.eye(self._flow.nodes)
        if k == self._flow.steps:
            for extra in range(self._flow.final_rounds):
                product = self._at(k * self._flow.rounds + extra) @ product
        return product

    def back(self, j: int, after: Matrix) -> tuple[Matrix, Matrix]:
        """What step j's own noise becomes, and the models before it, given `after` step j."""
        noise, whole = self._of_step(j)
        into = after @ noise
        if self._flow.order == "adapt-then-combine":
            return into, into
        return into, into @ whole

    def _of_step(self, j: int) -> tuple[Matrix, Matrix]:
        """What follows the noise of step j in it, and what precedes it."""
        flow = self._flow
        phase = j * flow.rounds % self.period
        if flow.partner is None and phase in self._kept:
            return self._kept[phase]
        first = self._at(j * flow.rounds)
        if flow.partner is not None:
            first = (np.eye(flow.nodes) + np.eye(flow.nodes)[flow.partner[j]]) / 2
        follows = np.eye(flow.nodes)
        for extra in range(1, flow.rounds):
            follows = self._at(j * flow.rounds + extra) @ follows
        adapts = flow.order == "adapt-then-combine"
        found = (follows @ first, np.eye(0)) if adapts else (follows, first)
        if flow.partner is None:
            self._kept[phase] = found
        return found

    def _at(self, t: int) -> Matrix:
        return self._matrices[t % len(self._matrices)]
