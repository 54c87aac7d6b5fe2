"""The floor of a step: what it must move and compute at least, and how fast this machine does that.

`floor_of` counts, part by part, with n nodes that are active, d parameters, b records a batch, x
numbers a record, Q local steps, and layers l with i inputs and o outputs at p positions (p = 1 for
a dense layer, the pixels of its output for a convolution):

| part | bytes | operations |
|---|---|---|
| sample | 8 Q n b, of secret coins | keystream of as many bytes |
| gather | 2 x 4 Q n b x | |
| forward | 4 Q n (d + b sum p (i + o)) | Q n b sum 2 p i o |
| backward | the same, less the first layer | the same, less the first layer |
| norms and clipped sum | 4 Q n (d + b sum p (i + o)) | Q n b sum 2 p i o, and for convolutions \
their records' norms, `min(2 p p (i + o), 2 p i o)` each, less 2 p i o where gradients are kept |
| noise | 2 x 4 n d | keystream of 4 bytes a value |
| update | 2 x 4 n d: z = x / w; Q times 3 x 4 n d if federated | |
| mix | 3 x 4 n d: read x and the direction, write what is mixed; 4 n d if federated | |

Numbers take 4 bytes. i of a convolution is channels times kernel pixels, but its bytes are those of
the image. Each part's bytes take at least bytes / copying rate (of arrays as large as the
workload's `[n, d]`, which may fit a cache), its operations operations / the best rate of any
product that is measured, its keystream bytes / the rate of AES-CTR; **the floor is the larger of
the sum of the first and the sum of the others**. Nothing reaches it: parts are not overlapped
perfectly, and small products run below the best rate. What they run at is measured beside it, at
the very shapes (`attainable`).

`python benchmarks/speed/floor.py` prints it for the rows of the table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor, nn
from workloads import Workload

from models import model_of

PARTS = (
    "sample",
    "gather",
    "forward",
    "backward",
    "norms and clipped sum",
    "noise",
    "update",
    "mix",
)

NUMBER = 4  # bytes of a float32
WORD = 8  # bytes of keystream for a coin, and for a normal: an AES block makes a pair
_COPIED = 1 << 28  # bytes: beyond every cache
_SMALLEST_COPY = 1 << 18
_PRODUCT = 1536  # rows and columns
_NORMALS = 1 << 22
_KEYSTREAM = 1 << 25  # bytes
_ROUNDS = 5


@dataclass(frozen=True)
class Rates:
    """What the machine does in a second, with all cores but where said otherwise.

    Attributes:
        threads: that PyTorch uses.
        copied: bytes read and written by copying arrays beyond every cache.
        operations: of a large float32 product, a multiplication and an addition being two.
        normals: values of `torch.randn`, which uses one core.
        keystream: bytes of AES-256 in counter mode.
    """

    threads: int
    copied: float
    operations: float
    normals: float
    keystream: float


@dataclass(frozen=True)
class Layer:
    """A layer with weights: outputs `[positions, outputs]` of patches `[positions, inputs]`.

    Attributes:
        inputs: numbers that an output is made of, the bias aside.
        outputs: at a position.
        positions: 1 for a dense layer.
        read: numbers of its input, each counted once.
    """

    inputs: int
    outputs: int
    positions: int
    read: int

    @property
    def operations(self) -> int:
        """Of one record's pass."""
        return 2 * self.positions * self.inputs * self.outputs

    @property
    def moved(self) -> int:
        """Numbers of input and output."""
        return self.read + self.positions * self.outputs

    @property
    def norm(self) -> int:
        """Operations for a record's gradient norm, beside the clipped sum: the least of two ways.

        From the products of patches with patches and of output gradients with each other, or from
        the gradient itself, which costs a clipped sum more. For a dense layer, two dot products.
        """
        if self.positions == 1:
            return 2 * (self.inputs + self.outputs)
        gram = 2 * self.positions**2 * (self.inputs + self.outputs)
        return min(gram, 2 * self.inputs * self.outputs)


@dataclass(frozen=True)
class Part:
    """What a part of a step needs at least."""

    bytes: float = 0.0
    operations: float = 0.0
    keystream: float = 0.0


