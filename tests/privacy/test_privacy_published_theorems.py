"""The theorems of Dyn-D2P, FedSPD-DP and DO-ADP, against their printed terms written out again.

The second evaluation is at fifty digits, in loops over steps, nodes and clients.
"""

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.algorithms import ALGORITHMS
from tacit.errors import InputError
from tacit.privacy.published import (
    BoundConstants,
    Budget,
    FedspdRun,
    claimed_variances,
    constant_mu,
    convergence_bound,
    fedspd_rate,
    fedspd_round_epsilon,
    fedspd_step_parameter,
    least_steps,
    published_bound,
    published_steps,
    total_mu,
    utility_order,
)
from tacit.privacy.published.do_adp import (
    DoAdpTask,
    do_adp_bound,
    do_adp_consensus_step,
    do_adp_contraction,
    do_adp_disagreement,
    do_adp_momentum,
    do_adp_order,
)
from tacit.privacy.published.dyn_d2p import (
    dyn_bound,
    dyn_least_noise,
    dyn_noise,
    dyn_noise_variance,
    dyn_steps,
)
from tacit.privacy.published.fedspd import fedspd_best_local_steps, fedspd_bound, fedspd_constant

size = st.floats(1e-2, 1e2)
count = st.integers(1, 40)
sequence = st.lists(size, min_size=1, max_size=12)

# Dyn-D2P

NETWORK = {"smoothness": 2.0, "start_gap": 0.7, "push_sum_constant": 3.0, "push_sum_rate": 0.6}


@given(
    schedules=st.lists(st.tuples(size, size), min_size=1, max_size=8),
    rate=st.floats(1e-3, 1),
    nodes=count,
    d=st.integers(1, 10**5),
    start=st.floats(0, 1e3),
    records=st.integers(1, 10**4),
    mu=st.floats(1e-3, 3),
)
def test_theorem_1_of_dyn_d2p_as_printed(schedules, rate, nodes, d, start, records, mu):
    """With equation 10's noise, which gives the noise's term the form that is printed."""
    clip, noise = zip(*schedules, strict=True)
    variance = dyn_noise_variance(clip, noise, records=records, mu_total=mu)
    found = dyn_bound(
        clip, variance, rate=rate, nodes=nodes, parameters=d, start_norm=start, **NETWORK
    )
    with mp.workdps(50):
        L, gap, psi, q = (mp.mpf(value) for value in NETWORK.values())
        g, n, K, J, m = (mp.mpf(x) for x in (rate, nodes, len(clip), records, mu))
        over = square = energy = scale = mp.mpf(0)
        for c, s in schedules:
            over += (mp.mpf(c) / mp.mpf(s)) ** 2
            square += mp.mpf(s) ** 2
            energy += mp.mpf(c) ** 2
        t1 = over / K * square / K
        of_nodes = sum(mp.mpf(start) for _ in range(nodes))
        printed = [
            2 * gap / (g * K),
            3 * L**2 * psi**2 * of_nodes / ((1 - q) ** 2 * n * K),
            3 * g**2 * L**2 * psi**2 / (1 - q) ** 2 * energy / K,
            g * L * energy / K,
            (
                6 * g**2 * K * L**2 * psi**2 * d / ((1 - q) ** 2 * J**2 * m**2)
                + 2 * g * K * L * d / (n * J**2 * m**2)
            )
            * t1,
        ]
        # The mean over the steps of what Algorithm 2 injects, by its own definition.
        scale = mp.sqrt(2 * over) / (J * m)
        injected = sum((scale * mp.mpf(s)) ** 2 for _, s in schedules) / K
    assert found == pytest.approx([float(term) for term in printed], rel=1e-11)
    assert variance == pytest.approx(float(injected), rel=1e-11)
    assert dyn_noise(clip, noise) == pytest.approx(float(t1), rel=1e-11)


