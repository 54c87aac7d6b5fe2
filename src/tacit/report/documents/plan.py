"""What would happen, as documents: `tacit plan --json`, with `--optimise` or `--recommend` too."""

from __future__ import annotations

from typing import Any

from tacit.report.documents.base import Count, Document, Flag, Items, Number, OptionalNumber, Text
from tacit.report.documents.run import ClaimCondition
from tacit.report.documents.unit import UnitTerms


class PlannedNode(Document):
    """What one node would do, and what that would cost.

    As `tacit.training.release.NodePlan` has it. Noise multipliers, and the node's own noise in a
    coordinate of what it adds to the mean over all nodes (n p_i times its batch mean), are
    `(first, last)` of the run: `noise_multiplier` is what all noise counts for that hides the
    node's records, `own_noise_multiplier` that of its own noise. They differ where nodes hide
    behind each other; `epsilon_by_colluders` is then certified against 0, 1, 2 ... nodes who pool
    what they know, up to one more than the plan allows for. Elsewhere it has no entries.
    `signal_share` is p_i, and `noise_share` the node's part of the variance of the noise in the
    mean over all nodes. `name` is given where nodes have names, and
    `guess` and what is certified of it where that is the budget.
    """

    node: Count
    records: Count
    rate: Number
    expected_batch: Number
    weight: Number
    signal_share: Number
    noise_share: OptionalNumber
    noise_scale: OptionalNumber
    budget: OptionalNumber
    delta: OptionalNumber
    epsilon: OptionalNumber
    claimed: OptionalNumber
    conditions: Items[ClaimCondition]
    noise_multiplier: tuple[OptionalNumber, OptionalNumber]
    own_noise_multiplier: tuple[OptionalNumber, OptionalNumber]
    noise_std: tuple[OptionalNumber, OptionalNumber]
    epsilon_by_colluders: Items[OptionalNumber]
    name: Text | None = None
    guess: OptionalNumber = None
    right_guess: OptionalNumber = None


class PlannedTerm(Document):
    """A term of the bound; without a `value` where it is not evaluated, for that `reason`."""

    name: Text
    value: OptionalNumber
    reason: Text = ""


class PlannedPromise(Document):
    """What the run's paper promises of its result: its own words, and nothing that is certified.

    `bound` is of the `quantity` after the run's `steps`, with the noise that the run adds: the sum
    of its `terms`, None where one of them is not evaluated; `evaluated` adds up the others.
    `best_steps` is the number that the paper calls best, with the paper's own noise, and
    `best_bound` the bound there; `trivial_bound` is what the paper's bound of every gradient, which
    is the clipping bound here, gives without any theorem; `order` is that of a bound, without its
    constants, and `figures` what else the paper has, by name. `needs` are constants of `[promise]`
    that are not given, `conditions` those of the theorem.
    """

    source: Text
    quantity: Text
    steps: Count
    bound: OptionalNumber
    evaluated: OptionalNumber
    terms: Items[PlannedTerm]
    best_steps: OptionalNumber = None
    best_bound: OptionalNumber = None
    trivial_bound: OptionalNumber = None
    order: OptionalNumber = None
    figures: dict[str, OptionalNumber]
    needs: Items[Text] = ()
    conditions: Items[ClaimCondition] = ()


class PlanDocument(Document):
    """A plan: what is common to all nodes, and a row for each; `clip` is `(first, last)`.

    `trust_model` is None where nothing is accounted; `unit` is whom epsilon protects. `colluding`
    nodes may pool all that they know, and `pair_noise` is the deviation of a pair's noise over that
    of a node's own; both are None where no nodes share noise. `metrics` are those that were asked
    for; `baselines` what a model that ignores its inputs scores on the public test records, by the
    name of the score. `rounds` are the gossip rounds of a step. `promise` is what the paper says of
    the result; None: nothing.
    """

    algorithm: Text
    dataset: Text
    nodes: Count
    parameters: Count
    steps: Count
    relation: Text | None
    trust_model: Text | None
    unit: UnitTerms
    colluding: Count | None
    pair_noise: OptionalNumber
    mechanism: Text | None
    clip: tuple[OptionalNumber, OptionalNumber] | None
    graph: Text
    mixing: Text
    rounds: Count
    contraction: OptionalNumber
    spectral_gap: OptionalNumber
    bytes_per_step: OptionalNumber
    gradient_path: Text
    metrics: Items[Text]
    baselines: dict[str, OptionalNumber]
    warnings: Items[Text]
    notes: Items[Text]
    promise: PlannedPromise | None
    per_node: Items[PlannedNode]


