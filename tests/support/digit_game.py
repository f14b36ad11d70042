"""An environment for runs of seconds; without torch, as workers want it."""

import random

from lit_agentrl.types import Demonstration, EnvTraits, Message, Observation, StepResult, Task


class DigitGame:
    """Any digit is an answer, 5 and more are right: half of a policy's first answers, so that there is a signal."""

    traits = EnvTraits(deterministic=True)

    def sample_task(self, seed, split):
        return Task(id=f"{split}-{seed}", family="digit", split=split, seed=seed, data={"question": f"{seed % 10}?"})

    def reset(self, task):
        return Observation(messages=(Message.of("user", task.data["question"]),))

    def step(self, action):
        text = action.message.text.strip()
        success = text.isdigit() and int(text) % 10 >= 5
        return StepResult(observation=None, reward=float(success), terminated=True, success=success)

    def demonstrate(self, task, tools):
        answer = str(random.Random(task.seed).randrange(10))
        return Demonstration(
            task=task, messages=(Message.of("user", task.data["question"]), Message.of("assistant", answer))
        )

    def close(self):
        pass
