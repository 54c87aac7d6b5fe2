"""FedSPD-DP: federated primal-dual steps with a proximal regulariser, noised (Li, Wang, Chang and
Chi (FedSPD-DP)).

Server and N clients minimise sum_i f_i(x) + R(x). In round t the server broadcasts the mean of
every client's latest message to K of them; each makes Q proximal steps on mini-batches, updates its
dual variable, and sends a noised message.

| paper | here |
|---|---|
| x_0^t, broadcast | `state.server`, `[nodes, d]`, equal rows |
| x_i^{t,r}, inner iterate | `state.x`, `[nodes, d]`, the last one |
| x_i^t, mean of the Q inner iterates | `state.average`, the client's own model |
| lambda_i^t, dual variable | `state.dual` |
| y~_i^t, message | `state.message` |
| rho | `penalty` |
| gamma_i^t | `inverse_step`: a number, `"paper"`, or by default 1 / `learning_rate` |
| Q, b, K of N | `local_steps`, `[train].batch`, `clients_per_round` |
| R, lambda_R | `regulariser`, `regularisation`: R of every client |
| G, bound of a gradient's norm | `clip` (C), enforced record by record |
| d_X, d_lambda, phi | `diameter`, `dual_diameter`, `deviation`: of the schedule and the claim |
| t = 1..T | k = 0..K-1 |

For r = 1..Q, on mini-batch B_r, and then

    x <- prox_{R/(gamma+rho)}[(gamma x + rho x_0 + lambda_i - grad f_i(x; B_r)) / (gamma + rho)],
    lambda_i <- lambda_i + rho (x_0 - x_i^t),   y~_i = x_i^t - lambda_i / rho + noise.

The paper prints the inner indices as r = 0..Q-1 with x^{t,r-1} on the right; read here as Q
updates, averaged. Start, not printed: x_i = y~_i = x^0 un-noised, lambda_i = 0.

**`state = "private"`, as printed.** x starts from the client's own last inner iterate; neither it
nor lambda_i is ever noised. **`state = "public"`, repaired** (the default): x starts from x_0, what
is noised is x~_i = x_i^t + noise, and lambda_i <- lambda_i + rho (x_0 - x~_i),
y~_i = x~_i - lambda_i / rho are functions of what was released. The same noise on y~ is twice that
on x~, since y~_i = 2 x~_i - x_0 - lambda_i / rho with the old lambda_i.

**In the arithmetic that runs.** Local steps are in float64, and what they keep and what is noised
are *changes* around x_0, which is public: beside a model, what one record does would be lost to
rounding.

**Mini-batches.** `sampling = "disjoint"`: those of a round share no record. `"with-replacement"`:
each is drawn independently of the others; records *within* one are distinct in either case, while
the paper draws those one by one.

**Noise** is planned for the sum of clipped gradients over a mini-batch, standard deviation z C.
When that sum moves by one, the next iterate moves by unit = (1/b) / (gamma + rho); the noise is
z C unit on x~, and 2 z C unit on y~. z is the same in every round; so is the paper's epsilon a
round then, since its sigma_{i,t}, like unit, is inversely proportional to gamma_t + rho.

**Privacy.** Unit: a record. Relation: the plan's. Trust model: the server sees every message
(`server`); everyone sees who is active. Proofs, and what rounding adds:
`docs/proofs/primal-dual.md`. The published accounting charges less, and misses what a private state
carries.

*Public state.* All that a round starts from was released, so that rounds compose. In each, two runs
with the same coins differ in their inner iterates by d_r, which a local step shrinks by theta =
kept / (gamma + rho), the proximal operator being non-expansive. In units of unit C, a hit at local
step r moves the mean of the iterates by at most

    tail_r = (1/Q) sum_{s=0}^{Q-r} theta^s,

- *convex L-smooth record losses* (`smoothness`): kept = max(gamma, L' - gamma), L' = L for batches
  of fixed size and L J / b with Poisson sampling. One hit a round (disjoint): tail_1; up to Q hits:
  the sum of all tails. Clipping keeps convexity and L for functions of one scalar product only,
  hence for logistic regression with one output;
- *any other loss*: kept = gamma, and after a hit every record's clipped gradient may move by 2 C:
  tail_1 + 2 n sum_{r>1} tail_r with n records in each later mini-batch.

Divided by that, the multiplier is that of a `SampledGaussian`, `FixedBatchGaussian` or `Gaussian`
of rate Q q (disjoint) or 1 - (1-q)^Q, see `federated.round_sampling`.

*Private state.* `PersistentState` over all later active rounds: a hit stays in the state. Its
responses are bounded by the better of an energy that never grows (smooth convex losses, gamma >=
L'/2) and a recursion of norms, which grows exponentially. Certified, and loose.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import torch
from pydantic import field_validator
from torch import Tensor

from tacit import privacy
from tacit.algorithms.accounting import NodeRun, released_sums
from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import PaperClaims, Participation, Releases, Setup, any_clip, l2_clip
from tacit.algorithms.federated import (
    OWN_MESSAGES,
    WITH_CLIENTS,
    FederatedOptions,
    LocalSteps,
    RoundSampling,
    augmented_lagrangian,
    average_latest,
    local_schedules,
    participants,
    round_sampling,
)
from tacit.algorithms.options import Idle, RateSchedule, Size, WarmUp, step_size
from tacit.algorithms.parts import Regularisation, RegulariserName, proximal
from tacit.algorithms.promise import PromisedRun, promised
from tacit.communication.colours import Released
from tacit.errors import InputError
from tacit.privacy.accounting.private_state import ClientRound, carried_norms, energy_norms
from tacit.privacy.mechanisms.clipping import ClipNorm
from tacit.privacy.published import FEDSPD_DP as PUBLISHED
from tacit.privacy.published import FedspdRun, FormulaCondition, fedspd_rate
from tacit.privacy.published.fedspd import (
    fedspd_best_local_steps,
    fedspd_bound,
    fedspd_total_epsilon,
)
from tacit.report.documents.plan import PlannedPromise

Number = TypeVar("Number", float, Tensor)

ROUNDING = 2.0**-12
"""What the rounding of local steps may add to a sensitivity, as a share of unit C."""

_PRIVATE_ROUNDING, _PRIVATE_SHARE = 2.0**-24, 2.0**-6
"""The same for a private state, a round; and the most of it after all rounds."""

_WITHOUT_INVERSE_STEP = Idle(
    lambda options: options.inverse_step is not None,
    "sets how far a local step goes, and so does algorithm.inverse_step: give one of them",
)


class FedspdOptions(FederatedOptions):
    """Options of FedSPD-DP; `learning_rate` sets gamma = 1 / learning rate without `inverse_step`.

    `smoothness` is that of one record's loss. It goes with a public bound of the inputs' norm,
    which is enforced: see `input_bound`.
    """

    learning_rate: Annotated[Size, _WITHOUT_INVERSE_STEP] = 0.05
    learning_rate_schedule: Annotated[RateSchedule, _WITHOUT_INVERSE_STEP] = "constant"
    warm_up: Annotated[
        WarmUp,
        Idle(
            lambda options: True,
            "fedspd-dp is proved for steps that do not grow from round to round: leave it out",
        ),
    ] = 0
    penalty: Size = 20.0
    inverse_step: float | Literal["paper"] | None = None
    local_steps: LocalSteps = 1
    sampling: RoundSampling = "disjoint"
    state: Literal["public", "private"] = "public"
    regulariser: RegulariserName = "none"
    regularisation: Regularisation = 0.01
    smoothness: Size | None = None
    diameter: Size = 1.0
    dual_diameter: Size = 1.0
    deviation: Size = 1.0

    @field_validator("inverse_step", mode="before")
    @classmethod
    def _inverse_step(cls, value: Any) -> Any:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value in (None, "paper") or (number and 0 < value < math.inf):
            return value
        raise ValueError("must be a positive number, or 'paper' for the schedule that it prints")


class PrimalDualState(NamedTuple):
    """Last inner iterate x, mean of these, dual: float64 `[nodes, d]`.

    Message `[nodes, d]` and server's x_0 `[1, d]` are in the run's dtype.
    """

    x: Tensor
    average: Tensor
    dual: Tensor
    message: Tensor
    server: Tensor


def start(x: Tensor, options: FedspdOptions, context: StepContext) -> PrimalDualState:
    """x_i = y~_i = x_0 = x^0, lambda_i = 0."""
    exact = x.double()
    return PrimalDualState(exact, exact.clone(), torch.zeros_like(exact), x.clone(), x[:1].clone())


def step(
    state: PrimalDualState, k: int, options: FedspdOptions, context: StepContext
) -> PrimalDualState:
    """Round t = k + 1; x, their mean and what is noised are changes around x_0."""
    here, rho, x_0 = context.among(k), options.penalty, state.server.double()
    batch = here.batch_size.double()
    gamma = inverse_step(
        options,
        k,
        context.steps,
        noise_std=here.noise_std(k) if options.inverse_step == "paper" else 0 * batch,
        batch=batch,
        coordinates=x_0.shape[1],
        clients=context.count,
    )
    divisor = gamma + rho
    unit = 1 / (batch * divisor)
    radius = resolved_radius(unit, gamma, context.steps, here.clip(k), x_0, options)
    public = options.state == "public"
    dual = within(here.take(state.dual), radius * divisor)
    x = torch.zeros_like(dual) if public else within(here.take(state.x) - x_0, radius)
    average = torch.zeros_like(dual)
    operator = None
    if options.regulariser != "none":
        operator = proximal(options.regulariser, 1 / divisor, options.regularisation)
    for r in range(options.local_steps):
        g = here.batch_gradient(x_0 + x, k, part=r)
        # (gamma x + lambda_i - g / b) / (gamma + rho)
        moved = dual.addcdiv(g, batch, value=-1).addcmul_(x, gamma).div_(divisor)
        # prox(x_0 + moved) - x_0; nothing is rounded beside x_0 if there is no R.
        x = moved if operator is None else operator(x_0 + moved).sub_(x_0)
        average.add_(x, alpha=1 / options.local_steps)
    if public:  # lambda_i and y~_i - x_0 from the noised x~_i - x_0
        noised = here.add_noise(average.clone(), k, scale=unit)
        dual = dual - rho * noised
        sent = noised - dual / rho
    else:  # lambda_i un-noised, and the noised y~_i - x_0: it moves twice as far as x_i
        dual = dual - rho * average
        sent = here.add_noise(average - dual / rho, k, scale=2 * unit)
    message = here.put(state.message, (x_0 + sent).to(state.message.dtype))
    return PrimalDualState(
        here.put(state.x, x_0 + x),
        here.put(state.average, x_0 + average),
        here.put(state.dual, dual),
        message,
        average_latest(Released(message), k, options, context),
    )


def inverse_step(
    options: FedspdOptions,
    k: int,
    steps: int,
    *,
    noise_std: Number,
    batch: Number,
    coordinates: int,
    clients: int,
) -> Number:
    """gamma_i^t of round t = k + 1 of `steps`.

    The paper's schedule is (2 sqrt(Q p C) / d_X) sqrt(t), p = K / N, with

        C = G^2 + 2 d_lambda^2 + 2 phi^2 / b + 16 rho d G^2 ln(1.25/delta) / ((Q-1)^2 eps^2);

    its last term, eps being that of a round, is 2 rho d (s / (b Q))^2 for the published noise, s
    its standard deviation in the sum over a mini-batch: here s is that of the noise which is added,
    `noise_std`. s and b are numbers or `[nodes, 1]`; d is `coordinates`, and N is `clients`.
    """
    if options.inverse_step is None:
        return 0 * batch + 1 / step_size(options, k, steps)
    if options.inverse_step != "paper":
        return 0 * batch + options.inverse_step
    share = (options.clients_per_round or clients) / clients
    bound = 1.0 if options.settled_clip is None else options.settled_clip
    drift = bound**2 + 2 * options.dual_diameter**2 + 2 * options.deviation**2 / batch
    noise = 2 * options.penalty * coordinates * (noise_std / (batch * options.local_steps)) ** 2
    root = (options.local_steps * share * (drift + noise)) ** 0.5
    gamma: Number = 2 / options.diameter * math.sqrt(k + 1) * root
    return gamma


def resolved_radius(
    unit: Tensor,
    gamma: Tensor,
    steps: int,
    clip: float | None,
    x_0: Tensor,
    options: FedspdOptions,
) -> Tensor:
    """How long local changes may be for their rounding to be what is accounted: R, `[nodes, 1]`.

    That is `ROUNDING` of unit C, and less for a private state; R is infinite without a clipping
    bound C. `unit`, how far a change moves when the sum over a mini-batch does by one, and the
    round's `gamma` are float64 `[nodes, 1]`, and `x_0` is `[1, d]`.

    Everything in a round is non-expansive, so two neighbours' rounding adds up to at most
    2^-47 (Q + 2) min(Q + 1, (gamma + rho) / rho) R; in a private state it stays, and the dual
    variable adds it up again. Proof: `docs/proofs/primal-dual.md`.

    Raises:
        InputError: on `algorithm.inverse_step`, where x_0 is longer, so that what one record does
            would be lost beside it.
    """
    if clip is None:
        return torch.full_like(unit, math.inf)
    longer = (gamma + options.penalty) / options.penalty
    growth = longer.clamp(max=options.local_steps + 1.0)
    share: float | Tensor = ROUNDING
    if options.state == "private":
        growth = growth * longer
        share = (_PRIVATE_SHARE / (longer * (steps + 1.0) ** 2)).clamp(max=_PRIVATE_ROUNDING)
    radius = unit * (clip * 2.0**47 / (options.local_steps + 2)) * share / growth
    beside = options.local_steps > 1 or options.regulariser != "none" or options.state == "private"
    length = float(x_0.norm())
    if beside and radius.numel() and not length <= float(radius.min()):
        raise InputError(
            "algorithm.inverse_step",
            options.inverse_step,
            f"steps are so small that what one record changes is lost to rounding beside a model "
            f"of norm {length:.3g}: lower it (or raise algorithm.learning_rate), or take smaller "
            "batches",
        )
    return radius


def within(values: Tensor, radius: Tensor) -> Tensor:
    """Rows `[nodes, d]` of norm `radius` `[nodes, 1]` at most: a projection, so non-expansive."""
    lengths = values.norm(dim=1, keepdim=True)
    return torch.where(lengths > radius, values * (radius / lengths), values)


@dataclass(frozen=True)
class _Round:
    """Norms of what a record makes of a round: of the sums over mini-batches, over C.

    Under `replace-one` the pair that reads them doubles them.

    Args:
        kept: of |gamma d - (change of the gradient of the same records)| over |d|.
        others: how far the sum over a mini-batch moves after a hit, since all records' gradients
            may; 0 where `kept` covers it.
        together: the same of all later mini-batches of a round together, where that is known.
    """

    gamma: float
    kept: float
    others: float = 0.0
    together: float = math.inf


def _rounds(run: NodeRun, k: int, noise_multiplier: float) -> tuple[_Round, ...]:
    """What is known of round k: for any loss, and for smooth convex ones if they are."""
    gamma = inverse_step(
        run.options,
        k,
        run.steps,
        noise_std=noise_multiplier * run.clip[0],
        batch=run.expected_batch,
        coordinates=run.coordinates,
        clients=run.nodes,
    )
    poisson = run.sampling == "poisson" and run.rate < 1
    most = run.records if poisson else run.expected_batch
    halved = 1.0 if run.relation == privacy.REPLACE_ONE and not poisson else 2.0
    together = 2.0 * (run.records - 1) if poisson and run.disjoint else math.inf
    rough = _Round(gamma, gamma, halved * most, together)
    if run.options.smoothness is None:
        return (rough,)
    steepest = run.options.smoothness * most / run.expected_batch
    return _Round(gamma, max(gamma, steepest - gamma)), rough


def _one_hit(run: NodeRun) -> bool:
    """Whether at most one mini-batch of a round draws a record."""
    return (run.disjoint and run.rate < 1) or run.local_steps == 1


def _sensitivity(run: NodeRun, noise_multiplier: float) -> float:
    """How far a hit moves the mean of any round's inner iterates, over unit C.

    Since gamma does not fall, theta is largest in the first or in the last round, either way of
    bounding it; the better way is taken for all rounds.
    """
    first, last = (_rounds(run, k, noise_multiplier) for k in (0, run.steps - 1))
    worst = (max(_reach(run, a), _reach(run, b)) for a, b in zip(first, last, strict=True))
    return min(worst) + ROUNDING


def _reach(run: NodeRun, each: _Round) -> float:
    """How far a hit moves the mean of the inner iterates of one round, over unit C."""
    count, theta = run.local_steps, each.kept / (each.gamma + run.options.penalty)
    powers, tails = 1.0, [1.0 / count]  # from the last local step to the first
    for _ in range(count - 1):
        powers *= theta
        tails.append(tails[-1] + powers / count)
    first, after = tails[-1], tails[:-1]
    if each.others == 0:
        return first if _one_hit(run) else math.fsum(tails)
    if not after:
        return first
    return first + min(each.others * math.fsum(after), each.together * after[-1])


_NEXT_TO_NOTHING = 1e-200  # a multiplier at which nothing is protected: epsilon is infinite


def _private(run: NodeRun) -> privacy.Mechanism:
    """Rounds that were run again are copies of a message, each of which a hit may reach."""
    noise = dict(zip(run.released, run.noise_multiplier, strict=True))
    copies = Counter(run.released)
    ways = list(zip(*(_rounds(run, k, noise[k]) for k in sorted(noise)), strict=True))
    norms = [_carried(run, way, [(noise[k], copies[k]) for k in sorted(noise)]) for way in ways]
    ratio = max(
        (each.gamma + run.options.penalty) / run.options.penalty for way in ways for each in way
    )
    # It stays in the state, and so may be in every later message.
    rounding = min(_PRIVATE_ROUNDING * (run.steps + 1.0) ** 2 * ratio, _PRIVATE_SHARE)
    rounding *= math.sqrt(len(run.released)) / min(noise.values())
    rounded = ((1 + ROUNDING) * min(bounds) + rounding for bounds in zip(*norms, strict=True))
    least = dict(zip(sorted(noise), rounded, strict=True))
    rate, _ = round_sampling(run)
    return privacy.PersistentState(
        rate,
        [max(1 / least[k], _NEXT_TO_NOTHING) for k in run.released],
        relation=run.relation,
        trust_model=run.trust_model,
        coordinates=run.coordinates,
    )


def _carried(
    run: NodeRun, way: tuple[_Round, ...], released: list[tuple[float, int]]
) -> list[float]:
    """Norms of the responses to a hit in each round; gradients in units of C / b."""
    others, count, rho = way[0].others, run.local_steps, run.options.penalty
    rounds = [
        ClientRound(each.gamma, each.kept, 2 * z / (each.gamma + rho), copies)
        for each, (z, copies) in zip(way, released, strict=True)
    ]
    if others:
        return carried_norms(rounds, rho, [[1.0] + [others] * (count - 1)], others)
    single = [[float(r == hit) for r in range(count)] for hit in range(count)]
    hits = single if _one_hit(run) else [[1.0] * count]
    norms, energies = carried_norms(rounds, rho, hits, 0.0), energy_norms(rounds, rho, hits)
    return [min(pair) for pair in zip(norms, energies, strict=True)]


def mechanism(run: NodeRun) -> privacy.Mechanism:
    """What the messages of a client's active rounds leak: see the module."""
    if run.options.state == "private":
        return _private(run)
    rate, batch = round_sampling(run)
    multipliers = [z / _sensitivity(run, z) for z in run.noise_multiplier]
    return released_sums(run, multipliers, rate, batch)


