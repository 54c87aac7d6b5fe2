"""Which tests wait for the night: more of what a test of every change asks already.

Each line takes the tests of one function, all but those whose parameters are kept, and says what of
it stays with every change. `make test-nightly` runs them, and the hosted workflow does every night.
"""

from __future__ import annotations

from typing import NamedTuple


class Nightly(NamedTuple):
    """The tests of `function` of `tests/FILE`, without those whose id has one of `kept` in it."""

    file: str
    function: str
    kept: tuple[str, ...]
    stays: str


OF_LINE = "communication/secure/test_secure_lines.py"
OF_LEAVING = "communication/secure/test_secure_leaving.py"
OF_ENDINGS = "communication/cluster/test_cluster_endings.py"
OF_FAULTS = "training/test_loop_faults.py"
OF_EFFECTS = "config/test_config_effects.py"
OF_BUGS = "analysis/audit/test_audit_finds_bugs.py"

NIGHTLY = (
    Nightly(
        "test_docs_literally.py",
        "test_a_page_is_followed_to_the_letter",
        ("README.md", "start/index.md"),
        "the README and the first steps; every block of the others runs in test_docs.py",
    ),
    Nightly(
        "test_deploy_page.py",
        "test_the_page_does_what_it_says",
        (),
        "its files and commands, in test_deploy.py; sites that run, in communication/secure",
    ),
    Nightly(
        "test_surroundings.py",
        "test_the_suite_passes_in",
        ("nohup",),
        "signals ignored and no terminal at once, under nohup",
    ),
    Nightly(
        "test_tacit_dp.py",
        "test_two_projects_of_one_name_do_not_half_work",
        ("[ours]", "[theirs, ours]", "[ours, theirs, without theirs]"),
        "one order of each: alone, after the other, without it again",
    ),
    Nightly(
        OF_FAULTS,
        "test_every_write_in_turn",
        (),
        "writes that fail and kill at drawn places: test_a_write_that_fails_or_kills..., storms",
    ),
    Nightly(
        OF_FAULTS,
        "test_every_write_of_a_resumed_run_in_turn",
        (),
        "the same of a run that goes on",
    ),
    Nightly(OF_FAULTS, "test_a_full_storm", ("[a budget]",), "one storm, and a small one"),
    Nightly(
        OF_EFFECTS,
        "test_a_key_does_something_or_is_refused_for_methods_in_turn",
        (),
        "each key with one method, in the quick tests",
    ),
    Nightly(
        OF_EFFECTS,
        "test_an_option_does_something_beside_others_or_is_refused",
        (),
        "each option in one algorithm, in the quick tests",
    ),
    Nightly(
        "algorithms/test_algorithms_golden.py",
        "test_figures_of_the_papers_are_planned_as_they_were",
        ("/mnist-table", "/general-form", "/decor", "/augmented-lagrangian", "/moments"),
        "a figure of each paper; all of their noise levels, in privacy/test_privacy_published*",
    ),
    Nightly(
        "analysis/audit/test_audit_attacks.py",
        "test_what_is_certified_is_never_exceeded",
        ("poisson-8-privsgp-", "poisson-all-dyn-d2p-", "fixed-8-dp2-sgd-"),
        "each relation and each kind of batch once",
    ),
    Nightly(
        OF_BUGS,
        "test_no_correct_program_is_accused",
        ("poisson]",),
        "every algorithm that draws; the tests of fidelity accuse none of all 34 cases",
    ),
    Nightly(
        "analysis/audit/fidelity/test_audit_leaving.py",
        "test_no_algorithm_is_accused_of_what_it_shows",
        ("[privsgp]", "[privsgp-vr, private]", "[do-adp]", "[dp-sgd]", "[fedspd-dp]", "[dpdo]"),
        "one of each kind of message",
    ),
    Nightly(
        "report/test_report_browser.py",
        "test_nothing_is_cut_pale_lost_or_broken",
        ("[a_run]", "[a_statement]", "[a_comparison]"),
        "a page of each kind",
    ),
    Nightly(
        "cli/test_cli_printed.py",
        "test_what_is_printed",
        (
            "algorithms",
            "[plan]",
            "pairs]",
            "sums",
            "open",
            "recommend",
            "train",
            "evaluate",
            "watch",
            "report",
            "claims",
            "ledger",
            "statement",
            "check",
            "[compare]",
            "tune",
        ),
        "every command; optimise's table is in analysis/optimise",
    ),
    Nightly(
        "cli/test_cli_tune.py",
        "test_a_search_that_is_killed_again_and_again_keeps_its_budget",
        (),
        "test_hidden_trials_that_are_killed_leave_a_whole_winner",
    ),
    Nightly(
        "analysis/optimise/test_optimise.py",
        "test_sampled_batches_match_an_exhaustive_search",
        (),
        "the same of batches of all records, in the same file",
    ),
    Nightly(
        "analysis/compare/test_compare_baselines.py",
        "test_a_baseline_is_the_experiment_that_one_would_write_by_hand",
        ("faults",),
        "baselines of other settings, in the quick tests of the file",
    ),
    Nightly(
        "algorithms/test_algorithms_own_file.py",
        "test_a_copied_file_does_all_that_the_built_in_does",
        ("[do-adp]",),
        "one row",
    ),
    Nightly(
        "privacy/test_privacy_benchmark.py",
        "test_the_benchmark_runs",
        (),
        "`make bench-quick`, which CI runs",
    ),
    Nightly(
        "privacy/test_privacy_noise_fast.py",
        "test_no_angle_of_all_errs_by_more_than_the_bound",
        ("[0]", "[5]"),
        "two eighths of all angles; the bound of all is proved in finite-arithmetic.md",
    ),
    Nightly(
        "privacy/test_privacy_noise_fast.py",
        "test_no_radius_of_all_errs_by_more_than_the_bound",
        ("[0]",),
        "a quarter of all radii, likewise",
    ),
    Nightly(
        "test_extras.py",
        "test_a_missing_package_is_one_line_that_says_what_to_install",
        (
            "zenoh by train",
            "zenoh by relay",
            "matplotlib",
            "pandas",
            "transformers",
            "tensorboard",
        ),
        "each package once or its likes; what each is needed for, in their own tests",
    ),
    Nightly(
        OF_LINE,
        "test_a_run_over_a_bad_line_sends_hardly_anything_twice",
        ("20 kB a second",),
        "a thin line",
    ),
    Nightly(
        OF_LEAVING,
        "test_those_that_go_on_outlive_their_own_kills_and_agree",
        ("push-sum",),
        "push-sum",
    ),
    Nightly(
        OF_LEAVING,
        "test_a_client_that_comes_after_the_others_began_takes_part_from_a_round_on",
        ("3.0",),
        "with a wait",
    ),
    Nightly(
        OF_LEAVING,
        "test_one_whose_budget_is_used_up_does_not_come_back_and_the_others_go_on",
        ("60",),
        "the same over its last step",
    ),
    Nightly(
        OF_LEAVING,
        "test_one_whose_run_folder_is_wrong_does_not_come_back_and_the_others_go_on",
        ("another site",),
        "the same with another site's folder",
    ),
    Nightly(
        OF_LEAVING,
        "test_of_two_that_come_together_only_the_one_with_another_file_is_refused",
        (),
        "test_a_late_client_with_another_file_is_refused_alone...",
    ),
    Nightly(
        "communication/secure/test_secure_kills.py",
        "test_a_run_outlives_many_kills",
        (),
        "test_a_run_outlives_a_few_kills, with push-sum and with secure sums",
    ),
    Nightly(
        "communication/cluster/test_cluster_losses.py",
        "test_a_launcher_starts_all_again_after_a_loss",
        ("tacit launch",),
        "tacit's own launcher",
    ),
    Nightly(
        OF_ENDINGS,
        "test_a_process_that_is_killed_at_the_end_is_started_again_once",
        ("False-0-place1", "True-1-place3", "True-0-place0"),
        "each place and each way of it once",
    ),
    Nightly(
        "communication/cluster/test_cluster_runs.py",
        "test_processes_give_the_numbers_of_the_simulator",
        (
            "push-sum-5",
            "compressed",
            "recycled",
            "asynchronous-3",
            "server-3",
            "sums-3",
            "the same clients",
            "anchors",
            "averaged-3]",
            "persons",
            "views",
        ),
        "every kind of exchange",
    ),
)
