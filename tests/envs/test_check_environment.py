"""`check_environment` on environments that each break one clause of the contract."""

import dataclasses
import itertools

import pytest

from lit_agentrl.envs.arithmetic import TinyArithmetic
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.testing import ContractError, check_environment
from lit_agentrl.types import EnvTraits, Message, Observation, StepResult


def complaint(cls):
    with pytest.raises(ContractError) as caught:
        check_environment(cls)
    return str(caught.value)


def test_specs_classes_and_functions_are_accepted():
    check_environment(EnvSpec(class_path="TinyArithmetic"))
    check_environment(TinyArithmetic)
    check_environment(lambda: TinyArithmetic(mode="direct"), tools=())


def test_missing_methods_are_named():
    class Bare:
        traits = EnvTraits()

        def close(self): ...

    assert complaint(Bare) == "Bare lacks sample_task, reset, step"


def test_traits_have_to_be_traits():
    class Broken(TinyArithmetic):
        traits = {"deterministic": True}  # noqa: RUF012

    assert complaint(Broken) == "traits must be a EnvTraits, got dict"


def test_a_declared_snapshot_needs_its_method():
    class Broken(TinyArithmetic):
        traits = EnvTraits(snapshot=True)

    assert complaint(Broken) == "traits.snapshot is declared, but there is no method snapshot"


def broken_task(**changes):
    class Broken(TinyArithmetic):
        def sample_task(self, seed, split):
            return dataclasses.replace(super().sample_task(seed, split), **changes)

    return complaint(Broken)


def test_tasks_have_to_be_of_their_seed_and_split():
    assert broken_task(seed=7) == "sample_task(0, 'train') gave a task of seed 7 and split 'train'"
    assert broken_task(split="val") == "sample_task(0, 'train') gave a task of seed 0 and split 'val'"


def test_tasks_have_to_be_plain_json():
    assert broken_task(data={"pair": (1, 2)}).startswith("sample_task(0, 'train').data['pair'] is a tuple")
    assert "has the key 3" in broken_task(data={"a": [{3: 4}]})
    assert "['a'][0] is nan" in broken_task(data={"a": [float("nan")]})


def test_tasks_need_an_id():
    assert broken_task(id="") == "sample_task(0, 'train'): id must be a non-empty string, got ''"


def test_splits_must_not_share_a_task():
    assert broken_task(id="same") == "task 'same' is in split 'train' and in split 'val'"


def test_one_id_must_not_name_two_questions():
    class Broken(TinyArithmetic):
        def sample_task(self, seed, split):
            return dataclasses.replace(super().sample_task(seed, split), id=split)

    assert complaint(Broken) == "two tasks of id 'train' are reset to different messages"


def test_a_task_depends_on_its_seed_alone():
    count = itertools.count()

    class Broken(TinyArithmetic):
        def sample_task(self, seed, split):
            return dataclasses.replace(super().sample_task(seed, split), id=f"{split}{next(count)}")

    assert complaint(Broken) == "sample_task(0, 'train') gives different tasks when called again or by another instance"


def test_an_environment_has_to_say_something_at_reset():
    class Broken(TinyArithmetic):
        def reset(self, task):
            return dataclasses.replace(super().reset(task), messages=())

    assert "messages must be a non-empty tuple" in complaint(Broken)


def test_an_environment_must_not_speak_as_the_assistant():
    class Broken(TinyArithmetic):
        def reset(self, task):
            return Observation(messages=(Message.of("assistant", "7"),))

    assert "must not speak as the assistant" in complaint(Broken)


def broken_reset(**changes):
    class Broken(TinyArithmetic):
        def reset(self, task):
            return dataclasses.replace(super().reset(task), **changes)

    return complaint(Broken)


def test_valid_actions_are_texts_each_once():
    assert "actions must be a tuple, got list" in broken_reset(actions=["7"])
    assert "an action must be a str, got int" in broken_reset(actions=(7,))
    assert "actions must be non-empty texts, each once" in broken_reset(actions=("7", "7"))
    assert "actions must be non-empty texts, each once" in broken_reset(actions=("",))


def test_arrays_are_tuples_of_finite_floats():
    assert "array must be a tuple, got list" in broken_reset(array=[0.5])
    assert "array must hold finite floats, got nan" in broken_reset(array=(0.5, float("nan")))
    assert "array must hold finite floats, got 1" in broken_reset(array=(1,))