def claimed_run(run: NodeRun) -> FedspdRun:
    """What the paper's formula reads: the epsilon of a round is that of the noise on y~.

    sigma = s sqrt(2 ln(1.25/delta)) / eps with the published sensitivity s, solved for eps. With
    every record in every mini-batch q_i = 1, where the formula is infinite.
    """
    options, local = run.options, run.local_steps
    batch = int(run.expected_batch)
    averaging = local / (local - 1) if local > 1 else 1.0
    classical = math.sqrt(2 * math.log(1.25 / run.delta))
    whole = run.rate == 1
    return FedspdRun(
        records=run.records,
        batch=batch,
        local_steps=1 if whole else local,
        clients=run.nodes,
        chosen=options.clients_per_round or run.nodes,
        rounds=run.steps if run.completed is None else run.completed,
        round_epsilon=2 * averaging * batch * classical / run.noise_multiplier[0],
        delta=run.delta,
        penalty=options.penalty,
        dimension=run.coordinates,
        drawing="with-replacement"
        if options.sampling == "with-replacement" and not whole
        else "without-replacement",
        state=options.state,
        gradient_bound=run.clip[0],
        diameter=options.diameter,
        dual_diameter=options.dual_diameter,
        deviation=options.deviation,
    )


def clip_norms(options: FedspdOptions) -> Sequence[ClipNorm]:
    """Every norm, of any loss; l2 alone with a smoothness.

    Clamped coordinate by coordinate, a gradient is that of no convex loss.
    """
    return any_clip(options) if options.smoothness is None else l2_clip(options)