@given(st.lists(st.tuples(size, size), min_size=1, max_size=12), st.floats(1e-2, 1e2))
def test_noise_as_the_root_of_the_bound_makes_t1_least(schedules, factor):
    """T1 >= ((1/K) sum C_k)^2, with equality there and, up to a factor, nowhere else."""
    clip, noise = zip(*schedules, strict=True)
    floor = np.mean(clip) ** 2
    best = dyn_least_noise(clip)
    assert dyn_noise(clip, best) == pytest.approx(floor, rel=1e-9)
    assert dyn_noise(clip, [factor * s for s in best]) == pytest.approx(floor, rel=1e-9)
    assert dyn_noise(clip, noise) >= floor * (1 - 1e-9)
    ratios = np.square(noise) / np.asarray(clip)
    if ratios.max() > 1.1 * ratios.min():
        assert dyn_noise(clip, noise) > floor


@pytest.mark.parametrize("rho_c", [1.0, 2.0, 10.0])
def test_the_budget_that_makes_t1_least_falls(rho_c):
    """sigma~_k as (rho_c rho_mu)^(-k/K): least at rho_mu = 1 / sqrt(rho_c), dearer as it grows."""
    steps = 50
    clip = [4 * rho_c ** (-k / steps) for k in range(steps)]

    def t1(rho_mu):
        return dyn_noise(clip, [c * rho_mu ** (-k / steps) for k, c in enumerate(clip)])

    best = rho_c**-0.5
    assert t1(best) == pytest.approx(dyn_noise(clip, dyn_least_noise(clip)))
    grown = [t1(best * factor) for factor in (1.0, 1.25, 2.0, 5.0, 10.0)]
    assert grown == sorted(grown)
    assert grown[-1] > 1.2 * grown[0]


def test_corollary_1_of_dyn_d2p_is_ten_million_steps_in_the_papers_setting():
    """n = 20, J = 3000, (1, 1e-4); the experiments' K is of the order of 1000."""
    mu = total_mu(1.0, 1e-4)
    steps = dyn_steps(nodes=20, records=3000, mu_total=mu)
    assert steps == pytest.approx(1.77e7, rel=0.01)
    # gamma K = sqrt(n) J mu_tot, at gamma = 1 / (sqrt(n) J mu_tot).
    assert steps / (math.sqrt(20) * 3000 * mu) == pytest.approx(math.sqrt(20) * 3000 * mu)
    with pytest.raises(InputError, match="records"):
        dyn_steps(nodes=20, records=0, mu_total=mu)


@given(st.floats(1.01, 100), count)
def test_at_corollary_1_every_term_but_the_start_is_of_its_order(grow, nodes):
    """Four times J mu_tot makes the bound of its steps and rate a quarter, where C_k = sigma~_k."""

    def whole(scale):
        # Constant sequences: only their mean counts, so that one entry stands for all K.
        steps = nodes * scale**2
        rate = 1 / (math.sqrt(nodes) * scale)
        _, _, local, mean, noise = dyn_bound(
            (1.0,),
            2 * steps / scale**2,
            rate=rate,
            nodes=nodes,
            parameters=10,
            start_norm=0.0,
            **{**NETWORK, "push_sum_constant": 0.0},
        )
        assert local == 0
        return mean + noise

    scale = 10 * math.sqrt(nodes)
    assert whole(scale * grow) == pytest.approx(whole(scale) / grow, rel=1e-9)


def test_what_is_not_known_leaves_the_other_terms():
    def of(**unknown):
        known = {**NETWORK, **unknown}
        found = dyn_bound((1.0, 2.0), 0.1, rate=0.1, nodes=3, parameters=5, start_norm=1.0, **known)
        return [math.isnan(value) for value in found]

    assert of() == [False] * 5
    assert of(start_gap=math.nan) == [True, False, False, False, False]
    assert of(push_sum_rate=math.nan) == [False, True, True, False, True]
    assert of(smoothness=math.nan) == [False, True, True, True, True]


