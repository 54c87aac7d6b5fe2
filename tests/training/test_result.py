"""What a result says of a plan: whether it is private, by which mechanism, at what traffic."""

import pytest

import tacit
from experiments import experiment
from tacit.config import load_config
from tacit.training.planner import build_plan
from tacit.training.run_folder.result import bytes_per_step, mechanism_line, shared_conditions

NO_NOISE = {"algorithm": {"name": "sgp"}, "privacy": {"noise_std": None}}
FIXED = {"privacy": {"relation": "replace-one"}, "train": {"batch": 10, "sampling": "fixed"}}


def plan_of(records=None, **changes):
    return build_plan(load_config(experiment(**changes)), records or [50, 50, 50, 50], 5)


@pytest.mark.parametrize(
    ("changes", "private", "reason"),
    [
        ({"privacy": {"noise_seed": None}}, True, None),
        ({}, False, "seeded noise"),
        ({"privacy": {"noise_seed": None, "accounting": "none"}}, False, "not accounted"),
        (NO_NOISE, False, "adds no noise"),
        (
            {"privacy": {"noise_std": None, "noise_seed": None, "epsilon": "none"}},
            False,
            "no noise",
        ),
    ],
)
def test_private_is_noise_from_secret_keys_that_is_accounted(changes, private, reason):
    plan = plan_of(**changes)
    why = plan.config.not_private_reason
    assert (why is None) == private
    assert [warning for warning in plan.warnings if "NOT PRIVATE" in warning] == (
        [] if private else [f"this run is NOT PRIVATE: {why}"]
    )
    assert (why is None) if reason is None else (why is not None and reason in why)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (NO_NOISE, None),
        ({}, "Gaussian on every record at every step, noise multiplier 2.5, 6 steps"),
        (
            {"train": {"batch": 10}},
            "Poisson-sampled Gaussian, rate 0.2, noise multiplier 0.5, 6 steps",
        ),
        (
            FIXED,
            "Gaussian on batches of fixed size without replacement, noise multiplier 0.5, 6 steps",
        ),
    ],
)
def test_the_mechanism_in_one_line(changes, line):
    assert mechanism_line(plan_of(**changes)) == line


def test_a_schedule_and_unequal_nodes_are_told_by_their_ends():
    falling = plan_of(
        [25, 50, 100, 200], algorithm={"name": "dyn-mu", "clip": 1}, train={"batch": 20}
    )
    line = mechanism_line(falling)
    assert line is not None
    assert "rate 0.1 to 0.8" in line
    assert "noise multiplier 1 falling to" in line  # 0.05 in the mean of 20, at every node


def test_traffic_is_the_mean_over_the_graphs_period():
    numbers, size = 6, 4
    one_peer = bytes_per_step(plan_of(), numbers, size)
    assert one_peer.tolist() == [24.0] * 4
    complete = bytes_per_step(plan_of(topology={"graph": "complete"}), numbers, size)
    assert complete.tolist() == [3 * 24.0] * 4
    star = plan_of(algorithm={"name": "dp2-sgd"}, topology={"graph": "star"})
    assert sorted(bytes_per_step(star, numbers, size).tolist()) == [24.0, 24.0, 24.0, 72.0]


def test_conditions_are_those_of_the_node_where_fewest_hold():
    plan = plan_of([20, 50, 500, 5000], algorithm={"name": "dyn-d2p"})
    held = [sum(condition.holds for condition in node.conditions) for node in plan.nodes]
    assert sum(condition.holds for condition in shared_conditions(plan)) == min(held)


# For people and in notebooks.


def test_a_result_is_a_few_lines():
    result = tacit.train(experiment(privacy={"noise_seed": None}))
    lines = repr(result).splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "run",
        "test accuracy",
        "test loss",
        "privacy",
    ]
    assert "PrivSGP on digits, 4 nodes, 6 of 6 steps in " in lines[0]
    assert lines[-1].startswith("privacy        certified epsilon 0.47")
    seeded = tacit.train(experiment())
    assert repr(seeded).splitlines()[-1].startswith("privacy        NOT PRIVATE: seeded noise")
    html = seeded._repr_html_()
    assert html.startswith("<table><tr><th")
    assert "NOT PRIVATE: seeded noise" in html


def test_the_series_are_a_frame_of_what_is_public_unless_asked():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    result = tacit.train(experiment())
    frame = result.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index) == result.metrics["step"]
    means = [row["mean"] for row in result.metrics["test_accuracy"]]
    assert list(frame["test_accuracy.mean"]) == means
    assert not [name for name in frame.columns if "loss" in name and "test" not in name]
    every = result.to_pandas(private=True)
    assert list(every["private.train_loss"])[1:] == result.metrics["train_loss"][1:]
    assert set(every.columns) - set(frame.columns) == {
        name for name in every.columns if name.startswith("private.")
    }
    other = result.to_polars()
    assert isinstance(other, polars.DataFrame)
    assert other["epsilon.max"].to_list() == list(frame["epsilon.max"])


def test_models_are_in_evaluation_mode():
    result = tacit.train(experiment())
    assert not any(result.model(node).training for node in ("consensus", 0, -1))
