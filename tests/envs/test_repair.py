"""Repair of packages: bugs that tests find, an episode by tools, and nothing for those who cheat."""

import ast
import dataclasses
import json

import pytest
from toy_package import SOURCE, TEST_FILE, TESTS, make_package

from lit_agentrl.agents.tools.sandbox.protocol import Limits
from lit_agentrl.envs.calls import call_message
from lit_agentrl.envs.repair import PackageRepair
from lit_agentrl.envs.repair_build import build
from lit_agentrl.envs.repair_build import main as build_main
from lit_agentrl.envs.repair_guard import objection
from lit_agentrl.envs.repair_mutations import mutations
from lit_agentrl.envs.repair_packages import PACKAGES, read_package
from lit_agentrl.envs.repair_tests import PackageTests
from lit_agentrl.testing import check_environment
from lit_agentrl.types import Action, Message

WRONG = SOURCE.replace("if value > high", "if value >= high + 1").replace("total + 1", "total - 1")
ALL = {
    f"{TEST_FILE}::test_clamp": 3,
    f"{TEST_FILE}::TestCount::test_some": 1,
    f"{TEST_FILE}::TestCount::test_none": 1,
    f"{TEST_FILE}::test_spread": 1,
    f"{TEST_FILE}::test_spread_of_nothing_raises": 1,
    f"{TEST_FILE}::test_version": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repair")
    build(folder, per_file=7, packages=[make_package(folder), make_package(folder, name="held", held_out=True)])
    return folder


@pytest.fixture(scope="module")
def env(folder):
    env = PackageRepair(folder=str(folder))
    yield env
    env.close()


@pytest.fixture(scope="module")
def runner():
    runner = PackageTests(limits=Limits(wall_s=15, cpu_s=1, memory_mb=512, num_processes=8))
    yield runner
    runner.close()


def passed(runner, source):
    return runner.run({"toy.py": source}, {TEST_FILE: TESTS}).passed


def reply(*calls):
    return Action(message=call_message(list(calls), number=0) if calls else Message.of("assistant", "Done."))


def texts(result):
    return [message.text for message in result.observation.messages]


def test_the_published_package_passes_and_a_bug_does_not(runner):
    assert passed(runner, SOURCE) == ALL
    outcome = runner.run({"toy.py": WRONG}, {TEST_FILE: TESTS})
    assert set(ALL) - set(outcome.passed) == {f"{TEST_FILE}::TestCount::test_some"}
    assert list(outcome.failures) == [f"{TEST_FILE}::TestCount::test_some"]


CHEATS = {
    "loops": "while True: pass",
    "exits with 0": "import os\nos._exit(0)",
    "exits like a program": "raise SystemExit(0)",
    "exits when a test calls": "import os\ndef count(*a): os._exit(0)",
    "forks and the child reports, too": "import os\nos.fork()",
    "forks and leaves": "import os\nif os.fork(): os._exit(0)",
    "edits the tests": (
        "import glob\nfor path in glob.glob('/sandbox/x*/test_*.py'):\n    open(path, 'w').write('def test_x(): pass')"
    ),
    "adds a conftest": (
        "import glob, sys\nfolder = [p for p in sys.path if p.startswith('/sandbox/x')][0]\n"
        "open(folder + '/conftest.py', 'w').write('def pytest_collection_modifyitems(items): items.clear()')"
    ),
    "makes all tests do nothing": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None",
    "makes pytest report success": (
        "import _pytest.reports\nold = _pytest.reports.TestReport.__init__\n"
        "def new(self, *a, **k):\n    old(self, *a, **k)\n    self.outcome, self.longrepr = 'passed', None\n"
        "_pytest.reports.TestReport.__init__ = new"
    ),
    "makes pytest call nothing": (
        "import _pytest.runner as r\nr.CallInfo.from_call = classmethod(lambda cls, func, when, **k: "
        "cls(None, None, 0, 0, 0, when, _ispytest=True))"
    ),
    "skips all tests": "import pytest\npytest.skip('no', allow_module_level=True)",
    "makes all things equal": (
        "import _pytest.python\nclass Any(int):\n    __eq__ = lambda s, o: True\n    __hash__ = None\n"
        "def clamp(*a): raise AssertionError\ndef spread(*a): return 0"
    ),
    "prints a report": (
        "import atexit, os, json\n"
        "report = json.dumps({'passed': ['a'], 'failed': {}, 'reached': ['b']})\n"
        "os.write(1, b'\\nx' + report.encode() + b'\\n')\nos._exit(0)"
    ),
    "ends the runner's main function": "import pytest\npytest.main = lambda *a, **k: 0\nraise SystemExit",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_earn_nothing(runner, cheat):
    # Whatever the package does besides, the tests of `count`, which is wrong, have not passed.
    got = passed(runner, f"{WRONG}\n{CHEATS[cheat]}\n")
    assert f"{TEST_FILE}::TestCount::test_some" not in got


@pytest.mark.parametrize("cheat", CHEATS)
def test_most_cheats_do_not_even_get_into_the_file(cheat):
    reason = objection(WRONG, f"{WRONG}\n{CHEATS[cheat]}\n")
    assert reason is not None or cheat in ("loops", "exits like a program")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x = sys.modules['pytest']", "does not need modules"),
        ("x = getattr(sys, '_getframe')()", "does not need _getframe"),
        ("x = __import__('os')", "does not need __import__"),
        ("from os import path", "imports nothing new: os.path"),
        ("x = =", "would not be valid Python any more"),
    ],
)
def test_the_guard_says_why(line, words):
    assert words in objection(SOURCE, f"{SOURCE}\n{line}\n")
    assert objection(SOURCE, SOURCE.replace("total + 1", "sum([total, 1])")) is None


