"""What notebooks work with: where results go, that runs are found by name, here or in a record, and
what each goes on from."""

import dataclasses
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock

from attnconv.config import ConfigError, replace
from attnconv.heads import SINGLE_IMAGES, measure_attention, translation_consistency
from attnconv.training import load_run
from attnconv.training.data import ARRAYS, DataError, MissingData, normalize
from companion import cli, results, workspace
from companion.profile import Profile
from companion.workspace import OUTPUTS, Workspace, open_workspace, output_folder
from test_data import parquet, some


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return open_workspace("smoke", output=tmp_path_factory.mktemp("outputs"))


@pytest.fixture(scope="module")
def run(work):
    return work.run("quadratic")


@pytest.mark.parametrize(
    ("profile", "source", "folder"),
    [
        (Profile(name="quick"), "embedded", "quick"),
        (Profile(name="quick"), "cifar10", "quick-cifar10"),
        (Profile(name="quick"), "/somewhere/CIFAR 10", "quick-CIFAR 10"),
        (Profile(name="quick"), "/somewhere/else/..", "quick-somewhere"),
        (Profile(name="paper", data="cifar10"), "embedded", "paper-embedded"),
        (Profile(name="evening", recorded=True), "embedded", "reproduced/evening"),
        (Profile(name="evening", recorded=True), "cifar10", "evening-cifar10"),
    ],
)
def test_other_data_get_an_output_folder_of_their_own(profile, source, folder):
    assert output_folder(profile, source) == OUTPUTS / folder


def test_another_copy_of_the_profiles_data_shares_its_output_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNCONV_DATA", str(tmp_path / "cache"))
    own, other = (str(parquet(tmp_path / name, some())) for name in ("cifar10", "others"))
    paper, quick = Profile(name="paper", data="cifar10"), Profile(name="quick")
    assert output_folder(paper, own).name == "paper"
    assert output_folder(paper, other).name == "paper-others"
    assert output_folder(quick, own).name == "quick-cifar10"
    with pytest.raises(DataError, match="no data set at"):
        output_folder(paper, str(tmp_path / "nowhere"))
    monkeypatch.setenv("ATTNCONV_RETRAIN", "1")
    assert output_folder(quick, own).name == "quick-cifar10-retrained"


def test_a_run_is_trained_once(work, run):
    before = (run.path / "model.safetensors").stat().st_mtime_ns
    assert work.run("quadratic").path == run.path == work.folder / "runs" / work.name("quadratic")
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
    assert [note["runs"] for note in notes] == [[], [run.path.name]]


def test_a_table_is_saved(work):
    work.save_table(pd.DataFrame({"model_a": ["x", "y"], "lost": [1 / 3, np.nan]}), "01-table")
    text = (work.folder / "tables" / "01-table.csv").read_text()
    assert text == "model_a,lost\nx,0.3333333333333333\ny,\n"


def test_every_seed_and_configuration_has_a_folder_of_its_own(work, run):
    second, other = work.run("quadratic", 1), work.run("quadratic", train_changes={"epochs": 1})
    assert len({run.path, second.path, other.path}) == 3 and {run, second, other} <= set(
        work.runs()
    )
    assert results.of_all_seeds(second, [run, second, other]) == [second, run]
    groups = results.group([other, second, run])
    assert [len(members) for members in groups.values()] == [1, 2] and all(
        "SA quadratic (" in title for title in groups
    )
    table = results.results_table({"mine": [run]})
    assert table["Accuracy (%)"][0] == round(100 * run.test_accuracy, 2)
    assert table["GFLOPs, separable"][0] < table["GFLOPs, dense"][0]


# Runs that go on from others


def test_pruned_runs_train_what_they_start_from_and_of_several_seeds_share_a_row(work, tmp_path):
    run, second = work.run("quadratic_pruned"), work.run("quadratic_pruned", 1)
    starts = [work.name("quadratic_full", seed) for seed in (0, 1)]
    assert [one.train.start_from for one in (run, second)] == starts
    assert {*starts} <= {other.path.name for other in work.runs()}
    first, *others = run.model.heads_per_layer
    second.__dict__["model"] = replace(second.model, {"heads": (first + 1, *others)})
    groups = results.group([run, second])
    table = results.results_table(groups | {"one": [run]})
    assert [len(members) for members in groups.values()] == [2]
    assert table["Parameters (M)"].nunique() == 2
    # Another start, which the profile does not list: the record has one of that preset.
    of_start = {"quadratic_full": {"train": {"epochs": 1}}}
    changes = {"study": {}, "presets": work.profile.presets | of_start}
    profile = work.profile.model_copy(update=changes)
    elsewhere = dataclasses.replace(work, profile=profile, folder=tmp_path)
    other = elsewhere.run("quadratic_pruned", train_changes={"epochs": 1})
    assert other.model.hidden == run.model.hidden and len(results.group([run, other])) == 2


