"""What notebooks work with: where results go, that runs are found and never overwritten, and
rows of Table 1.
"""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attnconv.config import replace
from attnconv.heads import measure_attention, translation_consistency
from attnconv.training import data, load_run, loop
from attnconv.training.data import ARRAYS, DataError, MissingData, normalize
from attnconv.training.runs import find_runs, identity
from companion import cli, results, workspace
from companion.profile import Profile
from companion.workspace import REPOSITORY, open_workspace, output_folder
from test_data import parquet, some


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
        (Profile(name="quick"), "cifar10", "quick-cifar10"),
        (Profile(name="quick"), "/somewhere/CIFAR 10", "quick-cifar-10-f57d"),
        (Profile(name="paper"), "/somewhere/images", "paper-images-8f60"),
        (Profile(name="paper"), "/elsewhere/images", "paper-images-b2e7"),
        (Profile(name="evening", recorded=True), None, "reproduced/evening"),
        (Profile(name="evening", recorded=True), "embedded", "reproduced/evening"),
        (Profile(name="evening", recorded=True), "cifar10", "evening-cifar10"),
    ],
)
def test_other_data_get_an_output_folder_of_their_own(profile, data, folder):
    assert output_folder(profile, data) == REPOSITORY / "outputs" / folder


def test_another_copy_of_the_profiles_data_shares_its_output_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNCONV_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(data, "CIFAR10_IMAGES", (40, 20))
    own, other = (str(parquet(tmp_path / f"of-{count}", some(count, 20))) for count in (40, 50))
    paper, quick = Profile(name="paper", data="cifar10"), Profile(name="quick")
    assert output_folder(paper, own).name == "paper"
    assert output_folder(paper, other).name.startswith("paper-of-50-")
    assert output_folder(quick, own).name.startswith("quick-of-40-")
    with pytest.raises(DataError, match="no data set that can be read"):
        output_folder(paper, str(tmp_path / "nowhere"))


def test_a_run_is_trained_once(work, run):
    before = (run.path / "model.safetensors").stat().st_mtime_ns
    assert work.run("quadratic").path == run.path
    assert (run.path / "model.safetensors").stat().st_mtime_ns == before


def test_a_figure_or_an_animation_is_saved_with_its_note(work, run):
    figure = plt.figure(figsize=(1, 1))
    plt.close(figure)
    work.save_figure(figure, "01-still", "Nothing.", run, run)  # drawn twice, named once
    work.save_figure([figure, figure], "01-moving", "Nothing moves.")
    files = sorted(file.name for file in (work.folder / "figures").iterdir())
    assert files == [
        "01-moving.gif",
        "01-moving.json",
        "01-still.json",
        "01-still.pdf",
        "01-still.png",
    ]
    notes = [
        json.loads((work.folder / "figures" / name).read_text())
        for name in files
        if name.endswith("json")
    ]
    assert [note["caption"] for note in notes] == ["Nothing moves.", "Nothing."]
    assert [note["runs"] for note in notes] == [[], [run.path.name]] and notes[1]["place"] < notes[
        0
    ]["place"]


def test_pruned_runs_train_what_they_start_from_and_of_several_seeds_share_a_row(work):
    run, second = work.run("quadratic_pruned"), work.run("quadratic_pruned", 1)
    assert run.train.start_from == "quadratic_full" in {other.preset for other in work.runs()}
    first, *others = run.model.heads_per_layer
    second.__dict__["model"] = replace(second.model, {"heads": (first + 1, *others)})
    groups = results.group([run, second])
    table = results.results_table(groups | {"one": [run]})
    assert [len(members) for members in groups.values()] == [2] and table[
        "Parameters (M)"
    ].nunique() == 2


