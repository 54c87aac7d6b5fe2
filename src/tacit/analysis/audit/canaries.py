"""Canaries: records in the user's own model and gradient path, each in by a secret fair coin.

Here they are made, scored and guessed, in one full training that the audit runs; `deployed` does
the same of a real run, which is the case of one release, from its start to its end.

Steinke, Nasr and Jagielski (2023): the coins are independent, so that a single run tests as many
guesses as it has canaries, on the experiment's own task, model and data. Every node's canaries
are guessed from all that is released; the releases of all nodes together are as private for each
record as that record's node is.

What is looked at are the releases themselves, as they come back from the noise: every message is a
function of them, so that no observer of any trust model can know more. This way every algorithm
that adds noise can be audited, whatever it does with what it releases.

*Scores.* A canary has two forms, and its coin decided which of them is in the data. What a training
releases is, up to a factor, a sum of clipped gradients under noise. So the score is the inner
product of what was released with the difference of the two forms' clipped gradients, less what all
other records are expected to add: the slope of the log-likelihood at even odds, where the noise is
Gaussian. No score knows a coin. Gradients are taken at points that were released themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.analysis.audit.colluders import Colluders, estimated, keys_of
from tacit.analysis.audit.recorder import ContextFactory, Trace, TracedRelease, run_traced, seeded
from tacit.analysis.audit.trade_off import Guessed
from tacit.data import StackedData, bounded_inputs
from tacit.data.units import Units
from tacit.gradients import StackedModel, record_coins
from tacit.gradients.losses import IGNORED, OF_NUMBERS
from tacit.models.architectures import failures
from tacit.privacy import ADD_OR_REMOVE_ONE, Relation
from tacit.privacy.mechanisms.clipping import ClipNorm
from tacit.training.job import Job
from tacit.training.plan import Plan
from tacit.training.processes.communication import local_exchange

CHUNK = 2_000_000  # numbers of the canaries' gradients that are taken at a time
MOST_KNOWN = 1024  # other records of a node that stand for all of them,
MOST_KNOWN_TOGETHER = 8192  # but of all nodes together not many more than these
LEAST_KNOWN = 32
RIDGE = 0.1  # of the mean square of a canary's gradient


@dataclass(frozen=True, eq=False)
class Forms:
    """The two forms of every canary; which of them is in the data is not here.

    Args:
        nodes: int64 `[m]`, the nodes that hold them.
        inputs: `[m, ...]`, of the form that is in where the coin says so.
        targets: `[m]` or `[m, outputs]`, of that form.
        other_inputs: of the form that is in otherwise; None where no record is.
        other_targets: likewise.

    A unit's inputs are `[m, rows, ...]`, and its targets likewise: all rows of the first form
    count, and of the other one those that were there.
    """

    nodes: Tensor
    inputs: Tensor
    targets: Tensor
    other_inputs: Tensor | None
    other_targets: Tensor | None

    @property
    def both(self) -> list[tuple[Tensor, Tensor]]:
        """Inputs and targets of each form that is a record."""
        if self.other_inputs is None or self.other_targets is None:
            return [(self.inputs, self.targets)]
        return [(self.inputs, self.targets), (self.other_inputs, self.other_targets)]


@dataclass(frozen=True, eq=False)
class Canaries(Forms):
    """Canaries and their secret coins: `included`, bool `[m]`."""

    included: Tensor


class Alignment:
    """Scores of canaries, added up release by release.

    Args:
        data: every node's records; the rows of canaries are not looked at.
        rows: int64 `[m]`, the canaries' numbers in the stacked data, or numbers after all of them.
        sign: 1 where a release grows with the gradients, -1 where it falls.
        seed: the public one: of dropout, and of the records that stand for a node's others where
            it has many.
        joint: whether canaries are told apart together, by least squares: for few releases. Then
            `m^2` numbers are kept, and the gradients of all canaries at once.
        crowd: whether the records that stand for a node's others are told apart with them.
        ridge: of least squares, in mean squares of what is told apart.
        most_known: records of a node that stand for all of its others.
    """

    def __init__(
        self,
        model: StackedModel,
        data: StackedData,
        rows: Tensor,
        forms: Forms,
        *,
        clip_norm: ClipNorm,
        sign: int = 1,
        seed: int = 0,
        joint: bool = False,
        crowd: bool = False,
        ridge: float = RIDGE,
        most_known: int = MOST_KNOWN,
    ) -> None:
        self._model, self._forms, self._norm, self._sign = model, forms, clip_norm, sign
        self._device, self._seed = data.targets.device, seed
        self._numbers, self._ridge = rows - data.firsts[forms.nodes], ridge
        self._indices, self._mask, self._factor = _known(data, rows, seed, most_known)
        self._known, self._shares = data.gather(self._indices), data.shares(self._indices)
        self._of_forms: list[Tensor | None] = [None, None]
        if data.units is not None:
            self._of_forms = [full_shares(data.units, len(rows)), data.units.shares(rows)]
        # The canaries of every node, and which slots hold one, `[nodes, width]`.
        counts = torch.bincount(forms.nodes, minlength=len(data.sizes))
        width = max(1, int(counts.max()))
        self._filled = torch.arange(width, device=forms.nodes.device) < counts[:, None]
        self._slots = torch.zeros_like(self._filled, dtype=torch.int64)
        self._slots[self._filled] = torch.argsort(forms.nodes, stable=True)
        self._apart = [(forms, self._numbers)]
        if crowd:
            nodes, slots = self._mask.nonzero(as_tuple=True)
            inputs, targets = (values[nodes, slots] for values in self._known)
            each = Forms(nodes, inputs, targets, None, None)
            self._apart.append((each, self._indices[nodes, slots]))
        self._owners = torch.cat([each.nodes for each, _ in self._apart])
        count = len(self._owners)
        zeros = torch.zeros(count, dtype=torch.float64, device=self._device)
        self._agreed, self._expected = zeros.clone(), zeros.clone()
        self._gram = torch.zeros(count, count, dtype=torch.float64) if joint else None
        self._crowd_agreed = self._crowd_square = 0.0

    def add(
        self,
        points: Sequence[Tensor],
        released: Tensor,
        precision: Tensor,
        clip: float | None,
        *,
        step: int = 0,
    ) -> None:
        """Take one release into account.

        Args:
            points: `[nodes, d]` each, where gradients are taken, and averaged: public.
            released: `[nodes, d]`; rows without precision are not looked at.
            precision: float64 `[nodes]`, one over the noise's variance; 0: nothing was released.
            clip: the clipping bound C.
            step: its number, by which dropout masks go.
        """
        everyone = torch.arange(len(self._slots), device=self._device)
        # Every node's sum of clipped gradients of the records that are no canaries,
        coins = self._coins(step, everyone, self._indices)
        found = self._gradient(points, *self._known, self._mask, clip, coins, self._shares)
        whole = found.double() * self._factor[:, None]
        # and what canaries add on average: half of both forms of each.
        coins = self._coins(step, everyone, self._numbers[self._slots])
        halves = torch.zeros_like(whole)
        for (inputs, targets), shares in zip(self._forms.both, self._of_forms, strict=False):
            shown, wanted, own = (_some(v, self._slots) for v in (inputs, targets, shares))
            halves += self._gradient(points, shown, wanted, self._filled, clip, coins, own) / 2
        whole = whole + halves
        weighed = precision[:, None] * released.double()
        self._crowd_agreed += float((weighed * whole).sum())
        self._crowd_square += float((precision[:, None] * whole * whole).sum())
        # Scores need no more digits than gradients have, but numbers that do not overflow.
        wanted = torch.stack([weighed, precision[:, None] * whole], dim=2)
        size = wanted.abs().amax((0, 1)).clamp_min(1e-300)
        wanted, kept, start = (wanted / size).to(points[0].dtype), [], 0
        for forms, numbers in self._apart:
            everyone = torch.arange(len(numbers), device=self._device)
            for part in torch.split(everyone, 1 + CHUNK // self._model.parameters_count):
                difference, first = self._difference(points, forms, numbers, part, clip, step), 0
                # Those of one node follow each other.
                for node, count in zip(
                    *torch.unique_consecutive(forms.nodes[part], return_counts=True), strict=True
                ):
                    rows = slice(first, first + int(count))
                    agreed, expected = (difference[rows] @ wanted[node]).double().T * size[:, None]
                    self._agreed[start + part[rows]] += agreed
                    self._expected[start + part[rows]] += expected
                    first = rows.stop
                if self._gram is not None:
                    kept.append(difference.double())
            start += len(numbers)
        if self._gram is not None:
            together = torch.cat(kept) * precision[self._owners].sqrt()[:, None]
            same = self._owners[:, None] == self._owners
            self._gram += ((together @ together.T) * same).cpu()

    def scores(self) -> NDArray[np.float64]:
        """Float64 `[m]`, larger where what was released speaks for the canary.

        What the other records add is a multiple of their gradients that is fitted to the releases.
        """
        square = self._crowd_square
        multiple = self._crowd_agreed / square if square > 0 else 0.0
        multiple = self._sign * max(0.0, self._sign * multiple)
        scores = self._sign * (self._agreed - multiple * self._expected).cpu()
        if self._gram is not None:
            ridge = self._ridge * float(self._gram.diagonal().mean()) + 1e-300
            matrix = self._gram + ridge * torch.eye(len(scores), dtype=torch.float64)
            scores = torch.linalg.solve(matrix, scores)
        found: NDArray[np.float64] = np.nan_to_num(scores[: len(self._numbers)].numpy())
        return found

    def _difference(
        self,
        points: Sequence[Tensor],
        forms: Forms,
        numbers: Tensor,
        part: Tensor,
        clip: float | None,
        step: int,
    ) -> Tensor:
        """The clipped gradients of some records, one form less the other, `[part, d]`."""
        node = forms.nodes[part]
        coins = self._coins(step, node, numbers[part][:, None])
        mask = torch.ones(len(part), 1, dtype=torch.bool, device=self._device)
        there, one = [at[node] for at in points], part[:, None]
        own, *other = (
            self._gradient(there, inputs[one], targets[one], mask, clip, coins, _some(shares, one))
            for (inputs, targets), shares in zip(forms.both, self._of_forms, strict=False)
        )
        return own - other[0] if other else own

    def _gradient(
        self,
        points: Sequence[Tensor],
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        clip: float | None,
        coins: Tensor | None,
        shares: Tensor | None,
    ) -> Tensor:
        """Sums of clipped gradients, the mean over the points."""
        batch, of = (inputs, targets, mask, clip), self._model.gradient
        more: dict[str, Any] = {"norm": self._norm, "coins": coins, "shares": shares}
        found = [of(at, *batch, **more).total for at in points]
        return torch.stack(found).mean(0) if len(found) > 1 else found[0]

    def _coins(self, step: int, nodes: Tensor, numbers: Tensor) -> Tensor | None:
        """The public coins of masks and views, of the first mini-batch of a step."""
        if not self._model.needs_coins:
            return None
        return record_coins(self._seed, step, 0, nodes, numbers)


def _some(values: Tensor | None, places: Tensor) -> Any:
    return None if values is None else values[places]


def _known(
    data: StackedData, canaries: Tensor, seed: int, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Some of every node's records that are no canaries.

    Returns:
        Their numbers and which slots hold one, `[nodes, width]`, and what all of the node's are
        over these, `[nodes]`.
    """
    rng = np.random.default_rng(seed)
    most = max(LEAST_KNOWN, min(most, MOST_KNOWN_TOGETHER // len(data.sizes)))
    taken = set(canaries.tolist())
    chosen, factors = [], []
    for offset, size in zip(data.firsts.tolist(), data.counts.tolist(), strict=True):
        others = np.asarray([n for n in range(size) if offset + n not in taken], np.int64)
        few = np.sort(rng.permutation(others)[:most])
        chosen.append(few)
        factors.append(len(others) / max(1, len(few)))
    width = max(1, *(len(few) for few in chosen))
    device = data.targets.device
    indices = torch.zeros(len(chosen), width, dtype=torch.int64, device=device)
    mask = torch.zeros(len(chosen), width, dtype=torch.bool, device=device)
    for row, few in enumerate(chosen):
        indices[row, : len(few)] = torch.from_numpy(few).to(device)
        mask[row, : len(few)] = True
    return indices, mask, torch.tensor(factors, dtype=torch.float64, device=device)


# One training.

Canary = Literal["mislabelled", "unlike"]
"""What a canary is: a record with a wrong label; or one of a wrong label whose inputs are random
numbers ten times as large as those of any record, so that its gradient is clipped, and nobody
else's points the same way."""

GUESSED_SHARE = 0.2
"""Of the canaries that are guessed; the least certain others are abstained from."""

MOST_SCORED = 200  # steps that are looked at, evenly spread
FEW_SCORED = 10  # steps that are rather looked at than more canaries
FEW_CANARIES = 20  # that are rather looked at than more steps
MOST_GRADIENTS = 2 * 10**9  # numbers of the canaries' gradients at all of them: ten seconds
MOST_PRODUCTS = 2 * 10**10  # for canaries to be told apart together: five seconds
MOST_NOISE = 4 * 10**7  # numbers of noise that are drawn in training: fifteen seconds
# Of one parameter's gradient by one record, beside one number of noise: the time that it takes.
GRADIENT_TIME = 3e-4
LARGE = 10.0  # times the largest norm of a record's inputs


@dataclass(frozen=True)
class OneRun:
    """What one training gave away.

    Args:
        guessed: of the canaries of all audited nodes.
        included: bool `[m]`, the coins.
        scores: `[m]`, larger where the releases speak for the canary.
        times: neighbouring steps between a canary that is in and one that is out, see `TradeOff`.
        stopped_after: of how many steps, where the training did not run all of those that were
            asked for; None: it did.
    """

    guessed: Guessed
    included: NDArray[np.bool_]
    scores: NDArray[np.float64]
    times: int = 1
    kind: Canary = "mislabelled"
    stopped_after: int | None = None


def mislabel(targets: Tensor, loss: str, outputs: int) -> Tensor:
    """Wrong targets for the right ones: the next class, or the opposite number (of 0, 1)."""
    if loss == "logistic":  # of two classes, numbered -1 and 1 or 0 and 1: a loss takes both
        return torch.where(targets > 0, -1, 1).to(targets.dtype)
    there = (targets != IGNORED) | (targets.ndim < 2)
    numbers = targets.is_floating_point() or bool(((targets < 0) & there).any())
    if loss in OF_NUMBERS or (numbers and loss != "cross-entropy"):
        return torch.where(targets == 0, torch.ones_like(targets), -targets)
    return torch.where(there, (targets + 1) % max(2, outputs), targets)


def unlike(inputs: Tensor, rng: np.random.Generator, bound: float | None) -> Tensor:
    """Inputs that no record has: random, and large; of whole numbers, random ones of those seen.

    They take the place of inputs `[m, ...]`. `bound` is the public norm that no record's inputs
    exceed; None: there is none.
    """
    if not inputs.is_floating_point():
        flat = inputs.reshape(-1)
        picked = torch.from_numpy(rng.integers(0, len(flat), len(flat))).to(flat.device)
        return flat[picked].reshape(inputs.shape)
    made = torch.from_numpy(rng.normal(size=tuple(inputs.shape))).to(inputs)
    axes = tuple(range(1, inputs.dim()))
    norms = inputs.double().square().sum(axes).sqrt()
    size = LARGE * max(float(norms.max()), 1.0) if bound is None else bound * (1 - 1e-3)
    own = made.double().square().sum(axes, keepdim=True).sqrt()
    return (made * (size / own)).to(inputs.dtype)


def guess(scores: NDArray[np.float64], included: NDArray[np.bool_]) -> Guessed:
    """Guess the coins of the highest and the lowest scores, as many of each; count the right ones.

    Scores `[m]` are made without the coins `included`, bool `[m]`. How many are guessed is fixed
    before the coins are looked at.
    """
    guesses = max(1, int(GUESSED_SHARE * len(scores)))
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    correct = int((~included[lowest]).sum() + included[highest].sum())
    return Guessed(len(scores), guesses, correct)


def run_once(
    job: Job,
    *,
    nodes: tuple[int, ...],
    steps: int,
    relation: Relation,
    canaries: int,
    seed: int,
    context: ContextFactory,
    canary: Canary = "mislabelled",
    colluders: Colluders | None = None,
    on_step: Callable[[int], None] = lambda k: None,
) -> OneRun:
    """Train once with canaries, and guess the coins.

    Under add-or-remove-one a canary that is out is not there, with J, rate and denominator as they
    were; under replace-one the record is as it was instead. So it is also where the number of a
    record decides how others are treated: a model with dropout, whose masks go by numbers, and a
    table of mini-batches, which hold records whose numbers follow each other. There two
    neighbouring steps lie between a canary that is in and one that is out.

    Where the model or the data are large, the training stops early, before `steps`, and fewer steps
    and canaries are looked at; all of that follows from public sizes. The first steps of a training
    are a function of all that it releases, so that they keep the certificate of the whole.

    Where a record is a unit, so is a canary: of as many rows as count, which are all the same.

    There are at most `canaries` in all, and at most half of a node's records. They are mislabelled
    where the model fails on ones that are unlike any other. Colluders pool what they know of the
    one node that is audited; None where there is no noise of pairs. `seed` is of coins and noise,
    and `on_step` is told how many steps are done.
    """
    rng = np.random.default_rng(seed)
    chosen = job.config.algorithm
    table = chosen.definition.table(chosen.options)
    # Whether a record that is gone changes how the records after it are treated.
    by_number = job.model.needs_coins or (table is not None and table.mini_batch is not None)
    zero_out = relation == ADD_OR_REMOVE_ONE and not by_number
    # Steps that take some fifteen seconds of one core, by public sizes; at least one.
    drawn = sum(node.expected_batch for node in job.plan.nodes) * job.plan.release.local_steps
    each = job.plan.parameters * (len(job.plan.nodes) + GRADIENT_TIME * drawn)
    ran = min(steps, max(1, int(MOST_NOISE / each)))
    numbers = job.plan.parameters * (1 if zero_out else 2) * (job.model.unit_rows or 1)
    fewest = min(ran, FEW_SCORED)
    most = max(FEW_CANARIES, MOST_GRADIENTS // (numbers * fewest))
    rows, owners = choose_rows(job.train, nodes, min(canaries, most), rng)
    included, count = rng.random(len(rows)) < 0.5, len(rows)
    scored = min(ran, MOST_SCORED, max(fewest, MOST_GRADIENTS // (numbers * count)))
    units = job.train.units
    firsts = rows if units is None else units.starts[rows]
    right, was = job.train.targets[firsts], job.train.inputs_of(firsts)
    made, bound = was, job.config.input_bound
    if canary == "unlike":
        if job.features is not None and job.raw is not None:  # features of such records
            made = job.features(unlike(job.raw.inputs_of(firsts), rng, None))
            made = made if bound is None else bounded_inputs(made, bound)
        else:
            made, packed = unlike(was, rng, bound), job.model.packed
            made = made if packed is None else packed.possible(made, job.train.inputs)
        taken = made.to(job.dtype) if made.is_floating_point() else made
        if failures(job.model.evaluated, taken):
            canary, made = "mislabelled", was
    wrong = mislabel(right, job.loss.name, job.outputs)
    if units is not None:
        made, wrong = (alike(values, units.rule.most) for values in (made, wrong))
        was, right = records_of(job.train, rows)
    forms = Forms(
        nodes=owners,
        inputs=made,
        targets=wrong,
        other_inputs=None if zero_out else was,
        other_targets=None if zero_out else right,
    )
    out = torch.from_numpy(~included).to(job.device)
    plan, train = job.plan, in_place(job.train, rows, forms, out)
    if zero_out:
        plan, train = _without(plan, train, rows[out])
    alignment = Alignment(
        job.model,
        job.train,
        rows,
        forms,
        clip_norm=plan.release.clip.norm,
        sign=-1 if job.config.algorithm.definition.releases.falls else 1,
        seed=job.config.train.seed,
        joint=count**2 * plan.parameters * scored < MOST_PRODUCTS,
    )
    looked_at = frozenset(np.linspace(0, ran - 1, scored).astype(int).tolist())

    def done(k: int, points: Tensor, trace: Trace) -> None:
        if k in looked_at:
            _look(job, trace, points, alignment, colluders)
        trace.forget()
        on_step(k + 1)

    run_traced(
        seeded(plan, seed),
        job.model,
        train,
        local_exchange(job),
        context=context,
        steps=ran,
        on_step=done,
    )
    scores = alignment.scores()
    return OneRun(
        guessed=guess(scores, included),
        included=included,
        scores=scores,
        times=2 if relation == ADD_OR_REMOVE_ONE and not zero_out else 1,
        kind=canary,
        stopped_after=None if ran == steps else ran,
    )


def full_shares(units: Units, count: int) -> Tensor:
    """The shares of so many units that have all rows that count, float64 `[count, rows]`."""
    most, device = units.rule.most, units.starts.device
    ones = torch.ones(count, most, dtype=torch.float64, device=device)
    return ones / most if units.rule.gradient == "mean" else ones


def alike(values: Tensor, rows: int) -> Tensor:
    """Units of rows that are all the same, `[m, rows, ...]`, of values `[m, ...]`."""
    return values.unsqueeze(1).expand(-1, rows, *values.shape[1:])


def choose_rows(
    data: StackedData, nodes: Sequence[int], count: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Numbers in all of the records whose place canaries take, and their nodes, int64.

    Of each node as many, `count` in all at most, and at most half of a node's records.
    """
    each, rows = -(-count // len(nodes)), []
    for node in nodes:
        size, offset = int(data.counts[node]), int(data.firsts[node])
        rows.append(offset + np.sort(rng.permutation(size)[: max(0, min(each, size // 2))]))
    owners = np.repeat(np.asarray(nodes, np.int64), [len(part) for part in rows])
    chosen, device = np.concatenate(rows)[: max(0, count)], data.targets.device
    return (
        torch.from_numpy(chosen).to(device),
        torch.from_numpy(owners[: len(chosen)]).to(device),
    )


def in_place(data: StackedData, rows: Tensor, forms: Forms, out: Tensor) -> StackedData:
    """The records with a canary in each of these rows, in its other form where it is `out`.

    Both are of the canaries: `rows` int64 `[m]`, and `out` bool `[m]`. Where canaries have no other
    form, one that is out is there as well.
    """
    if data.units is not None:  # whose other form is what is there
        return exchanged(data, rows[~out], forms.inputs[~out], forms.targets[~out])
    data = exchanged(data, rows, forms.inputs, forms.targets)
    if forms.other_inputs is None or forms.other_targets is None:
        return data
    return exchanged(data, rows[out], forms.other_inputs[out], forms.other_targets[out])


def records_of(data: StackedData, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets of some records by their numbers in all, `[m, ...]`; of units by rows."""
    rows = numbers if data.units is None else data.units.rows(numbers)
    inputs = data.inputs_of(rows.reshape(-1))
    return inputs.reshape(*rows.shape, *inputs.shape[1:]), data.targets[rows]


def exchanged(data: StackedData, numbers: Tensor, inputs: Tensor, targets: Tensor) -> StackedData:
    """The data with other records, `[m, ...]`, in the place of those of some numbers in all.

    Units are `[m, rows, ...]`, and each has all of these rows then, which lie behind all others.
    """
    stored, units = data.inputs, data.units
    if units is None:
        stored, wanted = stored.clone(), data.targets.clone()
        stored[numbers], wanted[numbers] = inputs.to(stored.dtype), targets
        return StackedData(stored, wanted, data.offsets, data.sizes)
    starts, counts = units.starts.clone(), units.counts.clone()
    count, rows = targets.shape[:2]
    starts[numbers] = len(stored) + rows * torch.arange(count, device=starts.device)
    counts[numbers] = rows
    return StackedData(
        torch.cat([stored, inputs.flatten(0, 1).to(stored.dtype)]),
        torch.cat([data.targets, targets.flatten(0, 1)]),
        data.offsets,
        data.sizes,
        units=replace(units, starts=starts, counts=counts),
    )


def _without(plan: Plan, train: StackedData, gone: Tensor) -> tuple[Plan, StackedData]:
    """Plan and records without those that are gone; J, rate and denominators are public."""
    units, nodes_here = train.units, torch.arange(len(train.sizes), device=gone.device)
    owner = torch.repeat_interleave(nodes_here, train.counts)
    keep = torch.ones(len(owner), dtype=torch.bool, device=gone.device)
    keep[gone] = False
    sizes = torch.bincount(owner[keep], minlength=len(train.sizes))
    nodes = tuple(
        replace(node, records=int(size)) for node, size in zip(plan.nodes, sizes, strict=True)
    )
    plan, offsets = replace(plan, nodes=nodes), sizes.cumsum(0) - sizes
    if units is None:
        inputs, targets = train.inputs[keep], train.targets[keep]
        return plan, StackedData(inputs, targets, offsets, sizes, packed=train.packed)
    kept = Units(units.rule, units.starts[keep], units.counts[keep], offsets, sizes, ())
    return plan, replace(train, units=kept)


def _look(
    job: Job,
    trace: Trace,
    points: Tensor,
    alignment: Alignment,
    colluders: Colluders | None,
) -> None:
    """Hand the releases of one step on, which began at these public points, `[nodes or 1, d]`."""
    plan, releases = trace.plan, job.config.algorithm.definition.releases
    points = points.expand(len(plan.nodes), -1)
    for release in trace.releases:
        nodes = torch.tensor(release.nodes, dtype=torch.int64, device=job.device)
        whole = torch.zeros_like(points, dtype=torch.float64)
        whole[nodes] = release.after.double()
        precision = torch.zeros_like(whole[:, 0])
        deviations = torch.from_numpy(release.deviations)
        precisions = torch.where(deviations > 0, deviations**-2, 0.0)  # one over the variance
        precision[nodes] = precisions.to(job.device)
        if colluders is not None:
            whole, precision = _pooled(plan, release, whole, precision, colluders)
        clip = plan.release.clip.applied(release.step) if releases.clips == "gradients" else None
        alignment.add([points], whole, precision, clip, step=release.step)


def _pooled(
    plan: Plan, release: TracedRelease, whole: Tensor, precision: Tensor, colluders: Colluders
) -> tuple[Tensor, Tensor]:
    """What colluders make of a release: of their node alone, with as much noise as they leave.

    The plan is under seeded noise. `whole` is what all nodes released, `[nodes, d]`, and
    `precision` one over the variance of each node's own noise, `[nodes]`; 0: nothing is known.
    """
    node, nothing = colluders.node, torch.zeros_like(precision)
    estimate = colluders.estimates[release.step]
    if estimate is None or not precision[node] > 0:
        return whole, nothing
    values = (whole * precision.sqrt()[:, None]).cpu().numpy()
    keys = keys_of(colluders, plan)
    found = torch.from_numpy(estimated(values, plan, release, colluders, keys)[0])
    left = estimate.gain / precision[node].sqrt()
    pooled = torch.zeros_like(whole)
    pooled[node] = found.to(whole.device) * left
    nothing[node] = left**-2
    return pooled, nothing
