"""Batches of preferences from files, with held-out pairs, and held-out episodes where there is an environment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, get_args

import lightning as L
from lightning.pytorch.utilities import rank_zero_warn

from datamodules._environment import EnvironmentDataModule
from datamodules._preference_files import Contents, PreferenceFormat, Recorded, read_preferences, recorded_pairs
from lit_agentrl.agents.base import Agent
from lit_agentrl.algorithms.base import OnPolicyAlgorithm
from lit_agentrl.algorithms.preference import PreferenceAlgorithm
from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.rollouts.batch import RolloutBatch
from lit_agentrl.rollouts.comparisons import Comparison, batch_from_comparisons, with_mismatched
from lit_agentrl.rollouts.preferences import encode, sibling_preferences
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.rollouts.stream import SizedStream
from lit_agentrl.seeding import derive_seed, permutation, resolve_run_seed


@dataclass(frozen=True, kw_only=True)
class _Tokenised:
    """All comparisons that fit the context."""

    train: list[Comparison]
    held_out: list[Comparison]
    too_long: int


class PreferenceDataModule(L.LightningDataModule):
    """Preferences from files. One epoch goes through all of them once, in an order that follows from seed and epoch.

    Those longer than the context are left out, and counted as `preferences/too_long`; ties as `preferences/ties`.
    Validation is on held-out pairs; given an environment and an agent, on episodes as well.

    Args:
        files: JSON Lines, JSON or Parquet; see docs/algorithms/preference.md for the forms.
        format: `plain`, `conversational`, `unpaired`, `webgpt`, `search_nodes` or `trajectories`; `auto` looks at the
            first record of each file.
        batch_size: Comparisons per optimizer step, over all ranks; the last step of an epoch may have fewer.
        held_out: Share of the prompts that is kept for validation; which ones depends on the prompts alone.
        max_context: Longest prompt and answer in tokens; default: the model's.
        env: Environment for validation on episodes, as `class_path` and `init_args`; default: none.
        agent: Runs the episodes.
        num_workers: See `EnvironmentDataModule`.
        max_concurrent_episodes: See `EnvironmentDataModule`.
        max_new_tokens: See `EnvironmentDataModule`.
        num_val_episodes: See `EnvironmentDataModule`.
        num_test_episodes: See `EnvironmentDataModule`.
        val_temperature: See `EnvironmentDataModule`.
        seed: Run seed; default: what `seed_everything` was set to.
    """

    def __init__(
        self,
        files: list[str],
        *,
        format: PreferenceFormat = "auto",
        batch_size: int = 8,
        held_out: float = 0.1,
        max_context: int | None = None,
        env: dict[str, Any] | None = None,
        agent: Agent | None = None,
        num_workers: int = 2,
        max_concurrent_episodes: int = 64,
        max_new_tokens: int = 128,
        num_val_episodes: int = 100,
        num_test_episodes: int = 500,
        val_temperature: float = 0.0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if not files:
            raise ValueError("data.init_args.files is empty: name at least one .jsonl, .json or .parquet file")
        if format not in get_args(PreferenceFormat):
            raise ValueError(
                f"data.init_args.format is {format!r}: it must be one of {', '.join(get_args(PreferenceFormat))}"
            )
        if batch_size < 1:
            raise ValueError(f"data.init_args.batch_size is {batch_size}: it must be at least 1")
        if not 0 <= held_out < 1:
            raise ValueError(f"data.init_args.held_out is {held_out}: it must lie in [0, 1)")
        if max_context is not None and max_context < 1:
            raise ValueError(f"data.init_args.max_context is {max_context}: it must be at least 1, or null")
        self.files = list(files)
        self.format = format
        self.batch_size = batch_size
        self.held_out = held_out
        self.max_context = max_context
        self.run_seed = resolve_run_seed(seed)
        self.episodes: EnvironmentDataModule | None = None
        """Evaluates on episodes, where there is an environment."""
        if env is not None:
            if agent is None:
                raise ValueError("agent: validation on episodes (env) needs one; add it, or leave env out")
            self.episodes = EnvironmentDataModule(
                env,
                agent,
                num_workers=num_workers,
                max_concurrent_episodes=max_concurrent_episodes,
                max_new_tokens=max_new_tokens,
                max_context=max_context,
                num_val_episodes=num_val_episodes,
                num_test_episodes=num_test_episodes,
                val_temperature=val_temperature,
                seed=seed,
            )
        self._epochs = 0
        self._contents: Contents | None = None
        self._tokenised: _Tokenised | None = None

    def setup(self, stage: str) -> None:
        """Read the files, and tokenise them as soon as there is a tokenizer.

        Raises:
            ValueError: Files, format and algorithm do not fit together; names the key.
        """
        if self.episodes is not None:
            self.episodes.trainer = self.trainer
        if stage == "predict":
            return
        algorithm = self.algorithm
        if isinstance(algorithm, OnPolicyAlgorithm) and algorithm.batches_per_rollout != 1:
            raise ValueError(
                "model.init_args.num_minibatches and model.init_args.num_inner_epochs cut up rollouts; with "
                "PreferenceDataModule both must be 1"
            )
        if algorithm.needs_mismatched and self.batch_size < 2:
            raise ValueError(
                f"data.init_args.batch_size is {self.batch_size}: {type(algorithm).__name__} compares with the "
                "answers of other prompts in a batch and needs at least 2"
            )
        if self._contents is None:
            self._contents = read_preferences(self.files, format=self.format)
        self._check(self._contents, algorithm)
        if algorithm.policy.chat is not None:
            self._data()

    def _check(self, contents: Contents, algorithm: PreferenceAlgorithm) -> None:
        name, files = type(algorithm).__name__, "data.init_args.files"
        if contents.nodes and algorithm.min_q_gap is None:
            raise ValueError(
                f"{files}: {contents.nodes[0].source} is a node of a search, from which {name} does not learn; use "
                "model.class_path lit_agentrl.algorithms.StepDPO"
            )
        if not contents.nodes and algorithm.min_q_gap is not None:
            raise ValueError(f"{files}: {name} learns from nodes of a search (messages, candidates), and there is none")
        if algorithm.needs_pairs:
            for preference in contents.preferences:
                if preference.chosen is None or preference.rejected is None:
                    raise ValueError(
                        f"{files}: {preference.source} is a single answer, but {name} learns from pairs; use "
                        "model.class_path lit_agentrl.algorithms.KTO"
                    )

    @property
    def algorithm(self) -> PreferenceAlgorithm:
        """The module that is being run.

        Raises:
            ValueError: It does not learn from preferences.
        """
        assert self.trainer is not None
        module = self.trainer.lightning_module
        if not isinstance(module, PreferenceAlgorithm):
            raise ValueError(
                f"model.class_path: {type(module).__name__} does not learn from preferences; data.class_path "
                "PreferenceDataModule needs an algorithm such as lit_agentrl.algorithms.DPO"
            )
        return module

    @property
    def context_limit(self) -> int:
        """Longest prompt and answer, in tokens.

        Raises:
            ValueError: `max_context` is more than the model can read.
        """
        model_limit = self.algorithm.policy.max_context
        if self.max_context is not None and self.max_context > model_limit:
            raise ValueError(
                f"data.init_args.max_context is {self.max_context}, but the model reads at most {model_limit}"
            )
        return model_limit if self.max_context is None else self.max_context

    # Data -----------------------------------------------------------------------------------------------------------

    def _data(self) -> _Tokenised:
        """Return the comparisons as ids; made once."""
        if self._tokenised is not None:
            return self._tokenised
        algorithm, limit = self.algorithm, self.context_limit
        assert self._contents is not None
        assert algorithm.policy.chat is not None
        keyed = list(self._keyed(self._contents, algorithm.policy.chat, min_gap=algorithm.min_q_gap or 0.0))
        if not keyed:
            raise ValueError(
                f"data.init_args.files: nothing to learn from in {', '.join(self.files)} ({self._contents.ties} ties, "
                f"{len(self._contents.nodes)} nodes, {len(self._contents.episodes)} episodes)"
            )
        fitting = [(key, comparison) for key, comparison in keyed if comparison.longest_row <= limit]
        if not fitting:
            shortest = min(comparison.longest_row for _, comparison in keyed)
            raise ValueError(
                f"data.init_args.max_context: no comparison fits in {limit} tokens, the shortest has {shortest}; "
                "raise it if the model can read more"
            )
        too_long = len(keyed) - len(fitting)
        if too_long:
            rank_zero_warn(
                f"{too_long} of {len(keyed)} comparisons are longer than {limit} tokens (data.init_args.max_context) "
                "and are left out; preferences/too_long counts them"
            )
        parts: dict[bool, list[Comparison]] = {False: [], True: []}
        for key, comparison in fitting:
            singles = [comparison] if algorithm.needs_pairs else comparison.singles()
            parts[is_held_out(key, share=self.held_out)] += singles
        if not parts[False]:
            raise ValueError(
                f"data.init_args.held_out is {self.held_out}: all prompts are held out and none is left to learn from"
            )
        if self.held_out and not parts[True]:
            rank_zero_warn(
                f"none of the {len({key for key, _ in fitting})} prompts falls into the held-out share "
                f"(data.init_args.held_out: {self.held_out}), so that there is no validation on pairs"
            )
        self._tokenised = _Tokenised(train=parts[False], held_out=parts[True], too_long=too_long)
        return self._tokenised

    def _keyed(self, contents: Contents, chat: ChatFormat, *, min_gap: float) -> Iterator[tuple[str, Comparison]]:
        """Yield all comparisons, each with what tells its prompt apart."""
        siblings = (sibling_preferences(node, min_gap=min_gap) for node in contents.nodes)
        for preference in chain(contents.preferences, chain.from_iterable(siblings)):
            yield preference.opening, encode(preference, chat)
        for episode in contents.episodes:
            _check_tokenizer(episode, chat)
        yield from recorded_pairs(contents.episodes)

    def train_dataloader(self) -> Any:
        """Return a loader of batches, each one optimizer step."""
        return SizedStream(self._batches, math.ceil(len(self._data().train) / self.batch_size)).loader()

    def _batches(self) -> Iterator[RolloutBatch]:
        data, algorithm = self._data(), self.algorithm
        assert self._contents is not None
        epoch = self._epochs
        self._epochs += 1
        order = permutation(derive_seed(self.run_seed, "preferences", epoch), len(data.train))
        for start in range(0, len(order), self.batch_size):
            batch = self._batch([data.train[place] for place in order[start : start + self.batch_size]])
            algorithm.fold_comparisons(batch)
            batch.metrics |= {
                "preferences/too_long": float(data.too_long),
                "preferences/ties": float(self._contents.ties),
            }
            yield batch

    def _batch(self, comparisons: Sequence[Comparison]) -> RolloutBatch:
        """Return this rank's part of a batch of all ranks."""
        assert self.trainer is not None
        if self.algorithm.needs_mismatched:
            comparisons = with_mismatched(comparisons, max_context=self.context_limit)
        return batch_from_comparisons(comparisons[self.trainer.global_rank :: self.trainer.world_size])

    # Evaluation -----------------------------------------------------------------------------------------------------

    def val_dataloader(self) -> Any:
        """Return a loader of held-out comparisons, followed by held-out episodes."""
        return self._evaluation(None if self.episodes is None else self.episodes.val_dataloader())

    def test_dataloader(self) -> Any:
        """Return a loader of held-out comparisons, the same as in validation, followed by test episodes."""
        return self._evaluation(None if self.episodes is None else self.episodes.test_dataloader())

    def predict_dataloader(self) -> Any:
        """Return a loader of test episodes.

        Raises:
            ValueError: There is no environment.
        """
        if self.episodes is None:
            raise ValueError("env: predict runs episodes, for which PreferenceDataModule needs an environment")
        return self.episodes.predict_dataloader()

    def _evaluation(self, episodes: Any) -> Any:
        held_out = self._data().held_out
        starts = range(0, len(held_out), self.batch_size)

        def batches() -> Iterator[RolloutBatch | Rollout]:
            for start in starts:
                yield self._batch(held_out[start : start + self.batch_size])
            yield from episodes or ()

        return SizedStream(batches, len(starts) + (0 if episodes is None else len(episodes))).loader()

    # State ----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know."""
        return {"epochs": self._epochs} | ({} if self.episodes is None else self.episodes.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self._epochs = int(state_dict["epochs"])
        if self.episodes is not None:
            self.episodes.load_state_dict(state_dict)

    def teardown(self, stage: str) -> None:
        """End the worker processes."""
        if self.episodes is not None:
            self.episodes.teardown(stage)


def is_held_out(prompt: str, *, share: float) -> bool:
    """Say whether a prompt is kept for validation: by its own hash, so that runs of any seed agree."""
    return derive_seed(0, f"held out/preferences/{prompt}") < share * 2**63


def _check_tokenizer(episode: Recorded, chat: ChatFormat) -> None:
    for ids, text in episode.texts:
        try:
            same = chat.decode(ids) == text
        except (OverflowError, TypeError, IndexError):
            same = False
        if not same:
            raise ValueError(
                f"data.init_args.files: {episode.source}: the ids of a reply are not its text, so the episode was "
                "recorded with another tokenizer than that of policy"
            )