def test_no_reading_of_equation_8_gives_both_ends_of_const_d2ps_row():
    """Its printed accuracies rise from 45.37 to 80.81 % from eps 0.3 to 3, and its noise hardly.

    mu-bar = sqrt(log(J^2 mu_tot^2 / K + 1)) with J = 3000: the noise over the bound, 1 / mu-bar,
    falls by a factor of 1.37 at K = 1000, and of 1.62 at 10,000; by two only beyond 30,000.
    """

    def mu_bar(epsilon, steps):
        return constant_mu(records=3000, steps=steps, epsilon=epsilon, delta=1e-4)

    low, high = mu_bar(0.3, 1000), mu_bar(3.0, 1000)
    assert (round(low, 2), round(high, 2), round(high / low, 2)) == (2.16, 2.95, 1.37)
    by_steps = (100, 1000, 10_000, 30_000, 50_000, 10**6)
    ratios = [mu_bar(3.0, steps) / mu_bar(0.3, steps) for steps in by_steps]
    assert ratios == sorted(ratios)
    assert round(ratios[2], 2) == 1.62
    assert ratios[3] < 2 < ratios[4]


# FedSPD-DP

RUN = FedspdRun(
    records=325,
    batch=10,
    local_steps=5,
    clients=100,
    chosen=20,
    rounds=100,
    round_epsilon=0.4,
    delta=1e-4,
    penalty=20.0,
    dimension=162,
    gradient_bound=1.5,
    diameter=2.0,
    dual_diameter=0.7,
    deviation=1.2,
)


def printed_constant(run, steps, epsilon):
    with mp.workdps(50):
        g, dual, phi, rho = (
            mp.mpf(x) for x in (run.gradient_bound, run.dual_diameter, run.deviation, run.penalty)
        )
        noise = 16 * rho * run.dimension * g**2 * mp.log(mp.mpf(1.25) / mp.mpf(run.delta))
        noise /= mp.mpf(epsilon) ** 2
        if steps > 1:
            noise /= (steps - 1) ** 2
        return g**2 + 2 * dual**2 + 2 * phi**2 / run.batch + noise


@pytest.mark.parametrize("steps", [1, 2, 5, 30])
def test_equation_28_as_printed(steps):
    """A loop over clients that differ in their share and budget."""
    runs = [
        replace(RUN, local_steps=steps, round_epsilon=0.1 + i / 7, chosen=10 + i) for i in range(6)
    ]
    with mp.workdps(50):
        diameters = regulariser = rate = mp.mpf(0)
        for run in runs:
            p, T, Q = mp.mpf(run.chosen) / run.clients, run.rounds, steps
            d_x, d_l = mp.mpf(run.diameter), mp.mpf(run.dual_diameter)
            inner = run.penalty * d_x**2 * (Q + 1) / p + Q * d_l**2 / (p * run.penalty)
            diameters += inner / (2 * T * Q)
            regulariser += 4 * mp.mpf("0.3") / p / (2 * T * Q)
            constant = printed_constant(run, steps, run.round_epsilon)
            rate += 2 * d_x * mp.sqrt(constant) / mp.sqrt(T * Q * p)
            assert fedspd_constant(run, steps, run.round_epsilon) == pytest.approx(float(constant))
            gamma = 2 * mp.sqrt(Q * p * constant) / d_x * mp.sqrt(7)
            assert fedspd_step_parameter(run, 7) == pytest.approx(float(gamma))
    found = fedspd_bound(runs, regulariser_gradient=0.3)
    assert found == pytest.approx([float(x) for x in (diameters, regulariser, rate)], rel=1e-12)


@given(size, st.integers(1, 60))
def test_for_a_given_epsilon_a_round_more_local_steps_always_lower_the_third_term(epsilon, steps):
    """So that equations 32 and 33 can only be of a given total."""
    here, more = (fedspd_constant(RUN, q, epsilon) / q for q in (steps, steps + 1))
    assert more < here


