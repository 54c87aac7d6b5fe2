"""Which tests wait for the night: more of what a test of every change asks already.

Each line takes tests of one function, by parts of their ids, and says what of it stays with every
change. `make test-nightly` runs them, and the hosted workflow does every night.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

# Of a test session: the tests that were collected, before any was left out, and their marks.
COLLECTED = pytest.StashKey[dict[str, frozenset[str]]]()


class Nightly(NamedTuple):
    """Of a function, the tests whose id has one of `sent` in it and none of `kept`.

    `file` is below `tests`; no name of a function stands for all functions of the file.
    """

    file: str
    function: str
    kept: tuple[str, ...]
    stays: str
    sent: tuple[str, ...] = ("",)

    def takes(self, test: str) -> bool:
        """Whether a test of the function waits for the night."""
        return any(part in test for part in self.sent) and not any(p in test for p in self.kept)


OF_LINE = "communication/secure/test_secure_lines.py"
OF_LEAVING = "communication/secure/test_secure_leaving.py"
OF_ENDINGS = "communication/cluster/test_cluster_endings.py"
OF_FAULTS = "training/test_loop_faults.py"
OF_EFFECTS = "config/test_config_effects.py"
OF_BUGS = "analysis/audit/test_audit_finds_bugs.py"
OF_BATTERY = "algorithms/test_algorithms_battery.py"
OF_WEIGHTS = "algorithms/test_algorithms_weights.py"
OF_SENSITIVITY = "algorithms/test_algorithms_sensitivity.py"
OF_INTERFERENCE = "algorithms/test_algorithms_non_interference.py"
OF_RELEASES = "analysis/audit/test_audit_releases.py"
OF_AVERAGES = "training/test_averages.py"
OF_OPTIMISE = "analysis/optimise/test_optimise.py"
OF_ABSENCE = "communication/secure/test_secure_absence.py"
OF_LOSSES = "communication/cluster/test_cluster_losses.py"

# Of algorithms that one file of `tacit.algorithms` holds, those beside which another one stays.
ALIKE = tuple(
    f"[{name}"
    for name in (
        "const-d2p",
        "dyn-c",
        "dyn-mu",
        "dyn-general",
        "d-psgd",
        "choco-sgd",
        "fedavg",
        "ddp-admm-gradient",
        "dp-radmm-gradient",
        "soteriafl-svrg",
        "ldp-spider",
        "noised-moments-server",
    )
)
EACH_FILE = "an algorithm of each file of `tacit.algorithms`"

# One algorithm of each way to release: by gossip, by a server and by ADMM, with Laplace noise, with
# noise of pairs, compressed, from differences, from tables and from moments.
KINDS = tuple(
    f"[{name}"
    for name in (
        "dp-sgd",
        "privsgp-vr",
        "cpgt",
        "dpdo",
        "fedspd-dp",
        "dp-madmm-gradient",
        "dp-srm",
        "do-adp",
        "adp2-sgd",
        "noised-moments",
    )
)
EACH_KIND = "an algorithm of each kind of release"

NIGHTLY = (
    Nightly(
        "test_docs_literally.py",
        "test_a_page_is_followed_to_the_letter",
        ("README.md",),
        "the README; every block of the others runs in test_docs.py",
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
        (),
        "each of its tests itself; under nohup, in training/test_resume.py",
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
    Nightly(OF_FAULTS, "test_a_full_storm", (), "a small storm of all kinds"),
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
        (
            "[dp-sgd, poisson]",
            "[cpgt, poisson]",
            "[privsgp, persons by mean, poisson]",
            "[soteriafl-svrg, poisson]",
            "[dyn-mu, poisson]",
        ),
        "each noise, records and persons; fidelity/test_audit_sensitivity.py accuses none of all",
    ),
    Nightly(
        OF_BUGS,
        "test_every_planted_bug_raises_an_alarm",
        tuple(
            f"[{name}]"
            for name in (
                "one step accounted",
                "noise reused",
                "a tenth less noise",
                "a neighbour's noise",
                "keys from the public seed",
                "plain floating-point noise",
                "pairs with who is away",
                "pair keys from the pair",
                "drawn with replacement",
                "every record",
                "the same coins",
                "twice the clip",
                "clipped in l2 under Laplace noise",
                "clipped by row",
                "momentum before noise",
                "a person at two nodes",
                "outputs counted from labels",
                "scores of local models",
                "the loss alongside",
            )
        ),
        "bugs of every file of bugs; all are planted in test_audit_bug_table.py and fidelity",
    ),
    Nightly("analysis/audit/test_audit_every_algorithm.py", "test_attacks_on", KINDS, EACH_KIND),
    Nightly(
        "analysis/audit/fidelity/test_audit_sampling.py",
        "test_no_private_algorithm_is_accused",
        KINDS,
        EACH_KIND,
    ),
    Nightly(
        "analysis/audit/fidelity/test_audit_sampling.py",
        "test_power",
        (),
        "rates and favoured records; bugs of the others raise an alarm with every change",
        ("[StepsRepeated", "[SometimesFixed"),
    ),
    Nightly(
        "analysis/audit/fidelity/test_audit_interference.py",
        "test_no_algorithm_is_accused_with_fixed_batches",
        KINDS,
        EACH_KIND,
    ),
    Nightly(
        "analysis/audit/test_audit_likelihood.py",
        "test_the_ratio_is_that_of_what_is_released",
        KINDS,
        EACH_KIND,
    ),
    Nightly(OF_RELEASES, "test_without_a_gradient_nothing_is_left_but_noise", KINDS, EACH_KIND),
    Nightly(OF_RELEASES, "test_a_row_says_whether_messages_hold_back_a_part", KINDS, EACH_KIND),
    Nightly(OF_RELEASES, "test_a_record_moves_what_is_attacked_upwards", KINDS, EACH_KIND),
    Nightly(
        "analysis/audit/test_audit_canaries.py",
        "test_every_private_algorithm_is_audited",
        KINDS,
        EACH_KIND,
    ),
    Nightly(
        "analysis/audit/fidelity/test_audit_sensitivity.py",
        "test_the_clip_bypass_is_found",
        ("[sequences-float64]", "[attention-float32]"),
        "each model, each dtype",
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
            "[plan-pairs]",
            "[train-pairs]",
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
        "every command but audit, for which see cli/test_cli_privacy.py and test_audit_report.py",
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
        ("faults", "[gossip]"),
        "gossip, and faults",
    ),
    Nightly(
        "algorithms/test_algorithms_own_file.py",
        "test_a_copied_file_does_all_that_the_built_in_does",
        ("[do-adp]",),
        "one row",
    ),
    Nightly(
        "data/test_data_tables_benchmark.py",
        "test_the_benchmark_runs",
        (),
        "the same run in `make bench-quick`; what it reads, in test_data_tables*",
    ),
    Nightly(
        "privacy/test_privacy_benchmark.py",
        "test_the_benchmark_runs",
        (),
        "what it compares, in test_privacy_accounting.py",
    ),
    Nightly(
        "privacy/test_privacy_noise_fast.py",
        "test_no_angle_of_all_errs_by_more_than_the_bound",
        ("[0]",),
        "an eighth of all angles; the bound of all is proved in finite-arithmetic.md",
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
            "zenoh by relay",
            "matplotlib by Python",
        ),
        "a package that a relay, a command and Python need; all are asked for by one function",
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
        (),
        "one whose budget is used up; wrong folders are refused in test_secure_absence.py",
    ),
    Nightly(
        OF_LEAVING,
        "test_one_that_comes_is_taken_in_while_another_is_still_away",
        (),
        "one that comes while nobody is away, with 3 sites in place of 5",
    ),
    Nightly(
        OF_LEAVING,
        "test_a_run_that_was_stopped_goes_on_without_the_one_that_it_had_lost",
        (),
        "test_one_that_was_not_heard_to_stop_is_taken_in_later..., where a stop is gone on from",
    ),
    Nightly(
        OF_ABSENCE,
        "test_a_site_that_lost_its_own_cannot_come_back_as_if_nothing_were",
        ("[run folder]",),
        "the run folder lost",
    ),
    Nightly(
        OF_ABSENCE,
        "test_a_site_that_lost_what_its_session_still_reaches_makes_more_steps_again",
        ("[last checkpoint]",),
        "the last checkpoint lost",
    ),
    Nightly(
        "communication/secure/test_secure_faults.py",
        "test_garbage_at_the_port",
        (),
        "nothing, and bytes that are drawn, outside and inside TLS",
        ("[GET", "\\x16", "[words6"),
    ),
    Nightly(
        "communication/secure/test_secure_diagnosis.py",
        "test_the_other_end_is_out_of_date",
        ("expired",),
        "a certificate that has expired",
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
        OF_ENDINGS,
        "test_who_is_stopped_before_the_first_step_is_not_waited_for",
        ("[store in]", "[a step]"),
        "rank 0 while the others connect, and another in its first step",
    ),
    Nightly(
        OF_LOSSES,
        "test_a_bad_message_ends_all_and_names_its_sender",
        ("[not finite]",),
        "numbers that are not finite; the others are refused in communication/test_received.py",
    ),
    Nightly(
        OF_LOSSES,
        "test_a_run_that_diverges_says_so_whichever_process_finds_it",
        ("[rank 1]",),
        "where a rank finds it alone",
    ),
    Nightly(
        "communication/cluster/test_cluster_runs.py",
        "test_processes_recalibrate_as_the_simulator_does",
        ("[public-dp-sgd]", "[private-dyn-d2p]"),
        "by public and by private records, with a server and by push-sum",
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
    Nightly(
        "cli/test_cli_compare.py",
        "test_an_interrupt_of_a_terminal_stops_its_processes_cleanly",
        (),
        "test_an_interrupt_stops_cleanly...; of a terminal that closes, in training/test_resume.py",
    ),
    Nightly(
        "test_estimators.py",
        "test_the_checks_of_scikit_learn",
        ("[TacitClassifier", "-check_regressor"),
        "all checks of the classifier, and those that are of regressors alone",
    ),
    Nightly(
        "training/test_feature_runs.py",
        "test_no_record_outlives_its_run",
        ("[dp-fedavg]", "[privsgp-vr]"),
        "with a server, and with a table of gradients",
    ),
    Nightly(
        "training/test_resume.py",
        "test_a_run_of_any_algorithm_ends_as_if_it_had_not_been_stopped",
        (),
        EACH_FILE,
        ALIKE,
    ),
    Nightly(OF_OPTIMISE, "test_what_a_budget_buys", ("[3000-", "[300-"), "little and much noise"),
    Nightly(
        OF_OPTIMISE,
        "test_each_nodes_own_budget_counts",
        ("[privacy1",),
        "one of two divisions of budgets",
    ),
    Nightly(
        OF_SENSITIVITY,
        "test_what_is_noised_moves_by_the_accounted_sensitivity",
        (*(f"{name}-cnn" for name in KINDS), "-logistic-"),
        "logistic models, see the file; with convolutions, one of each kind of release",
    ),
    Nightly(
        OF_SENSITIVITY,
        "test_all_rows_of_a_person_move_what_is_noised_as_one_record",
        (),
        "by mean and by sum, and with a network by sum; see the file",
        ("-mean-mlp-",),
    ),
    Nightly(
        "algorithms/test_algorithms_server_means.py",
        "test_epsilon_is_that_of_its_rounds_composed_by_another_accountant",
        (),
        "all three methods, with batches and with all records",
        ("[srm-sgd-2]",),
    ),
    Nightly(
        "privacy/test_privacy_private_state.py",
        "test_a_real_table_of_gradients_stays_below",
        (),
        "both relations at the smallest and at the largest rate",
        ("-0.3-1.0]",),
    ),
    Nightly(
        "privacy/test_privacy_bounds.py",
        "test_one_step",
        (),
        "the smallest and the largest delta, at every noise and rate",
        ("[1e-05-",),
    ),
    Nightly(
        "privacy/test_privacy_tables.py",
        "test_power_sums_are_the_product",
        ("[40]",),
        "40 levels in place of 3000",
    ),
    Nightly(
        OF_EFFECTS,
        "test_an_option_does_something_or_is_refused",
        (
            "[fedspd-dp-",
            "[dpdo-clip_norm",
            "[cpgt-clip_norm",
            "[noised-moments-learning_rate]",
            "[noised-moments-server-learning_rate]",
        ),
        "each option in one algorithm, and wherever it takes other values",
        (
            *(
                f"[{name}-"
                for name in (
                    "sgp",
                    "privsgp",
                    "dyn-c",
                    "dyn-mu",
                    "const-d2p",
                    "d-psgd",
                    "dp2-sgd",
                    "choco-sgd",
                    "do-adp",
                    "ddp-admm-gradient",
                    "dp-radmm-gradient",
                    "fedavg",
                    "dp-sgd",
                    "dp-fedavg",
                    "dp-admm",
                )
            ),
            "-learning_rate",
            "-warm_up]",
            "-clip]",
            "-clip_norm]",
        ),
    ),
    Nightly(
        "config/test_config_hostile.py",
        "test_a_hostile_file_is_one_line_and_exit_code_2",
        (),
        "25 files, and as deep and as long ones as values of an option",
        ("[11]", "[15]", "[22]"),
    ),
    Nightly(
        "data/test_data_hostile.py",
        "test_a_damaged_file_is_read_or_refused_in_one_line",
        (),
        "each format, as it is",
        (".gz]",),
    ),
    Nightly("data/test_data_hostile.py", "test_a_bomb_of_records_is_refused", ("[gz]",), "gz"),
    Nightly(
        "gradients/test_gradients_sensitivity.py",
        "test_a_record_moves_the_sum_by_the_bound_at_most",
        ("-float32]", "[linear", "[convolution, Gram", "[LSTM"),
        "every model in float32; a layer, products of positions and a recurrence in float64",
    ),
    Nightly(
        "gradients/test_gradients_sensitivity.py",
        "test_a_person_with_any_rows_moves_the_sum_by_the_bound_at_most",
        ("-float32]", "[linear", "[tokens", "[mlp"),
        "every model in float32; layers and sequences in float64",
    ),
    Nightly(
        "gradients/test_gradients_views.py",
        "test_a_record_moves_the_sum_by_the_bound_at_most",
        ("-float32]", "[linear", "[convolution"),
        "every model in float32; a layer and convolutions in float64",
    ),
    Nightly(
        "gradients/test_gradients_linear_blocks.py",
        "test_blocks_do_what_taps_do",
        (),
        "every loss and dtype, and one output of the mean squared error",
        ("[logistic-1-float64]", "[mse-1-float64]"),
    ),
    Nightly(
        OF_AVERAGES,
        "test_a_stopped_run_goes_on_with_the_same_averages",
        ("[tail:0.6-push-sum]", "[exponential:0.9-server]"),
        "each rule once",
    ),
    Nightly(
        OF_AVERAGES,
        "test_a_run_ends_with_the_average_of_its_models",
        ("[push-sum]", "[noise of pairs]", "[server, secure sums]", "[server's model of its own]"),
        "push-sum, pairs, secure sums, and a model of the server",
    ),
    Nightly(
        "cli/test_cli_init.py",
        "test_a_record_in_the_place_of_names_is_not_shown",
        ("[0-None]", "[1-columns1]"),
        "all columns and some",
    ),
    Nightly(
        "cli/test_cli.py",
        "test_a_run_that_is_not_private_says_so",
        ("[how0", "overrides0", "overrides2"),
        "every reason; with --quiet and with --json, seeded noise and none",
    ),
    Nightly(
        "analysis/test_ledger_report.py",
        "test_an_edited_document_is_refused",
        (),
        "each message, and half of what changes epsilon",
        ("data2]", "data4]", "data5]", "data7]", "document1]", "document2]"),
    ),
    Nightly(
        "analysis/compare/test_compare_figure.py",
        "test_what_is_wrong_is_named",
        (),
        "all but what takes a figure of 10,100 runs",
        ("-many]",),
    ),
    Nightly(
        "training/test_unit_ways.py",
        "test_every_way_in_trains_the_same_models",
        ("-0]",),
        "each way, with one of three draws of people",
    ),
    Nightly(
        "training/test_units.py",
        "test_every_private_algorithm_trains_by_person",
        (),
        EACH_FILE,
        ALIKE,
    ),
    Nightly(
        "training/test_faults.py",
        "test_a_node_that_is_away_stands_still_and_tells_nothing",
        (),
        EACH_FILE,
        ALIKE,
    ),
    Nightly(
        "training/test_views.py",
        "test_every_algorithm_runs_with_views_or_says_why_not",
        (),
        EACH_FILE,
        ALIKE,
    ),
    Nightly(
        OF_LOSSES,
        "test_a_rank_killed_before_the_first_step_or_after_the_last",
        ("[_folders-True]",),
        "before the first step; after the last, in test_cluster_endings.py",
    ),
    Nightly(
        "analysis/audit/fidelity/test_audit_sampling.py",
        "test_how_often_a_correct_program_is_accused",
        (),
        "that none is with one seed",
    ),
    Nightly(
        "privacy/test_privacy_noise_fast.py",
        "test_a_read_only_installation_draws_the_same_bytes",
        ("[the user's cache]",),
        "compiled into the user's cache",
    ),
    Nightly(OF_INTERFERENCE, "", (), EACH_FILE, ALIKE),
    Nightly("algorithms/test_algorithms_between.py", "", (), EACH_FILE, ALIKE),
    Nightly("algorithms/test_algorithms_noise.py", "", (), EACH_FILE, ALIKE),
    Nightly(OF_BATTERY, "", (), EACH_FILE, ALIKE),
    Nightly(OF_WEIGHTS, "", (), EACH_FILE, ALIKE),
    Nightly(
        "gradients/test_gradients_views.py",
        "test_sums_are_those_of_means_over_views_one_at_a_time",
        ("[1-", "[2-"),
        "one view and two, in place of five",
    ),
    Nightly(
        "gradients/test_gradients_paths.py",
        "test_taps_equal_the_loop",
        (),
        "every model, without a clip and with one that shortens some",
        ("-0.001]", "-1000000.0]"),
    ),
    Nightly(
        "gradients/test_gradients_linear.py",
        "test_a_record_moves_the_loops_sum_by_the_bound_at_most",
        (),
        "every loss in float32",
        ("-float64]",),
    ),
    Nightly(
        "gradients/test_gradients_linear_blocks.py",
        "test_a_record_moves_the_sum_of_blocks_by_the_bound_at_most",
        (),
        "every loss in float32",
        ("-float64]",),
    ),
    Nightly(
        "gradients/test_gradients_views.py",
        "test_built_in_models_have_views",
        (),
        "every built-in model but ResNet-18",
        ("[resnet18",),
    ),
    Nightly(
        "privacy/test_privacy_private_state.py",
        "test_composed_steps_lie_within_the_bounds_of_dp_accounting",
        (),
        "20 and 200 steps in place of 575",
        ("-575]",),
    ),
    Nightly(
        "analysis/audit/fidelity/test_audit_interference.py",
        "test_no_algorithm_is_accused",
        KINDS,
        EACH_KIND,
    ),
    Nightly(OF_SENSITIVITY, "", (), EACH_FILE, ALIKE),
    Nightly("algorithms/test_algorithms_recursion.py", "", (), EACH_FILE, ALIKE),
)
