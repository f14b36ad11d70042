"""Functions in the sandbox: their values are judged where they have never been, and cheats earn nothing."""

import pytest

from lit_agentrl.envs.function_driver import NotPlainError, of_plain, to_plain
from lit_agentrl.envs.function_tests import FunctionTester, FunctionTests
from lit_agentrl.rewards.grading import GraderError

DOUBLE = "def helper(x):\n    return 2 * x\n\n\ndef double(x):\n    return helper(x)\n"
TESTS = """
METADATA = {}


def check(candidate):
    assert candidate(1) == 2
    assert candidate(x=21) == 42, "a message"
    for number in range(2):
        assert candidate(number) == helper(number)
    assert True
"""
TASK = FunctionTests(name="double", program=DOUBLE, tests=TESTS)


@pytest.fixture(scope="module")
def tester():
    tester = FunctionTester(cpu_s=1, memory_mb=256, key="env.init_args")
    yield tester
    tester.close()


def share(tester, program, task=TASK):
    return tester.test(program, task).share


def test_a_right_function_passes(tester):
    verdict = tester.test(DOUBLE, TASK)
    assert (verdict.share, verdict.problem) == (1.0, "")
    assert share(tester, "def double(x): return x + x") == 1.0


def test_the_share_is_of_assertions_and_constants_do_not_count(tester):
    # Called with 1, 21, 0 and 1: 2 is right, 442 and 1 are not, 2 is.
    assert share(tester, "def double(x): return x * x + 1") == 0.5


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("def double(x): return 1 / 0", "ZeroDivisionError: division by zero"),
        ("def double(x): return (x for x in [])", "NotPlainError: a value of type generator"),
        ("def double(x): return object", "NotPlainError: a value of type type"),
        ("def double(x): return 1 << 99999", "NotPlainError: an integer of thousands of digits"),
        ("def double(x) return 1", "SyntaxError"),
        ("x = 1", "KeyError: 'double'"),
        ("def double(): pass", "TypeError"),
        ("def double(x):\n    while True: pass", "it took more CPU time than is allowed"),
        ("def double(x): return double(x)", "RecursionError"),
        ("def double(x): return 'x' * 10**6", "it took more output than is allowed"),
        ("def double(x): return bytearray(2**30)", "MemoryError"),
        ("import socket; socket.socket()\ndef double(x): return 2 * x", "Error"),
    ],
)
def test_what_goes_wrong_is_said_and_wrong(tester, program, problem):
    verdict = tester.test(program, TASK)
    assert verdict.share == 0.0
    assert problem in verdict.problem


def test_a_function_that_loops_for_one_argument_keeps_what_it_returned_before(tester):
    assert share(tester, "def double(x):\n    while x == 21: pass\n    return 2 * x") == 0.25


