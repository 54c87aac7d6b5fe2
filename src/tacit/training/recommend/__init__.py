"""What an experiment leaves open, chosen from public facts: one set of defaults for every door.

`facts` (what may be known), `rules` (clip and rate), `choices` (every key and its reason),
`forecast` (noise against signal), `complete` (all of them together).
"""

from tacit.training.recommend.choices import Proposal
from tacit.training.recommend.complete import with_settings, with_task
from tacit.training.recommend.facts import Facts, facts_of

__all__ = ["Facts", "Proposal", "facts_of", "with_settings", "with_task"]
