#!/usr/bin/env bash
# PyTorch 2.13.0 with onnxscript 0.7.2, torch.onnx.export(dynamo=True) of a module that computes in
# float64 and has a number of Python in it, such as `x * 0.1`.
#
# The constant in the ONNX file is of float64, and its value is 0.1 rounded to float32
# (0.10000000149011612): what the file gives is off by up to 6e-8 of its size, and nothing says so, though
# all tensors of the module, of the exported program and of the ONNX file are of float64. The
# program of torch.export is exact. So it is for *, /, +, -, clip, torch.where, masked_fill and
# full_like. A tensor of float64 in place of the number is kept exactly, and so is the exponent
# of `x ** 0.1`.
#
# Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install \
    numpy==2.4.6 torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON' 2>/dev/null
import numpy as np
import onnxruntime
import torch

values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def off(function):
    """The largest difference of ONNX, and of the program of torch.export, from the module."""

    class Module(torch.nn.Module):
        def forward(self, x):
            return function(x)

    program = torch.export.export(Module(), (values,))
    made = torch.onnx.export(program, dynamo=True, opset_version=20, verbose=False)
    session = onnxruntime.InferenceSession(made.model_proto.SerializeToString())
    wanted = function(values).numpy()
    (found,) = session.run(None, {session.get_inputs()[0].name: values.numpy()})
    assert found.dtype == np.float64
    return abs(found - wanted).max(), abs(program.module()(values).numpy() - wanted).max()


ROUNDED = {
    "x * 0.1": lambda x: x * 0.1,
    "x / 0.1": lambda x: x / 0.1,
    "x + 0.1": lambda x: x + 0.1,
    "0.1 - x": lambda x: 0.1 - x,
    "x.clip(0.1, 2.1)": lambda x: x.clip(0.1, 2.1),
    "torch.where(x > 2, 0.1, x)": lambda x: torch.where(x > 2, 0.1, x),
    "x.masked_fill(x > 2, 0.1)": lambda x: x.masked_fill(x > 2, 0.1),
    "torch.full_like(x, 0.1)": lambda x: torch.full_like(x, 0.1),
}
EXACT = {
    "x * torch.tensor(0.1, dtype=torch.float64)": lambda x: x * torch.tensor(0.1, dtype=x.dtype),
    "x ** 0.1": lambda x: x**0.1,
}
print("torch", torch.__version__)
for name, function in ROUNDED.items():
    by_onnx, by_program = off(function)
    print(f"{name}: off by {by_onnx:.2g} in ONNX, {by_program:.2g} in torch.export")
    assert by_onnx > 1e-9 and by_program == 0
for name, function in EXACT.items():
    by_onnx, _ = off(function)
    print(f"{name}: off by {by_onnx:.2g} in ONNX")
    assert by_onnx < 1e-15
PYTHON
