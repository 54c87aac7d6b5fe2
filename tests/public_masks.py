"""Which coordinates a compressor with a public mask lets through."""

import torch

from tacit.communication.compression import compress


def public_mask(d, *, compressor, keep, seed, step, nodes, part):
    """Bool `[nodes, d]`: what is left of ones, since such a mask does not look at the values."""
    ones = torch.ones(len(nodes), d)
    made = compress(
        ones, compressor=compressor, keep=keep, seed=seed, step=step, nodes=nodes, part=part
    )
    return made.values != 0