@given(
    records=st.integers(20, 400),
    batch=st.integers(1, 12),
    total=st.floats(1e-2, 1e4),
    chosen=count,
    penalty=st.floats(1e-3, 1e3),
    drawing=st.sampled_from(["without-replacement", "with-replacement"]),
)
def test_the_best_local_steps_are_those_of_a_search_of_all(
    records, batch, total, chosen, penalty, drawing
):
    run = replace(
        RUN,
        records=records,
        batch=batch,
        local_steps=1,
        chosen=chosen,
        penalty=penalty,
        drawing=drawing,
    )
    most = records // batch if drawing == "without-replacement" else 60 * records
    best, least = 0, mp.inf
    for steps in range(1, most + 1):
        epsilon = fedspd_round_epsilon(
            total=total,
            records=records,
            batch=batch,
            local_steps=steps,
            participation=chosen / 100,
            rounds=RUN.rounds,
            drawing=drawing,
        )
        if epsilon == 0:  # every record is drawn
            break
        ratio = fedspd_constant(run, steps, epsilon) / steps
        if ratio < least:
            best, least = steps, ratio
        elif steps > 6 * records / batch:  # the noise's part alone rises from 3 m / b on
            break
    assert fedspd_best_local_steps(run, total) == best


# DO-ADP

TASK = DoAdpTask(
    nodes=20,
    parameters=1000,
    smoothness=3.0,
    start_gap=0.9,
    gradient_bound=1.7,
    variance=0.8,
    noise_variance=0.04,
    contraction=do_adp_contraction(0.3, 0.32),
    momentum=0.15,
    activation=0.8,
)
tasks = st.builds(
    DoAdpTask,
    nodes=count,
    parameters=st.integers(1, 10**5),
    smoothness=size,
    start_gap=size,
    gradient_bound=size,
    variance=size,
    noise_variance=st.floats(0, 10),
    contraction=st.floats(1e-6, 1 / 82),
    momentum=st.floats(0, 0.9),
    activation=st.floats(0.1, 1),
)


@given(tasks, st.floats(1e-4, 1), st.integers(1, 10**6))
def test_theorem_2_and_the_lemmas_of_do_adp_as_printed(task, rate, steps):
    with mp.workdps(50):
        a, b, p, c = (mp.mpf(x) for x in (rate, task.momentum, task.activation, task.contraction))
        L, n, T = mp.mpf(task.smoothness), task.nodes, steps
        G2, s2, v = (
            mp.mpf(task.gradient_bound) ** 2,
            mp.mpf(task.noise_variance) * task.parameters,
            mp.mpf(task.variance),
        )
        many = b + 2 + 4 * b**2 * p
        theorem = [
            2 * (1 - b) * mp.mpf(task.start_gap) / (a * p * T),
            a * L * many * (G2 + v + s2) / (n * (1 - b) ** 3),
            8 * a**2 * p * (G2 + s2) * L**2 / ((1 - b) ** 2 * c**2),
        ]
        equation_10 = [
            2 * mp.mpf(task.start_gap) * (1 - b) / (p * mp.sqrt(n * T)),
            L * many * (G2 + v + s2) / ((1 - b) ** 3 * mp.sqrt(n * T)),
            8 * n * p * (G2 + s2) * L**2 / ((1 - b) ** 2 * c**2 * T),
        ]
        lemma_2 = p * (G2 + s2) / (1 - b) ** 2
        lemma_3 = 8 * p * a**2 * (G2 + s2) * n / (c**2 * (1 - b) ** 2)
        order = (
            mp.sqrt((1 + p) * (1 + s2) / (n * p * T))
            + mp.cbrt(mp.sqrt(p * (1 + s2)) / (c * p * T)) ** 2
            + 1 / (p * T)
        )
    near = pytest.approx
    assert do_adp_bound(task, rate, steps) == near([float(x) for x in theorem], rel=1e-9)
    best = math.sqrt(n / T)
    assert do_adp_bound(task, best, steps) == near([float(x) for x in equation_10], rel=1e-9)
    assert do_adp_momentum(task) == near(float(lemma_2), rel=1e-9)
    assert do_adp_disagreement(task, rate) == near(float(lemma_3), rel=1e-9)
    assert do_adp_order(task, steps) == near(float(order), rel=1e-9)


