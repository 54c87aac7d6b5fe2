"""The forecast of a step's time: by hand, and how it moves with what it depends on."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import experiment, strict_json, write_experiment
from tacit.communication.colours import Released
from tacit.config import load_config
from tacit.errors import InputError
from tacit.training.prepare import prepare

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks" / "cluster"))

from forecast import COSTS, ClusterLinks, Costs, forecast, forecast_document, parse_links
from forecast_job import Within, cluster_forecast, forecast_table, main, step_seconds
from traffic import Phase, Traffic

LINKS = ClusterLinks(bandwidth=1e6, latency=0.01, processes=2)
FREE = Costs(per_message=0.0, per_byte=0.0, measured_by="nothing")


def phase(messages, rows, hops=2):
    """Two processes that send each other; what one sends the other receives."""
    out, rows_out = np.array(messages), np.array(rows)
    return Phase(hops, 920.0, out, out[:, ::-1], rows_out, rows_out[:, ::-1])


BUSY = Traffic((phase([[1, 1]], [[1, 3]]),))


def test_a_step_by_hand():
    found = forecast(
        BUSY, LINKS, compute=0.5, nodes=3, steps=10, costs=Costs(1e-3, 1e-6, "this test")
    )
    # Either way 1000 and 2840 bytes; the larger counts on the wire, both are copied.
    assert found.compute == 0.5
    assert found.messages == pytest.approx(2e-3)
    assert found.copying == pytest.approx(3840e-6)
    assert found.transfer == pytest.approx(2840 * 8 / 1e6)
    assert found.latency == pytest.approx(0.02)
    assert found.seconds_a_step == pytest.approx(0.5 + 0.002 + 0.00384 + 0.02272 + 0.02)
    assert found.seconds == pytest.approx(10 * found.seconds_a_step)
    assert (found.bytes_out, found.bytes_needed) == pytest.approx((2840, 2760))
    assert found.bytes_run == pytest.approx(10 * 3840)


def test_phases_follow_each_other():
    twice = Traffic(BUSY.phases * 2)
    one, two = (
        forecast(traffic, LINKS, compute=0.0, nodes=1, steps=1) for traffic in (BUSY, twice)
    )
    assert two.seconds_a_step == pytest.approx(2 * one.seconds_a_step)


def test_a_phase_that_was_waited_for_takes_one_hop():
    ready = Traffic((phase([[1, 1]], [[1, 1]], hops=1),))
    found = forecast(ready, LINKS, compute=0.0, nodes=1, steps=1)
    assert found.latency == pytest.approx(0.01)


def test_steps_in_which_nothing_is_sent_have_no_latency():
    half = Traffic((phase([[1, 0], [0, 0]], [[1, 0], [0, 0]]),))
    found = forecast(half, LINKS, compute=0.0, nodes=1, steps=1, costs=FREE)
    assert found.latency == pytest.approx(0.01)
    assert found.transfer == pytest.approx(0.5 * 1000 * 8 / 1e6)


def test_every_step_waits_for_its_own_slowest():
    turns = Traffic((phase([[1, 0], [0, 1]], [[1, 0], [0, 1]]),))
    one_way = replace(turns.phases[0], messages_in=np.zeros((2, 2)), rows_in=np.zeros((2, 2)))
    found = forecast(Traffic((one_way,)), LINKS, compute=0.0, nodes=1, steps=1, costs=FREE)
    assert found.transfer == pytest.approx(1000 * 8 / 1e6)  # though each sends in half of them


def test_one_process_only_computes():
    silent = np.zeros((1, 1), np.int64)
    alone = Traffic((Phase(2, 100.0, silent, silent, silent, silent),))
    found = forecast(alone, replace(LINKS, processes=1), compute=0.25, nodes=4, steps=8)
    assert (found.seconds_a_step, found.seconds, found.bytes_run) == (0.25, 2.0, 0.0)


@given(
    bandwidth=st.floats(1e3, 1e12),
    latency=st.floats(0, 10),
    factor=st.floats(1, 100),
    more=st.floats(0, 1),
)
def test_better_links_never_take_longer(bandwidth, latency, factor, more):
    def seconds(links):
        return forecast(BUSY, links, compute=0.1, nodes=1, steps=1).seconds_a_step

    base = ClusterLinks(bandwidth, latency, 2)
    assert seconds(replace(base, bandwidth=bandwidth * factor)) <= seconds(base)
    assert seconds(replace(base, latency=latency + more)) >= seconds(base)
    assert seconds(base) >= 0.1 + 2 * latency


def test_links_are_read_in_any_order_and_unit():
    expected = ClusterLinks(1e10, 1e-3, 64)
    assert parse_links("bandwidth=10Gbit,latency=1ms,processes=64") == expected
    assert parse_links("processes=64, latency=1000us, bandwidth=10000 Mbit") == expected
    assert parse_links("latency=0s,processes=1,bandwidth=1.5kbit") == ClusterLinks(1500, 0, 1)
    assert parse_links("latency=2s,processes=1000000,bandwidth=9bit/s") == ClusterLinks(
        9, 2, 1_000_000
    )


@pytest.mark.parametrize(
    ("text", "value", "says"),
    [
        ("", "", "known are"),
        ("bandwith=1Gbit,latency=1ms,processes=2", "bandwith=1Gbit", "'bandwidth'"),
        ("bandwidth=1GB,latency=1ms,processes=2", "bandwidth=1GB", "Gbit"),
        ("bandwidth=Gbit,latency=1ms,processes=2", "bandwidth=Gbit", "number"),
        ("bandwidth=0Gbit,latency=1ms,processes=2", "bandwidth=0Gbit", "more than 0"),
        ("bandwidth=-1Gbit,latency=1ms,processes=2", "bandwidth=-1Gbit", "number"),
        (f"bandwidth={'9' * 400}Gbit,latency=1ms,processes=2", None, "more than 0"),
        ("bandwidth=1Gbit,latency=1,processes=2", "latency=1", "ms"),
        ("bandwidth=1Gbit,latency=1ms,processes=0", "processes=0", "whole number"),
        ("bandwidth=1Gbit,latency=1ms,processes=2.5", "processes=2.5", "whole number"),
        ("bandwidth=1Gbit,latency=1ms,processes=99999999", "processes=99999999", "1000000"),
        ("bandwidth=1Gbit,latency=1ms,latency=2ms", "latency=2ms", "twice"),
        ("bandwidth=1Gbit,latency=1ms", "bandwidth=1Gbit,latency=1ms", "lacks processes"),
        ("bandwidth=1Gbit,", "", "known are"),
    ],
)
def test_what_is_wrong_with_links_is_named(text, value, says):
    with pytest.raises(InputError) as refused:
        parse_links(text)
    assert refused.value.where == "LINKS"
    assert value is None or refused.value.value == value
    assert says in refused.value.expected


def test_the_document_holds_every_part():
    found = forecast(BUSY, LINKS, compute=0.5, nodes=3, steps=10)
    document = forecast_document(found)
    parts = ("compute", "messages", "copying", "transfer", "latency")
    assert sum(document[part] for part in parts) == pytest.approx(document["seconds_a_step"])
    assert document["links"] == {"bandwidth": 1e6, "latency": 0.01, "processes": 2}
    assert document["costs"]["per_byte"] == COSTS.per_byte


# The forecast of a job: measured here, for the links that were asked for.


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
