"""Account for privacy without training anything: `tacit.privacy` needs nothing of the rest.

    python examples/accounting_alone.py

A mechanism is a frozen statement of what is released. Every epsilon is a proved upper bound, and
comes with a proved lower one where that is asked for.
"""

from __future__ import annotations

import json
import math

from tacit import privacy

DELTA = 1e-5


def shown(epsilon: float) -> str:
    """Two digits, rounded up: what is shown is an upper bound as well."""
    return f"{math.ceil(100 * epsilon) / 100:.2f}"


def main() -> None:
    """Ask what noise costs, how much a budget needs, and what two releases cost together."""
    # 2,000 steps of SGD on batches to which each record belongs with a chance of 1 %.
    training = privacy.SampledGaussian(sample_rate=0.01, noise_multiplier=1.1, steps=2000)
    lower, upper = privacy.epsilon_bounds(training, delta=DELTA)
    print(
        f"2,000 sampled steps: epsilon at most {shown(upper)}; the gap to what is proved from "
        f"below is {upper - lower:.1g}"
    )

    on_the_way = privacy.epsilon_curve(training, [500, 1000, 2000], delta=DELTA)
    print("after 500, 1,000 and 2,000 steps:", ", ".join(map(shown, on_the_way)))

    def with_noise(scale: float) -> privacy.Mechanism:
        return privacy.SampledGaussian(sample_rate=0.01, noise_multiplier=scale, steps=2000)

    needed = privacy.calibrate(with_noise, epsilon=1.0, delta=DELTA)
    print(f"epsilon 1 needs a noise multiplier of {math.ceil(1000 * needed) / 1000:.3f}")
    assert privacy.epsilon(with_noise(needed), delta=DELTA) <= 1.0

    # The same records are counted once more, with noise of their own.
    count = privacy.Gaussian(noise_multiplier=4.0, steps=1)
    both = privacy.Composed([training, count])
    print(f"with a noised count beside it: epsilon {shown(privacy.epsilon(both, delta=DELTA))}")

    # As it stands in a ledger: whoever has it can compute the figures again.
    written = json.dumps(privacy.to_statement(both))
    assert privacy.from_statement(json.loads(written)) == both
    print(f"written down in {len(written)} characters, and read back as the same")


if __name__ == "__main__":
    main()
