"""Lightning modules as models: their forward and their loss, of one record at a time."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import tacit
from experiments import experiment
from tacit.errors import InputError
from tacit.models.lightning import is_lightning, lightning_loss

pytestmark = pytest.mark.slow  # Lightning takes seconds to import

FEATURES = 4


def records(seed):
    inputs = torch.randn(12, FEATURES, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] > 0).long()


NODES = [records(0), records(1)]


def sections(**task):
    return experiment(task={"dataset": None, "model": None, "outputs": 2, **task})


def lit(**methods):
    """A LightningModule of one linear layer with some methods and attributes of its own."""
    lightning = pytest.importorskip("lightning")

    def forward(self, inputs):
        return self.layer(inputs)

    functions = {name: value for name, value in methods.items() if name.islower()}
    kind = type("Lit", (lightning.LightningModule,), {"forward": forward, **functions})
    module = kind()
    torch.manual_seed(3)
    module.layer = nn.Linear(FEATURES, 2)
    return module


def step(self, batch, batch_index):
    """As Lightning's own examples have it."""
    inputs, targets = batch
    loss = functional.cross_entropy(self(inputs), targets)
    self.log("train_loss", loss, batch_size=inputs.size(0))
    return loss


def same(module):
    """The same weights in a plain module."""
    plain = nn.Linear(FEATURES, 2)
    plain.load_state_dict(module.layer.state_dict())
    return plain


def test_a_lightning_module_is_trained_by_its_own_loss():
    module = lit(training_step=step)
    assert is_lightning(module)
    assert not is_lightning(same(module))
    result = tacit.train(sections(), model=module, nodes=NODES)
    plain = tacit.train(sections(loss="cross-entropy"), model=same(module), nodes=NODES)
    torch.testing.assert_close(result.parameters, plain.parameters)
    (note,) = [note for note in result.plan.notes if "Lightning" in note]
    assert "by the loss Lit.training_step; its optimizers, schedulers" in note
    assert type(result.model()).__name__ == "Lit"


def test_other_ways_to_declare_a_loss():
    def as_mapping(self, batch):
        inputs, targets = batch
        return {"loss": functional.cross_entropy(self.forward(inputs), targets)}

    expected = tacit.train(sections(loss="cross-entropy"), model=same(lit()), nodes=NODES)
    for declared in (
        {"training_step": as_mapping},
        {"loss": staticmethod(functional.cross_entropy)},
        {"criterion": nn.CrossEntropyLoss()},
    ):
        result = tacit.train(sections(), model=lit(**declared), nodes=NODES)
        torch.testing.assert_close(result.parameters, expected.parameters)
    # Without any, and where the experiment names one, it is as with other modules.
    assert lightning_loss(lit()) is None
    assert lightning_loss(same(lit())) is None
    for module, task in ((lit(), {}), (lit(training_step=step), {"loss": "cross-entropy"})):
        result = tacit.train(sections(**task), model=module, nodes=NODES)
        torch.testing.assert_close(result.parameters, expected.parameters)


def test_a_records_loss_is_the_steps_value_for_that_record_alone():
    """A step that weighs a record by its batch is no mean over records, and is refused."""

    def centred(self, batch, batch_index):
        inputs, targets = batch
        outputs = self(inputs)
        return functional.cross_entropy(outputs - outputs.mean(0), targets)

    with pytest.raises(InputError, match=r"Lit.training_step': must take .* mean loss over"):
        tacit.train(sections(), model=lit(training_step=centred), nodes=NODES)


@pytest.mark.parametrize("kind", ["parameters", "inputs", "changed"])
def test_what_would_not_be_trained_is_refused(kind):
    def weighted(self, batch, batch_index):
        return step(self, batch, batch_index) + self.layer.weight.square().sum()

    def reads(self, batch, batch_index):
        inputs, _ = batch
        return functional.mse_loss(self(inputs), inputs[:, :2])

    def scales(self, batch, batch_index):
        inputs, targets = batch
        return functional.cross_entropy(self(2.0 * inputs), targets)

    steps = {"parameters": weighted, "inputs": reads, "changed": scales}
    said = {"parameters": "depends on parameters beside the outputs"}
    with pytest.raises(InputError, match=said.get(kind, "it failed: TypeError")) as caught:
        tacit.train(sections(), model=lit(training_step=steps[kind]), nodes=NODES)
    assert caught.value.where == "task.loss"
    tacit.train(sections(loss="cross-entropy"), model=lit(training_step=steps[kind]), nodes=NODES)
