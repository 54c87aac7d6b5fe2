"""ChaCha20 and what a device makes of it: its kernels, in Triton's interpreter, and the host's way.

What was drawn from these keys at these positions is in `interpreted_noise`.
"""

import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from plain_noise import exact_normal, words_of
from tacit.errors import InputError
from tacit.privacy.noise.draws import keystream, position, seeded_keys
from tacit.privacy.noise.gaussian import add_normal, spacing

KEYS = seeded_keys(79, range(4), "chacha20")
HERE = Path(__file__).parent
# A step of node 0 that has a radius word below 4 among its first 256 pairs: its u is below 2^-30.
TAIL_STEP = 4134563
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="there is no Triton for this machine"
)


def interpreted(*cases):
    """What the cases find, in a process that interprets kernels."""
    path = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HERE / "interpreted_noise.py"), *cases],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def check(*cases, further=()):
    """That no bit differs in these cases; what further ones find."""
    found = interpreted(*cases, *further)
    for case in cases:
        assert found.pop(case) == {"wrong": 0, **({} if case in WITHOUT_LISTS else {"left": 0})}
    return found


WITHOUT_LISTS = ("constants", "fast", "tails", "tail uniforms", "refused", "too large")


@needs_triton
@pytest.mark.process
def test_kernels_release_the_bits_of_the_host():
    """With series in double precision: docs/proofs/finite-arithmetic.md bounds them, by 2^-53."""
    found = check(
        "single", "fast", "refused", "too large", "constants", further=("series", "bound")
    )
    log, sine, cosine = found["series"]["worst"]
    assert 0.5 < log < 4.2
    assert 0.5 < sine < 1.7
    assert 0.5 < cosine < 2.4
    # What test_privacy_noise_fast tests, and what is proved of sums below 2^10 points.
    assert found["bound"] == {"normal": 3.75 * 2.0**-20, "sum": 2.0**-14}


@needs_triton
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "case",
    [
        "double, full lists",
        "offsets",
        "tail uniforms",
        "rows",
        "rows, double",
        "out of range",
        "close",
        "full lists",
        "tails",
        "dispatched",
        "offsets, double",
    ],
)
def test_kernels_release_the_bits_of_the_host_for_more_values(case):
    check(case)


@needs_triton
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("moves", [False, True], ids=["alone", "with offsets"])
def test_kernels_compile_for_a_device_into_what_was_proved(moves, tmp_path, monkeypatch):
    """By Triton's own compiler, for one generation of cards: no card is needed for that."""
    from triton import compile as compiled
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tacit.kernels import normals

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pointers = {"total": "*fp64" if moves else "*fp32", "points": "*i16" if moves else "*fp32"}
    pointers |= {"keys": "*i32", "steps": "*i64", "lattices": "*fp64", "listed": "*i64"}
    pointers |= {"counts": "*i32", "spilt": "*i32"}
    constants = {"MOVES": moves, "APPROXIMATE": True}

    def assembly(kernel, block, warps):
        names = kernel.arg_names
        own = {name: value for name, value in constants.items() if name in names} | {"BLOCK": block}
        signature = {name: pointers.get(name, "i32") for name in names}
        signature |= dict.fromkeys(own, "constexpr")
        source = ASTSource(fn=kernel, signature=signature, constexprs=own)
        options = {"num_warps": warps, "enable_fp_fusion": False}
        made = compiled(source, target=GPUTarget("cuda", 90, 32), options=options)
        return made.asm["ptx"]

    decided, settled = assembly(normals.decide, 128, 4), assembly(normals.settle, 32, 1)
    # Eight pairs, of sixteen fused products each; nothing is fused in double precision.
    assert decided.count("fma.rn.f32") == 8 * 16
    assert decided.count("sqrt.approx.ftz.f32") == 8
    # A floor that takes the smallest numbers for 0 is that of a sum with one half.
    flushing = set(re.findall(r"[\w.]+\.ftz[\w.]*", decided + settled))
    assert flushing <= {"sqrt.approx.ftz.f32", "cvt.rmi.ftz.f32.f32"}
    assert set(re.findall(r"\w+\.(?:approx|full)[\w.]*", decided + settled)) <= flushing
    assert "fma.rn.f64" not in decided + settled
    assert "div.rn.f64" in settled
    assert "sqrt.rn.f64" in settled


