"""The forecast of a job: measured here, for the links that were asked for."""

import sys
from pathlib import Path

import pytest
import torch

from experiments import experiment, strict_json, write_experiment
from tacit.communication.colours import Released
from tacit.config import load_config
from tacit.errors import InputError
from tacit.training.prepare import prepare

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks" / "cluster"))

from forecast_job import Within, cluster_forecast, forecast_table, main, step_seconds


def job(name="privsgp", **sections):
    return prepare(load_config(experiment(algorithm={"name": name}, **sections)))


def test_a_job_is_forecast_for_as_many_processes_as_asked():
    found = cluster_forecast(job(), "bandwidth=1Mbit,latency=10ms,processes=4")
    assert found.nodes == 1
    assert found.steps == 6
    assert found.latency == pytest.approx(0.02)
    # One message a step: 650 parameters and the push-sum weight.
    assert found.bytes_needed == pytest.approx(651 * 4)
    assert found.bytes_run == pytest.approx(6 * 4 * (651 * 4 + 80))
    assert found.transfer == pytest.approx((651 * 4 + 80) * 8 / 1e6)
    assert 0 < found.compute < found.seconds_a_step
    alone = cluster_forecast(job(), "bandwidth=1Mbit,latency=10ms,processes=1")
    assert alone.nodes == 4
    assert alone.seconds_a_step == alone.compute


@pytest.mark.parametrize(
    ("name", "graph"), [("dp-sgd", "star"), ("adp2-sgd", "ring"), ("do-adp", "ring")]
)
def test_every_kind_of_exchange_is_measured(name, graph):
    made = job(name, topology={"graph": graph})
    assert step_seconds(made, [1, 2], limit=0.01) > 0


def test_mixing_within_a_block_is_its_part_of_the_matrix():
    made = job()
    value = torch.arange(6.0).view(2, 3)
    (mixed,) = Within(made, [0, 1]).mix(0, Released(value))
    matrix = torch.tensor(made.plan.mixing.at(0).matrix()[:2, :2], dtype=value.dtype)
    assert torch.allclose(mixed, matrix @ value)


def test_more_processes_than_nodes_are_refused():
    with pytest.raises(InputError) as refused:
        cluster_forecast(job(), "bandwidth=1Gbit,latency=1ms,processes=5")
    assert refused.value.where == "LINKS"
    assert refused.value.value == "processes=5"
    assert "4" in refused.value.expected


def test_the_table_says_what_was_asked_and_found(capsys):
    forecast_table(cluster_forecast(job(), "bandwidth=10Gbit,latency=1ms,processes=2"))
    shown = capsys.readouterr().out
    for words in ("2 processes", "10000 Mbit/s", "1 ms", "one step", "6 steps", "kB"):
        assert words in shown


def test_the_script_prints_a_forecast_or_says_what_is_wrong(tmp_path, capsys):
    file = str(write_experiment(tmp_path))
    assert main([file, "bandwidth=10Gbit,latency=1ms,processes=2", "--json"]) == 0
    document = strict_json(capsys.readouterr().out)
    assert (document["links"]["processes"], document["nodes"]) == (2, 2)
    assert main([file, "bandwidth=10Gbit"]) == 2
    assert "LINKS = 'bandwidth=10Gbit': lacks latency and processes" in capsys.readouterr().err
