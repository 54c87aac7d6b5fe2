"""How far one record moves what `privsgp-vr` releases, with the same coins and models."""

import numpy as np
import pytest
import torch
from recursion_runs import context_of
from recursion_runs import on_batches as experiment
from torch import nn

from tacit.config import load_config
from tacit.training import sampling
from tacit.training.budget import node_keys
from tacit.training.prepare import prepare


class Squared(nn.Module):
    """The gradient of ((w x)^2 - y)^2 turns with w x, and turns back beyond y = (w x)^2."""

    def forward(self, outputs):
        return outputs.square()


def adversary(seed, nodes, records, relation):
    """Neighbouring data sets of each node: the first record differs; zeros have no gradient.

    A replaced record has the opposite gradient, wherever the model is.
    """
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(nodes, records, 3)) * 10 ** draw.uniform(-1, 1, (nodes, records, 1))
    targets = draw.normal(size=(nodes, records, 1)) * 10 ** draw.uniform(-2, 3, (nodes, records, 1))
    targets[:, 0] = 0.0
    other = inputs.copy(), targets.copy()
    if relation == "replace-one":
        other[1][:, 0] = 1e9
    else:
        other[0][:, 0] = 0.0
    return tuple(zip(inputs, targets, strict=True)), tuple(zip(*other, strict=True))


CLIP_AT, PRIVATE = 0.5, {"state": "private"}
Q, C_D = 0.25, 0.1
# Options, hit and miss, and the share of the former that a search should come upon.
SENSITIVITY = {
    "table": (PRIVATE, 2 - Q, Q, 0.99),
    "table-clipped": ({**PRIVATE, "clip_difference": C_D}, Q + (1 - Q) * C_D / CLIP_AT, Q, 0.6),
    "groups": ({**PRIVATE, "table_batch": 3}, 2 - Q, Q, 0.99),
    "anchors": ({"anchor_every": 3}, 2.0, 0.0, 0.99),
    "anchors-clipped": ({"anchor_every": 3, "clip_difference": C_D}, C_D / CLIP_AT, 0.0, 0.99),
}


@pytest.mark.parametrize(
    ("relation", "dtype"), [("add-or-remove-one", "float64"), ("replace-one", "float32")]
)
@pytest.mark.parametrize("name", SENSITIVITY)
def test_one_record_moves_the_release_by_no_more_than_stated(name, relation, dtype):
    """Both runs see the same coins and models; what they would add noise to is compared."""
    options, hit, miss, found = SENSITIVITY[name]
    nodes, steps = 60, 9
    jobs = [
        prepare(
            load_config(
                experiment(
                    {"clip": CLIP_AT, **options},
                    task={"loss": "mse"},
                    train={"batch": 2, "dtype": dtype, "steps": steps},
                ),
                count=nodes,
            ),
            model=nn.Sequential(nn.Linear(3, 1, bias=False), Squared()),
            nodes=data,
        )
        for data in adversary(3, nodes, 8, relation)
    ]
    draw = torch.Generator().manual_seed(1)
    released = [Released(job) for job in jobs]
    start = jobs[0].model.start(nodes, jobs[0].dtype, jobs[0].device)
    for one in released:
        one.begin(start)
    base = torch.randn(start.shape, generator=draw, dtype=torch.float64)
    double = 2 if relation == "replace-one" else 1
    most = {True: 0.0, False: 0.0, None: 0.0}
    for k in range(steps):
        size, sign = torch.randn(2, nodes, 1, generator=draw, dtype=torch.float64)
        at = (base * size.exp() * sign.sign()).to(start)
        sums = [one.step(at, k) for one in released]
        moved = (sums[0] - sums[1]).double().norm(dim=1) / CLIP_AT
        anchor = "anchor_every" in options and k % options["anchor_every"] == 0
        drawn = released[0].draws(k, options.get("table_batch"))
        for node in range(nodes):
            case = None if anchor else bool(drawn[node])
            most[case] = max(most[case], float(moved[node]))
    # The sums of others are rounded, too: by far less than what noise allows for.
    slack = 1e-5 if dtype == "float32" else 1e-12
    assert most[True] <= double * hit + slack
    assert most[False] <= double * miss + slack
    assert most[None] <= double + slack
    assert most[True] > found * double * hit
    assert most[False] > 0.99 * double * miss - slack
    if "anchor_every" in options:
        assert most[None] > 0.99 * double


class Released:
    """Runs the estimator of `privsgp-vr` on given models, without noise, and keeps its sums."""

    def __init__(self, job):
        self.job, self.context = job, context_of(job)
        self.context.add_noise = self._keep

    def _keep(self, total, k, *, scale=1.0, part=0):
        self.total = total.clone()
        return total

    def begin(self, at):
        chosen = self.job.config.algorithm
        self.state = chosen.definition.start(at, chosen.options, self.context)

    def step(self, at, k):
        chosen = self.job.config.algorithm
        given = self.state._replace(x=at, w=torch.ones_like(self.state.w))
        self.state = chosen.definition.step(given, k, chosen.options, self.context)
        return self.total

    def draws(self, k, group):
        """Whether step k draws the first record of each node."""
        plan, keys, cpu = self.job.plan, node_keys(self.job.plan), torch.device("cpu")
        batch = (
            sampling.draw(plan, keys, k, cpu)
            if group is None
            else sampling.draw_units(plan.nodes, keys, k, cpu, group)
        )
        return ((batch.indices == 0) & batch.mask).any(dim=1).tolist()