def test_the_keystream_is_that_of_the_standard():
    step, part = (1 << 47) + 5, 65_535
    place = (step << 16) | part
    nonce = struct.pack("<IIII", 0, place & 0xFFFFFFFF, place >> 32, 0)
    cipher = Cipher(algorithms.ChaCha20(KEYS.chacha_key(1, "noise"), nonce), None).encryptor()
    expected = cipher.update(bytes(1000))
    assert keystream(KEYS, 1, "noise", step, 1000, part).tobytes() == expected
    room = np.empty(96, np.uint8)
    KEYS.read(1, "noise", position(step, part) + 5, bytes(80), room.data)
    assert room[:80].tobytes() == expected[80:160]  # from within a block
    counters = np.array([[place, 3], [place, 17]], ">u8").view(np.uint8)
    drawn = KEYS.blocks(1, "noise", counters)
    assert drawn.tobytes() == expected[48:64] + expected[272:288]


def test_no_two_draws_share_a_block():
    """Among positions that differ in one of step, part and block, and between purposes."""
    room, seen = np.empty(80, np.uint8), set()
    places = [(0, 0), (1, 0), (0, 1), (1 << 16, 0), (1 << 32, 0), (1 << 47, 0), (0, 1 << 15)]
    for purpose in ("noise", "noise, more bits", "noise, tails"):
        for place in places:
            for block in (0, 1, 1 << 16, (1 << 32) - 1):
                KEYS.read(0, purpose, position(*place) + 4 * block, bytes(64), room.data)
                seen.add(room[:64].tobytes())
    assert len(seen) == 3 * len(places) * 4


def test_a_draw_that_has_too_few_blocks_is_refused():
    room = np.empty(80, np.uint8)
    KEYS.read(0, "noise", position(0, 0) + (4 << 32) - 4, bytes(64), room.data)
    with pytest.raises(InputError, match=r"privacy\.keystream"):
        KEYS.read(0, "noise", position(0, 0) + (4 << 32) - 4, bytes(65), room.data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("step", [4, TAIL_STEP])
def test_releases_of_chacha20_are_the_lattice_points_of_exact_sums(dtype, step):
    d, std = 600, 0.7312
    total = 50.0 * torch.randn(d, generator=torch.Generator().manual_seed(1), dtype=dtype)
    sample = add_normal(total.clone().unsqueeze(0), [std], KEYS, [0], "noise", step)[0].tolist()
    drawn = words_of(KEYS, 0, "noise", step, d)
    assert bool((drawn.word < 4).any()) == (step == TAIL_STEP)
    tails = keystream(KEYS, 0, "noise, tails", step, 64 * 512).reshape(512, 64)
    unit = spacing(std)
    with mpmath.workdps(60):
        for j, (word, angle, *bits, second, pair) in enumerate(zip(*map(list, drawn), strict=True)):
            block = pair // 256 * 256 + pair % 32 * 8 + pair % 256 // 32
            tail = int.from_bytes(tails[block].tobytes(), "big")
            more = tuple(map(int, bits))
            x = exact_normal(int(word), int(angle), more, bool(second), tail)
            point = mpmath.nint((mpmath.mpf(total[j].item()) + mpmath.mpf(std) * x) / unit) * unit
            assert sample[j] == torch.tensor(float(point), dtype=dtype).item()


def test_a_row_of_chacha20_is_the_same_in_any_stack_and_of_any_length():
    stack = add_normal(torch.ones(3, 2100), [0.5, 1.0, 2.0], KEYS, [0, 1, 3], "noise", 6)
    for length in (1, 33, 64, 511, 513, 2099):
        alone = add_normal(torch.ones(1, length), [1.0], KEYS.subset([1]), [1], "noise", 6)
        assert torch.equal(stack[1, :length], alone[0])
