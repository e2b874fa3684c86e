"""What tests of every kind share."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import edgedec.model
from edgedec.bundle.locate import find
from edgedec.bundle.manifest import MANIFEST
from edgedec.spec import KV_FORMATS

# Python processes that tests start must find the installed package, not the folder of this checkout.
os.environ["PYTHONSAFEPATH"] = "1"
# The defaults of whoever runs the tests are not those of the tests.
os.environ["EDGEDEC_CONFIG"] = os.devnull
# Each HTTP client would read all certificates of the machine, for servers on this machine; slow tests install packages.
if "EDGEDEC_SLOW_TESTS" not in os.environ:
    os.environ.pop("SSL_CERT_FILE", None)
    os.environ["SSL_CERT_DIR"] = os.devnull
# A script that runs the tests in its background ignores Ctrl-C, and what they start would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# What is compared reads its prompt itself; tests of shared prefixes say how much they share.
edgedec.model.PREFIX_TOKENS = 0

# A machine that does other things as well draws examples slowly, and that says nothing of them.
settings.register_profile("edgedec", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edgedec")

# What takes long for its few tests begins first, so that nothing is waited for at the end.
LONGEST = (
    *("test_conformance", "test_tvm_kinds", "test_harness", "test_template_bounds", "test_driver", "test_formats"),
    *("test_abi", "test_batch", "test_bench_spec", "test_cut_calls", "test_passes", "test_prompts", "test_text"),
)

# What `make test` leaves to `make test-all`: what takes long beside the number of its tests. Files, folders, and tests.
LONG = {
    "cuda", "devices", "native", "statistical", "test_blocks", "test_conformance", "test_cut_calls", "test_formats",
    "test_generate", "test_hostile", "test_hub", "test_methods", "test_never_slower", "test_new_plugin", "test_paired",
    "test_prefixes", "test_replicas", "test_serve_pool", "test_soak", "test_speculation", "test_template_bounds",
    "test_acceptance::test_it_beats_every_fixed_length", "test_batch::test_a_torn_or_damaged_journal_loses_nothing",
    "test_batch::test_kill_9_at_random_moments", "test_batching::test_every_text_is_what_it_is_alone",
    "test_bench::test_peers_takes_turns_and_reports_everyone",
    "test_bench_cache::test_steps_alone_after_caches_that_were_filled_in",
    "test_bench_dial::test_a_guess_is_right_as_often_as_the_dial_says",
    "test_best_of_n::test_shared_tables_gain_over_tables_of_their_own",
    "test_bounds::test_sessions_leave_nothing_behind", "test_choice::test_the_same_tokens_for_every_seed",
    "test_cli::test_an_interrupt_in_the_first_moments_is_no_traceback",
    "test_client_bodies::test_what_a_package_sent_is_accepted", "test_company::test_every_search_alone_and_in_company",
    "test_configs::test_published_models_have_the_published_number_of_parameters",
    "test_constraint_grammars::test_no_token_of_our_own_files_is_masked",
    "test_constraint_monitors::test_masks_are_right_for_all_texts_of_four_tokens",
    "test_drafter_ead::test_the_text_is_that_of_a_naive_loop",
    "test_drafter_pearl::test_the_text_and_what_it_leaves_are_those_of_plain_decoding",
    "test_drafter_tables::test_greedy_text_of_nano_is_the_same",
    "test_editing::test_rules_that_are_nearly_it_give_other_texts", "test_editing::test_the_block_cache_is_exact",
    "test_editing::test_the_text_is_that_of_the_rule_written_out", "test_engines::test_what_stays_is_the_same",
    "test_experts::test_bytes_are_the_cpu_engines", "test_export_memory::test_memory_does_not_grow_with_layers",
    "test_families_decode::test_a_cache_gives_the_text_without_one",
    "test_families_decode::test_the_mask_is_never_said", "test_fusion::test_each_rule_is_the_one_without_a_cache",
    "test_fusion_candidates::test_a_value_is_the_naive_one",
    "test_gguf_import::test_kept_types_give_the_same_bytes_in_any_call_on_any_machine",
    "test_gguf_import::test_types_that_only_gguf_has_are_kept",
    "test_installed_wheel::test_engines_run_from_an_empty_folder",
    "test_installed_wheel::test_it_has_the_sources_of_the_gpu_engines", "test_laws::test_a_single_pass",
    "test_loop::test_one_token_a_pass_draws_from_the_joint_distribution",
    "test_online::test_acceptance_rises_after_a_shift",
    "test_policies::test_saved_and_forked_texts_go_on_as_they_would_have",
    "test_policy_room::test_never_more_is_held_than_was_promised", "test_prompts::test_json_in_parts_is_the_same_json",
    "test_row_invariance::test_every_instruction_set_gives_the_same_bytes",
    "test_runtimes::test_greedy_decoding_is_that_of_transformers", "test_runtimes::test_one_call_and_many_agree",
    "test_serve::test_sigterm_lets_what_runs_end", "test_serve::test_texts_beyond_the_room_in_the_caches_wait",
    "test_serve_lost::test_the_process_ends_and_a_replica_is_started_again",
    "test_serve_texts::test_every_answer_is_json_whatever_a_request_holds", "test_session_store::test_a_hundred_chats",
    "test_session_store::test_a_killed_program_leaves_whole_sessions", "test_sources::test_bytes_are_the_cpu_engines",
    "test_sources::test_cuda_is_compiled_for_gpus", "test_superposed::test_the_texts_of_the_oracle",
    "test_text::test_tokens_and_text_are_those_of_tokenizers",
    "test_threads::test_sessions_of_one_model_write_in_threads_what_they_write_alone",
}  # fmt: skip

DATA = Path(__file__).parents[2] / "shared" / "data"


# A file of tests that passed, which are not run again: `make test` writes it in CI, `make test-all` goes on from there.
PASSED = Path(os.environ.get("EDGEDEC_PASSED", os.devnull))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: a million objects that no collection of garbage has to look at."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is left out is not read either."""
    return True if config.option.markexpr == "not long" and collection_path.stem in LONG else None


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    passed = set(PASSED.read_text("utf-8").splitlines()) if PASSED.exists() else set[str]()
    # Files that have TORCH compare with transformers where torch is, and else with what is stored: both are run.
    done = {item.nodeid for item in items if item.nodeid in passed and not beside_torch(item)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]
    for item in items:
        function = getattr(item, "originalname", item.name)
        if LONG & {item.path.stem, item.path.parent.name, f"{item.path.stem}::{function}"}:
            item.add_marker(pytest.mark.long)
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.stem not in LONGEST, -sizes[item.path]))


