"""Recurrent layers by taps: every product with a weight, at every step of the sequence.

A `Recurrent` uses its weights in products alone. With a_t what a weight is multiplied by at step
t, and g_t the gradient of a record's loss by the product, the record's gradient by the weight is
the sum over t of g_t a_t': a linear layer with one position for each step, see `rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tacit.gradients.contributions import Contribution, Layout, Slot, of_factors
from tacit.gradients.precision import taken
from tacit.gradients.recurrent import Recurrent


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
            left, right = (
                _positions([taken(each, self.name, dtype) for each in values], nodes, count)
                for values in ([call.inputs for call in calls], map(_gradient, calls))
            )
            weight, bias = self.slots[f"weight_{key}"], self.slots.get(f"bias_{key}")
            result += of_factors(weight, bias, left, right, norms)
        return result


def _gradient(call: Product) -> Tensor:
    return call.inputs.new_zeros(call.shape) if call.gradient is None else call.gradient


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
