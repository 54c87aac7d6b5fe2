"""What an experiment leaves open, chosen from public facts: one set of defaults for every door.

`facts` (what may be known), `rules` (clip and rate), `choices` (every key and its reason),
`complete` (all of them together, and noise against signal).
"""

from tacit.training.recommend.choices import Proposal
from tacit.training.recommend.complete import with_settings, with_task
from tacit.training.recommend.facts import Facts, facts_of

__all__ = ["Facts", "Proposal", "facts_of", "with_settings", "with_task"]