def check(setup: Setup) -> tuple[str, ...]:
    """Refuse a smoothness that does not hold; warn where the bound is one for any loss.

    Raises:
        InputError: on `algorithm.smoothness`, for another model than logistic regression or below
            what the records need.
    """
    options = setup.options
    warnings: tuple[str, ...] = ()
    if options.smoothness is not None:
        _check_smoothness(setup)
    elif setup.accounted and (options.local_steps > 1 or options.state == "private"):
        kept = "several local steps" if options.state == "public" else "a private state"
        warnings = (
            "without algorithm.smoothness every gradient after one that a record has moved counts "
            f"as moved by 2 C: with {kept} the certified epsilon is that of the "
            "worst loss, very loose; give smoothness (logistic regression), local_steps = 1 with "
            "state = 'public', or at least train.sampling = 'fixed'",
        )
    return warnings


def input_bound(options: FedspdOptions) -> float | None:
    """The longest input of which `smoothness` L is true: sqrt(4 L - 1), rounded down; None else."""
    if options.smoothness is None or not options.smoothness > 0.25:
        return None
    exact = 4 * Fraction(options.smoothness) - 1
    bound = math.sqrt(exact)
    while Fraction(bound) ** 2 > exact:
        bound = math.nextafter(bound, 0.0)
    return bound


