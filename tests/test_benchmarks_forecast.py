"""The forecast of a step's time: by hand, and how it moves with what it depends on."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import InputError

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks" / "cluster"))

from forecast import COSTS, ClusterLinks, Costs, forecast, forecast_document, parse_links
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