CHEATS = {
    "exits with 0": "import os\nos._exit(0)",
    "exits when it is called": "import os\ndef double(x): os._exit(0)",
    "ends like a program": "raise SystemExit(0)",
    "equals everything": "class Any:\n    __eq__ = lambda s, o: True\ndef double(x): return Any()",
    "equals everything as an int": "class Any(int):\n    __eq__ = lambda s, o: True\ndef double(x): return Any(-1)",
    "equals everything as a str": "class Any(str):\n    __eq__ = lambda s, o: True\ndef double(x): return Any('')",
    "is true in a list": "class Any(list):\n    __eq__ = lambda s, o: True\ndef double(x): return Any()",
    "patches what judges": (
        "import __main__\nfor name in ('check', 'answer', '_tests', 'to_plain', 'of_plain'):\n"
        "    setattr(__main__, name, lambda *a, **k: {'held': 4, 'made': 4, 'same': True, 'problem': ''})\n"
        "def double(x): return -1"
    ),
    "patches the standard library": (
        "import ast, builtins, json\njson.loads = lambda text: {'value': True}\nast.parse = lambda *a: None\n"
        "builtins.bool = lambda *a: True\ndef double(x): return -1"
    ),
    "prints a verdict": (
        "import os\nfor out in range(20):\n    try:\n"
        '        os.write(out, b\'{"held": 4, "made": 4, "same": true, "problem": ""}\\n\' * 4)\n'
        "    except OSError: pass\nos._exit(0)"
    ),
    "prints malformed answers": (
        "import os\nfor out in range(20):\n    try:\n        os.write(out, b'[' * 50_000 + b'\\n\\xff\\n{}\\n')\n"
        "    except OSError: pass\nos._exit(0)"
    ),
    "prints answers of unknown kinds": (
        "import os\nfor out in range(20):\n    try:\n"
        '        os.write(out, b\'{"value": {"__class__": ["x"]}}\\n{"value": [1]}\\n\')\n'
        '        os.write(out, b\'{"value": {"set": [{"list": []}]}}\\n\')\n'
        "    except OSError: pass\nos._exit(0)"
    ),
    "leaves files for the next call": (
        "for name in ('tests', 'answers', 'json.py', 'sitecustomize.py', 'ast.py'):\n    open(name, 'w').write('x')\n"
        "def check(candidate): pass\ndef double(x): return -1"
    ),
    "forks": "import os\nos.fork()\ndef double(x): return -1",
    "forks and leaves": "import os\nif os.fork(): os._exit(0)\ndef double(x): return -1",
    "loops in a thread": (
        "import threading\ndef run():\n    while True: pass\nthreading.Thread(target=run).start()\n"
        "def double(x): return -1"
    ),
    "kills its parents": "import os, signal\nos.kill(1, 9)\nos.kill(-1, 9)\ndef double(x): return -1",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_earn_nothing(tester, cheat):
    assert share(tester, CHEATS[cheat]) == 0.0
    assert share(tester, DOUBLE) == 1.0  # and the next function is judged as ever


def test_neither_tests_nor_values_are_where_the_function_runs(tester):
    task = FunctionTests(
        name="look",
        program="def look(): return ['calls', 'program']",
        tests="def check(candidate):\n    assert candidate() == ['calls', 'program']\n    assert 'secret'",
    )
    assert share(tester, "import os\ndef look(): return sorted(os.listdir())", task) == 1.0
    reads = "import os\ndef look(): return [open(name).read() for name in os.listdir()]"
    assert share(tester, reads, task) == 0.0


def test_helpers_of_the_tests_are_the_published_ones(tester):
    assert share(tester, "def helper(x): return -1\ndef double(x): return -1") == 0.0


def test_arguments_are_copies(tester):
    task = FunctionTests(
        name="largest",
        program="def largest(items): return max(items)",
        tests="def check(candidate):\n    items = [1, 3]\n    assert candidate(items) == 3\n    assert items == [1, 3]",
    )
    assert share(tester, "def largest(items):\n    items.sort()\n    return items.pop()", task) == 1.0


def test_an_answer_used_outside_of_assertions_can_not_hide_the_rest(tester):
    task = FunctionTests(
        name="root",
        program="def root(x): return x",
        tests="def check(candidate):\n    for x in (1, 2, 3):\n        y = candidate(x)\n        assert x == y",
    )
    assert share(tester, "def root(x): return x if x < 2 else 1 / 0", task) == pytest.approx(1 / 3)
    assert share(tester, "def root(x): return x if x < 3 else 1 / 0", task) == pytest.approx(2 / 3)


def test_a_published_function_that_fails_is_no_wrong_answer(tester):
    with pytest.raises(GraderError, match="the published double does not pass its own tests"):
        tester.test(DOUBLE, FunctionTests(name="double", program=DOUBLE.replace("2 * x", "3 * x"), tests=TESTS))
    with pytest.raises(GraderError, match=r"the tests gave no result: .*SyntaxError"):
        tester.test(DOUBLE, FunctionTests(name="double", program=DOUBLE, tests="def check("))
    nothing = "def check(candidate):\n    candidate(1)"
    with pytest.raises(GraderError, match="the published double does not pass"):
        tester.test(DOUBLE, FunctionTests(name="double", program=DOUBLE, tests=nothing))


def test_tests_that_call_with_other_values_each_time_are_no_wrong_answer(tester):
    tests = "import time\ndef check(candidate):\n    now = time.time_ns()\n    assert candidate(now) == 2 * now"
    with pytest.raises(GraderError, match="with other values each time"):
        tester.test(DOUBLE, FunctionTests(name="double", program=DOUBLE, tests=tests))


def test_random_tests_draw_the_same(tester):
    tests = "import random\ndef check(candidate):\n    x = random.randint(0, 10**9)\n    assert candidate(x) == 2 * x"
    assert share(tester, DOUBLE, FunctionTests(name="double", program=DOUBLE, tests=tests)) == 1.0


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 7, -0.5, float("inf"), "ä\ud800", "", 2 + 1j, b"\x00"),
        *([1, (2,), {3}], {"a": {1: [None]}}, {(1, 2): set()}, frozenset({1}), [], {}),
    ],
)
def test_plain_values_come_back(value):
    import json

    back = of_plain(json.loads(json.dumps(to_plain(value))))
    assert (back, type(back)) == (value, type(value))


def test_subclasses_become_what_they_derive_from():
    from collections import Counter, OrderedDict, defaultdict, namedtuple
    from enum import IntEnum

    assert of_plain(to_plain(Counter("aab"))) == {"a": 2, "b": 1}
    assert of_plain(to_plain(OrderedDict(b=1))) == of_plain(to_plain(defaultdict(int, b=1))) == {"b": 1}
    assert of_plain(to_plain(namedtuple("Point", "x y")(1, 2))) == (1, 2)
    assert of_plain(to_plain(IntEnum("Size", "SMALL").SMALL)) == 1


def test_what_is_not_plain_is_refused():
    deep = []
    for _ in range(60):
        deep = [deep]
    for value in (deep, object(), range(3), 1 << 20_000):
        with pytest.raises(NotPlainError):
            to_plain(value)