def test_a_run_may_go_on_from_another_than_its_presets(work):
    taps = {"heads": 9, "centre_start": "taps", "spread_start": 4.0}
    first = [
        work.run(
            "quadratic", model_changes={"heads": 9, "kernels": [3, 3]}, train_changes={"images": n}
        )
        for n in (20, 40)
    ]
    made = [
        work.run("quadratic", model_changes=taps, train_changes={"epochs": 1}, start=one)
        for one in first
    ]
    assert [run.config["start"] for run in made] == [run.config["hash"] for run in first]
    assert made[0].path != made[1].path and {run.train.start_from for run in made} == {"quadratic"}
    assert (
        work.run("quadratic", model_changes=taps, train_changes={"epochs": 1}, start=first[0]).path
        == made[0].path
    )
    error = work.swaps(made[0], images=30)["error"]
    assert made[0].swaps["images"] == 30 and work.swaps(made[1])["images"] == 100
    assert np.isnan(error[0]).all() and error[1, :, 1].max() < 0.5, "still nearly a convolution"


def test_every_seed_and_configuration_has_a_folder_of_its_own(work, run):
    second, other = work.run("quadratic", 1), work.run("quadratic", train_changes={"epochs": 1})
    assert len({run.path, second.path, other.path}) == 3 and {run, second, other} <= set(
        work.runs()
    )
    assert results.curves([run, second]).shape == (2, 2)
    assert results.of_all_seeds(second, [run, second, other]) == [second, run]
    groups = results.group([other, second, run])
    assert [len(members) for members in groups.values()] == [1, 2] and all(
        "SA quadratic (" in title for title in groups
    )
    table = results.results_table({"mine": [run]})
    assert table["Accuracy (%)"][0] == round(100 * run.test_accuracy, 2)
    assert table["GFLOPs, separable"][0] < table["GFLOPs, dense"][0]


def runs(*accuracies, right=None, epochs=1):
    """What `results.ahead` reads of runs."""
    data = {"test_images": 10_000 if right is None else len(right), "key": "k"}
    return [
        SimpleNamespace(
            test_accuracy=accuracy,
            config={"data": data, "hash": f"{seed} {accuracy}"},
            right=right,
            train=SimpleNamespace(epochs=epochs),
        )
        for seed, accuracy in enumerate(accuracies)
    ]


def test_a_lead_is_undecided_within_its_noise():
    assert results.ahead(runs(0.948, 0.95, 0.952), runs(0.90))[0] is True
    assert (
        results.ahead(runs(0.94, 0.96), runs(0.90))[0] is None
    )  # two seeds that differ by two points say little
    assert results.ahead(runs(0.90), runs(0.95))[0] is False
    assert results.ahead(runs(0.95), runs(0.948))[0] is None
    assert (
        results.ahead(runs(0.90, 0.94), runs(0.89))[0] is None
    )  # a difference between seeds is noise too
    assert results.ahead(runs(1.0), runs(1.0))[0] is None
    # Seeds 0.58 and images 0.41 make 0.71 points. With so few seeds 2.1 of these errors are not
    # enough.
    holds, evidence = results.ahead(runs(0.91, 0.92, 0.93), runs(0.905, 0.905, 0.905))
    assert holds is None and "standard error of the difference 0.7" in evidence
    assert results.ahead(runs(0.91, 0.92, 0.93), runs(0.88, 0.88, 0.88))[0] is True
    # One seed is taken to spread by 0.7 points, each side (0.45 from 20 epochs on), or as the other
    # does: more, if so.
    assert results.ahead(runs(0.955, epochs=20), runs(0.94, epochs=20))[0] is True
    assert results.ahead(runs(0.955, epochs=20), runs(0.94, epochs=19))[0] is None
    holds, evidence = results.ahead(runs(0.955), runs(0.95), margin=2)
    assert (
        holds is True
        and "95.5% against 95.0%, standard error of the difference 1.0 (images 0.3; seeds 1.0), by "
        "chance up to 2.0"
        in evidence
    )
    assert results.ahead(runs(0.952), runs(0.94), margin=0)[0] is None
    assert results.ahead(runs(0.97), runs(0.9401, 0.94, 0.9399))[0] is True
    assert results.ahead(runs(0.97), runs(0.96, 0.94, 0.92))[0] is None
    # Two seeds, .71 points apart from their mean, for both sides: one degree of freedom, not two.
    assert results.ahead(runs(1.0), runs(0.945, 0.955))[0] is None


