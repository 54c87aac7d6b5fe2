"""Whether the noise is what the plan says: its size, its law, and what it depends on.

Mechanism: Gaussian or Laplace noise of the planned size, independent in every coordinate, step,
part and node, released on a public lattice. Relation and trust model do not matter: the tests look
at the noise from inside. A `NoiseSample` turns it into numbers that are independent and standard
normal if the program is correct, with the laws that stand at each test. All p-values are exact for
ideal noise or upper bounds; noise in finite arithmetic changes a probability by a factor within
1 +- 1e-5 (`tacit.privacy.noise.slack`). Proofs: `docs/proofs/audits.md`, section Noise.

*Predictable directions.* Many tests rest on one theorem. Let z_1, z_2, ... be the noises of a
sample in their order, and u_r a vector of length 1 that is a function of what was known before
z_r: of earlier noises, of records and coins, of what was handed in together with z_r. Then the
scores <z_r, u_r> are independent and standard normal. So their weighted sums are normal and their
sums of squares are chi-square, exactly, in any number and width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tacit.analysis.audit.fidelity import noise_law as law
from tacit.analysis.audit.fidelity import noise_links as links
from tacit.analysis.audit.fidelity.finding import LEVEL, Finding, finding
from tacit.analysis.audit.fidelity.noise_law import Look
from tacit.analysis.audit.fidelity.noise_sample import NoiseSample


@dataclass(frozen=True)
class _Test:
    """One test: in words, and what looks.

    Args:
        look: at a sample, at a level; None where the sample cannot say anything.
        power: what it finds; `{percent}`, `{least}` and `{one_in}` stand for the smallest defect.
        factor: whether that defect is a factor of the noise's deviation.
        of_pairs: whether it is made of the noise of pairs as well.
    """

    name: str
    question: str
    meaning: str
    look: Callable[[NoiseSample, float], Look | None]
    power: str
    factor: bool = False
    of_pairs: bool = True


def noise_findings(samples: Sequence[NoiseSample]) -> list[Finding]:
    """All tests of the noise, each over all samples together: of a laboratory, of the own model.

    Each test is made in every sample that allows it, at its share of `LEVEL`; the finding is that
    of the least likely sample, its p-value times their number.
    """
    return [found for test in _TESTS for found in _found(test, samples)]


def pair_noise_findings(samples: Sequence[NoiseSample]) -> list[Finding]:
    """The tests that are made of the noise of pairs as well, each over all samples together.

    The `node` of a sample is the number of a pair here. No test says how much epsilon weaker noise
    of pairs would allow.
    """
    found = [
        one
        for test in _TESTS
        if test.of_pairs
        for one in _found(replace(test, name=_of_pairs(test.name), factor=False), samples)
    ]
    words = ("question", "meaning", "saw", "power")
    return [
        one.model_copy(update={key: getattr(one, key).replace("node", "pair") for key in words})
        for one in found
    ]


def _of_pairs(name: str) -> str:
    """A test's name where a node is a pair, and its noise that of the pair."""
    if "node" in name:
        return name.replace("node", "pair")
    changed = name.replace("noise", "pair noise")
    return changed if changed != name else f"{name} of the pair noise"


def _found(test: _Test, samples: Sequence[NoiseSample]) -> list[Finding]:
    # Of a program that released nothing, all that can be said is that it should have.
    looks = [
        (sample.where, test.look(sample, LEVEL / len(samples)))
        for sample in samples
        if sample.releases or test.look is law.missing
    ]
    seen = [(where, look) for where, look in looks if look is not None]
    if not seen:
        return []
    where, worst = min(seen, key=lambda each: each[1].p_value)
    # A program has one defect in all samples: what the best of them finds is found.
    best = min(look.least for _, look in seen)
    saw = f"In {where}: {worst.saw[0].lower()}{worst.saw[1:]}" if len(samples) > 1 else worst.saw
    return [
        finding(
            test.name,
            test.question,
            worst.statistic,
            test.meaning,
            f"{saw}.",
            test.power.format(
                percent=f"{100 * best:.2g} %",
                least=f"{best:.2g}",
                one_in=f"{1 / best:,.0f}" if best else "",
            ),
            p_value=min(1.0, worst.p_value * len(samples)) if worst.p_value > 0 else 0.0,
            exact=worst.exact and len(samples) == 1,
            noise_factor=1 - best if test.factor and best < 1 else None,
        )
    ]


