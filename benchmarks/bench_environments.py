"""What an environment adds to its library: microseconds a step, through the environment and without it."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lit_agentrl.envs.bfcl import BFCLMultiTurn
from lit_agentrl.envs.bfcl_api import dialogues, make_instances
from lit_agentrl.envs.bfcl_memory import BFCLMemory, _entries, _questions, _store_class
from lit_agentrl.envs.browser import find_browser
from lit_agentrl.envs.dialogue_memory import DialogueMemory
from lit_agentrl.envs.java import JavaServer, jar_of
from lit_agentrl.envs.mathematics import AimeLadder, MathProblems
from lit_agentrl.envs.minigrid_env import ACTIONS, BabyAI
from lit_agentrl.envs.miniwob import MiniWoB
from lit_agentrl.envs.scienceworld import ScienceWorld
from lit_agentrl.envs.textworld_express import GAMES, TextWorldExpress
from lit_agentrl.rewards.maths import math_verify_match
from lit_agentrl.types import Action, Demonstration, Message, Task, ToolCall


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = function(*arguments)
    return (time.perf_counter() - started) * 1e6, result


def show(name: str, raw: list[float], ours: list[float]) -> None:
    def cells(values: list[float]) -> str:
        return f"{statistics.mean(values):8.0f} {statistics.median(values):8.0f}" if values else f"{'-':>8} {'-':>8}"

    print(f"{name:34} {cells(raw)} {cells(ours)}")


def bfcl_multi_turn() -> None:
    env = BFCLMultiTurn()
    steps, ends, resets = ([], []), ([], []), ([], [])
    for dialogue in dialogues("base"):
        data = {"dialogue": dialogue.id, "category": "base", "num_turns": len(dialogue.turns)}
        task = Task(id=dialogue.id, family="bfcl", split="train", seed=0, data=data)
        shown = env.demonstrate(task)
        took, instances = timed(make_instances, dialogue)
        resets[0].append(took)
        resets[1].append(timed(env.reset, task)[0])
        methods = {name: getattr(obj, name) for obj in instances.values() for name in dir(obj) if name[0] != "_"}

        def directly(calls: tuple[ToolCall, ...], methods: dict[str, Any] = methods) -> None:
            for call in calls:
                json.dumps(methods[call.name](**json.loads(json.dumps(call.arguments))), default=str)

        for message in shown.messages:
            if message.role == "assistant":
                took = timed(env.step, Action(message=message))[0]
                if message.tool_calls:
                    steps[0].append(timed(directly, message.tool_calls)[0])
                    steps[1].append(took)
                else:
                    ends[1].append(took)
    show("BFCL multi-turn, step with calls", *steps)
    show("BFCL multi-turn, end of a turn", *ends)
    show("BFCL multi-turn, reset", *resets)


def bfcl_memory() -> None:
    env = BFCLMemory()
    steps = ([], [])
    for question in _questions().values():
        task = Task(id=question.id, family="bfcl_memory", split="train", seed=0)
        shown = env.demonstrate(task)
        env.reset(task)
        store = _store_class()()
        store.archival_memory = dict(_entries(question.scenario))
        for message in shown.messages:
            if message.role == "assistant":
                took = timed(env.step, Action(message=message))[0]
                for call in message.tool_calls:
                    method = getattr(store, call.name)
                    steps[0].append(timed(lambda: json.dumps(method(**call.arguments)))[0])  # noqa: B023
                    steps[1].append(took)
    show("BFCL memory, step with calls", *steps)


def mathematics() -> None:
    answers = [r"\frac{1}{2}", "x+1", r"2\sqrt{3}", "(1,2)", "42", r"\frac{\pi}{4}"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problems.jsonl"
        path.write_text("\n".join(json.dumps({"problem": f"{n}?", "answer": answers[n % 6]}) for n in range(120)))
        env = MathProblems({"train": [str(path)]}, answers="expression")
        steps = ([], [])
        for seed in range(400):
            task = env.sample_task(seed, "train")
            env.reset(task)
            gold = task.data["answer"]
            raw = timed(math_verify_match, gold, gold)[0]
            ours = timed(env.step, Action(message=Message.of("assistant", f"\\boxed{{{gold}}}")))[0]
            if seed >= 100:  # both processes have met all answers
                steps[0].append(raw)
                steps[1].append(ours)
        env.close()
    show("mathematics, expression", *steps)
    ladder = AimeLadder()
    tasks = [ladder.sample_task(seed, "train") for seed in range(300)]
    steps = []
    for task in tasks:
        ladder.reset(task)
        message = Message.of("assistant", f"\\boxed{{{task.data['answer']}}}")
        steps.append(timed(ladder.step, Action(message=message))[0])
    show("AIME ladder, step", [], steps)
    show("AIME ladder, new task", [], [timed(ladder.sample_task, seed, "train")[0] for seed in range(1000, 1300)])


def dialogue_memory() -> None:
    env = DialogueMemory()
    took, tasks = zip(*(timed(env.sample_task, seed, "train") for seed in range(300)), strict=True)
    show("dialogue memory, new task", [], list(took))
    lookups: list[float] = []
    answers: list[float] = []
    for task in tasks:
        shown = env.demonstrate(task)
        env.reset(task)
        for message in shown.messages:
            if message.role == "assistant":
                (lookups if message.tool_calls else answers).append(timed(env.step, Action(message=message))[0])
    show("dialogue memory, search", [], lookups)
    show("dialogue memory, answer", [], answers)


class Canned:
    """In place of playwright's page: does nothing, and returns what the page said before."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.mouse = self.keyboard = self

    def click(self, x: float, y: float) -> None:
        pass

    def press(self, key: str) -> None:
        pass

    def evaluate(self, script: str, arguments: Any = None) -> str:
        return self._text