def _up(value: float) -> str:
    """Six significant digits, never below the value."""
    shown = float(f"{value:.6g}")
    return f"{shown if shown >= value else value:.17g}"


def _check_smoothness(setup: Setup) -> None:
    given = setup.options.smoothness

    def refused(expected: str) -> InputError:
        return InputError("algorithm.smoothness", given, expected)

    if setup.model not in ("logistic", "linear") or setup.loss != "logistic":
        raise refused(
            "is for task.model = 'logistic' with task.loss = 'logistic' only: clipping keeps a "
            "loss convex and smooth where it is a function of one scalar product, and a mean over "
            "views (task.augmentation) is none; leave it out"
        )
    if input_bound(setup.options) is None:
        raise refused("must be above 1/4: L is (B^2 + 1) / 4 for inputs up to a norm of B")
    assert setup.input_bound is not None
    bound, least = Fraction(setup.input_bound), Fraction(given)
    if 4 * least < bound**2 + 1:
        raise refused(
            f"must be at least (B^2 + 1) / 4 = {_up((setup.input_bound**2 + 1) / 4)} for "
            f"task.input_bound B = {setup.input_bound:g}: raise it, or lower the bound (without "
            "one, inputs are scaled down to what this smoothness allows)"
        )


_TERMS = (
    ("of start and end, sums of J_i", "losses at both: no public fact bounds it"),
    ("of the diameters d_X and d_lambda", "noise and a clip"),
    ("of the regulariser", "noise, a clip and a bound of the subgradients of R"),
    ("of steps and noise, C(Q, eps)", "noise and a clip"),
)


