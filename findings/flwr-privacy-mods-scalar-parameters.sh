#!/usr/bin/env bash
# Flower 1.42.0: LocalDpMod and fixedclipping_mod leave a parameter without dimensions as the client has it. It is
# neither clipped nor given noise, while all others of the same message are: their part of the norm is right.
#
# Such a parameter is usual: a temperature or the scale of a loss, nn.Parameter(torch.tensor(1.0)). As an array of one
# number, shape (1,), it is clipped and noised. The difference of two NumPy arrays without dimensions is a number, which
# `*=` and `+=` replace and do not change.
#
# Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install flwr==1.42.0 numpy==2.4.6
FLWR_TELEMETRY_ENABLED=0 FLWR_LOG_LEVEL=ERROR "$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as a server's process has them
MOVED = 7.0  # every parameter, by the client


def sent(mod, shape):
    before = [np.zeros(shape), np.zeros(4)]
    content = {"arrays": ArrayRecord(before), "config": ConfigRecord({"clipping_norm": 1.0})}
    message = Message(RecordDict(content), 1, "train")

    def client(message, context):
        moved = ArrayRecord([np.asarray(array + MOVED) for array in before])
        return Message(RecordDict({"arrays": moved}), reply_to=message)

    return mod(message, None, client).content["arrays"].to_numpy_ndarrays()


print("flwr", version("flwr"), "numpy", version("numpy"))
np.random.seed(0)
noised = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
for shape in ((), (1,)):
    clipped, vector = sent(fixedclipping_mod, shape)
    print(f"shape {shape}: by {MOVED} from 0, clipped to norm 1 with four others: {clipped}, others {vector[0]:.4f}")
    assert np.allclose(vector, 5**-0.5)
    assert np.allclose(clipped, MOVED if shape == () else 5**-0.5)
    left = [sent(noised, shape)[0] for _ in range(200)]
    deviation = np.std(left)
    print(f"shape {shape}: with noise of deviation 4.84, sent 200 times: deviation {deviation:.2f}")
    assert deviation == 0 and left[0] == MOVED if shape == () else 4 < deviation < 6
PYTHON