@given(tasks, st.integers(10, 10**8))
def test_equation_9_is_the_order_of_theorem_2_at_its_best_step_size(task, steps):
    """With L, G, varsigma^2 and f(x_0) - f* at 1 and no momentum, neither is beyond thirty times
    the other, where the best alpha is one that the theorem allows."""
    plain = replace(
        task, smoothness=1.0, start_gap=1.0, gradient_bound=1.0, variance=1.0, momentum=0.0
    )
    rates = np.geomspace(1e-12, 0.499, 400)
    bounds = [sum(do_adp_bound(plain, float(rate), steps)) for rate in rates]
    order = do_adp_order(plain, steps)
    assert order / 30 <= min(bounds)
    assert min(bounds) <= 30 * order


@given(st.floats(0.01, 1), st.floats(0.01, 2), st.floats(0.01, 1))
def test_the_constants_of_do_adp(gap, distance, share):
    """With d = 1000 coordinates and p = 1: c and gamma as printed, in k = share d."""
    d = 1000
    k = share * d
    c = gap**2 * k / (82 * d)
    divisor = d * (16 * gap + gap**2 + 4 * distance**2 + 2 * gap * distance**2) - 8 * gap * k
    assert do_adp_contraction(gap, share) == pytest.approx(c)
    assert do_adp_consensus_step(gap, distance, share) == pytest.approx(gap * k / divisor)
    assert do_adp_consensus_step(gap, distance, share) < 1 / 8


@given(tasks, st.floats(1e-3, 1), st.floats(1.01, 10))
def test_do_adps_bound_rises_with_noise_and_falls_with_steps(task, rate, more):
    first, second, third = do_adp_bound(task, rate, 100)
    noisier = do_adp_bound(replace(task, noise_variance=task.noise_variance + more), rate, 100)
    assert noisier[0] == first
    assert noisier[1] > second
    assert noisier[2] > third
    assert do_adp_bound(task, rate, 400)[0] == pytest.approx(first / 4)
    slower = do_adp_bound(task, rate / more, 100)
    assert slower[1] == pytest.approx(second / more)
    assert slower[2] == pytest.approx(third / more**2)


def test_what_a_paper_promises_stands_with_its_algorithm():
    promised = {name for name, row in ALGORITHMS.items() if row.claims.promise is not None}
    papers = {"privsgp-vr", "do-adp", "fedspd-dp"}
    assert promised == papers | {"dyn-d2p", "dyn-c", "dyn-mu", "const-d2p", "dyn-general"}
    reading = {name for name, row in ALGORITHMS.items() if row.claims.promise_constants}
    assert reading == promised - {"fedspd-dp"}


# What the papers promise of accuracy, against their printed numbers and by its own properties.


# PrivSGP-VR's CIFAR-10 experiment, with d inferred for ResNet-18.
CIFAR = BoundConstants(
    smoothness=25.0, heterogeneity=5e5, start_gap=2.8, start_norm=7.8e5, parameters=11_170_000
)
NODES, RECORDS = 16, 3125
C2 = 0.3725  # what follows from K* = 3120


def budgets(epsilon):
    return [Budget(RECORDS, epsilon, 1e-5)] * NODES


@pytest.mark.parametrize("epsilon", [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0])
def test_corollary_1_gives_the_papers_number_of_steps_on_cifar_10(epsilon):
    """K* = 3120 (eps / 3)^2."""
    steps = published_steps(CIFAR, budgets(epsilon), gradient_bound=10.0, c2=C2)
    assert steps == pytest.approx(3120 * (epsilon / 3) ** 2, rel=2e-3)


