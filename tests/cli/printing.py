"""What every command prints, for people and for programs, of fixed runs: a net under rewriting.

`PYTHONPATH=tests:tests/cli python tests/cli/printing.py [COMMAND...]` writes `printed/COMMAND.txt`
and `printed/COMMAND.json` anew. A commit that is meant to change one of them says why.
"""

import json
import os
import re
import sys
import tempfile
import warnings
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

import tomli_w

from experiments import tacit

PRINTED = Path(__file__).with_name("printed")
RUN = {
    "task": {"dataset": "digits", "metric": ["accuracy", "log-loss"]},
    "nodes": {"count": 4},
    "algorithm": {"name": "privsgp", "learning_rate": 0.5, "clip": 1.0},
    "privacy": {"epsilon": 3.0, "delta": 1e-4, "noise_seed": 1},
    "train": {"steps": 6, "batch": "all", "evaluate_every": 3},
}
BRIEF = "--repetitions 300 --steps 3 --canaries 100 --seconds 0.001"
CURVE = "--optimise --constant L=1 --constant b2=1 --constant F0=1 --constant x0=1 --constant G=1"


def changed(**changes):
    """`RUN` with other keys; a key that is None is left out."""
    merged = {name: {**RUN.get(name, {}), **changes.get(name, {})} for name in {**RUN, **changes}}
    return {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in merged.items()
    }


FILES = {
    "run.toml": RUN,
    "private.toml": changed(privacy={"noise_seed": None, "ledger": "books"}),
    "pairs.toml": changed(privacy={"noise": "pairwise", "colluding": 1}),
    "sums.toml": changed(
        algorithm={"name": "dp-sgd"}, privacy={"aggregation": "secure-sum", "colluding": 1}
    ),
    "plain.toml": changed(
        algorithm={"name": "sgp", "clip": None},
        privacy={"epsilon": None, "delta": None, "noise_seed": None},
    ),
    "open.toml": {
        "task": {"dataset": "digits"},
        "nodes": {"count": 4, "partition": "dirichlet", "alpha": 1.0},
        "privacy": {"epsilon": 3.0, "delta": 1e-4},
    },
    "vr.toml": changed(algorithm={"name": "privsgp-vr"}, train={"batch": 8}),
    "lines.toml": {
        **RUN,
        "figure": {
            "title": "Two lines",
            "seeds": 2,
            "x": ["steps", "epsilon", "budget"],
            "line": [
                {"name": "PrivSGP", "grid": {"algorithm.clip": [0.5, 1.0]}},
                {
                    "name": "without noise",
                    "group": "not private",
                    "set": {
                        "algorithm.name": "sgp",
                        "algorithm.clip": "unset",
                        "privacy.epsilon": "unset",
                        "privacy.delta": "unset",
                        "privacy.noise_seed": "unset",
                    },
                },
            ],
        },
    },
    "sites.toml": {**RUN, "compare": {"baselines": ["alone", "pooled-plain"], "title": "Sites"}},
    "search.toml": {
        **changed(privacy={"noise_seed": None}),
        "tune": {
            "cost": "composed",
            "score": "test_loss",
            "grid": {"algorithm.learning_rate": [0.5, 1.0]},
        },
    },
}

COMMANDS = {
    "algorithms": "algorithms",
    "plan": "plan run.toml",
    "plan-pairs": "plan pairs.toml",
    "plan-sums": "plan sums.toml",
    "plan-open": "plan open.toml",
    "plan-optimise": f"plan vr.toml {CURVE} --batch --clip",
    "plan-recommend": "plan open.toml --recommend --out {new}.toml",
    "train": "train run.toml --out {new}",
    "train-pairs": "train pairs.toml --out {new}",
    "train-plain": "train plain.toml --out {new}",
    "evaluate": "evaluate run",
    "watch": "watch run --once",
    "report": "report run",
    "claims-file": "privacy claims vr.toml",
    "ledger": "privacy ledger books",
    "statement": "privacy statement private --out {new}",
    "check": "privacy check statement/statement.json",
    "compare": "compare lines.toml --out lines",
    "compare-sites": "compare sites.toml --out sites",
    "tune-plan": "tune search.toml --plan",
    "audit": f"audit run.toml {BRIEF}",
    "audit-pairs": f"audit pairs.toml {BRIEF}",
}
"""`{new}`: a name that is new to each call. All else is in the folder of `scene`."""


def scene(folder):
    """Write the files and the runs that commands are of."""
    for name, sections in FILES.items():
        (folder / name).write_text(tomli_w.dumps(sections), encoding="utf-8")
    for call in (
        "train run.toml --out run",
        "train private.toml --out private",
        "privacy statement private --out statement",
    ):
        answer = tacit(*call.split())
        assert answer.code == 0, answer.err


def called(command, number, *, as_json):
    """What a command prints on both streams, with what no two calls share masked."""
    words = COMMANDS[command].format(new=f"new-{command}-{number}").split()
    with patch.dict(os.environ, {"COLUMNS": "100"}), warnings.catch_warnings(action="ignore"):
        answer = tacit(*words, *["--json"] * as_json)
    if as_json:
        return json.dumps(_rounded(json.loads(answer.out)), indent=1, ensure_ascii=False) + "\n"
    lines = [f"exit code {answer.code}", *masked(answer.out + answer.err).splitlines()]
    # How often a run tells of itself depends on how fast it is.
    kept = [line.rstrip() for line in lines if not re.match(r"step \d+/|trial \d+ of", line)]
    return "\n".join(kept) + "\n"


_MASKS = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00| UTC)?", "TIME"),
    (r"(?<=\brun )[0-9a-f]{8}\b", "HEX"),  # one in some forty has digits alone
    (r"\b(?=[0-9a-f]*[a-f])[0-9a-f]{8,64}\b", "HEX"),
    (r"new-[a-z-]+-\d+", "NEW"),
    (r"(\b\d+(\.\d+)?[ \u00a0\u202f]?(ms|s|min|h)\b[ \u00a0\u202f]?)+ *", "SECONDS "),
    (r"─+", "─"),  # as long as the times above it
    # Columns of times are as wide as these.
    (r" *SECONDS ago +|(?<=last seen) +", " "),
    (r" +(?=(SECONDS|time) *$)", " "),
    (r"\b\d+\.\d+\.\d+(\+\w+)?\b", "VERSION"),
)


def masked(text):
    """Text without times, digests of what is new, versions and places."""
    text = text.replace(os.getcwd(), "HERE")
    for pattern, word in _MASKS:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text


def _rounded(value, key=""):
    """JSON with nine digits of each number, masked."""
    if "second" in key or key == "age":
        return "SECONDS"
    if isinstance(value, dict):
        return {name: _rounded(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner, key) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return masked(value) if isinstance(value, str) else value


def main():
    PRINTED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        scene(Path(folder))
        for command in sys.argv[1:] or COMMANDS:
            for number, ending in enumerate(("txt", "json")):
                text = called(command, number, as_json=ending == "json")
                (PRINTED / f"{command}.{ending}").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
