"""Experiments with `privsgp-vr`."""

STEPS, RATE, CLIP = 7, 0.3, 0.4
PRIVATE = {"state": "private"}


def experiment(options, **sections):
    made = {
        "task": {"loss": "logistic"},
        "topology": {"graph": "exponential"},
        "algorithm": {"name": "privsgp-vr", "learning_rate": RATE, **options},
        "privacy": {"epsilon": "none"},
        "train": {"steps": STEPS, "batch": 2, "dtype": "float64", "seed": 3},
    }
    for name, keys in sections.items():
        made[name] = keys if name == "privacy" else {**made[name], **keys}
    return made


def least_epsilon(delta_at, delta):
    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high