def beside_torch(item: pytest.Item) -> bool:
    """Whether it is compared with transformers here."""
    return getattr(getattr(item, "module", None), "TORCH", False)


# Reasons to skip a test that cannot be where `make test-all` has installed everything.
INSTALLED = re.compile(
    r"could not import|torch|transformers|safetensors|onnx\b|onnxruntime-genai|gguf|llguidance|starlette|uvicorn|httpx"
    r"|lm_eval|matplotlib|no C\+\+ compiler|no g\+\+ here$|no native engine|^native|pocl-opencl-icd|no NVRTC|no node"
)
# But for packages of other extras, and what takes minutes.
ELSEWHERE = re.compile(r"playwright|llama|ray\b|schemathesis|coreml|qnn|wgpu|openvino|optimum|SLOW_TESTS|jsdom")


def reasons(reports: Sequence[pytest.TestReport]) -> Counter[str]:
    """How many tests were skipped, by reason."""
    said = (report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr) for report in reports)
    return Counter(reason.removeprefix("Skipped: ") for reason in said)


def unexpected(skipped: Mapping[str, int]) -> list[str]:
    """The reasons that cannot be where everything is installed."""
    return [reason for reason in skipped if INSTALLED.search(reason) and not ELSEWHERE.search(reason)]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = reasons(terminalreporter.stats.get("skipped", []))
    if skipped:
        terminalreporter.section("skipped, by reason")
    for reason, n in skipped.most_common():
        terminalreporter.line(f"{n:5} {reason[:200]}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and "EDGEDEC_PASSED" in os.environ:
        passed = dict.fromkeys(f"{report.nodeid}\n" for report in reporter.stats.get("passed", []))
        PASSED.parent.mkdir(parents=True, exist_ok=True)
        with PASSED.open("a", encoding="utf-8") as file:
            file.writelines(passed)
    if reporter is None or "CI" not in os.environ or "EDGEDEC_ALL_TESTS" not in os.environ:
        return
    if wrong := unexpected(reasons(reporter.stats.get("skipped", []))):
        reporter.line(f"skipped although it can be installed: {'; '.join(wrong)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def nano() -> Path:
    """The bundle of the model that ships with edgedec."""
    folder = find("nano")
    if not (folder / MANIFEST).is_file():
        pytest.skip("the nano bundle is not in this checkout; make it with models/nano/export.py")
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a random little Llama with f32 weights and caches of every format. Read it, never change it."""
    pytest.importorskip("onnx", reason="exporting needs onnx")
    from checkpoints import write_llama

    from edgedec.export.exporter import ExportOptions, export

    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = write_llama(folder / "checkpoint")
    export(str(checkpoint), folder / "tiny", ExportOptions(weights="f32", kv=KV_FORMATS, check=False))
    return folder / "tiny"


@pytest.fixture(scope="session")
def data() -> Path:
    """Real tokenizers, texts and checkpoints, where they are at hand."""
    if not DATA.is_dir():
        pytest.skip("no shared data beside this checkout")
    return DATA


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random generators that were given no seed get 0, 1, 2 …, so that a test draws the same in every run."""
    made, numbers = np.random.default_rng, count()

    def generator(seed: Any = None) -> np.random.Generator:
        return made(next(numbers) if seed is None else seed)

    monkeypatch.setattr(np.random, "default_rng", generator)


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks that go on by a microsecond at each look, so that what is decided by time is the same anywhere."""
    clock = count(1)

    def now() -> float:
        return next(clock) * 1e-6

    for name, module in list(sys.modules.items()):
        if name.startswith("edgedec."):
            for kind in ("perf_counter", "thread_time"):
                if getattr(module, kind, None) is getattr(time, kind):
                    monkeypatch.setattr(module, kind, now)