def test_the_spread_over_seeds_that_would_undo_a_verdict():
    """1.96 errors must be 1.5 points: 0.765, of which the images' are 0.41 and 0.46 each side's
    of one seed.
    """
    one, other = runs(0.91, epochs=20), runs(0.895, epochs=20)

    def limit(*given):
        return float(
            results.rests_on(True, *given).removeprefix("if seeds spread by less than ").split()[0]
        )

    assert limit(one, other) == pytest.approx(0.46, abs=0.011)
    for spread, holds in ((0.45, True), (0.47, None)):
        assert results.ahead(one, other, assumed=spread)[0] is holds
    assert limit(other, one, 2.5) == pytest.approx(0.21, abs=0.011)  # a point is left of the margin
    assert results.rests_on(True, runs(0.91, 0.92), runs(0.89, 0.89)) == ""  # nothing is assumed


def test_answers_to_the_same_images_are_compared_image_by_image():
    hard = (
        np.arange(1000) % 10 == 0
    )  # both are wrong about the same hundred images, one about ten more
    (one,), (other,) = (
        runs(right.mean(), right=right) for right in (~hard, ~hard & (np.arange(1000) >= 11))
    )
    assert results.ahead([one], [other])[0] is None  # seeds may differ as much
    for run in (one, other):
        run.config["start"] = "the same"  # but both go on from one run
    holds, evidence = results.ahead([one], [other])
    assert holds is True and "standard error of the difference 0.3 (images, paired 0.3)" in evidence
    one.right = None  # without its answers the error is three times that
    holds, evidence = results.ahead([one], [other])
    assert holds is None and "1.4" in evidence


# Recorded runs


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, work, run):
    """A workspace whose data set is not on this machine, with a kept run and a strip of images."""
    folder = tmp_path_factory.mktemp("recorded")
    shutil.copytree(run.path, folder / "runs" / run.path.name)
    few = work.data.first(20, 20)
    np.savez(
        folder / "strip.npz",
        classes=few.classes,
        form="a few images",
        **{n: getattr(few, n) for n in ARRAYS},
    )
    profile = replace(work.profile, {"recorded": True})
    return workspace.Workspace(profile, "cifar10", folder)


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNCONV_DATA", str(tmp_path))


def test_a_recorded_run_and_a_strip_stand_in_for_the_data(recorded, run, no_data, work):
    assert recorded.run("quadratic").path.name == run.path.name
    assert recorded.data.classes == work.data.classes and recorded.data.form == "a few images"
    assert torch.equal(recorded.data.test_images, work.data.first(20, 20).test_images)
    assert recorded.attention(recorded.run("quadratic"))["mean"].shape[1:3] == (2, 4)


@pytest.mark.filterwarnings("error")
def test_of_recorded_runs_only_those_like_the_one_asked_for_are_read(
    recorded, run, no_data, tmp_path
):
    shutil.copytree(recorded.folder, folder := tmp_path / "copy")
    for name, changes in (
        ("other-preset", {"preset": "learned"}),
        ("other-seed", {"train": {"seed": 1}}),
    ):
        shutil.copytree(run.path, other := folder / "runs" / name)
        about = json.loads((other / "config.json").read_text())
        for part, change in changes.items():
            about[part] = about[part] | change if isinstance(change, dict) else change
        about["hash"] = identity(about["model"], about["train"], about["data"]["key"])
        (other / "config.json").write_text(json.dumps(about))
        (other / "heads.npz").write_bytes(b"damaged")
    work = workspace.Workspace(recorded.profile, "cifar10", folder)
    assert work.run("quadratic").path.name == run.path.name
    assert (
        work.run("quadratic", train_changes={"epochs": run.train.epochs}).path.name == run.path.name
    )
    with pytest.warns(UserWarning, match="other-(preset|seed) is left out"):
        find_runs(folder / "runs")


