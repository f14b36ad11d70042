"""Batches of replayed transitions, for value functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from datamodules._environment import EnvironmentDataModule
from lit_agentrl.agents.action_agent import ActionAgent
from lit_agentrl.agents.base import Agent
from lit_agentrl.algorithms.q_replay import QReplay
from lit_agentrl.rollouts.action_collector import ActionCollector
from lit_agentrl.rollouts.hooks import notify
from lit_agentrl.rollouts.replay import Draw, ReplayBatch, ReplayBuffer
from lit_agentrl.rollouts.rollout import Progress, Rollout, rollout_metrics
from lit_agentrl.rollouts.stream import SizedStream
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Transition


class ReplayDataModule(EnvironmentDataModule):
    """One epoch is `env_steps_per_epoch` environment steps and then `updates_per_epoch` optimizer steps on replay.

    Episodes run in lanes. A lane plays until it has made its share of the steps and its episode is over, so an epoch
    makes a few steps more than asked for, and no checkpoint has to hold half an episode. Every rank plays its share of
    the lanes; all ranks keep the same whole buffer and train on their share of each batch.

    Args:
        env: The environment, as `class_path` and `init_args`.
        agent: An `ActionAgent`, which is the default; sets the longest episode.
        env_steps_per_epoch: Environment steps of an epoch, over all ranks.
        updates_per_epoch: Optimizer steps of an epoch.
        batch_size: Transitions per optimizer step, over all ranks.
        capacity: Transitions that are kept, the newest ones.
        priority_alpha: 0 replays uniformly, 1 in proportion to the size of the last error.
        priority_beta: How far weights correct for priorities: 1 in full.
        num_workers: Environment processes. Results do not depend on it.
        max_concurrent_episodes: Lanes over all ranks; in evaluations episodes of each rank. Part of the experiment.
        num_val_episodes: Held-out episodes of a validation; the same ones in every run.
        num_test_episodes: Episodes of `test` and `predict`.
        val_samples_per_task: Episodes per held-out task, for avg@k and pass@k.
        val_temperature: Temperature of the softmax over values in validation and test; 0 is greedy.
        env_timeout_s: Seconds after which an environment that gives no answer is replaced.
        max_output_chars: Observations are cut to this length, with a marker.
        rewards: Weight by import path of functions `(trajectory) -> float` that are added to the environment's reward.
        seed: Run seed; default: what `seed_everything` was set to.
    """

    def __init__(
        self,
        env: dict[str, Any],
        agent: Agent | None = None,
        *,
        env_steps_per_epoch: int = 512,
        updates_per_epoch: int = 128,
        batch_size: int = 64,
        capacity: int = 10_000,
        priority_alpha: float = 0.0,
        priority_beta: float = 0.4,
        num_workers: int = 1,
        max_concurrent_episodes: int = 16,
        num_val_episodes: int = 100,
        num_test_episodes: int = 500,
        val_samples_per_task: int = 1,
        val_temperature: float = 0.0,
        env_timeout_s: float = 60.0,
        max_output_chars: int = 8000,
        rewards: dict[str, float] | None = None,
        seed: int | None = None,
    ) -> None:
        player = ActionAgent() if agent is None else agent
        if not isinstance(player, ActionAgent):
            raise ValueError(
                f"agent.class_path: {type(player).__name__} speaks with a language model; data.class_path "
                "ReplayDataModule needs lit_agentrl.agents.action_agent.ActionAgent, or no agent at all"
            )
        super().__init__(
            env,
            player,
            num_workers=num_workers,
            max_concurrent_episodes=max_concurrent_episodes,
            num_val_episodes=num_val_episodes,
            num_test_episodes=num_test_episodes,
            val_samples_per_task=val_samples_per_task,
            val_temperature=val_temperature,
            env_timeout_s=env_timeout_s,
            max_output_chars=max_output_chars,
            rewards=rewards,
            seed=seed,
        )
        for key, value in (
            ("env_steps_per_epoch", env_steps_per_epoch),
            ("updates_per_epoch", updates_per_epoch),
            ("batch_size", batch_size),
        ):
            if value < 1:
                raise ValueError(f"data.init_args.{key} is {value}: it must be at least 1")
        self.player = player
        self.env_steps_per_epoch = env_steps_per_epoch
        self.updates_per_epoch = updates_per_epoch
        self.batch_size = batch_size
        self.replay = ReplayBuffer(capacity, alpha=priority_alpha, beta=priority_beta)
        self.progress = Progress()

    def setup(self, stage: str) -> None:
        """Refuse modules that learn no values."""
        if self.trainer is not None:
            _ = self.learner

    @property
    def learner(self) -> QReplay:
        """The module that is being run.

        Raises:
            ValueError: It is no value function.
        """
        assert self.trainer is not None
        module = self.trainer.lightning_module
        if not isinstance(module, QReplay):
            raise ValueError(
                f"model.class_path: {type(module).__name__} does not learn from replay; data.class_path "
                "ReplayDataModule needs a value function such as lit_agentrl.algorithms.DQN"
            )
        return module

    def collector(self) -> ActionCollector:
        """Return a collector that chooses with the module's weights of this moment."""
        assert self.trainer is not None
        return ActionCollector(
            self.pool,
            self.learner,
            self.player,
            run_seed=self.run_seed,
            version=self.trainer.global_step,
            max_concurrent_episodes=self.max_concurrent_episodes,
            rewards=self.rewards,
        )

    def train_dataloader(self) -> Any:
        """Return a loader that plays and then replays each time it is iterated."""
        return SizedStream(self._batches, self.updates_per_epoch).loader()

    def _batches(self) -> Iterator[ReplayBatch]:
        trainer, learner = self.trainer, self.learner
        assert trainer is not None
        index = self.progress.rollouts
        epsilon = learner.exploration.epsilon(self.progress.env_steps)
        rollout, transitions = self._play(index, epsilon)
        gather = learner.gather_objects
        before = self.progress.env_steps
        self.progress.add(rollout, gather=gather)
        dropped = self._remember(transitions)
        if not len(self.replay):
            causes = sorted({t.cause for t in rollout.trajectories if t.status == "failed"})
            raise RuntimeError(
                f"rollout {index} left no transition to learn from: {'; '.join(causes) or 'none can be bootstrapped'}"
            )
        metrics = rollout_metrics(rollout, gather=gather) | self.progress.metrics()
        rollout.metrics = metrics | {
            "rollout/epsilon": epsilon,
            "rollout/steps_per_s": (self.progress.env_steps - before) / metrics["rollout/seconds"],
            "replay/size": float(len(self.replay)),
            "replay/dropped": float(dropped),
        }
        for number in range(self.updates_per_epoch):
            draw = self.replay.draw(self.batch_size, seed=derive_seed(self.run_seed, "replay", index, number))
            batch = self._batch(draw)
            if number == 0:
                batch.metrics = rollout.metrics
                notify(trainer, "on_rollout_end", rollout)
            yield batch

    def _play(self, index: int, epsilon: float) -> tuple[Rollout, dict[int, list[Transition]]]:
        """Collect this rank's part of an epoch's steps."""
        trainer = self.trainer
        assert trainer is not None
        num_lanes = min(self.max_concurrent_episodes, self.env_steps_per_epoch)
        lanes = range(trainer.global_rank, num_lanes, trainer.world_size)
        notify(trainer, "on_rollout_start", "train", len(lanes))
        return self.collector().collect_steps(
            lanes,
            num_lanes=num_lanes,
            steps_per_lane=math.ceil(self.env_steps_per_epoch / num_lanes),
            index=index,
            epsilon=epsilon,
            temperature=self.learner.exploration.temperature,
            listener=lambda trajectory: notify(trainer, "on_episode_end", trajectory),
        )

    def _remember(self, transitions: dict[int, list[Transition]]) -> int:
        """Add the transitions of all ranks to this rank's buffer, in order of the episodes; return how many cannot."""
        everything: dict[int, list[Transition]] = {}
        for part in self.learner.gather_objects(transitions):
            everything |= part
        steps = [step for group in sorted(everything) for step in everything[group]]
        columns = self.learner.columns(steps)
        kept = len(columns["reward"])
        if kept:
            self.replay.add(columns)
            self.learner.forget_unused(self.replay)
        return len(steps) - kept

    def _batch(self, draw: Draw) -> ReplayBatch:
        """Return this rank's share of a batch, normaliser folded in."""
        trainer, learner = self.trainer, self.learner
        assert trainer is not None
        mine = slice(trainer.global_rank, None, trainer.world_size)
        columns: dict[str, Any] = self.replay.rows(draw.rows[mine])
        return ReplayBatch(
            **columns,
            weight=draw.weights[mine] / self.batch_size * learner.gradient_ranks,
            place=torch.arange(self.batch_size)[mine],
            feedback=(lambda errors: self.replay.update(draw.rows, errors)) if self.replay.alpha else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know, the replay buffer included."""
        own = {"progress": dataclasses.asdict(self.progress), "replay": self.replay.state_dict()}
        return super().state_dict() | own

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        super().load_state_dict(state_dict)
        self.progress = Progress(**state_dict["progress"])
        self.replay.load_state_dict(state_dict["replay"])
