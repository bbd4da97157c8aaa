"""What notebooks work with: where results go, that runs are found and never overwritten, and rows of Table 1."""

import json
from types import SimpleNamespace

import pytest

from attnconv import figures, results, workspace
from attnconv.config import Profile, replace
from attnconv.workspace import REPOSITORY, Claim, open_workspace, output_folder


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return open_workspace("smoke", output=tmp_path_factory.mktemp("outputs"))


@pytest.fixture(scope="module")
def run(work):
    return work.run("quadratic")


@pytest.mark.parametrize(
    ("profile", "data", "folder"),
    [
        (Profile(name="quick"), None, "quick"),
        (Profile(name="quick"), "embedded", "quick"),
        (Profile(name="quick"), "/somewhere/CIFAR 10", "quick-cifar-10"),
        (Profile(name="paper", data="cifar10"), "/somewhere/cifar10", "paper"),
    ],
)
def test_other_data_get_an_output_folder_of_their_own(profile, data, folder):
    assert output_folder(profile, data) == REPOSITORY / "outputs" / folder


def test_a_run_is_trained_once(work, run):
    before = (run.path / "model.safetensors").stat().st_mtime_ns
    assert work.run("quadratic").path == run.path
    assert (run.path / "model.safetensors").stat().st_mtime_ns == before
    assert run in work.runs()


def test_another_configuration_gets_a_folder_of_its_own(work, run):
    other = work.run("quadratic", train_changes={"epochs": 1})
    assert other.path != run.path and {other, run} <= set(work.runs())


def test_pruned_runs_train_what_they_start_from(work):
    run = work.run("quadratic_pruned")
    assert run.train.start_from == "quadratic_full"
    assert "quadratic_full" in {other.preset for other in work.runs()}


def test_pruned_runs_of_several_seeds_share_a_row(work):
    run, second = work.run("quadratic_pruned"), work.run("quadratic_pruned", 1)
    second.__dict__["model"] = replace(second.model, {"heads": (1, *second.model.heads_per_layer[1:])})
    (members,) = results.group([run, second]).values()
    row = results.result(run.title, members)
    assert len(members) == 2 and row.parameters != results.result(run.title, [run]).parameters


def test_seeds_share_a_row_and_configurations_do_not(work, run):
    second = work.run("quadratic", 1)
    groups = results.group([run, second])
    assert {title: len(members) for title, members in groups.items()} == {"SA quadratic": 2}
    assert results.curves(groups["SA quadratic"]).shape == (2, 2)
    other = work.run("quadratic", train_changes={"epochs": 1})
    assert set(results.group([other, run], work.profile)) == {"SA quadratic", "SA quadratic (1 epoch)"}
    groups = results.group([run, other])
    assert set(groups) == {f"SA quadratic ({one.config['hash']})" for one in (run, other)}
    row = results.result("SA quadratic (1 epoch)", [other])
    assert "93.8" in figures.results_table([row])["markdown"], "published numbers stand beside every run of a preset"


def test_a_lead_is_undecided_within_its_noise():
    def runs(*accuracies):
        data = {"data": {"test_images": 10_000}}
        return [SimpleNamespace(test_accuracy=accuracy, config=data) for accuracy in accuracies]

    assert results.ahead(runs(0.94, 0.96), runs(0.90))[0] is True
    assert results.ahead(runs(0.90), runs(0.95))[0] is False
    assert results.ahead(runs(0.95), runs(0.948))[0] is None
    assert results.ahead(runs(1.0), runs(1.0))[0] is None
    holds, evidence = results.ahead(runs(0.945), runs(0.95), margin=2)
    assert holds is True and "94.5% against 95.0%" in evidence and "0.3" in evidence


def test_a_claim_that_fails_says_what_the_record_says(work, monkeypatch, tmp_path):
    paper = open_workspace("paper", output=tmp_path / "paper")
    monkeypatch.setattr(workspace, "RECORD", paper.folder)
    assert work.claims("04-claims").check("A", True, "1 of 1").evidence == "1 of 1"
    assert "not recorded yet" in work.claims("04-claims").check("A", False, "0 of 1").evidence
    paper.save_claims([Claim("A", True, "2 of 2")], "04-claims")
    assert (
        work.claims("04-claims").check("A", None, "0 of 1").evidence == "0 of 1 (at the paper's scale: holds, 2 of 2)"
    )
    assert paper.claims("04-claims").check("A", False, "x").evidence == "x"


def test_a_small_run_is_not_held_against_the_paper(run):
    row = results.result(run.title, [run])
    assert not row.comparable and "fashion-mnist" in row.why
    assert row.accuracies == [run.test_accuracy] and row.flops_separable < row.flops_dense


def test_claims_are_saved_and_shown(work):
    claims = [Claim("A", True, "1 of 1"), Claim("B", False, "0 of 1"), Claim("C", None, "1 of 2")]
    work.save_claims(claims, "claims")
    saved = json.loads((work.folder / "tables" / "claims.json").read_text())
    assert saved[1] == {"text": "B", "holds": False, "evidence": "0 of 1"}
    assert saved[2]["holds"] is None and "**is undecided here**" in claims[2]._repr_markdown_()
    assert "**holds here**" in claims[0]._repr_markdown_() and "**does not hold here**" in claims[1]._repr_markdown_()
