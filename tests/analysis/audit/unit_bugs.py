"""Defects of whose rows are whose: a row where a person is meant, or a person at several nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from planting import Patch
from sampling_bugs import by

from tacit.data import StackedData
from tacit.gradients import StackedModel
from tacit.privacy.noise import draws
from tacit.training import records

ROWS = 3  # of a person that count, in the experiments of the table


def _each_row(original):
    """Every row is a record with a clip of its own, as it would be without units."""

    def gradient(self, at, inputs, targets, mask, clip, out=None, norm="l2", **more):
        shares = more.pop("shares", None)
        if shares is None:
            return original(self, at, inputs, targets, mask, clip, out, norm, **more)
        rows = (mask.unsqueeze(2) & (shares > 0)).flatten(1)
        flat = (values.flatten(1, 2) for values in (inputs, targets))
        alone = replace(self, unit_rows=None)
        found = original(alone, at, *flat, rows, clip, out, norm, **more)
        norms, losses = (v.view(shares.shape).amax(dim=2) for v in (found.norms, found.losses))
        return replace(found, norms=norms, losses=losses)

    return gradient


CLIPPED_BY_ROW = (Patch(StackedModel, "gradient", _each_row),)


def _all_rows(original):
    def rule(config, schema):
        return replace(original(config, schema), most=5)

    return rule


ALL_ROWS = (Patch(records, "_unit_rule", _all_rows),)

NOBODY_COMPARES = (Patch(records, "check_nodes", lambda original: lambda units, most: None),)


def _any_row(node, keys, k, part):
    count = ROWS * node.records
    rows = draws.coins(keys, node.node, "sampling", k, count, node.rate, part)
    return np.flatnonzero(rows.reshape(node.records, ROWS).any(axis=1))


COINS_BY_ROW = by(_any_row)


def _without_the_last(original):
    def shares(self, indices, nodes=None):
        found = original(self, indices, nodes)
        if found is not None:
            found[..., -1] = 0.0
        return found

    return shares


IN_PART = (Patch(StackedData, "shares", _without_the_last),)