def test_heads_are_pruned_and_layers_swapped_before_training(work, monkeypatch):
    work = dataclasses.replace(work, record=None)
    start = work.run("quadratic_full")
    network, _ = load_run(start.path)
    model, _ = work.configs("hybrid")
    hybrid = workspace.first_network(work.run("quadratic"), model, "swap")
    assert (
        hybrid.config.kernels == model.kernels == work.run("hybrid", kept_in="study").model.kernels
    )
    whole = workspace.first_network(start, model, "").state_dict()
    torch.testing.assert_close(whole, network.state_dict(), rtol=0, atol=0)
    torch.nn.init.constant_(network.attention_layers[0].spreads[0], 0)  # a head that sees all alike
    monkeypatch.setattr(workspace, "load_run", lambda path: (network, None))
    assert workspace.first_network(start, model, "prune").config.heads_per_layer[0] < 4
    for name, words in (("hybrid", "must fit"), ("quadratic_longer", "is that of quadratic")):
        with pytest.raises(ConfigError, match=f"kernels .*{words}"):
            work.check(name, model_changes={"kernels": [9]})


def test_swaps_are_measured_again_where_more_images_are_asked_for(work, run, tmp_path):
    shutil.copytree(run.path, tmp_path / "runs" / run.path.name)

    def counted(most):
        profile = work.profile.model_copy(update={"swap_images": most})
        some = dataclasses.replace(work, profile=profile, folder=tmp_path)
        return int(some.swaps(some.run("quadratic"))["images"])

    assert [counted(20), counted(40), counted(30)] == [20, 40, 40]
    measured = tmp_path / "runs" / run.path.name / "swaps.npz"
    kept = measured.rename(tmp_path / "kept")
    with ThreadPoolExecutor() as pool, FileLock(measured.with_name(".lock")):
        second = pool.submit(counted, 10)
        with pytest.raises(TimeoutError):
            second.result(timeout=1)
        kept.rename(measured)  # the first one has measured
    assert second.result() == 40


# A record


@pytest.fixture
def record(tmp_path, work, run, monkeypatch):
    """A record of one run, with a strip of images."""
    folder = tmp_path / "record"
    shutil.copytree(run.path, folder / "runs" / run.path.name)
    for measured in ("attention.npz", "swaps.npz"):
        (folder / "runs" / run.path.name / measured).unlink(missing_ok=True)
    few = work.data.first(20, 20)
    arrays = {name: getattr(few, name) for name in ARRAYS}
    np.savez(folder / "strip.npz", classes=few.classes, form="a few images", **arrays)
    monkeypatch.setattr(workspace, "RECORD", folder)
    monkeypatch.setattr(workspace, "STRIP", folder / "strip.npz")
    return folder


@pytest.fixture
def without_data(work, record, tmp_path):
    """A workspace beside the record, whose data set is not on this machine."""
    profile = work.profile.model_copy(update={"recorded": True})
    return Workspace(profile, str(workspace.STRIP), tmp_path / "reproduced", record)