def test_mutations_are_other_programs_each_once():
    found = mutations(SOURCE)
    forms = [ast.dump(ast.parse(mutation.source)) for mutation in found]
    assert len(set(forms)) == len(forms) == len(found) == 10
    assert ast.dump(ast.parse(SOURCE)) not in forms
    assert {mutation.kind for mutation in found} == {"comparison", "operator", "constant", "branches"}
    # One line of the file differs, comments and layout stay.
    for mutation in found:
        pairs = list(zip(SOURCE.splitlines(), mutation.source.splitlines(), strict=True))
        assert sum(old != new for old, new in pairs) == 1
    umlaut = "def f(a):\n    return 'ä', a + 1\n"
    assert "def f(a):\n    return 'ä', a - 1\n" in [mutation.source for mutation in mutations(umlaut)]


def test_bugs_are_kept_only_when_the_tests_find_them(folder, runner):
    data = json.loads((folder / "bugs.json").read_text())
    assert data["packages"]["toy"]["expected"] == {"toy.py": dict(sorted(ALL.items()))}
    bugs = [bug for bug in data["bugs"] if bug["package"] == "toy"]
    kept = {tuple(bug["wrong"]) for bug in bugs}
    assert len(kept) == len(bugs) == 7
    assert ("    if value <= low:\n",) not in kept  # the same function, so that no test can find it
    for bug in bugs[:2]:
        lines = SOURCE.splitlines(keepends=True)
        begin = bug["first_line"] - 1
        lines[begin : begin + len(bug["right"])] = bug["wrong"]
        assert set(ALL) - set(passed(runner, "".join(lines))) == set(bug["failing"])


def test_the_same_build_makes_the_same_tasks(folder, tmp_path):
    bugs = build(tmp_path, per_file=7, packages=[make_package(tmp_path)])
    kept = [bug for bug in json.loads((folder / "bugs.json").read_text())["bugs"] if bug["package"] == "toy"]
    assert [(bug.first_line, list(bug.wrong)) for bug in bugs] == [(bug["first_line"], bug["wrong"]) for bug in kept]


def test_held_out_packages_are_test_and_functions_are_in_one_split(folder, env):
    data = json.loads((folder / "bugs.json").read_text())
    splits = {}
    for bug in data["bugs"]:
        splits.setdefault((bug["package"], bug["function"]), set()).add(bug["split"])
    assert all(len(found) == 1 for found in splits.values())
    assert all(found == {"test"} for (package, _), found in splits.items() if package == "held")
    assert not any("test" in found for (package, _), found in splits.items() if package == "toy")
    assert env.sample_task(0, "test").family == "repair_held"
    assert env.sample_task(0, "train").family == "repair_toy"


def test_demonstrations_solve_their_tasks(env):
    for split in ("train", "test"):
        task = env.sample_task(0, split)
        shown = env.demonstrate(task)
        observation = env.reset(task)
        assert observation.messages == shown.messages[:1]
        for message in shown.messages:
            if message.role == "assistant":
                result = env.step(Action(message=message))
        assert (result.terminated, result.success, result.reward) == (True, True, 1.0)
        assert result.reward_parts == {"solved": 1.0, "fixed": 1.0, "kept": 1.0, "refused_edits": 0.0}


