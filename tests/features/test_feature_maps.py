"""Feature maps: what they are, and which functions of a user's own are refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from experiments import write_module
from few import few
from tacit.errors import InputError, RecordsError
from tacit.features.maps import WithFeatures, find_features, known_features
from tacit.features.scattering import Scattering

CPU = torch.device("cpu")
SHAPE = (1, 6, 5)

SOURCE = """
    import random, time
    import numpy as np

    def some(x): return torch.tanh(3 * x.flatten(1))[:, ::2]
    def doubles(x): return x.flatten(1).double()
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten()).eval()
    def picky(x):
        if not torch.isfinite(x).all(): raise ValueError("no")
        return x.flatten(1)

    def centred(x): return x.flatten(1) - x.mean(0).flatten()
    def slightly(x): return x.flatten(1) + 1e-12 * x.sum()
    def largest(x): return x.flatten(1) / x.abs().max()
    def sorted_(x): return x.flatten(1)[x.flatten(1)[:, 0].argsort()]
    def neighbour(x): return x.roll(1, 0).flatten(1)
    def crowd(x): return x.flatten(1) * float(x.abs().max() < 1e25)
    training = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(30))
    dropout = nn.Sequential(nn.Flatten(), nn.Dropout(0.5))
    def noisy(x): return x.flatten(1) + torch.randn(30)
    def numpy_noisy(x): return x.flatten(1) + np.random.rand()
    def python_noisy(x): return x.flatten(1) + random.random()
    def drawn_for_nothing(x): torch.rand(1); return x.flatten(1)
    calls = []
    def counting(x): calls.append(1); return x.flatten(1) + len(calls)
    seen = []
    def remembers(x):
        seen.append(float(x.abs().max()))
        return x.flatten(1) + float(max(seen) > 1e20)
    def in_place(x): return x.mul_(2).flatten(1)
    def one_row(x): return x[:1].flatten(1)
    def scalars(x): return x.sum((1, 2, 3))
    def nothing(x): return x.flatten(1)[:, :0]
    def words(x): return "features"
    def complex_(x): return x.flatten(1) * 1j
    def boolean(x): return x.flatten(1) > 0
    def infinite(x): return x.flatten(1) / 0
    def shapes(x): return x.flatten(1)[:, : 2 if x.abs().max() > 1e20 else 1]
    def fails(x): raise KeyError("some column")
    def leaves(x): raise SystemExit
    """

FINE = ("some", "doubles", "network", "picky")
MIXES = "a record's features depend on the records beside it"
REFUSED = {
    "centred": MIXES,
    "slightly": MIXES,
    "largest": MIXES,
    "sorted_": MIXES,
    "neighbour": MIXES,
    "crowd": MIXES,
    "training": MIXES,
    "dropout": "draws random numbers",
    "noisy": "draws random numbers",
    "numpy_noisy": "draws random numbers",
    "python_noisy": "draws random numbers",
    "drawn_for_nothing": "draws random numbers",
    "counting": "must give the same for the same records",
    "remembers": "",  # for the neighbours or from call to call
    "in_place": "changes the tensor that it is given",
    "one_row": "must return a row a record, [32, ...]; it returned [1, 30]",
    "scalars": "must return a row a record",
    "nothing": "must return a row a record",
    "words": "must return a tensor with a row a record; it returned a str",
    "complex_": "plain tensor of real numbers",
    "boolean": "plain tensor of real numbers",
    "infinite": "must be finite numbers",
    "shapes": "the shape of what it returns depends on the records' numbers",
    "fails": "it must take records of shape [1, 6, 5] and type torch.float32; it raised KeyError",
    "leaves": "it raised SystemExit",
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_module(tmp_path, SOURCE)


def examples():
    return torch.randn(8, *SHAPE, generator=torch.Generator().manual_seed(1))


def found(name, dtype=torch.float32):
    return find_features(name, examples().to(dtype), dtype, CPU)


@pytest.mark.parametrize("name", FINE)
def test_functions_of_each_record_alone_are_taken(module, name):
    features = found(f"{module}:{name}")
    inputs = torch.randn(70, *SHAPE)
    made = features(inputs)
    assert made.shape == (70, *features.shape)
    assert made.dtype == torch.float32
    for record in (0, 31, 32, 69):
        torch.testing.assert_close(features(inputs[record : record + 1])[0], made[record])


@pytest.mark.parametrize("name", REFUSED)
def test_any_other_function_is_refused_in_one_line(module, name):
    with pytest.raises(InputError) as refusal:
        found(f"{module}:{name}")
    text = str(refusal.value)
    assert text.startswith(f"task.features = '{module}:{name}': ")
    assert REFUSED[name] in text
    assert "\n" not in text


def test_a_name_that_is_none_is_refused(module):
    for name, expected in (("scatering", "did you mean"), (f"{module}:none", "no function")):
        with pytest.raises(InputError, match=expected):
            found(name)


def test_a_trial_leaves_the_generators_as_they_were(module):
    found(f"{module}:some")  # the module of the user's draws as it is imported
    before = torch.get_rng_state()
    found(f"{module}:some")
    assert torch.equal(before, torch.get_rng_state())


def test_ids_are_tried_out_as_ids(module, tmp_path):
    name = write_module(
        tmp_path,
        """
        table = torch.arange(20.0).view(10, 2)
        def embedded(x): return table[x].flatten(1)
        def shared(x): return table[x].flatten(1) + x.sum()
        """,
    )
    ids = torch.arange(8).view(4, 2)
    features = find_features(f"{name}:embedded", ids, torch.float32, CPU)
    assert features(ids).tolist()[1] == [4.0, 5.0, 6.0, 7.0]
    with pytest.raises(InputError, match=MIXES):
        find_features(f"{name}:shared", ids, torch.float32, CPU)


def test_what_a_function_raises_on_private_records_is_not_quoted(module, tmp_path):
    name = write_module(
        tmp_path,
        """
        def touchy(x):
            if (x == 7.25).any(): raise ValueError(f"secret {x.max()}")
            return x.flatten(1)
        def wide(x): return x.flatten(1)[:, : 3 if (x == 7.25).any() else 5]
        """,
    )
    inputs = torch.zeros(40, *SHAPE)
    inputs[35] = 7.25
    for function in ("touchy", "wide"):
        features = found(f"{name}:{function}")
        with pytest.raises(RecordsError) as refusal:
            features(inputs)
        assert "secret" not in str(refusal.value) + repr(refusal.value.__context__)
        assert "7.25" not in str(refusal.value)
        assert "secret" not in refusal.value.reported()


def test_scattering_is_normalised_as_a_group_normalisation_does():
    images = torch.rand(21, 3, 12, 9, generator=torch.Generator().manual_seed(2))
    features = find_features("scattering", images[:8], torch.float32, CPU)
    assert features.shape == (3 * 81, 3, 2)
    wanted = torch.cat(
        [
            nn.GroupNorm(27, 81, affine=False)(Scattering(2, 12, 9)(images)[:, channel])
            for channel in range(3)
        ],
        dim=1,
    )
    torch.testing.assert_close(features(images), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "shape", "channels"),
    [("scattering:1", (4, 4), 9), ("scattering:2", (1, 8, 8), 81), ("scattering:3", (8, 9), 217)],
)
def test_channels_are_normalised_in_groups(name, shape, channels):
    images = torch.rand(5, *shape, generator=torch.Generator().manual_seed(2))
    made = find_features(name, images, torch.float64, CPU)(images.double())
    group = next(size for size in range(3, channels) if channels % size == 0)
    parts = made.reshape(5, channels // group, -1)
    assert parts.mean(2).abs().max() < 1e-12
    assert parts.square().mean(2).max() < 1 + 1e-12


@pytest.mark.parametrize("shape", [(30,), (1, 3, 8), (2, 1, 8, 8)])
def test_scattering_is_of_images(shape):
    with pytest.raises(InputError, match=r"it needs images \(channels, height, width\)"):
        find_features("scattering", torch.rand(4, *shape), torch.float32, CPU)


@few(6, 20)
@given(records=st.integers(1, 70), place=st.integers(0, 69), size=st.floats(-1e30, 1e30))
def test_another_record_changes_its_own_features_alone(records, place, size):
    """To the bit: what clipped-sums.md assumes of a record's inputs."""
    place = min(place, records - 1)
    images = torch.rand(records, 8, 8, generator=torch.Generator().manual_seed(records))
    features = find_features("scattering", images[:8], torch.float32, CPU)
    before = features(images)
    images[place] = size
    after = features(images)
    changed = (before != after).flatten(1).any(1)
    assert not changed[torch.arange(records) != place].any()


