"""LSTM, GRU and RNN layers in plain operations, so that each record has a gradient of its own.

The kernels behind `nn.LSTM`, `nn.GRU` and `nn.RNN` cannot be differentiated one record at a time.
`Recurrent` computes the same numbers from the same parameters, one step of the sequence after the
other: weights of the one can be loaded into the other by `load_state_dict`, both ways.

Clipped sums come from taps. A `Recurrent` uses its weights in products alone: with a_t what a
weight is multiplied by at step t, and g_t the gradient of a record's loss by the product, the
record's gradient by the weight is the sum over t of g_t a_t': a linear layer with one position for
each step, see `layers.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import InputError
from tacit.gradients.contributions import Contribution, Layout, Slot, of_factors
from tacit.gradients.dropout import Dropout
from tacit.gradients.precision import taken

State = tuple[Tensor, ...]  # h `[records, hidden]`; of an LSTM also c


def _lstm(inputs: Tensor, hidden: Tensor, state: State) -> State:
    """States after one step, from what inputs and hidden state give for the four gates."""
    entered, forgot, proposed, shown = (inputs + hidden).chunk(4, dim=-1)
    cell = torch.sigmoid(forgot) * state[1] + torch.sigmoid(entered) * torch.tanh(proposed)
    return torch.sigmoid(shown) * torch.tanh(cell), cell


def _gru(inputs: Tensor, hidden: Tensor, state: State) -> State:
    (reset, update, new), (own_reset, own_update, own_new) = (
        values.chunk(3, dim=-1) for values in (inputs, hidden)
    )
    kept = torch.sigmoid(update + own_update)
    proposed = torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new)
    return ((1 - kept) * proposed + kept * state[0],)


def _tanh(inputs: Tensor, hidden: Tensor, state: State) -> State:
    return (torch.tanh(inputs + hidden),)


def _relu(inputs: Tensor, hidden: Tensor, state: State) -> State:
    return (torch.relu(inputs + hidden),)


@dataclass(frozen=True)
class _Cell:
    """`states` tensors of state, and a step: (by inputs, by hidden state, states) -> states."""

    states: int
    step: Callable[[Tensor, Tensor, State], State]


_CELLS: Mapping[str, _Cell] = {
    "LSTM": _Cell(2, _lstm),
    "GRU": _Cell(1, _gru),
    "RNN_TANH": _Cell(1, _tanh),
    "RNN_RELU": _Cell(1, _relu),
}


class Recurrent(nn.Module):
    """What an `nn.LSTM`, `nn.GRU` or `nn.RNN` computes, record by record; made by `tacit.fix`.

    Takes and returns what `like` does, but for packed sequences, and has its parameters: the same
    names, in the same order, copied. Dropout between layers is a `tacit.Dropout`.
    """

    def __init__(self, like: nn.RNNBase) -> None:
        super().__init__()
        self.mode = like.mode
        self.input_size, self.hidden_size = like.input_size, like.hidden_size
        self.num_layers, self.bidirectional = like.num_layers, like.bidirectional
        self.proj_size, self.bias, self.batch_first = like.proj_size, like.bias, like.batch_first
        for name, parameter in like.named_parameters():
            values = parameter.detach().clone()
            self.register_parameter(name, nn.Parameter(values, parameter.requires_grad))
        self.between = Dropout(like.dropout)
        self.train(like.training)

    def extra_repr(self) -> str:
        """What a printed model says of it."""
        return (
            f"{self.mode}, {self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, "
            f"batch_first={self.batch_first}, bidirectional={self.bidirectional}"
        )

    def flatten_parameters(self) -> None:
        """Does nothing; there for modules that call it."""

    def forward(
        self, inputs: Tensor, state: Tensor | State | None = None
    ) -> tuple[Tensor, Tensor | State]:
        """Outputs of the last layer at every step, and the last state of every layer.

        Args:
            inputs: `[records, steps, in]` (`batch_first`), `[steps, records, in]` or `[steps, in]`.
            state: h, or of an LSTM (h, c), `[layers * directions, records, hidden]`; zeros without.

        Returns:
            What `nn.LSTM`, `nn.GRU` and `nn.RNN` return.

        Raises:
            InputError: on `task.model` for a packed sequence.
        """
        if not isinstance(inputs, Tensor):
            raise InputError(
                "task.model",
                type(inputs).__name__,
                "a per-record LSTM, GRU or RNN takes a padded tensor; mask what follows the end",
            )
        alone = inputs.ndim == 2
        if alone:
            sequence = inputs.unsqueeze(0)
        else:
            sequence = inputs if self.batch_first else inputs.transpose(0, 1)
        starts = self._starts(sequence, state, alone)
        ends: list[State] = []
        for layer in range(self.num_layers):
            if layer:
                sequence = self.between(sequence)
            ways = []
            for suffix in (f"_l{layer}", f"_l{layer}_reverse")[: 1 + self.bidirectional]:
                start = tuple(values[len(ends)] for values in starts)
                outputs, end = self._run(sequence, suffix, start)
                ways.append(outputs)
                ends.append(end)
            sequence = torch.cat(ways, dim=-1)
        last = tuple(torch.stack(values) for values in zip(*ends, strict=True))
        if alone:
            sequence, last = sequence.squeeze(0), tuple(values.squeeze(1) for values in last)
        elif not self.batch_first:
            sequence = sequence.transpose(0, 1)
        return sequence, last if len(last) > 1 else last[0]

    def _starts(self, sequence: Tensor, state: Tensor | State | None, alone: bool) -> State:
        """Every layer's first states, `[layers * directions, records, ...]` each."""
        if state is not None:
            given = (state,) if isinstance(state, Tensor) else tuple(state)
            return tuple(values.unsqueeze(1) for values in given) if alone else given
        count = self.num_layers * (1 + self.bidirectional)
        widths = (self.proj_size or self.hidden_size, self.hidden_size)
        return tuple(
            sequence.new_zeros(count, sequence.shape[0], width)
            for width in widths[: _CELLS[self.mode].states]
        )

    def _run(self, sequence: Tensor, suffix: str, state: State) -> tuple[Tensor, State]:
        """One layer in one direction over `[records, steps, in]`."""
        step = _CELLS[self.mode].step
        steps = range(sequence.shape[1])
        inputs = self.project("ih", suffix, sequence)
        outputs = {}
        for t in reversed(steps) if suffix.endswith("_reverse") else steps:
            state = step(inputs[:, t], self.project("hh", suffix, state[0]), state)
            if self.proj_size:
                state = self.project("hr", suffix, state[0]), *state[1:]
            outputs[t] = state[0]
        return torch.stack([outputs[t] for t in steps], dim=1), state

    def project(self, kind: str, suffix: str, values: Tensor) -> Tensor:
        """`values` `[records, ..., in]` times the weight of this kind, plus its bias if it has one.

        `kind` is `ih` for inputs, `hh` for the hidden state, `hr` for an LSTM's projection;
        `suffix` is of the layer and direction, as in the names of the parameters.
        """
        # Not `get_parameter`: in a functional call a weight is a tensor.
        weight = getattr(self, f"weight_{kind}{suffix}")
        return functional.linear(values, weight, getattr(self, f"bias_{kind}{suffix}", None))