def test_a_repair_that_breaks_something_else_earns_nothing(env):
    task = env.sample_task(1, "test")
    (*_, fix, tests, done) = [message for message in env.demonstrate(task).messages if message.role == "assistant"]
    env.reset(task)
    assert texts(env.step(Action(message=fix))) == ["edited"]
    assert texts(env.step(Action(message=tests))) == ["6 of 6 tests pass"]
    broken = ("edit", {"path": "toy.py", "old": "return sys.version_info[0]", "new": "return 2"})
    assert texts(env.step(reply(broken))) == ["edited"]
    result = env.step(Action(message=done))
    assert (result.success, result.reward, result.reward_parts["fixed"]) == (False, 0.0, 1.0)
    assert result.reward_parts["kept"] < 1


def test_doing_nothing_earns_nothing(env):
    env.reset(env.sample_task(0, "test"))
    result = env.step(reply())
    assert (result.success, result.reward, result.reward_parts) == (
        False,
        0.0,
        {"solved": 0.0, "fixed": 0.0, "kept": 1.0, "refused_edits": 0.0},
    )


def test_tools_show_the_package_and_not_its_tests(env):
    env.reset(env.sample_task(0, "test"))
    listed, searched, read, test, missing = texts(
        env.step(
            reply(
                ("list_files", {}),
                ("search", {"text": "def "}),
                ("read_file", {"path": "toy.py", "first_line": 6, "last_line": 7}),
                ("read_file", {"path": TEST_FILE}),
                ("edit", {"path": "conftest.py", "old": "a", "new": "b"}),
            )
        )
    )
    assert listed == f"toy.py ({SOURCE.count(chr(10))} lines)"
    assert searched.splitlines()[0] == "toy.py:6: def clamp(value, low, high):"
    assert read.splitlines() == ["6: def clamp(value, low, high):", '7:     """Return value within bounds."""']
    assert test.startswith("Error: read_file: there is no file")
    assert missing.startswith("Error: edit: there is no file")


def test_edits_that_cannot_be_made_are_told_and_counted(env):
    env.reset(env.sample_task(0, "test"))
    twice, cheat = texts(
        env.step(
            reply(
                ("edit", {"path": "toy.py", "old": "return", "new": "x"}),
                ("edit", {"path": "toy.py", "old": "import sys\n", "new": "import sys\nimport os\n"}),
            )
        )
    )
    assert "it must be there exactly once" in twice
    assert "imports nothing new: os" in cheat
    assert env.step(reply()).reward_parts["refused_edits"] == 1.0


def test_steps_are_limited(folder):
    env = PackageRepair(folder=str(folder), max_steps=2)
    env.reset(env.sample_task(0, "test"))
    assert not env.step(reply(("list_files", {}))).terminated
    assert not env.step(reply(("list_files", {}))).terminated
    result = env.step(reply(("list_files", {})))
    assert (result.terminated, result.success) == (True, False)
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(reply())
    env.close()


def test_it_keeps_the_contract_of_environments(folder):
    check_environment(lambda: PackageRepair(folder=str(folder)), seeds=range(1), tools=())


def test_bad_configuration_names_its_key(folder, tmp_path):
    with pytest.raises(ValueError, match=r"env\.init_args\.folder: .*bugs\.json cannot be read.*repair build"):
        PackageRepair(folder=str(tmp_path))
    (tmp_path / "bugs.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match=r"env\.init_args\.folder: .*format 0"):
        PackageRepair(folder=str(tmp_path))
    with pytest.raises(ValueError, match=r"env\.init_args\.packages must be some of toy, held, got \['x'\]"):
        PackageRepair(folder=str(folder), packages=("x",))
    with pytest.raises(ValueError, match=r"env\.init_args\.max_steps must be at least 1"):
        PackageRepair(folder=str(folder), max_steps=0)
    env = PackageRepair(folder=str(folder), packages=("held",))
    with pytest.raises(ValueError, match=r"env\.init_args\.packages: none has a bug of split 'train'"):
        env.sample_task(0, "train")
    env.close()


def test_another_archive_than_the_pinned_one_is_refused(tmp_path, capsys):
    package = make_package(tmp_path)
    with pytest.raises(ValueError, match="is not the pinned file"):
        read_package(dataclasses.replace(package, sha256="0" * 64), tmp_path)
    (tmp_path / f"{PACKAGES[0].name}-{PACKAGES[0].version}.tar.gz").write_text("other")
    with pytest.raises(SystemExit):
        build_main(["build", "--folder", str(tmp_path), "--packages", PACKAGES[0].name])
    assert "is not the pinned file" in capsys.readouterr().err