class OptimiseConstant(Document):
    """A constant of the bound, and where it comes from; `private`: epsilon covers it."""

    name: Text
    value: OptionalNumber
    kind: Text
    how: Text
    private: Flag


class OptimisedRun(Document):
    """A run with certified noise, and the bound of its mean squared gradient norm.

    A choice has a `clipping_bias`, None where no norm was read; a row of `purchases` says what
    `change` it is. `noise_std` is in a coordinate of the batch mean, root mean square over nodes
    and steps; `accumulated_noise` that of the mean over nodes and steps. The bias is the squared
    bound of how far clipping moves the mean gradient at the start: no part of the theorem.
    """

    change: Text | None = None
    bound: Number
    clipping_bias: OptionalNumber = None
    steps: Count
    batch: Count | Text
    clip: Number
    noise_multiplier: Number
    noise_std: Number
    accumulated_noise: Number
    over_least_noise: Number
    record_gradients: Number


class PublishedRun(Document):
    """Corollary 1: what the paper's formula makes the best number of steps, and what that costs.

    `certified` is the same number of steps with the noise that is really needed, in the file's
    batch, and `one_record` with one record a step, for which the paper prints its formula; None
    where it is beyond the longest run considered. `c2` is what the paper leaves open.
    """

    exact: Number
    steps: Count
    bound: Number
    noise_std: Number
    gradient_bound: Number
    c2: Number
    certified: OptimisedRun | None
    one_record: OptimisedRun | None


class BoundPoint(Document):
    """A number of steps, and the bound with the claimed noise."""

    steps: Count
    bound: Number


class BoundTheorem(Document):
    """Below how many steps the theorem says nothing, and whether the optimum lies there."""

    least_steps: Number
    excluded: Flag


class OptimiseDocument(Document):
    """An optimised plan: what would be best for the budgets, by the bound.

    `records` and `budgets` (epsilon, delta) are those that nodes have. `certified` is the optimum
    with the noise that is really needed, `curve` what was calibrated over the steps in the file's
    batch and clip, `batches` and `clips` the best of each that was tried where that was asked, and
    `purchases` what one change of the file would buy, from `as_is` on.
    """

    algorithm: Text
    title: Text
    dataset: Text
    model: Text
    nodes: Count
    records: Items[Count]
    budgets: Items[tuple[Number, Number]]
    parameters: Count
    relation: Text
    sampling: Text
    constants: Items[OptimiseConstant]
    warning: Text | None
    as_is: OptimisedRun
    certified: OptimisedRun
    published: PublishedRun
    curve: Items[OptimisedRun]
    claimed_curve: Items[BoundPoint]
    batches: Items[OptimisedRun]
    clips: Items[OptimisedRun]
    theorem: BoundTheorem
    purchases: Items[OptimisedRun]
    learning_rate: Number
    flags: Items[Text]
    advice: Items[Text]
    not_modelled: Items[Text]


class ProposedKey(Document):
    """A key of the experiment, such as `train.steps`, its value, and why."""

    key: Text
    value: Any
    reason: Text


class ForecastNoise(Document):
    """What the noise of a run comes to under a trust model, over the clipping bound C.

    `noise` is s, the standard deviation of a coordinate of the noise of one release of everything
    in the mean over all nodes, and `noise_norm` sqrt(d) s, the length of that noise. `signal` is
    the length of the mean clipped gradient at the start, of public test records; null: there are
    none, or the model is not linear. `node_over_mean` is the noise in a node's own model over that
    in the mean; null: no forecast. `rounds` are of gossip, in a step.
    """

    trust_model: Text
    noise: Number
    noise_norm: Number
    signal: OptionalNumber
    noise_over_signal: OptionalNumber
    node_over_mean: OptionalNumber
    rounds: Count


class RecommendDocument(Document):
    """A recommendation; see `tacit.analysis.recommend`. `records` are the least and most of a node.

    `unavailable` are the trust models that cannot be had, and why.
    """

    file: Text | None
    nodes: Count
    records: tuple[Count, Count]
    parameters: Count
    input_norm: Number
    proposed: Items[ProposedKey]
    trust_model: Text
    forecasts: Items[ForecastNoise]
    unavailable: dict[str, Text]
    conflicts: Items[Text]
    warnings: Items[Text]
    notes: Items[Text]