_TESTS: tuple[_Test, ...] = (
    _Test(
        "noise variance",
        "Is the noise as large as planned?",
        "standard deviation of the noise over the planned one",
        law.of_all,
        "Finds noise that is {percent} too small.",
        factor=True,
    ),
    _Test(
        "noise of each coordinate",
        "Is the noise of every coordinate as large as planned?",
        "deviation of the coordinate that is farthest off, over the planned one",
        law.of_coordinates,
        "Finds noise of one coordinate that is {percent} too small.",
        factor=True,
    ),
    _Test(
        "noise of each release",
        "Does every single release have its noise?",
        "deviation of the release that is farthest off, over the planned one",
        law.of_releases,
        "Finds noise of one release that is {percent} too small.",
        factor=True,
        of_pairs=False,
    ),
    *(
        _Test(
            f"noise of each {group}",
            f"Is the noise of every {group}{inner} as large as planned?",
            f"deviation of the {group} that is farthest off, over the planned one",
            partial(law.of_groups, group),
            f"Finds noise of one {group} that is {{percent}} too small.",
            factor=True,
            of_pairs=group != "part",
        )
        for group, inner in (("node", ""), ("step", ""), ("part", " of a step's releases"))
    ),
    _Test(
        "noise and batch size",
        "Is the noise the same however many records were drawn?",
        "deviation where most records were drawn over that where fewest were",
        law.by_batch,
        "Finds noise that is {percent} larger where more are drawn.",
        of_pairs=False,
    ),
    *(
        _Test(
            f"noise common to {group}s",
            f"Does every {group}{inner} have noise of its own?",
            f"standard score of the part that all {group}s{of} share",
            partial(links.common, group),
            f"Finds {{percent}} of the noise's variance that all {group}s{of} share.",
            of_pairs=group != "part",
        )
        for group, inner, of in (
            ("step", "", ""),
            ("node", "", ""),
            ("run", "", ""),
            ("part", " of a step's releases", " of a step"),
        )
    ),
    _Test(
        "noise some steps apart",
        "Is the noise of a step independent of the steps before it?",
        "correlation of noises that are some steps apart, the largest",
        links.steps_apart,
        "Finds a correlation of {least} between steps that are one or two apart.",
    ),
    _Test(
        "noise moved on",
        "Does every step draw its noise from a stretch of its own?",
        "correlation of a step's noise with the noise before it, moved by some coordinates",
        links.shifted,
        "Finds a correlation of {least} with a step before, moved by up to 32.",
    ),
    _Test(
        "noise met twice",
        "Is every noise used once?",
        "correlation of the two noises that are most alike",
        links.pairs,
        "Finds one pair of noises with a correlation of {least}.",
    ),
    _Test(
        "noise of coordinates",
        "Does every coordinate have noise of its own?",
        "share of the variance, or correlation, that coordinates have in common",
        links.coordinates,
        "Finds {percent} of the noise's variance that all coordinates share.",
    ),
    _Test(
        "noise in any direction",
        "Is the noise alike in all directions?",
        "largest deviation over all directions, over what chance alone explains",
        links.directions,
        "Finds {percent} too much noise in a mixture of coordinates, or of releases.",
    ),
    _Test(
        "mean of the noise",
        "Is the noise around zero?",
        "mean farthest from zero, in deviations",
        law.mean,
        "Finds a mean of {least} deviations in one coordinate.",
    ),
    _Test(
        "noise and what it hides",
        "Is what is released centred on what was to be released?",
        "part of the noise along what was handed in, in deviations",
        links.along_handed,
        "Finds {least} deviations in each release along what was handed in with it, or a step "
        "before.",
        of_pairs=False,
    ),
    _Test(
        "low bits",
        "Does every released number lie on its public lattice?",
        "numbers off the lattice",
        law.lattice,
        "Finds a single number that is off.",
    ),
    _Test(
        "lowest bit",
        "Is the lowest bit of what is released a fair coin?",
        "share of released numbers whose lowest bit is 1",
        law.lowest_bit,
        "Finds noise on a coarser lattice in {percent} of all numbers.",
    ),
    _Test(
        "shape of the noise",
        "Does the noise follow its law, out to its tails?",
        "share of the noise beyond a point over the share that belongs there",
        law.shape,
        "Finds that the highest or lowest one in {one_in} values is missing.",
    ),
    _Test(
        "releases",
        "Is every planned release made with noise, and once?",
        "releases that were not made, or made again",
        law.missing,
        "Finds a single one.",
        of_pairs=False,
    ),
)
