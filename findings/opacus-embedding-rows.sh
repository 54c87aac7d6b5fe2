#!/usr/bin/env bash
# Opacus 1.6.0 with PyTorch 2.13.0: the gradients of records by the rows of an embedding.
#
# nn.Embedding(padding_idx=0): row 0, the padding, has a gradient in p.grad_sample, though by PyTorch it has none and
# stays as it is. With Opacus it is counted in each record's norm, more the more a record is padded, and it is
# trained. The norms of ghost clipping count it too.
# nn.EmbeddingBag (with offsets): a word that is twice in one bag is counted once, so the gradient of a record with "the"
# in it twice is too small; with padding_idx the padding has a gradient here too; and mode="max", which PyTorch has and
# Opacus does not refuse, has gradients of zero, so that it learns nothing but noise.
# p.grad, which PyTorch computes, is right beside each of them, and nothing warns.
#
# The truth is a loop over the records with PyTorch alone. Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install opacus==1.6.0 numpy==2.4.6 torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import torch
from opacus import GradSampleModule
from opacus.validators import ModuleValidator
from torch import nn, tensor


def compared(layer, records, joined):
    """Gradients of records by Opacus, and by a loop; PyTorch's own sum of them is checked on the way."""

    def loss(output):
        return (output**2).sum() + output.sum()

    assert not ModuleValidator.validate(layer, strict=False)
    true = torch.stack([torch.autograd.grad(loss(layer(*one)), layer.weight)[0] for one in records])
    wrapped = GradSampleModule(layer, loss_reduction="sum", strict=True)
    loss(wrapped(*joined)).backward()
    assert torch.allclose(layer.weight.grad, true.sum(0))
    return layer.weight.grad_sample, true


def of_bags(bags, **options):
    start = tensor([0, *map(len, bags[:-1])]).cumsum(0)
    return compared(
        nn.EmbeddingBag(6, 3, **options), [(bag, tensor([0])) for bag in bags], (torch.cat(bags), start)
    )


print("opacus", version("opacus"), "torch", torch.__version__)
torch.manual_seed(0)
words = tensor([[1, 2, 3, 1], [4, 0, 0, 0]])
own, true = compared(nn.Embedding(6, 3), [(one[None],) for one in words], (words,))
assert torch.allclose(own, true)
own, true = compared(nn.Embedding(6, 3, padding_idx=0), [(one[None],) for one in words], (words,))
print("Embedding, padding_idx=0: norms", own.flatten(1).norm(dim=1), "true", true.flatten(1).norm(dim=1))
assert torch.allclose(own[:, 1:], true[:, 1:]) and not true[:, 0].any() and own[1, 0].tolist() == [3.0] * 3

different, repeated = [tensor([1, 2, 3]), tensor([0, 4])], [tensor([1, 1, 3]), tensor([0, 4])]
for mode in ("sum", "mean"):
    own, true = of_bags(different, mode=mode)
    assert torch.allclose(own, true)
    own, true = of_bags(repeated, mode=mode)
    print(f"EmbeddingBag, {mode}, word 1 twice:", own[0, 1].tolist(), "true", true[0, 1].tolist())
    assert torch.allclose(2 * own[0, 1], true[0, 1]) and torch.allclose(own[1], true[1])
own, true = of_bags(different, mode="sum", padding_idx=0)
print("EmbeddingBag, padding_idx=0:", own[1, 0].tolist(), "true", true[1, 0].tolist())
assert own[1, 0].any() and not true[1, 0].any()
own, true = of_bags(different, mode="max")
print("EmbeddingBag, max: norms", own.flatten(1).norm(dim=1).tolist(), "true", true.flatten(1).norm(dim=1).tolist())
assert not own.any() and (true.flatten(1).norm(dim=1) > 1).all()
PYTHON
