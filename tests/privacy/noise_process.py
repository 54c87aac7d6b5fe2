"""A process that hosts some nodes: what they draw, as digests."""

import hashlib

import torch

from tacit.privacy.noise import draws as noise
from tacit.privacy.noise.draws import seeded_keys
from tacit.privacy.noise.gaussian import add_normal

STEPS, LENGTH, RECORDS = 2, 40_001, 5_000


def digests(keys, nodes):
    """What each node of this process draws, hashed: releases, coins and subsets of every step."""
    totals = torch.stack([torch.linspace(-node, node, LENGTH) for node in nodes])
    digests = {}
    for step in range(STEPS):
        released = add_normal(totals.clone(), [1.3] * len(nodes), keys, nodes, "noise", step)
        for row, node in zip(released, nodes, strict=True):
            drawn = (
                row.numpy(),
                noise.coins(keys, node, "sampling", step, RECORDS, 0.2),
                noise.subset(keys, node, "sampling", step, RECORDS, 64),
            )
            joined = b"".join(values.tobytes() for values in drawn)
            digests[f"{node} {step}"] = hashlib.sha256(joined).hexdigest()
    return digests


def send(pipe, seed, threads, nodes):
    """The digests of nodes that a process draws on so many threads."""
    torch.set_num_threads(threads)
    pipe.send(digests(seeded_keys(seed, nodes), nodes))
