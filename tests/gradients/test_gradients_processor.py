"""Records shared among threads: all of them, each once, and on one thread where they are few."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.gradients.layers import processor


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 20), st.sampled_from([0, 1 << 24]), st.integers(1, 4))
def test_every_record_is_worked_on_once(records, numbers, threads):
    seen = np.zeros(records, np.int64)

    def work(part):
        seen[part] += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads)
        processor.over_records(records, numbers, work)
    assert (seen == 1).all()


def test_few_numbers_stay_on_the_thread_that_asks(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    threads: list[int] = []
    processor.over_records(8, 1000, lambda part: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("channels_last", [True, False])
def test_channels_come_last(channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    images = torch.arange(120.0).view(2, 3, 4, 5).contiguous(memory_format=layout)
    found = processor.last_channels(images)
    assert found.flags.c_contiguous
    assert np.array_equal(found, images.permute(0, 2, 3, 1).numpy())
    images[0, 0, 0, 0] = 7
    assert (found[0, 0, 0, 0] == 7) == channels_last