def miniwob() -> None:
    """Against bare playwright: the same input, then one call that returns the page and the reward."""
    if find_browser() is None:
        print("MiniWoB: no browser")
        return
    env = MiniWoB(max_steps=10_000)
    look = "JSON.stringify([core.getDOMInfo(), core.getUtterance(), WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL])"
    task = Task(id="login-user-3", family="login-user", split="train", seed=3, data={"page": "login-user", "seed": 3})
    resets = ([], [timed(env.reset, task)[0] for _ in range(20)])
    task_page, page = env._page, env._page._page  # both work on the same tab
    spot = {item.id: (item.x, item.y) for item in task_page.reading.items}
    focus = "document.getElementById('username').select()"
    raw: dict[str, list[Callable[[], Any]]] = {
        "click": [lambda: page.mouse.click(*spot[1])],
        "type": [lambda: page.evaluate(focus), lambda: page.keyboard.type("keneth")],
        "press": [lambda: page.keyboard.press("Shift")],
    }
    arguments = {"click": {"id": 1}, "type": {"id": 2, "text": "keneth"}, "press": {"key": "Shift"}}
    for name, inputs in raw.items():
        call = ToolCall(id="c0", name=name, arguments=arguments[name])
        action = Action(message=Message.of("assistant", "", tool_calls=(call,)))

        def directly(inputs: list[Callable[[], Any]] = inputs) -> None:
            for give in inputs:
                give()
            json.loads(page.evaluate(look))

        steps: tuple[list[float], list[float]] = ([], [])
        for number in range(330):
            turns = ((0, directly, ()), (1, env.step, (action,)))
            for place, function, given in turns if number % 2 else reversed(turns):
                took = timed(function, *given)[0]
                if number >= 30:  # both are warm
                    steps[place].append(took)
        show(f"MiniWoB, {name}", *steps)
    show("MiniWoB, start of an episode", *resets)
    task_page._page = Canned(page.evaluate("agent.read(0, agent.episode)"))
    show("MiniWoB, press, without the browser", [], [timed(env.step, action)[0] for _ in range(2000)])
    task_page._page = page
    env.close()


def replies(shown: Demonstration) -> list[str]:
    return [message.text for message in shown.messages if message.role == "assistant"]


def resident_mb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