def test_what_is_not_recorded_is_refused_without_the_data(recorded, no_data):
    changed, among = (
        {"train_changes": {"epochs": 1}},
        "{}, seed 0, is not among the recorded runs.*--data PATH",
    )
    fresh = "is not on this machine, to train {}, seed 0.*--data PATH"
    for name, options, words in (
        ("learned", {}, among),
        ("quadratic", changed, among),
        ("quadratic", {"fresh": True}, fresh),
    ):
        with pytest.raises(MissingData, match=words.format(name)):
            recorded.run(name, **options)


def test_of_recorded_runs_the_longest_stands_in(recorded, no_data, monkeypatch):
    model, recipe = recorded.configs("quadratic", None)
    kept = [
        SimpleNamespace(
            preset="quadratic", model=model, train=replace(recipe, {"epochs": n, "seed": s})
        )
        for n, s in ((30, 0), (50, 0), (40, 0), (60, 1))
    ]
    monkeypatch.setattr(
        workspace, "find_runs", lambda folder, wanted: [run for run in kept if wanted(run)]
    )
    assert recorded.run("quadratic") is kept[1]


def test_a_recorded_run_stands_in_only_where_it_goes_on_from_the_same_start(
    recorded, no_data, monkeypatch
):
    model, recipe = recorded.configs("quadratic", None)
    first, second = (
        SimpleNamespace(preset="quadratic", config={"hash": digits})
        for digits in ("first", "second")
    )
    going_on = replace(recipe, {"start_from": "quadratic", "prune": False})
    kept = [
        SimpleNamespace(preset="quadratic", model=model, train=trained, config=config)
        for trained, config in ((recipe, {}), (going_on, {"start": "first"}))
    ]
    monkeypatch.setattr(
        workspace, "find_runs", lambda folder, wanted: [run for run in kept if wanted(run)]
    )
    assert (
        recorded.run("quadratic") is kept[0] and recorded.run("quadratic", start=first) is kept[1]
    )
    with pytest.raises(MissingData, match="is not among the recorded runs"):
        recorded.run("quadratic", start=second)


def test_the_train_command_trains_what_it_is_asked_for(tmp_path, monkeypatch, capsys):
    asked = {}

    def run(work, name, seed, **options):
        asked.update(options, name=name, seed=seed, folder=work.folder)
        return SimpleNamespace(title="It", test_accuracy=0.5, metrics=[{}], path=tmp_path)

    monkeypatch.setattr(workspace.Workspace, "run", run)
    words = [
        "--profile",
        "smoke",
        "--seed",
        "3",
        "--epochs",
        "7",
        "--set",
        "heads=2",
        "--set",
        "lr=0.5",
        "--output",
    ]
    assert cli.main(["train", "quadratic", *words, str(tmp_path)]) == 0
    changes = dict(model_changes={"heads": 2}, train_changes={"lr": 0.5, "epochs": 7})
    assert asked == dict(name="quadratic", seed=3, fresh=True, folder=tmp_path) | changes
    assert "50.00% test accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["quadratic", "learned_content"])