def test_the_papers_number_of_steps_on_cifar_10_needs_a_constant_of_0_37():
    """The c2 that K* = 3120 implies, at its printed constants and ResNet-18's d."""
    steps = published_steps(CIFAR, budgets(3.0), gradient_bound=10.0, c2=1.0)
    assert math.sqrt(steps / 3120) == pytest.approx(0.37, abs=0.005)


@pytest.mark.parametrize(
    ("epsilon", "printed"), [(0.4, 92), (0.6, 207), (0.8, 368), (1.0, 575), (1.6, 1472)]
)
def test_corollary_1_moves_as_575_epsilon_squared_on_mnist(epsilon, printed):
    """L, G, b^2 and F0 of MNIST are not printed: whatever they are, K* is 575 eps^2 if it is 575
    at eps = 1, n = 50, J = 1200 and delta = 1e-5."""

    def steps(budget, c2):
        task = BoundConstants(2.0, 7.0, 2.3, 40.0, 25_450)
        return published_steps(task, [Budget(1200, budget, 1e-5)] * 50, gradient_bound=1.0, c2=c2)

    c2 = math.sqrt(steps(1.0, 1.0) / 575)
    assert round(steps(epsilon, c2)) == printed == round(575 * epsilon**2)


def test_theorem_1_and_corollary_1_as_printed():
    """Every formula of PAPERS, at fifty digits, for budgets that differ."""
    mixed = [Budget(RECORDS, 1.0 + i / 4, 10.0 ** -(4 + i % 3)) for i in range(NODES)]
    with mp.workdps(50):
        c2, g, d, smooth = mp.mpf("0.7"), mp.mpf(3), mp.mpf(CIFAR.parameters), mp.mpf(25)
        start = 13 * mp.mpf(2.8) + 6 * smooth * mp.mpf(7.8e5) + 18 * smooth * mp.mpf(5e5)
        total = sum(mp.log(1 / mp.mpf(b.delta)) / mp.mpf(b.epsilon) ** 2 for b in mixed)
        steps = start * RECORDS**2 * NODES / (216 * smooth * d * c2**2 * g**2 * total)
        least = 12 * c2 * g * mp.sqrt(6 * smooth * d * start * total) / (NODES * RECORDS)
        squares = sum(
            (3 * c2 * g / (RECORDS * mp.mpf(b.epsilon))) ** 2 * 700 * mp.log(1 / mp.mpf(b.delta))
            for b in mixed
        )
        after_700 = (start + 24 * smooth * d / NODES * squares) / mp.sqrt(NODES * 700)
    assert published_steps(CIFAR, mixed, gradient_bound=3.0, c2=0.7) == pytest.approx(
        float(steps), rel=1e-12
    )
    assert published_bound(CIFAR, mixed, gradient_bound=3.0, c2=0.7) == pytest.approx(
        float(least), rel=1e-12
    )
    noise = claimed_variances(mixed, 700, gradient_bound=3.0, c2=0.7)
    assert convergence_bound(CIFAR, noise, 700) == pytest.approx(float(after_700), rel=1e-12)


magnitude = st.floats(1e-3, 1e3)
whole_tasks = st.builds(
    BoundConstants,
    smoothness=magnitude,
    heterogeneity=magnitude,
    start_gap=magnitude,
    start_norm=magnitude,
    parameters=st.integers(1, 10**6),
)
someones = st.lists(
    st.builds(
        Budget,
        records=st.integers(10, 10**5),
        epsilon=st.floats(0.1, 10),
        delta=st.floats(1e-8, 1e-2),
    ),
    min_size=1,
    max_size=5,
)


