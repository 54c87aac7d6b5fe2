"""The papers' own experiments: every private algorithm, with claim, mechanism and bounds.

Importing is cheap; building the table takes a moment, and each row's bounds are computed when its
`bounds` are called.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain

from tacit.privacy.published.setting import PaperSetting
from tacit.privacy.published.settings_compressed import do_adp_settings
from tacit.privacy.published.settings_federated import fedspd_settings
from tacit.privacy.published.settings_push_sum import dyn_settings, privsgp_settings

__all__ = ["PaperSetting", "paper_settings"]


@lru_cache(maxsize=1)
def paper_settings() -> tuple[PaperSetting, ...]:
    """Every row, algorithm by algorithm; of one experiment, the kindest reading comes first."""
    parts = (privsgp_settings(), dyn_settings(), do_adp_settings(), fedspd_settings())
    rows = tuple(chain.from_iterable(parts))
    order = {row.algorithm: index for index, row in reversed(list(enumerate(rows)))}
    return tuple(sorted(rows, key=lambda row: order[row.algorithm]))