def test_kept_attention_is_what_the_layers_do(work, name):
    run = work.run(name)
    kept, (model, _) = work.attention(run), load_run(run.path)
    assert kept["mean"].sum((-2, -1)) == pytest.approx(1, abs=1e-5)
    x = normalize(work.data.test_images[:100], work.data.mean, work.data.std)
    with torch.no_grad():
        inputs = model.layer_inputs(x)
        for index, layer in enumerate(model.attention_layers):
            p = (
                layer.probabilities(inputs[index])
                if name == "learned_content"
                else layer.probabilities(7, 7)[None]
            )
            for q, (row, column) in enumerate(kept["queries"]):
                maps = p[:, :, row, column].numpy()
                np.testing.assert_allclose(kept["mean"][q, index], maps.mean(0), atol=1e-3)
                for single, image in zip(
                    kept.get("single", ()), kept.get("images", ()), strict=True
                ):
                    np.testing.assert_allclose(single[q, index], maps[image], atol=1e-3)
    if name == "learned_content":
        assert kept["pixels"].shape == (3, 28, 28, 1) and kept["images"].tolist() == [0, 7, 23]
        assert kept["halves"].shape == (2, 2, 4)
        np.testing.assert_allclose(kept["shares"].sum(0), 1)
        for index, layer in enumerate(model.attention_layers):
            half, other = (
                layer.probabilities(images).mean(0).detach().numpy()
                for images in inputs[index].tensor_split(2)
            )
            ceiling = (
                np.minimum(half, other).sum((-2, -1)).mean((-2, -1))
            )  # the same queries, on other images
            np.testing.assert_allclose(kept["halves"][1, index], ceiling, atol=2e-3)
            np.testing.assert_allclose(
                kept["halves"][0, index], translation_consistency(half, other), atol=2e-3
            )
        assert (
            kept["halves"][0] <= kept["halves"][1] + 0.1
        ).all()  # with the query moved, hardly more than without


def test_heads_that_were_pruned_are_nan(work, run):
    model, _ = load_run(run.path)
    layer = model.attention_layers[0]
    layer.heads = 2
    layer.centres, layer.spreads = (
        torch.nn.Parameter(p[:2].detach()) for p in (layer.centres, layer.spreads)
    )
    data = work.data
    images = normalize(data.test_images, data.mean, data.std)
    mean = measure_attention(model, images, data.test_images, data.test_labels)["mean"]
    assert np.isnan(mean[:, 0, 2]).all() and np.isfinite(mean[:, 1]).all()


def test_a_recorded_run_of_another_recipe_stands_in_too_but_not_for_changes(recorded, no_data):
    longer = replace(recorded.profile, {"train": {**recorded.profile.train, "epochs": 9}})
    other = workspace.Workspace(longer, "cifar10", recorded.folder)
    assert other.run("quadratic").train.epochs == 2
    assert other.run("quadratic", train_changes={"epochs": 2}).train.epochs == 2  # this very recipe
    with pytest.raises(MissingData):
        other.run("quadratic", train_changes={"epochs": 3})


def test_only_beside_a_record_does_a_run_of_another_recipe_stand_in(work, tmp_path):
    work = dataclasses.replace(
        work, profile=replace(work.profile, {"recorded": True}), folder=tmp_path
    )
    first = work.run("quadratic")
    shorter = replace(work.profile, {"train": {**work.profile.train, "epochs": 1}})
    assert dataclasses.replace(work, profile=shorter).run("quadratic").train.epochs == 1
    assert work.run("quadratic").path == first.path


def test_swaps_are_measured_again_where_more_images_are_asked_for(work, tmp_path):
    def counted(most):
        some = dataclasses.replace(
            work, profile=replace(work.profile, {"swap_images": most}), folder=tmp_path
        )
        return int(some.swaps(some.run("quadratic"))["images"])

    assert [counted(20), counted(40), counted(30)] == [20, 40, 40]


def test_a_run_that_goes_on_with_other_threads_says_so(work, tmp_path, monkeypatch):
    work, save, threads = (
        dataclasses.replace(work, folder=tmp_path),
        loop.Trainer.save,
        torch.get_num_threads(),
    )

    def stop(self):
        save(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Trainer, "save", stop)
        work.run("quadratic")
    torch.set_num_threads(threads + 1)
    try:
        with pytest.warns(
            UserWarning, match=f"was begun with {threads}.*OMP_NUM_THREADS={threads} keeps it"
        ):
            work.run("quadratic")
    finally:
        torch.set_num_threads(threads)