@given(whole_tasks, someones, magnitude, st.floats(0.1, 5))
def test_the_published_steps_minimise_the_bound(task, nodes, gradient_bound, c2):
    def bound(steps):
        noise = claimed_variances(nodes, steps, gradient_bound=gradient_bound, c2=c2)
        return convergence_bound(task, noise, steps)

    best = published_steps(task, nodes, gradient_bound=gradient_bound, c2=c2)
    least = published_bound(task, nodes, gradient_bound=gradient_bound, c2=c2)
    assert bound(best) == pytest.approx(least, rel=1e-9)
    around = [bound(best * factor) for factor in np.geomspace(0.01, 100, 41)]
    assert min(around) >= least * (1 - 1e-9)
    assert bound(best * 0.97) > least
    assert bound(best * 1.03) > least


@given(whole_tasks, someones, magnitude, st.floats(1.01, 10))
def test_the_best_bound_falls_with_the_budget_and_the_records(task, nodes, gradient_bound, more):
    def best(these):
        return published_bound(task, these, gradient_bound=gradient_bound)

    richer = [Budget(b.records, b.epsilon * more, b.delta) for b in nodes]
    larger = [Budget(math.ceil(b.records * more), b.epsilon, b.delta) for b in nodes]
    assert best(richer) == pytest.approx(best(nodes) / more, rel=1e-9)
    assert best(larger) < best(nodes)
    # Four times as many nodes of every kind halve it.
    assert best(nodes * 4) == pytest.approx(best(nodes) / 2, rel=1e-9)


@given(whole_tasks, st.lists(st.floats(0, 10), min_size=1, max_size=5), st.integers(1, 10**6))
def test_theorem_1_falls_with_steps_and_nodes_at_a_given_noise(task, variances, steps):
    bound = convergence_bound(task, variances, steps)
    assert convergence_bound(task, variances, 4 * steps) == pytest.approx(bound / 2)
    assert convergence_bound(task, variances * 4, steps) == pytest.approx(bound / 2)
    assert convergence_bound(task, [v + 1 for v in variances], steps) > bound


def test_theorem_1_needs_more_steps_than_anyone_takes():
    """Equation 92 by hand at J = 2, L = 3, n = 4: its last term, 64 J^4 (1 + J)^2 L^2 n / 9."""
    assert least_steps(3.0, [2, 5, 7, 2]) == pytest.approx(64 * 16 * 9 * 9 * 4 / 9)
    # With very few records the third term leads: 16 (4 J + 5)^2 L^2 / n.
    assert least_steps(1.0, [1]) == pytest.approx(16 * 81)
    assert least_steps(CIFAR.smoothness, [RECORDS] * NODES) > 1e20


@pytest.mark.parametrize(
    ("records", "c", "q", "by_hand"),
    [
        # J = 1, n = 1, C / (1 - q) = 2: the terms are 392, 2304, 1296, 1824 and 256 / 9.
        ([1], 1.0, 0.5, 2304.0),
        # C / (1 - q) = 1.5: 224, 729, 1296, 1026 and 256 / 9.
        ([1], 1.5, 0.0, 1296.0),
        # C / (1 - q) = 1.7: 285.4, 1202.7, 1296, 1317.8 and 256 / 9.
        ([1], 1.7, 0.0, 4 * 1.7**2 * 114),
        # n = 2, J = 40, C = 0.1 has the last term; without it the first one would lead.
        ([40, 40], 0.1, 0.0, 64 * 40**4 * 41**2 * 2 / 9),
    ],
)
def test_equation_92_with_push_sum(records, c, q, by_hand):
    assert least_steps(1.0, records, push_sum_constant=c, push_sum_rate=q) == pytest.approx(by_hand)
    assert least_steps(2.0, records, push_sum_constant=c, push_sum_rate=q) == pytest.approx(
        4 * by_hand
    )


