"""`module:function` data sets: what a user's function may return, and how it may fail."""

import itertools
import sys
import textwrap

import numpy as np
import pytest
import torch

from tacit.data import load
from tacit.errors import InputError
from tacit.models.imports import import_function

names = (f"user_module_{number}" for number in itertools.count())


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module into the current directory; its name is a new one each time."""
    monkeypatch.chdir(tmp_path)

    def write(source):
        name = next(names)
        header = "import numpy as np\nimport torch\nfrom tacit.data import Dataset, TaskData\n"
        (tmp_path / f"{name}.py").write_text(header + textwrap.dedent(source))
        return name

    return write


def refused(reference, tmp_path):
    with pytest.raises(InputError) as caught:
        load(reference, data_dir=tmp_path)
    assert caught.value.where == "task.dataset"
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_pair_of_pairs(module, tmp_path):
    name = module(
        """
        def make():
            train = np.arange(12, dtype=np.uint8).reshape(6, 2), [0, 1, 2, 0, 1, 2]
            return train, (np.ones((2, 2)), np.array([3, 0]))
        """
    )
    data = load(f"{name}:make", data_dir=tmp_path)
    assert data.name == f"{name}:make"
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.inputs.tolist() == np.arange(12).reshape(6, 2).tolist()
    assert data.test is not None
    assert data.test.inputs.dtype == torch.float64
    assert data.classes is None  # not counted: nobody has declared it
    assert data.columns["label"].tolist() == [0, 1, 2, 0, 1, 2]


def test_a_torch_data_set_and_no_test(module, tmp_path):
    name = module(
        """
        def make():
            tensors = torch.randn(5, 3), torch.tensor([-1.0, 1.0, 1.0, -1.0, 1.0])
            return torch.utils.data.TensorDataset(*tensors), None
        """
    )
    data = load(f"{name}:make", data_dir=tmp_path)
    assert data.train.targets.tolist() == [-1, 1, 1, -1, 1]
    assert data.test is None
    assert data.classes is None
    assert data.columns == {}


def test_a_task_data_with_columns(module, tmp_path):
    name = module(
        """
        def make():
            train = Dataset(torch.zeros(3, 2), torch.tensor([0, 1, 1], dtype=torch.int32))
            return TaskData("mine", train, columns={"site": np.array(["a", "b", "a"])})
        """
    )
    data = load(f"{name}:make", data_dir=tmp_path)
    assert data.name == "mine"
    assert data.classes is None
    assert data.train.targets.dtype == torch.int64
    assert set(data.columns) == {"site", "label"}


def test_a_module_beside_it_can_be_imported_when_the_function_runs(module, tmp_path):
    helper = module("INPUTS = torch.ones(2, 1)")
    name = module(
        f"""
        def make():
            from {helper} import INPUTS
            return (INPUTS, [0, 1]), None
        """
    )
    before = list(sys.path)
    assert len(load(f"{name}:make", data_dir=tmp_path).train) == 2
    assert sys.path == before


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 5", "(train, test), not int"),
        ("return torch.zeros(3, 2), torch.zeros(3)", "pair (inputs, targets)"),
        ("return (torch.zeros(3, 2), torch.zeros(2)), None", "3 inputs, 2 targets"),
        ("return (torch.zeros(0, 2), torch.zeros(0)), None", "no records"),
        ("return (torch.tensor([[0.0], [float('inf')]]), [0, 1]), None", "1 of 2 records"),
        ("return (torch.zeros(2, 2), [0, 1]), (torch.zeros(1, 3), [0])", "test inputs"),
        ("raise ValueError('no such\\nfile')", "raised ValueError: no such file"),
        (
            "return TaskData('x', Dataset(torch.zeros(2, 1), torch.tensor([0, 3])), classes=3)",
            "1 of 2 records",
        ),
    ],
)
def test_a_wrong_result_is_an_input_error(module, tmp_path, body, words):
    name = module(f"def make():\n    {body}\n")
    assert words in str(refused(f"{name}:make", tmp_path))


def test_the_test_half_is_named(module, tmp_path):
    name = module(
        "def make():\n    return (torch.zeros(2, 1), [0, 1]), (torch.zeros(1, 1), [-1])\n"
    )
    data = load(f"{name}:make", data_dir=tmp_path)
    assert data.test is not None
    name = module("def make():\n    return (torch.zeros(2, 1), [0, 1]), 7\n")
    with pytest.raises(InputError, match=r"task\.dataset \(test\) = 'int'"):
        load(f"{name}:make", data_dir=tmp_path)


def test_a_missing_module_is_an_input_error(tmp_path, module):
    assert "no module 'no_such_module'" in str(refused("no_such_module:make", tmp_path))
    assert "no module 'no_such_module'" in str(refused("no_such_module.deeper:make", tmp_path))


def test_a_missing_function_names_the_nearest(module, tmp_path):
    name = module("def make():\n    pass\n\nmade = 3\n")
    assert "did you mean 'make'" in str(refused(f"{name}:mak", tmp_path))
    assert f"{name} has no function 'made'" in str(refused(f"{name}:made", tmp_path))


def test_a_module_that_fails_to_import_is_an_input_error(module, tmp_path):
    broken = module("raise RuntimeError('not today')")
    assert "RuntimeError: not today" in str(refused(f"{broken}:make", tmp_path))
    needy = module("import no_such_helper")
    assert "ModuleNotFoundError: No module named 'no_such_helper'" in str(
        refused(f"{needy}:make", tmp_path)
    )
    garbled = module("def make(:")
    assert "SyntaxError" in str(refused(f"{garbled}:make", tmp_path))


@pytest.mark.parametrize("reference", [":f", "m:", "m:f:g", "a b:f", "..m:f", "m:f()"])
def test_another_form_is_an_input_error(tmp_path, reference):
    assert "must be module:function" in str(refused(reference, tmp_path))


def test_import_function_returns_the_function():
    assert import_function("os.path:join", "task.loss")("a", "b") == "a/b"