@dataclass
class Product:
    """One product with a weight in one pass: what was multiplied, and the gradient by the result.

    Attributes:
        inputs: `[nodes, b * positions, in]`.
        shape: of the result, `[nodes, b * positions, out]`.
        gradient: of that shape; None where nothing depends on it.
    """

    inputs: Tensor
    shape: tuple[int, ...]
    gradient: Tensor | None = None


Products = dict[str, list[Product]]  # by kind and suffix, in the order of the calls


@dataclass(frozen=True)
class RecurrentLayer:
    """One tapped `Recurrent`, all of whose parameters are trained.

    `slots` say where they lie, by their names in it.
    """

    name: str
    slots: Mapping[str, Slot] = field(default_factory=dict)

    def projection(
        self,
        parameters: Tensor,
        count: int,
        tap: Callable[[Tensor, Product], Tensor],
        products: Products,
    ) -> Callable[[str, str, Tensor], Tensor]:
        """What `Recurrent.project` is replaced by for a pass over `count` records of all nodes.

        Parameters are `[nodes, d]`. `tap` is the identity, which keeps the gradient by its first
        argument in its second; `products` is filled with what is multiplied.
        """
        views = {name: slot.view(parameters) for name, slot in self.slots.items()}

        def project(kind: str, suffix: str, values: Tensor) -> Tensor:
            if values.shape[0] != count:
                raise ValueError(f"{self.name}: the records must be those of the batch")
            weight, bias = views[f"weight_{kind}{suffix}"], views.get(f"bias_{kind}{suffix}")
            rows = values.reshape(weight.shape[0], -1, weight.shape[2])
            turned = weight.transpose(1, 2)
            if bias is None:
                outputs = torch.bmm(rows, turned)
            else:
                outputs = torch.baddbmm(bias.unsqueeze(1), rows, turned)
            product = Product(rows.detach(), tuple(outputs.shape))
            products.setdefault(kind + suffix, []).append(product)
            return tap(outputs, product).view(*values.shape[:-1], -1)

        return project

    def contributions(
        self, products: Products, nodes: int, count: int, norms: bool, dtype: torch.dtype
    ) -> list[Contribution]:
        """The gradients of its parameters, by `count` records of all nodes.

        A call's rows are shared evenly among the records, whose positions or views they are.
        `norms`: whether norms will be asked for. `dtype`: of the run; see `precision.taken`.
        """
        result: list[Contribution] = []
        for key, calls in products.items():
            inputs = [call.inputs for call in calls]
            gradients = [
                call.inputs.new_zeros(call.shape) if call.gradient is None else call.gradient
                for call in calls
            ]
            left, right = (
                _positions([taken(each, self.name, dtype) for each in values], nodes, count)
                for values in (inputs, gradients)
            )
            slots = self.slots[f"weight_{key}"], self.slots.get(f"bias_{key}")
            result += of_factors(slots, left, right, norms)
        return result


def _positions(values: list[Tensor], nodes: int, count: int) -> Tensor:
    """Calls `[nodes, b * positions, n]` as one `[nodes, b, 1, all positions, n]`."""
    each = count // nodes
    parts = [part.reshape(nodes, each, 1, -1, part.shape[-1]) for part in values]
    return torch.cat(parts, dim=3)


def recurrent_layers(module: nn.Module, layout: Layout) -> tuple[RecurrentLayer, ...] | str:
    """The recurrent layers of a module that are trained, or why there are no taps for one."""
    slots = {slot.name: slot for slot in layout.slots}
    found: list[RecurrentLayer] = []
    for name, child in module.named_modules():
        own = [key for key, _ in child.named_parameters(recurse=False)]
        prefix = f"{name}." if name else ""
        trained = {key: slots[prefix + key] for key in own if prefix + key in slots}
        if type(child) is not Recurrent or not trained:
            continue
        if len(trained) < len(own):
            return f"{name or 'the model'} is trained in part"
        if not name:
            return "the model is a Recurrent"
        found.append(RecurrentLayer(name, trained))
    return tuple(found)