@given(
    magnitude,
    st.lists(st.integers(1, 10**4), min_size=1, max_size=6),
    magnitude,
    st.floats(0, 0.99),
)
def test_equation_92_is_at_least_its_terms_without_the_graph(smoothness, records, c, q):
    whole = least_steps(smoothness, records, push_sum_constant=c, push_sum_rate=q)
    assert whole >= least_steps(smoothness, records)
    assert least_steps(smoothness, records, push_sum_constant=2 * c, push_sum_rate=q) >= whole
    n, j, away = len(records), min(records), (c / (1 - q)) ** 2
    first = 4 * n * smoothness**2 * (j**2 * (1 + j) / n + 12 * (1 + j) * away)
    assert whole >= first * (1 - 1e-12)


def test_constants_of_any_size_give_a_number_or_infinity():
    huge = least_steps(1e100, [10**9], push_sum_constant=1e100, push_sum_rate=1 - 1e-16)
    assert huge == math.inf
    assert 0 < least_steps(1e-100, [1]) < 1e-190


def test_table_1_as_the_abstract_has_it():
    """sqrt(d log(1/delta)) / (sqrt(n) J eps), and a factor sqrt(n) more for A(DP)2SGD."""
    common = {"nodes": 16, "records": 3125, "parameters": 10_000, "epsilon": 3.0, "delta": 1e-5}
    ours = utility_order(**common)  # type: ignore[arg-type]
    assert ours == pytest.approx(100 * math.sqrt(math.log(1e5)) / (4 * 3125 * 3))
    assert utility_order(**common, method="server") == ours  # type: ignore[arg-type]
    assert utility_order(**common, method="adp2-sgd") == pytest.approx(4 * ours)  # type: ignore[arg-type]


@given(whole_tasks, st.integers(1, 50), st.integers(10, 10**5), st.floats(0.1, 10), magnitude)
def test_table_1_is_the_order_of_corollary_1(task, nodes, records, epsilon, gradient_bound):
    """Their ratio is 12 G sqrt(6 L A), whatever n, J, d, eps and delta are."""
    for delta in (1e-8, 1e-3):
        budget = Budget(records, epsilon, delta)
        bound = published_bound(task, [budget] * nodes, gradient_bound=gradient_bound)
        order = utility_order(
            nodes=nodes, records=records, parameters=task.parameters, epsilon=epsilon, delta=delta
        )
        constant = 12 * gradient_bound * math.sqrt(6 * task.smoothness * task.noiseless)
        assert bound == pytest.approx(constant * order, rel=1e-9)


def test_the_rate_of_fedspd_dp():
    assert fedspd_rate(participation=0.2, rounds=100, local_steps=5) == pytest.approx(0.1)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_numbers_out_of_range_are_refused(value):
    good = {"smoothness": 1.0, "heterogeneity": 0.0, "start_gap": 0.0, "start_norm": 0.0}
    for key in good:
        if value == 0 and key != "smoothness":
            BoundConstants(**{**good, key: value}, parameters=3)
            continue
        with pytest.raises(InputError, match=key):
            BoundConstants(**{**good, key: value}, parameters=3)
    with pytest.raises(InputError, match="epsilon"):
        Budget(10, value, 1e-5)
    with pytest.raises(InputError, match="delta"):
        Budget(10, 1.0, value)
    for key in ("participation", "rounds", "local_steps"):
        with pytest.raises(InputError, match=key):
            fedspd_rate(**{"participation": 1.0, "rounds": 1, "local_steps": 1, key: value})  # type: ignore[arg-type]
    if value != 0:
        with pytest.raises(InputError, match="push_sum_constant"):
            least_steps(1.0, [1], push_sum_constant=value)
        with pytest.raises(InputError, match="push_sum_rate"):
            least_steps(1.0, [1], push_sum_rate=value)
    with pytest.raises(InputError, match="push_sum_rate"):
        least_steps(1.0, [1], push_sum_rate=1.0)
    with pytest.raises(InputError, match="method"):
        utility_order(nodes=1, records=1, parameters=1, epsilon=1, delta=0.1, method="sgd")  # type: ignore[arg-type]