def content(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_recorded_run_and_its_images_stand_in_for_the_data(without_data, record, run, work):
    found = without_data.run("quadratic")
    assert found.path == record / "runs" / run.path.name
    assert [one.path for one in without_data.runs()] == [found.path]
    assert without_data.data.form == "a few images" and without_data.about == run.config["data"]
    assert torch.equal(without_data.data.test_images, work.data.first(20, 20).test_images)
    for name, options in (("learned", {}), ("quadratic", {"train_changes": {"epochs": 1}})):
        with pytest.raises(MissingData, match=f"{name}, seed 0, is not among .*--data PATH"):
            without_data.run(name, **options)


def test_nothing_is_measured_of_a_recorded_run(without_data, record):
    before = content(record)
    found = without_data.run("quadratic")
    for one in (without_data, dataclasses.replace(without_data, source="embedded")):
        assert one.swaps(found) == one.attention(found) == {}  # the record's, which has none
    assert content(record) == before


def test_what_a_profile_without_a_study_does_not_train_is_the_records_and_says_so(
    work, record, run, tmp_path, monkeypatch, capsys
):
    """The record's images differ from the profile's: nothing may be measured on the wrong ones."""
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    text = (workspace.PROFILES / "smoke.yaml").read_text()
    (profiles / "record.yaml").write_text(text + "recorded: true\n")
    monkeypatch.setattr(workspace, "PROFILES", profiles)
    small = work.profile.model_copy(update={"runs": ["learned"], "study": {}, "test_images": 50})
    quick = Workspace(small, "embedded", tmp_path / "quick", record)
    found = quick.run("quadratic")
    assert found.path == record / "runs" / run.path.name
    assert f"record, {run.path.name}" in capsys.readouterr().out
    assert quick.recorded.data.form == "a few images"
    assert quick.recorded.results == quick.results
    assert quick.swaps(found) == quick.attention(found) == {}
    assert quick.for_study is quick.recorded and "Shown: short runs" in capsys.readouterr().out
    assert [one.path for one in quick.recorded.runs()] == [found.path] and quick.runs() == []
    whole = dataclasses.replace(quick, profile=work.profile)
    assert whole.for_study is whole
    asked = []
    monkeypatch.setattr(workspace, "train", lambda *told, **how: asked.append(how["preset"]))
    quick.run("learned")
    quick.run("quadratic", train_changes={"epochs": 1})
    dataclasses.replace(quick, record=None).run("quadratic")
    assert asked == ["learned", "quadratic", "quadratic"]


def test_any_profile_finds_a_recorded_run_of_its_configuration_and_data(
    work, record, run, tmp_path
):
    other = dataclasses.replace(work, folder=tmp_path / "other", record=record)
    assert [other.run("quadratic").path, *(one.path for one in other.runs())] == [
        record / "runs" / run.path.name
    ] * 2
    profile = work.profile.model_copy(update={"train": {**work.profile.train, "epochs": 1}})
    shorter = dataclasses.replace(other, profile=profile)
    fewer = dataclasses.replace(other, profile=profile.model_copy(update={"train_images": 100}))
    for one in (shorter, fewer):
        assert one.find(one.name("quadratic")) is None and one.runs() == []
    shutil.copytree(run.path, other.folder / "runs" / run.path.name)
    assert [one.path.parent for one in other.runs()] == [other.folder / "runs"]  # the own one wins
    assert fewer.runs() == []  # it is not of these images


def test_the_record_itself_is_drawn_from_its_images_and_without_a_record_data_are_downloaded(
    record, tmp_path, monkeypatch
):
    def sources(**options):
        return [open_workspace("evening", output=place, **options).strip for place in places]

    places = [record, tmp_path / "elsewhere"]
    monkeypatch.setenv("ATTNCONV_DATA", str(tmp_path / "nowhere"))
    assert sources() == [True, True]
    assert sources(data="embedded") == [True, False]
    monkeypatch.setenv("ATTNCONV_RETRAIN", "1")
    assert sources() == [False, False]


def test_all_is_trained_anew_where_that_is_asked_for(monkeypatch, tmp_path):
    assert open_workspace("smoke", output=tmp_path).record == workspace.RECORD
    monkeypatch.setenv("ATTNCONV_RETRAIN", "1")
    anew = open_workspace("smoke")
    assert anew.record is None and anew.folder == OUTPUTS / "smoke-retrained"


def test_the_train_command_trains_what_it_is_asked_for(tmp_path, monkeypatch, capsys):
    asked = {}

    def run(work, name, seed, **options):
        asked.update(options, name=name, seed=seed, folder=work.folder, record=work.record)
        return SimpleNamespace(title="It", test_accuracy=0.5, metrics=[{}], path=tmp_path)

    monkeypatch.setattr(Workspace, "run", run)
    words = "--profile smoke --seed 3 --epochs 7 --set heads=2 --set lr=0.5 --output"
    assert cli.main(["train", "quadratic", *words.split(), str(tmp_path)]) == 0
    changes = {"model_changes": {"heads": 2}, "train_changes": {"lr": 0.5, "epochs": 7}}
    where = {"folder": tmp_path, "record": None}
    assert asked == {"name": "quadratic", "seed": 3} | where | changes
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
                for single, image in zip(kept.get("single", ()), SINGLE_IMAGES, strict=False):
                    np.testing.assert_allclose(single[q, index], maps[image], atol=1e-3)
    if name == "learned_content":
        shown = work.data.test_images[list(SINGLE_IMAGES)]
        assert len(kept["single"]) == 3 and np.array_equal(kept["pixels"], shown)
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
    mean = measure_attention(model, torch.zeros(0), work.data.test_images.numpy())["mean"]
    assert np.isnan(mean[:, 0, 2]).all() and np.isfinite(mean[:, 1]).all()
