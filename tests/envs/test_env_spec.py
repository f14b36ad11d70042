import sys

import pytest

from lit_agentrl.envs.arithmetic import TinyArithmetic
from lit_agentrl.envs.spec import EnvSpec


@pytest.fixture
def wanting(tmp_path, monkeypatch):
    module = tmp_path / "third_party_env.py"
    module.write_text(
        "from lit_agentrl.envs.arithmetic import TinyArithmetic\n\n\n"
        "class Wanting(TinyArithmetic):\n"
        "    built = 0\n\n"
        "    def __init__(self, path: str, sizes: tuple[int, ...] = (), **options):\n"
        "        super().__init__()\n"
        "        Wanting.built += 1\n"
        "        self.arguments = (path, sizes, options)\n\n\n"
        "class NoStep:\n"
        "    def sample_task(self, seed, split): ...\n"
        "    def reset(self, task): ...\n"
        "    def close(self): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "third_party_env", raising=False)
    return "third_party_env.Wanting"


def test_a_bare_name_is_looked_for_in_the_package():
    env = EnvSpec(class_path="TinyArithmetic", init_args={"digits": 3}).build()
    assert isinstance(env, TinyArithmetic)
    assert env.digits == 3


def test_a_class_of_a_third_party_works_by_import_path(wanting):
    env = EnvSpec(class_path=wanting, init_args={"path": "x", "sizes": [1, 2], "extra": True}).build()
    assert env.arguments == ("x", (1, 2), {"extra": True})


def test_checking_builds_nothing(wanting):
    import third_party_env

    EnvSpec(class_path=wanting, init_args={"path": "x"}).check()
    assert third_party_env.Wanting.built == 0


@pytest.mark.parametrize(
    "class_path", ["TinyArithmetik", "lit_agentrl.envs.arithmetic.Tiny", "lit_agentrl.envz.TinyArithmetic"]
)
def test_an_unknown_class_names_the_key_and_the_closest(class_path):
    with pytest.raises(
        ValueError, match=r"env\.class_path: .*closest: .*lit_agentrl\.envs\.arithmetic\.TinyArithmetic"
    ):
        EnvSpec(class_path=class_path).check()


def test_a_class_that_is_no_environment_is_told_what_it_lacks(wanting):
    with pytest.raises(
        ValueError, match=r"env\.class_path: 'third_party_env\.NoStep' is no environment, it lacks step"
    ):
        EnvSpec(class_path="third_party_env.NoStep").check()


def test_a_missing_dependency_is_told_apart_from_a_wrong_path(tmp_path, monkeypatch):
    (tmp_path / "env_with_dependency.py").write_text("import there_is_no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="cannot be imported: No module named 'there_is_no_such_library'"):
        EnvSpec(class_path="env_with_dependency.Env").check()


@pytest.mark.parametrize(
    ("init_args", "message"),
    [
        ({"digit": 2}, r"env\.init_args\.digit is unknown \(accepted: mode .*, digits \(integer\), operators"),
        ({"digits": "two"}, r'env\.init_args\.digits must be integer, got "two"'),
        ({"mode": "tool"}, r"env\.init_args\.mode must be one of 'direct', 'call', got \"tool\""),
    ],
)
def test_arguments_are_checked_against_the_signature(init_args, message):
    with pytest.raises(ValueError, match=message):
        EnvSpec(class_path="TinyArithmetic", init_args=init_args).check()


def test_a_missing_argument_is_named(wanting):
    with pytest.raises(ValueError, match=r"env\.init_args\.path is missing \(expected string\)"):
        EnvSpec(class_path=wanting).check()
