"""The loss of a policy-gradient algorithm: any function of log-probs, old log-probs and advantages, by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lit_agentrl import functional

_KEY = "model.init_args.policy_loss"
_GIVEN = ("logprobs", "old_logprobs", "advantages", "mask", "sequence_ids")


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """A per-token loss and its settings.

    Args:
        function: Name in `lit_agentrl.functional` (`ppo_clip_loss`, `reinforce_loss`, `gspo_loss`, `sapo_loss`,
            `cispo_loss`, `gmpo_loss`, `sequence_clip_loss`), or import path of one's own function. It takes, by name
            and as far as it has such parameters, `logprobs`, `old_logprobs`, `advantages` and `mask`, [M] each, and
            `sequence_ids`, int64 [M]: the episode of each token. It returns a loss per token, [M].
        options: Its other arguments.

    Raises:
        ValueError: There is no such function, or it does not take these options.
    """

    function: str = "ppo_clip_loss"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parameters = inspect.signature(self._resolved()).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        accepted = [name for name in parameters if name not in _GIVEN]
        for name in self.options:
            if name in _GIVEN or (name not in accepted and not takes_all):
                raise ValueError(
                    f"{_KEY}.options.{name}: {self.function} has no such option; it takes "
                    f"{', '.join(accepted) or 'none'}"
                )
        missing = [
            name
            for name in accepted
            if parameters[name].default is inspect.Parameter.empty
            and parameters[name].kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
            and name not in self.options
        ]
        if missing:
            raise ValueError(f"{_KEY}.options: {self.function} needs {', '.join(missing)}")

    def takes(self, parameter: str) -> bool:
        """Say whether the function asks for this."""
        return parameter in inspect.signature(self._resolved()).parameters

    @property
    def whole_sequences(self) -> bool:
        """Whether all tokens of an episode have to be in one call."""
        return self.takes("sequence_ids")

    @property
    def one_per_episode(self) -> bool:
        """Whether every token carries the one loss of its episode, in which advantages must not differ then."""
        return self._resolved() in (functional.sequence_clip_loss, functional.gmpo_loss)

    def __call__(self, **tensors: Tensor) -> Tensor:
        """Return the loss per token; see `function` for the arguments."""
        function = self._resolved()
        parameters = inspect.signature(function).parameters
        loss: Tensor = function(**{name: tensors[name] for name in _GIVEN if name in parameters}, **self.options)
        return loss

    def _resolved(self) -> Callable[..., Tensor]:
        module, _, name = self.function.rpartition(".")
        try:
            function = getattr(importlib.import_module(module) if module else functional, name, None)
        except ImportError as error:
            raise ValueError(f"{_KEY}.function is {self.function!r}: {error}") from None
        if not callable(function):
            known = ", ".join(sorted(n for n in functional.__all__ if n.endswith("_loss") and _is_policy_loss(n)))
            raise ValueError(
                f"{_KEY}.function is {self.function!r}: there is no such function; use an import path, or one of "
                f"{known}"
            )
        return function


def _is_policy_loss(name: str) -> bool:
    return {"logprobs", "advantages", "mask"} <= inspect.signature(getattr(functional, name)).parameters.keys()