def promise(run: PromisedRun) -> PlannedPromise:
    """Theorem 2 (28) at this noise but for its first term, its rate (30), and the Q of (32)."""
    options, claimed = run.options, run.claimed
    chosen = options.clients_per_round or len(run.records)
    subgradients = {"none": 0.0, "l1": options.regularisation * math.sqrt(run.parameters)}
    values = (math.nan,) * 3
    figures: dict[str, float] = {}
    if claimed:
        bound = subgradients.get(options.regulariser, math.nan)
        values = fedspd_bound(claimed, regulariser_gradient=bound)
        total = fedspd_total_epsilon(claimed[0])
        if total < math.inf:
            best = fedspd_best_local_steps(claimed[0], total)
            figures["best local steps Q for its claimed total"] = best
    gamma = FormulaCondition(
        "gamma_t as Theorem 2 has it, algorithm.inverse_step = 'paper'",
        options.inverse_step == "paper",
    )
    return promised(
        run,
        _TERMS,
        (math.nan, *values),
        source="FedSPD-DP's Theorem 2",
        quantity="error of the objective, summed over clients",
        order=fedspd_rate(
            participation=chosen / len(run.records),
            rounds=run.steps,
            local_steps=options.local_steps,
        ),
        figures=figures,
        conditions=(*run.claim_conditions, gamma),
    )


