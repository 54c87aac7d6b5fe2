"""A figure file is read as it says, and refused by the name of what is wrong."""

import pytest
import tomli_w

from experiments import experiment
from tacit.analysis.compare.figure import FigureOptions, load_figure
from tacit.analysis.settings.changes import choice_text
from tacit.analysis.settings.runs import run_digest
from tacit.config import load_config
from tacit.errors import InputError


def write(folder, name="fig.toml", figure=None, **changes):
    path = folder / name
    content = experiment(**changes)
    if figure is not None:
        content["figure"] = figure
    path.write_text(tomli_w.dumps(content), encoding="utf-8")
    return path


LINES = [{"name": "one"}, {"name": "two", "set": {"algorithm.clip": 2.0}}]


def test_a_line_without_changes_is_the_base(tmp_path):
    plain = write(tmp_path, "plain.toml")
    figure = load_figure([write(tmp_path, figure={"line": LINES})])
    assert [line.name for line in figure.lines] == ["one", "two"]
    assert figure.lines[0].settings[0].runs == (load_config(plain),)
    assert figure.lines[1].settings[0].runs[0].algorithm.options.clip == 2.0
    assert (figure.title, figure.x, figure.y) == ("fig", ("steps", "bytes"), "test_accuracy")


def test_ledgers_lie_beside_the_figure_and_make_no_other_run(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    privacy = {"noise_seed": None, "ledger": "ledgers"}
    line = {"name": "two", "set": {"privacy.ledger": "others"}}
    digests = []
    for folder in (tmp_path, tmp_path / "elsewhere"):
        figure = load_figure([write(folder, figure={"line": [LINES[0], line]}, privacy=privacy)])
        runs = [figure_line.settings[0].runs[0] for figure_line in figure.lines]
        assert [run.privacy.ledger for run in runs] == [
            str(folder / "ledgers"), str(folder / "others"),
        ]  # fmt: skip
        digests += [run_digest(run) for run in runs]
    assert len(set(digests)) == 1
    plain = load_figure([write(tmp_path, privacy={"noise_seed": None})])
    assert run_digest(plain.lines[0].settings[0].runs[0]) != digests[0]


def test_later_changes_win(tmp_path):
    """The order: base, set, [figure.quick], the line's quick, grid, --set."""
    line = {
        "name": "line",
        "set": {"train.steps": 50, "algorithm.clip": 3.0, "algorithm.learning_rate": 0.3},
        "quick": {"algorithm.clip": 4.0},
        "grid": {"algorithm.learning_rate": [0.1, 0.2]},
    }
    quick = {"train.steps": 5, "algorithm.clip": 9.0, "seeds": 2}
    file = write(tmp_path, figure={"seeds": 4, "quick": quick, "line": [line]})

    def values(asked):
        return [
            (
                setting.runs[0].train.steps,
                setting.runs[0].algorithm.options.clip,
                setting.runs[0].algorithm.options.learning_rate,
                len(setting.runs),
            )
            for setting in load_figure([file], asked).lines[0].settings
        ]

    assert values(FigureOptions()) == [(50, 3.0, 0.1, 4), (50, 3.0, 0.2, 4)]
    assert values(FigureOptions(quick=True)) == [
        (5, 4.0, 0.1, 2)
    ]  # the first point of the grid only
    assert values(FigureOptions(quick=True, seeds=3)) == [(5, 4.0, 0.1, 3)]
    # What --set decides leaves no grid: the two points are one and the same.
    assert values(FigureOptions(("algorithm.learning_rate=0.7",))) == [(50, 3.0, 0.7, 4)]


def test_every_combination_of_a_grid_is_a_setting(tmp_path):
    grid = {"algorithm.clip": [1.0, 2.0], "train.steps": [3, 4, 5]}
    figure = load_figure([write(tmp_path, figure={"line": [{"name": "line", "grid": grid}]})])
    found = [
        (setting.runs[0].algorithm.options.clip, setting.runs[0].train.steps)
        for setting in figure.lines[0].settings
    ]
    assert found == [(clip, steps) for clip in (1.0, 2.0) for steps in (3, 4, 5)]
    assert choice_text(figure.lines[0].settings[3].choice) == "clip 2.0, steps 3"


def test_unset_takes_a_key_out(tmp_path):
    line = {
        "name": "bare",
        "set": {
            "algorithm.name": "sgp",
            "privacy.noise_std": "unset",
            "privacy.noise_seed": "unset",
        },
    }
    (run,) = load_figure([write(tmp_path, figure={"line": [line]})]).lines[0].settings[0].runs
    assert not run.privacy.noisy
    assert run.privacy.noise_seed is None


def test_a_nested_table_is_read_like_dotted_keys(tmp_path):
    line = {"name": "nested", "set": {"train": {"steps": 9}}}
    figure = load_figure([write(tmp_path, figure={"line": [line]})])
    assert figure.lines[0].settings[0].runs[0].train.steps == 9


def test_seeds_change_split_and_seeded_noise(tmp_path):
    file = write(tmp_path, figure={"seeds": 3, "line": LINES}, train={"seed": 5})
    runs = load_figure([file]).lines[0].settings[0].runs
    assert [run.train.seed for run in runs] == [5, 6, 7]
    assert [run.privacy.noise_seed for run in runs] == [7, 8, 9]
    file = write(tmp_path, figure={"seeds": [11, 2], "line": LINES})
    assert [run.train.seed for run in load_figure([file]).lines[1].settings[0].runs] == [11, 2]


def test_plain_files_are_a_line_each(tmp_path):
    files = [write(tmp_path, "b.toml"), write(tmp_path, "a.toml", train={"steps": 3})]
    figure = load_figure(files, FigureOptions(seeds=2))
    assert [line.name for line in figure.lines] == ["b", "a"]
    assert [line.settings[0].runs[1].train.steps for line in figure.lines] == [6, 3]
    assert load_figure(files[:1]).lines[0].name == "b"
    (tmp_path / "sub").mkdir()
    same = [files[0], write(tmp_path / "sub", "b.toml")]
    assert [line.name for line in load_figure(same).lines] == [str(path) for path in same]


def test_a_digest_tells_experiments_apart_but_not_places():
    base = load_config(experiment())
    changed = (
        ({"train": {"steps": 7}}, False),
        ({"train": {"evaluate_every": 2}}, False),
        ({"privacy": {"noise_seed": 8}}, False),
        ({"algorithm": {"clip": 1.5}}, False),
        ({"task": {"data_dir": "elsewhere"}}, True),
        ({"train": {"checkpoint_every": 2}}, True),
    )
    for change, same in changed:
        other = load_config(experiment(**change))
        assert (run_digest(other) == run_digest(base)) is same, change


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ({}, "figure.line"),
        ({"line": [{"set": {}}]}, "figure.line 1.name"),
        ({"line": [{"name": "a"}, {"name": "a"}]}, "names two lines"),
        ({"line": LINES, "sedes": 2}, "did you mean 'seeds'"),
        ({"line": [{"name": "a", "gird": {}}]}, "did you mean 'grid'"),
        ({"line": LINES, "seeds": 0}, "figure.seeds"),
        ({"line": LINES, "seeds": [1, 1]}, "must differ"),
        ({"line": LINES, "x": ["time"]}, "figure.x"),
        ({"line": LINES, "y": "accuracy"}, "figure.y"),
        ({"line": [{"name": "a", "set": {"steps": 3}}]}, "section.key"),
        ({"line": [{"name": "a", "grid": {"train.steps": 3}}]}, "must be a list"),
        ({"line": [{"name": "a", "grid": {"train.steps": []}}]}, "must be a list"),
        ({"line": [{"name": "a", "published": {"accuracy": 3}}]}, "published"),
        ({"line": [{"name": "a", "set": {"train.steps": 0}}]}, "line 'a', train.steps"),
        ({"line": [{"name": "a", "set": {"train.stesp": 2}}]}, "line 'a', train.stesp"),
        ({"line": [{"name": "a", "grid": {"train.seed": list(range(101))}}], "seeds": 100}, "many"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, figure, said):
    with pytest.raises(InputError) as caught:
        load_figure([write(tmp_path, figure=figure)])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_compared(tmp_path):
    plain, figure = write(tmp_path, "p.toml"), write(tmp_path, figure={"line": LINES})
    (tmp_path / "broken.toml").write_text("= 3", encoding="utf-8")
    for files, said in (
        ([], "at least one"),
        ([figure, plain], "give it alone"),
        ([plain, plain], "twice"),
        ([tmp_path / "none.toml"], "readable TOML"),
        ([tmp_path / "broken.toml"], "not valid TOML"),
    ):
        with pytest.raises(InputError, match=said):
            load_figure(files)


def test_training_refuses_a_figure(tmp_path):
    with pytest.raises(InputError, match="tacit compare"):
        load_config(write(tmp_path, figure={"line": LINES}))
