import json

import pytest

from tacit.errors import InputError
from tacit.report.documents.run import read_run_folder


def edit_result(folder, change):
    path = folder / "result.json"
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))
    return folder


def test_reads_every_node_and_ignores_unknown_keys(write_run):
    run = read_run_folder(write_run())
    assert (run.result.node_count, len(run.result.epsilon)) == (16, 16)
    assert (run.result.records[-1], run.result.epsilon_budget[-1]) == (90, 3.0)
    assert run.result.epsilon[-1] == pytest.approx(2.9912)
    assert (run.result.noise_multiplier.first[-1], run.result.noise_multiplier.last[-1]) == (
        4.21,
        2.73,
    )
    assert run.result.topology.edges[3][0] == (0, 8)
    assert [line.step for line in run.measurements] == list(range(20, 501, 20))


def test_reads_a_run_without_privacy_and_without_a_test_set(star_run):
    run = read_run_folder(star_run)
    assert run.result.test_accuracy is None
    assert set(run.result.epsilon) == set(run.result.leading_by_node) == {None}
    assert run.measurements[0].epsilon is None


def test_the_last_line_of_a_repeated_step_counts(write_run):
    folder = write_run()
    first = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    lines = [
        {**first, "step": step, "train_loss": loss}
        for step, loss in [(10, 1.0), (20, 2.0), (30, 3.0), (20, 4.0), (40, 5.0), (40, 6.0)]
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept = [(line.step, line.train_loss) for line in read_run_folder(folder).measurements]
    # 30 was measured before the run fell back to 20, and not again
    assert kept == [(10, 1.0), (20, 4.0), (40, 6.0)]


def test_a_line_that_was_cut_off_is_left_out(write_run):
    folder = write_run()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 520, "test_acc')
    assert read_run_folder(folder).measurements[-1].step == 500


def test_numbers_that_are_not_finite_count_as_absent(write_run):
    folder = write_run()
    path = folder / "metrics.jsonl"
    line = json.loads(path.read_text().splitlines()[0])
    line["train_loss"] = float("nan")
    line["clip"] = 10**400
    line["test_loss"] = {"mean": float("inf"), "worst": None, "consensus": 1}
    path.write_text(json.dumps(line) + "\n")
    (read,) = read_run_folder(folder).measurements
    assert (read.train_loss, read.clip) == (None, None)
    assert read.test_loss is not None
    assert (read.test_loss.mean, read.test_loss.consensus) == (None, 1.0)


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "result.json"])
def test_a_missing_file_is_named(write_run, name):
    folder = write_run()
    (folder / name).unlink()
    with pytest.raises(InputError, match=name):
        read_run_folder(folder)


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(InputError, match="folder"):
        read_run_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("result.json", "{", "JSON object"),
        ("result.json", "[]", "JSON object"),
        ("result.json", '{"format_version": 1}', "tacit_version"),
        ("result.json", '{"format_version": 1, "tacit_version": "0.1.0"}', "status"),
        ("result.json", '{"format_version": 2}', "format 1"),
        ("result.json", "{}", "format_version"),
        ("config.toml", "= 3", "TOML"),
        ("metrics.jsonl", "{}\n", "line 1: step"),
        ("metrics.jsonl", '{"step": 1}\n', "train_loss"),
        ("metrics.jsonl", '\n{"step": -1}\n', "line 2: step"),
    ],
)
def test_unreadable_content_is_refused(write_run, name, content, told):
    folder = write_run()
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=told):
        read_run_folder(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda result: result["epsilon"].pop(), "one entry a node: 16"),
        (lambda result: result.update(nodes=0), "1 or more"),
        (lambda result: result.update(nodes=True), "whole number"),
        (lambda result: result.update(private="yes"), "true or false"),
        (lambda result: result.update(status="fine"), "budget-exhausted"),
        (lambda result: result.update(seconds="long"), "number or null"),
        (lambda result: result.update(not_covered=[1]), "must be a text"),
        (lambda result: result["task"].update(dataset=None), "must be a text"),
        (lambda result: result["topology"].update(edges=[[[0]]]), "pairs"),
        (lambda result: result["topology"].update(edges=[[[0, -1]]]), "0 or more"),
        (lambda result: result["claim"].update(conditions=[{"text": "a"}]), "holds"),
    ],
)
def test_wrong_fields_are_named(write_run, change, told):
    folder = edit_result(write_run(), change)
    with pytest.raises(InputError, match=told):
        read_run_folder(folder)


def test_a_budget_met_up_to_rounding_is_not_exceeded(write_run):
    epsilon = [3.0 * (1 + 1e-12), 3.001, None, *[1.0] * 13]
    assert read_run_folder(write_run({"epsilon": epsilon})).result.over_budget == [1]