def test_a_records_features_are_those_of_its_number_whoever_follows():
    images = torch.rand(40, 8, 8, generator=torch.Generator().manual_seed(9))
    features = find_features("scattering", images[:8], torch.float32, CPU)
    whole = features(images)
    for records in (1, 15, 16, 17, 39):
        assert torch.equal(features(images[:records]), whole[:records])


def test_features_are_the_same_on_any_number_of_threads():
    before, made = torch.get_num_threads(), []
    images = torch.rand(150, 1, 9, 9, generator=torch.Generator().manual_seed(3))
    features = find_features("scattering", images[:4], torch.float32, torch.device("cpu"))
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            made.append(features(images))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(made[0], other) for other in made)


def test_huge_images_have_features_in_bounds_or_none():
    features = find_features("scattering", torch.rand(8, 8, 8), torch.float32, CPU)
    for size in (1e-40, 1e-20, 1e10, 1e18):
        made = features(size * torch.rand(3, 8, 8))
        assert made.isfinite().all()
        assert made.abs().max() <= math.sqrt(features.size)


def test_a_model_with_features_takes_records_as_they_were(module):
    features = found(f"{module}:some")
    layer = nn.Linear(15, 2)
    inputs = torch.randn(5, *SHAPE)
    whole = WithFeatures(features, None, layer)
    torch.testing.assert_close(whole(inputs), layer(features(inputs)))
    torch.testing.assert_close(whole(inputs.double()), layer(features(inputs)))
    bounded = WithFeatures(features, 0.5, layer)
    lengths = functional.normalize(features(inputs)) * 0.5
    torch.testing.assert_close(bounded(inputs), layer(lengths))
    with pytest.raises(InputError, match=r"features are made of records of shape \[1, 6, 5\]"):
        whole(torch.randn(5, 30))


def test_maps_are_told_apart(module):
    names = [f"{module}:some", f"{module}:doubles", f"{module}:network"]
    identities = [found(name).identity for name in names]
    assert len(set(identities)) == 3
    assert identities == [found(name).identity for name in names]
    images = torch.rand(4, 8, 8)
    scattered = [
        find_features(name, images, torch.float32, CPU) for name in ("scattering", "scattering:1")
    ]
    assert scattered[0].identity != scattered[1].identity
    again = known_features("scattering:2", (8, 8), (), torch.float64, CPU)
    assert again.identity == scattered[0].identity
