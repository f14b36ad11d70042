import pytest
import yaml

from lit_agentrl.sweeping.plan import read_plan


def plan_of(folder, content):
    (folder / "experiment.yaml").write_text("")
    path = folder / "ablation.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return read_plan(path)


def test_a_plan_with_everything(tmp_path):
    plan = plan_of(
        tmp_path,
        {
            "base": "experiment.yaml",
            "overrides": ["--trainer.max_epochs=2"],
            "metric": "val/pass_at_4",
            "variants": {
                "no_memory": {"agent.memory": None, "tags": ["a"], "name": "x"},
                "big": ["--group_size", "16"],
            },
        },
    )
    assert plan.base == tmp_path / "experiment.yaml"
    assert plan.metric == "val/pass_at_4"
    assert plan.variants == {
        "base": ("--trainer.max_epochs=2",),
        "no_memory": ("--trainer.max_epochs=2", "--agent.memory=null", '--tags=["a"]', "--name=x"),
        "big": ("--trainer.max_epochs=2", "--group_size", "16"),
    }


def test_the_base_can_be_left_out(tmp_path):
    plan = plan_of(tmp_path, {"base": "experiment.yaml", "include_base": False, "variants": {"x": []}})
    assert list(plan.variants) == ["x"]
    assert plan.metric == "val/success"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "expected a mapping with the keys base"),
        ("{", "cannot read the ablation file"),
        ({"base": "experiment.yaml", "seeds": {}}, "unknown key 'seeds'; accepted: base, include_base"),
        ({"base": "nowhere.yaml"}, "base must be the path of an experiment file"),
        ({"base": "experiment.yaml", "include_base": "no"}, "include_base must be true or false"),
        ({"base": "experiment.yaml", "metric": 3}, "metric must be a column"),
        ({"base": "experiment.yaml", "include_base": False}, "there is nothing to run"),
        ({"base": "experiment.yaml", "variants": ["x"]}, "variants must be a mapping"),
        ({"base": "experiment.yaml", "variants": {"../x": []}}, "is no name"),
        ({"base": "experiment.yaml", "variants": {"base": []}}, "is no name"),
        ({"base": "experiment.yaml", "variants": {"x": "--lr=1"}}, "variants.x must be a list"),
        ({"base": "experiment.yaml", "overrides": ["--seed_everything=1"]}, "is set by the ablation itself"),
        ({"base": "experiment.yaml", "variants": {"x": {"run_dir": "y"}}}, "is set by the ablation itself"),
    ],
)
def test_mistakes_are_named(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        plan_of(tmp_path, content)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="cannot read the ablation file"):
        read_plan(tmp_path / "nope.yaml")
