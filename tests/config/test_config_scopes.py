"""Which keys may differ between sites, and at a resume: the pages say what the marks say."""

import re
from pathlib import Path

import pytest

from experiments import experiment
from tacit.config import flat, free_keys, known_as, load_config, site_keys

NAMED = [load_config(experiment(algorithm={"name": name})) for name in ("privsgp", "privsgp-vr")]
SITE_KEYS, FREE_KEYS = (frozenset().union(*map(keys, NAMED)) for keys in (site_keys, free_keys))
DOCS = Path(__file__).resolve().parents[2] / "docs"


def named(page, before, after):
    """The keys that a page names between two phrases."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return set(re.findall(r"`(\w+\.\w+)`", text.partition(before)[2].partition(after)[0]))


def test_pages_name_the_keys_that_may_differ():
    resumed = {key for key in FREE_KEYS if not key.startswith(("promise.", "statement."))}
    assert named("reference/run-folder.md", "These keys may differ", "\n\n") == resumed
    assert named("how-to/processes.md", "keys may differ between sites", "\n\n") == SITE_KEYS
    assert named("how-to/deploy.md", "have ended again. Only", "may |") == SITE_KEYS


@pytest.mark.parametrize(
    ("changes", "key", "known"),
    [
        ({"train": {"patience": 7.0}}, "train.patience", 3600.0),
        ({"nodes": {"data": "by-rank", "source": "a.npz"}}, "nodes.source", "{node}"),
        (
            {"algorithm": {"name": "dyn-d2p"}, "promise": {"smoothness": 2.0}},
            "promise.smoothness",
            None,
        ),
        ({"statement": {"contact": "a phone"}}, "statement.contact", None),
        ({"train": {"steps": 7}}, "train.steps", 7),
    ],
)
def test_a_run_is_known_without_what_may_differ(changes, key, known):
    if "nodes" in changes:
        changes = {**changes, "task": {"dataset": None, "outputs": 10}}
    config = load_config(experiment(**changes))
    whole = flat(known_as(config))
    assert whole.get(key) == known
    assert flat(known_as(config, ())) == flat(config)
    kept = {name: value for name, value in flat(config).items() if name not in whole}
    assert kept.keys() <= SITE_KEYS | FREE_KEYS
