"""Counts and limits of the benchmark, not its seconds."""

import runpy
import sys
from pathlib import Path

import pytest
from torch.utils.flop_counter import FlopCounterMode

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from measure import FORMS, Case, in_turns, peak_memory  # noqa: E402


@pytest.mark.parametrize("form", FORMS)
def test_flops_are_those_that_pytorch_counts(form):
    case = Case(form, side=10, channels=8, heads=3, batch=2, training=False)
    call = case.call()
    with FlopCounterMode(display=False) as counter:
        call()
    assert counter.get_total_flops() == case.flops


@pytest.mark.parametrize("file", sorted(BENCHMARKS.glob("*.py")), ids=lambda file: file.stem)
def test_each_benchmark_finds_what_it_imports(file):
    runpy.run_path(str(file))


def test_all_take_their_turn():
    order = []
    times = in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 4)
    assert order == ["a", "b"] * 5 and [len(t) for t in times.values()] == [4, 4]
    order.clear()
    in_turns({"a": lambda: order.append("a")}, 100, budget=0)
    assert len(order) == 4


@pytest.mark.slow
def test_training_in_rows_and_columns_takes_less_memory_than_dense():
    dense, separable = (peak_memory(Case(form, 32, 64, batch=8)) for form in ("dense", "separable"))
    assert separable < 0.6 * dense
