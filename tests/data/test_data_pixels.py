"""Images that are kept as bytes: the same bits, wherever they are read."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import tacit
from tacit import data
from tacit.data import Dataset, stacked
from tacit.data.stacked import from_bytes, to_bytes

EVERY = torch.arange(256, dtype=torch.uint8)


def images(records, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (records, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return pixels.to(torch.float32) / 255


def labelled(inputs):
    return Dataset(inputs, torch.arange(len(inputs)) % 2)


def test_every_byte_comes_back():
    values = EVERY.to(torch.float32).div(255)
    for shape in ((256,), (256, 1), (2, 128), (4, 1, 8, 8)):
        packed = to_bytes(values.reshape(shape))
        assert packed is not None
        assert torch.equal(packed, EVERY.reshape(shape))
        assert torch.equal(from_bytes(packed), values.reshape(shape))


@given(arrays.arrays(np.float32, arrays.array_shapes(max_dims=3, max_side=40)))
def test_whatever_is_packed_comes_back_bit_for_bit(values):
    given_values = torch.from_numpy(values)
    packed = to_bytes(given_values)
    if packed is not None:
        assert from_bytes(packed).view(torch.int32).equal(given_values.view(torch.int32))


@given(
    st.integers(0, 2**16 - 1),
    st.sampled_from(
        [-0.0, 1e-45, 0.5, 256 / 255, -1 / 255, torch.nan, torch.inf, -torch.inf, 3e38]
    ),
)
def test_one_other_number_anywhere_leaves_all_as_they_are(place, wrong):
    values = images(2**12)
    values.view(-1)[place] = wrong
    assert to_bytes(values) is None


def test_the_neighbours_of_a_pixel_are_no_pixels():
    pixels = (EVERY.numpy() / np.float32(255)).astype(np.float32)
    for towards in (-np.inf, np.inf):
        for value in np.nextafter(pixels, np.float32(towards)):
            assert to_bytes(torch.tensor([value])) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8, torch.int64, torch.float16])
def test_only_float32_is_packed(dtype):
    assert to_bytes(torch.ones(3, 2, dtype=dtype)) is None
    assert to_bytes(torch.ones(3, 0)) is None


def test_stacked_images_are_read_as_they_were_given():
    nodes = [labelled(images(count, count)) for count in (3, 1, 5)]
    found = data.stack(nodes, torch.float32, "cpu")
    assert found.bytes
    assert found.stored.dtype == torch.uint8
    assert torch.equal(found.inputs, torch.cat([node.inputs for node in nodes]))
    indices = torch.tensor([[2, 0], [0, 0], [4, 1]])
    inputs, _ = found.gather(indices)
    right = torch.stack([node.inputs[rows] for node, rows in zip(nodes, indices, strict=True)])
    assert torch.equal(inputs, right)
    assert torch.equal(found.first.inputs, nodes[0].inputs[:1])


def test_parts_of_images_are_read_as_they_were_given():
    whole = labelled(images(12))
    parts = [np.array([3, 1]), np.array([11, 0, 5])]
    found = data.stack_parts(whole, parts, torch.float32, "cpu")
    assert found.bytes
    assert torch.equal(found.inputs, whole.inputs[[3, 1, 11, 0, 5]])


@pytest.mark.parametrize("other", ["numbers", "float64", "accelerator"])
def test_what_are_no_bytes_everywhere_stay_numbers(other):
    odd = torch.randn(2, 1, 4, 4) if other == "numbers" else images(2)
    nodes = [labelled(images(3)), labelled(odd)]
    dtype = torch.float64 if other == "float64" else torch.float32
    found = data.stack(nodes, dtype, "meta" if other == "accelerator" else "cpu")
    assert not found.bytes
    assert found.stored.dtype == found.inputs.dtype == dtype


def trained(**changes):
    """A run on images, whose noise is known."""
    experiment = {
        "topology": {"graph": "ring"},
        "algorithm": {"name": "privsgp", "learning_rate": 0.5, "clip": 1.0},
        "privacy": {"noise_std": 0.1, "accounting": "none", "noise_seed": 1},
        "train": {"steps": 4, "batch": 3},
        "task": {"outputs": 2, **changes},
    }
    nodes = [labelled(images(6, node)) for node in range(3)]
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    torch.nn.init.zeros_(model[1].weight)
    torch.nn.init.zeros_(model[1].bias)
    with pytest.warns(tacit.NotPrivateWarning):
        return tacit.train(experiment, model=model, nodes=nodes)


def test_a_run_on_bytes_computes_the_same_bits(monkeypatch):
    packed = trained()
    monkeypatch.setattr(stacked, "to_bytes", lambda values: None)
    plain = trained()
    assert (packed.job.train.bytes, plain.job.train.bytes) == (True, False)
    assert torch.equal(packed.parameters, plain.parameters)
    assert packed.parameters.abs().sum() > 0


def test_a_bound_of_inputs_holds_for_images_too():
    assert trained(input_bound=1e3).job.train.bytes
    bounded = trained(input_bound=0.5).job.train
    assert not bounded.bytes
    assert float(bounded.inputs.flatten(1).double().norm(dim=1).max()) <= 0.5


def test_a_data_set_that_is_replaced_says_what_it_stores():
    found = data.stack([labelled(images(3))], torch.float32, "cpu")
    plain = replace(found, stored=found.inputs, bytes=False)
    assert torch.equal(plain.inputs, found.inputs)