FEDSPD_DP = Algorithm(
    name="fedspd-dp",
    title="FedSPD-DP",
    documentation=__doc__,
    options=FedspdOptions,
    schedules=local_schedules,
    start=start,
    step=step,
    # The clients' own x_i^t, never noised: private, neither they nor their scores are sent.
    models=lambda state: state.average.to(state.message.dtype),
    passes_in_float64=True,
    primal_dual=lambda state, options: augmented_lagrangian(state.average, state, options),
    input_bound=input_bound,
    check=check,
    graph=WITH_CLIENTS,
    releases=Releases(
        models=False,
        mechanism=mechanism,
        falls=True,
        # A proximal step in the iterates is not linear, unless it is that of l2.
        apart=lambda options: "nodes" if options.regulariser in ("none", "l2") else "no",
        clip_norms=clip_norms,
        cost_depends_on_step=lambda options: options.state == "private",
        no_secure_sum=OWN_MESSAGES,
        not_covered=lambda options: (
            "each client's own model and inner iterate: local, never noised; neither they nor "
            "their scores are sent, and loss and accuracy are those of the server's model",
        ),
    ),
    claims=PaperClaims(
        formula=PUBLISHED,
        run=claimed_run,
        round_epsilon=lambda run: run.round_epsilon,
        convex=True,
        promise=promise,
    ),
    participation=Participation(
        activity=participants,
        no_weights="has a proved sensitivity for losses as they are: a weighed one is as much "
        "steeper",
    ),
)
