#!/usr/bin/env bash
# PyTorch 2.13.0, torch.nn.functional.prelu under two nested torch.func.vmap, as whoever takes the
# gradient of each record for each of several models writes it: the outer one over weights and
# records, the inner one over records alone.
#
# Where there are as many models as records, the gradient by the *input* is wrong and nothing says
# so: by more than 0.1 for entries of size about 1. Where the numbers differ, it raises RuntimeError
# ("The size of tensor a (5) must match the size of tensor b (3)"). The forward pass and the
# gradient by the weight are right for equal numbers, and so is everything for leaky_relu with a
# fixed slope and for prelu written out as where(x > 0, x, w * x).
#
# Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install numpy==2.4.6 torch==2.13.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch.func import grad, vmap
from torch.nn.functional import leaky_relu, prelu

torch.manual_seed(0)


def off(function, models, records, argument):
    """The largest difference of nested vmaps from a plain loop, in a gradient by an argument."""
    weights, inputs = torch.rand(models, 4), torch.randn(models, records, 1, 4)
    gradient = grad(lambda w, x: function(x, w).sum(), argnums=argument)
    rows = [[gradient(w, x) for x in own] for w, own in zip(weights, inputs)]
    loop = torch.stack([torch.stack(row) for row in rows])
    return float((vmap(vmap(gradient, in_dims=(None, 0)))(weights, inputs) - loop).abs().max())


def written_out(x, w):
    return torch.where(x > 0, x, w * x)


print("torch", torch.__version__)
by_input, by_weight = off(prelu, 3, 3, 1), off(prelu, 3, 3, 0)
print("3 models, 3 records: off by", by_input, "by the input,", by_weight, "by the weight")
assert by_input > 0.1 and by_weight == 0
assert off(written_out, 3, 3, 1) == off(written_out, 3, 3, 0) == 0
assert off(lambda x, w: leaky_relu(x * w, 0.1), 3, 3, 1) == 0
try:
    off(prelu, 3, 5, 1)
except RuntimeError as error:
    print("3 models, 5 records:", error)
else:
    raise SystemExit("no error for 3 models and 5 records")
PYTHON