def layers_of(model: nn.Module, shape: Sequence[int]) -> list[Layer]:
    """Dense layers and convolutions, in the order in which a record `[1, *shape]` passes them."""
    found: list[Layer] = []

    def dense(module: nn.Linear, inputs: Tensor, output: Tensor) -> Layer:
        return Layer(module.in_features, module.out_features, 1, inputs.numel())

    def convolution(module: nn.Conv2d, inputs: Tensor, output: Tensor) -> Layer:
        kernel = math.prod(module.kernel_size) * module.in_channels // module.groups
        positions = math.prod(output.shape[2:])
        return Layer(kernel, module.out_channels, positions, inputs.numel())

    kinds: dict[type, Callable[..., Layer]] = {nn.Linear: dense, nn.Conv2d: convolution}

    def seen(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found.append(kinds[type(module)](module, inputs[0], output))

    hooks = [
        module.register_forward_hook(seen) for module in model.modules() if type(module) in kinds
    ]
    with torch.no_grad():
        model(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return found


def parts_of(workload: Workload, layers: Sequence[Layer], parameters: int) -> dict[str, Part]:
    """Bytes, operations and keystream of one step (round), by part; see the module."""
    federated = workload.active is not None
    nodes = workload.active or workload.nodes
    passes = workload.local_steps * nodes
    records = passes * workload.batch
    private = workload.clip is not None
    numbers = nodes * parameters

    def moved(some: Sequence[Layer]) -> float:
        weights = passes * sum(layer.inputs * layer.outputs for layer in some)
        return NUMBER * (weights + records * sum(layer.moved for layer in some))

    def done(some: Sequence[Layer]) -> float:
        return records * sum(layer.operations for layer in some)

    norms = records * sum(layer.norm for layer in layers) if private else 0
    later = layers[1:]
    return {
        "sample": Part(bytes=WORD * records, keystream=WORD * records),
        "gather": Part(bytes=2 * NUMBER * records * math.prod(workload.shape)),
        "forward": Part(bytes=moved(layers), operations=done(layers)),
        "backward": Part(bytes=moved(later), operations=done(later)),
        "norms and clipped sum": Part(bytes=moved(layers), operations=done(layers) + norms),
        "noise": Part(bytes=2 * NUMBER * numbers, keystream=NUMBER * numbers)
        if private
        else Part(),
        "update": Part(bytes=NUMBER * numbers * (3 * workload.local_steps if federated else 2)),
        "mix": Part(bytes=NUMBER * numbers * (1 if federated else 3)),
    }


def floor_of(workload: Workload) -> dict[str, Any]:
    """The floor of a step in seconds, by part, with what it rests on; as JSON has it."""
    model = model_of(workload)
    layers = layers_of(model, workload.shape)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    here = rates()
    nodes = workload.active or workload.nodes
    products = [
        _product_rate(nodes, workload.batch * layer.positions, layer.inputs, layer.outputs)
        for layer in layers
    ]
    copied = max(here.copied, _copy_rate(nodes * parameters * NUMBER))
    operations = max(here.operations, *products)
    parts = {
        name: {
            **asdict(part),
            "seconds by bytes": part.bytes / copied,
            "seconds by operations": part.operations / operations + part.keystream / here.keystream,
        }
        for name, part in parts_of(workload, layers, parameters).items()
    }
    sums = {
        kind: sum(part[f"seconds by {kind}"] for part in parts.values())
        for kind in ("bytes", "operations")
    }
    return {
        "rates": asdict(here) | {"copied here": copied, "operations here": operations},
        "parameters": parameters,
        "parts": parts,
        "seconds by bytes": sums["bytes"],
        "seconds by operations": sums["operations"],
        "seconds": max(sums.values()),
        "attainable": [
            {**asdict(layer), "operations a second": rate}
            for layer, rate in zip(layers, products, strict=True)
        ],
    }


@cache
def rates() -> Rates:
    """Measured once a process: the best of several rounds, since other work only slows down."""
    square = torch.rand(_PRODUCT, _PRODUCT)
    values = torch.empty(_NORMALS)
    cores = torch.get_num_threads()
    return Rates(
        threads=cores,
        copied=_copy_rate(_COPIED),
        operations=2 * _PRODUCT**3 / _best(lambda: square @ square),
        normals=_NORMALS / _best(values.normal_),
        keystream=_keystream_rate(cores),
    )


@cache
def _copy_rate(size: int) -> float:
    """Bytes a second, read and written, of copying arrays of so many bytes."""
    source = torch.ones(max(size, _SMALLEST_COPY) // NUMBER)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best(lambda: target.copy_(source))


@cache
def _product_rate(nodes: int, rows: int, inputs: int, outputs: int) -> float:
    """Operations a second of `[nodes, rows, inputs]` times `[nodes, inputs, outputs]`."""
    rows = min(rows, max(1, _COPIED // (NUMBER * nodes * inputs)))
    left, right = torch.rand(nodes, rows, inputs), torch.rand(nodes, inputs, outputs)
    return 2 * nodes * rows * inputs * outputs / _best(lambda: torch.bmm(left, right))


def _keystream_rate(threads: int) -> float:
    zeros, buffers = bytes(_KEYSTREAM), [bytearray(_KEYSTREAM + 16) for _ in range(threads)]
    makers = [
        Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
        for _ in range(threads)
    ]

    def work(number: int) -> None:
        makers[number].update_into(zeros, buffers[number])

    with ThreadPoolExecutor(threads) as pool:
        return threads * _KEYSTREAM / _best(lambda: list(pool.map(work, range(threads))))


def _best(work: Callable[[], object]) -> float:
    """Seconds of the quickest of several calls; the first call is not counted."""
    work()
    taken = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return min(taken)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the floor of every row of the table, or of some."""
    from comparisons import comparisons

    parser = argparse.ArgumentParser("python benchmarks/speed/floor.py", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="rows")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    workloads = {one.workload.name: one.workload for one in comparisons("none", "none")}
    found = {name: floor_of(workloads[name]) for name in asked.only or workloads}
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    here = rates()
    print(
        f"{here.threads} threads: {here.copied / 1e9:.1f} GB/s copied, "
        f"{here.operations / 1e9:.0f} GFLOP/s, {here.normals / 1e6:.0f} million normals/s "
        f"(one thread), {here.keystream / 1e9:.2f} GB/s of keystream"
    )
    for name, floor in found.items():
        print(
            f"\n{name}: floor {floor['seconds'] * 1e3:.2f} ms a step, d = {floor['parameters']:,}"
        )
        for part, counts in floor["parts"].items():
            print(
                f"  {part:22} {counts['bytes'] / 1e6:9.2f} MB {counts['operations'] / 1e6:10.1f} "
                f"MFLOP {counts['keystream'] / 1e6:8.2f} MB keystream: "
                f"{counts['seconds by bytes'] * 1e3:7.3f} or "
                f"{counts['seconds by operations'] * 1e3:7.3f} ms"
            )
        shown = ", ".join(f"{one['operations a second'] / 1e9:.1f}" for one in floor["attainable"])
        print(f"  GFLOP/s of its layers' products: {shown}")


if __name__ == "__main__":
    main()