def broken_step(**changes):
    class Broken(TinyArithmetic):
        def step(self, action):
            return dataclasses.replace(super().step(action), **changes)

    return complaint(Broken)


def test_rewards_have_to_be_finite_numbers():
    assert "reward must be a finite number, got inf" in broken_step(reward=float("inf"))
    assert "reward must be a finite number, got True" in broken_step(reward=True)
    assert "part must be a finite number, got 'high'" in broken_step(reward_parts={"part": "high"})


def test_success_is_said_on_the_last_step_and_only_there():
    assert "success must be True or False on the last step, got None" in broken_step(success=None)
    assert "success must be None before the last step, got False" in broken_step(terminated=False)
    assert "must be a Observation, got NoneType" in broken_step(terminated=False, success=None)


def test_results_have_to_cross_process_borders():
    assert "cannot cross a process border" in broken_step(info={"open": lambda: None})


def test_an_empty_reply_must_not_be_a_solution():
    assert "reply '': step 1 solves the task" in broken_step(success=True)


def test_steps_outside_an_episode_have_to_raise():
    def lenient(allowed):
        class Broken(TinyArithmetic):
            started = closed = False

            def reset(self, task):
                self.started = True
                return super().reset(task)

            def close(self):
                self.closed = True
                super().close()

            def step(self, action):
                state = "after close" if self.closed else "after the last step" if self.started else "before reset"
                if self._task is None and state == allowed:
                    return StepResult(observation=None, terminated=True, success=False)
                return super().step(action)

        return complaint(Broken)

    for when in ("after the last step", "after close", "before reset"):
        assert lenient(when) == f"step {when} must raise, or a reward is paid twice"


def test_declared_determinism_has_to_be_true():
    count = itertools.count()

    class Broken(TinyArithmetic):
        def step(self, action):
            return dataclasses.replace(super().step(action), info={"clock": next(count)})

    assert "traits.deterministic is declared, but two instances differ" in complaint(Broken)
    Broken.traits = EnvTraits()
    check_environment(Broken)


def test_declared_replay_needs_equal_state_keys():
    count = itertools.count()

    class Broken(TinyArithmetic):
        traits = EnvTraits(replay=True)

        def reset(self, task):
            return dataclasses.replace(super().reset(task), state_key=str(next(count)))

    assert "traits.replay is declared, but state_key differs" in complaint(Broken)


def test_reset_has_to_start_afresh():
    class Broken(TinyArithmetic):
        steps = 0

        def step(self, action):
            self.steps += 1
            return super().step(action)

        def reset(self, task):
            opening = super().reset(task)
            return dataclasses.replace(opening, state_key=f"{task.id} {self.steps % 2}")

    assert "reset after a step differs from the first reset" in complaint(Broken)


def broken_demonstration(edit):
    class Broken(TinyArithmetic):
        def demonstrate(self, task, tools=()):
            shown = super().demonstrate(task, tools)
            return dataclasses.replace(shown, messages=tuple(edit(list(shown.messages))))

    return complaint(Broken)


def test_demonstrations_have_to_solve_their_task():
    wrong = Message.of("assistant", "-1")
    assert broken_demonstration(lambda messages: [*messages[:-1], wrong]).endswith("does not solve the task")


def test_demonstrations_have_to_read_as_the_episode_does():
    other = Message.of("user", "What is it?")
    assert 'has ["user: What is it?"] where an episode has' in broken_demonstration(lambda m: [other, *m[1:]])


def test_demonstrations_have_to_end_with_the_episode():
    extra = Message.of("user", "Well done.")
    assert "goes on after the last step" in broken_demonstration(lambda messages: [*messages, extra])


def test_demonstrated_calls_need_their_results():
    class Broken(TinyArithmetic):
        def demonstrate(self, task, tools=()):
            shown = super().demonstrate(task, tools)
            if not tools:
                return shown
            question, call, output, answer = shown.messages
            unlinked = dataclasses.replace(output, tool_call_id="other")
            return dataclasses.replace(shown, messages=(question, call, unlinked, answer))

    assert "call 'call_0' is not followed by a tool message with its id" in complaint(Broken)
