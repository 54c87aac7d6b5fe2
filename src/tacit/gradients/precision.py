"""In which numbers a model's forward and backward passes compute, and in which its sums do not.

`precision` is that of the passes alone: parameters are float32, and what a pass hands out becomes
float32 (or is refused, see `taken`) before it is normed, clipped and added, in IEEE arithmetic. Why
the bound on clipped sums holds for each: `docs/proofs/clipped-sums.md`, "Passes of low precision".

PyTorch's switch for TensorFloat-32 is of the process. So that no thread turns it while another adds
up, whoever calls a model on a CUDA device holds one lock for as long as kernels are chosen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from tacit.errors import InputError

Precision = Literal["float32", "tf32", "bf16"]
"""Of the products of a pass: as they are; on a CUDA device operands rounded to 11 bits; to 8."""

_SWITCHES = threading.RLock()


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Within, products are those of IEEE arithmetic in the dtype of their operands."""
    casts = device.type != "cpu" or torch.is_autocast_enabled("cpu")
    plain = torch.autocast(device.type, enabled=False) if casts else nullcontext()
    with plain, _switched(device, tf32=False):
        yield


@contextmanager
def passing(precision: Precision, device: torch.device) -> Iterator[None]:
    """Within, float32 products of forward and backward passes are as `precision` has them."""
    with _switched(device, tf32=precision == "tf32"):
        yield


def forward(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """A context of a forward pass; what `widened` makes of what it returns goes on from there.

    Float64 stays float64. Nothing is cached: parameters are views, which change.
    """
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def operands(*values: Tensor | None) -> list[Any]:
    """What autocast makes of the operands of a product, for one that it does not see."""
    device = next(value.device.type for value in values if value is not None)
    # Of a device without numbers there is nothing to ask.
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return list(values)
    kind = torch.get_autocast_dtype(device)
    wide = torch.float32
    return [v.to(kind) if v is not None and v.dtype == wide else v for v in values]


def widened(values: Tensor) -> Tensor:
    """The same numbers, in float32 where they are bfloat16."""
    return values.float() if values.dtype == torch.bfloat16 else values


def taken(values: Tensor, layer: str, dtype: torch.dtype) -> Tensor:
    """What a pass gave to or of a layer, for norms and sums in the dtype of the run.

    Raises:
        InputError: on `task.model`, if it is of another dtype: norms and sums would round as that
            dtype does, for which nothing is proved.
    """
    values = widened(values)
    if values.is_floating_point() and values.dtype != dtype:
        kind = str(values.dtype).removeprefix("torch.")
        expected = f"a layer that computes in the dtype of its weights, not in {kind}: leave out "
        expected += "autocast and casts in forward; for passes of low precision set train.precision"
        raise InputError("task.model", layer, expected)
    return values


def check_products() -> None:
    """Refuse PyTorch's own setting: sums are proved for neither bfloat16 nor TensorFloat-32.

    Raises:
        InputError: on `torch.set_float32_matmul_precision`.
    """
    with _SWITCHES:
        try:
            found = torch.get_float32_matmul_precision()
        except RuntimeError:  # backends have settings of their own
            found = "mixed"
    if found != "highest":
        raise InputError(
            "torch.set_float32_matmul_precision",
            found,
            "must be 'highest' where gradients are clipped: what a record contributes is bounded "
            "for products in float32; train.precision is for the model's own",
        )


def precision_notes(precision: Precision, device: torch.device) -> tuple[str, ...]:
    """What a plan says of it."""
    if precision == "float32":
        return ()
    if precision == "tf32" and device.type != "cuda":
        return (f"forward and backward passes are in float32: a {device.type} has no tf32",)
    return (
        f"forward and backward passes are in {precision}, and the norms and sums of what they give "
        "in float32, in which models stay and are sent",
    )


@contextmanager
def _switched(device: torch.device, *, tf32: bool) -> Iterator[None]:
    """Within, a CUDA device's float32 products and convolutions are in TF32, or are not.

    The switches are then as they were. Other devices have none.
    """
    if device.type != "cuda":
        yield
        return
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    places: list[tuple[Any, str]] = [(matmul, "allow_tf32"), (cudnn, "allow_tf32")]
    if hasattr(matmul, "fp32_precision"):  # since PyTorch 2.9, which can tell more apart
        places = [(place, "fp32_precision") for place in (matmul, cudnn.conv, cudnn.rnn)]
    with _SWITCHES:
        before = [(*place, getattr(*place)) for place in places]
        try:
            matmul.allow_tf32 = cudnn.allow_tf32 = tf32
            for place, name in places:
                setattr(place, name, tf32 if name == "allow_tf32" else "tf32" if tf32 else "ieee")
            yield
        finally:
            # Both ways to say it, so that either can be read afterwards.
            matmul.allow_tf32, cudnn.allow_tf32 = (
                value in (True, "tf32") for *_, value in before[:2]
            )
            for place, name, value in before:
                setattr(place, name, value)