def scienceworld() -> None:
    """The same solutions, command by command in turn, in a process of the library and in one of the environment."""
    names = ("use-thermometer", "find-plant", "chemistry-mix", "lifespan-longest-lived")
    env = ScienceWorld(tasks=names)
    server = JavaServer(jar_of("scienceworld", "scienceworld.jar"), heap_mb=256)
    raw = server.make("scienceworld.runtime.pythonapi.PythonInterface", timeout_s=None).target

    def directly(command: str) -> None:
        raw.step(command)
        raw.getScore()
        raw.getCompleted()

    steps, resets = ([], []), ([], [])
    for variation in (0, 1, 2):
        for name in names:
            data = {"task": name, "variation": variation}
            task = Task(id=name, family=name, split="train", seed=0, data=data)
            path = replies(env.demonstrate(task))
            took = (timed(raw.load, name, variation, "", False)[0], timed(env.reset, task)[0])
            for number, command in enumerate(path):
                pair = [lambda: directly(command), lambda: env.step(Action(message=Message.of("assistant", command)))]  # noqa: B023
                order = (0, 1) if number % 2 else (1, 0)
                spent = {place: timed(pair[place])[0] for place in order}
                if variation:  # both processes are warm
                    steps[0].append(spent[0])
                    steps[1].append(spent[1])
            if variation:
                resets[0].append(took[0])
                resets[1].append(took[1])
    show("ScienceWorld, step", *steps)
    show("ScienceWorld, reset", *resets)
    asked = ScienceWorld(tasks=names, look=True)
    offered = ScienceWorld(tasks=names, actions="offered")
    for name, one in (("look", asked), ("valid commands", offered)):
        one.reset(task)
        act = Action(message=Message.of("assistant", "look around"))
        show(f"ScienceWorld, step with {name}", [], [timed(one.step, act)[0] for _ in range(15)][5:])
    print(f"{'ScienceWorld, memory of Java':34} {resident_mb(env._server.process.pid)} MB")
    for closing in (env, asked, offered, server):
        closing.close()


def textworld_express() -> None:
    from textworld_express import TextWorldExpressEnv

    raw, env = TextWorldExpressEnv(envStepLimit=10_000), TextWorldExpress()
    steps, resets = ([], []), ([], [])
    for seed in range(12):
        for game in GAMES:
            data = {"game": game, "properties": {}, "seed": seed}
            task = Task(id=game, family=game, split="train", seed=0, data=data)
            path = replies(env.demonstrate(task))
            raw.load(game, "")
            took = (timed(lambda: raw.reset(seed=seed, gameFold="train"))[0], timed(env.reset, task)[0])  # noqa: B023
            for number, command in enumerate(path):
                act = Action(message=Message.of("assistant", command))
                order = ((raw.step, command), (env.step, act))
                spent = [(one, timed(*order[one])[0]) for one in ((0, 1) if number % 2 else (1, 0))]
                for one, microseconds in spent if seed > 1 else ():
                    steps[one].append(microseconds)
            if seed > 1:
                resets[0].append(took[0])
                resets[1].append(took[1])
    show("TextWorldExpress, step", *steps)
    show("TextWorldExpress, reset", *resets)
    print(f"{'TextWorldExpress, memory of Java':34} {resident_mb(env._server.process.pid)} MB")
    env.close()
    raw.close()


def minigrid() -> None:
    for level in ("BabyAI-GoToLocal-v0", "BabyAI-GoToSeqS5R2-v0"):
        env, other = BabyAI(levels=(level,)), BabyAI(levels=(level,))
        steps, resets = ([], []), ([], [])
        took, tasks = zip(*(timed(env.sample_task, seed, "train") for seed in range(100)), strict=True)
        for task in tasks:
            path = replies(env.demonstrate(task))
            world = other._make(level)
            resets[0].append(timed(lambda: world.reset(seed=task.data["seed"]))[0])  # noqa: B023
            resets[1].append(timed(env.reset, task)[0])
            for reply in path:
                steps[0].append(timed(world.step, ACTIONS.index(reply))[0])
                steps[1].append(timed(env.step, Action(message=Message.of("assistant", reply)))[0])
        show(f"{level}, step", *steps)
        show(f"{level}, reset", *resets)
        show(f"{level}, new task", [], list(took))


if __name__ == "__main__":
    print(f"{'microseconds: mean, median':34} {'library':>17} {'environment':>17}")
    bfcl_multi_turn()
    bfcl_memory()
    mathematics()
    dialogue_memory()
    miniwob()
    scienceworld()
    textworld_express()
    minigrid()
