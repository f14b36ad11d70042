"""Which parts of a policy-gradient algorithm make no sense together; refused before any work, both keys named."""

from __future__ import annotations

import warnings

from lit_agentrl.algorithms.credit import AdvantageEstimator
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.algorithms.terms import KLTerm, OffPolicyTerm
from lit_agentrl.functional import AggregationMode

_KEY = "model.init_args"


def check_combination(
    *,
    advantage: AdvantageEstimator,
    policy_loss: PolicyLoss,
    aggregation: AggregationMode,
    correction: OffPolicyTerm | None,
    kl: KLTerm | None,
    num_inner_epochs: int,
) -> None:
    """Refuse parts of which one would be without effect, or would mean something else than its name says.

    What concerns one part alone is checked where it is defined (`KLTerm`, `OffPolicyTerm`, `GroupInGroup`). What is
    merely unwise gets a warning.

    Args:
        advantage: The estimator.
        policy_loss: The loss.
        aggregation: How token terms become one number.
        correction: The correction for another sampler, if any.
        kl: The KL term, if any.
        num_inner_epochs: How often a rollout is gone through.

    Raises:
        ValueError: Names the two keys, and what is accepted.
    """
    loss = f"{_KEY}.policy_loss.function: {policy_loss.function}"
    if not policy_loss.takes("advantages"):
        raise ValueError(f"{loss} takes no `advantages`, so that {_KEY}.advantage would have no effect")
    if kl is not None and kl.place == "reward" and not advantage.reads_penalties:
        raise ValueError(
            f"{_KEY}.kl.place: reward would have no effect, because {_KEY}.advantage: {type(advantage).__name__} reads "
            "no penalties; use loss"
        )
    if policy_loss.one_per_episode:
        if not advantage.whole_episodes:
            raise ValueError(
                f"{loss} gives all tokens of an episode one ratio and one loss, but {_KEY}.advantage: "
                f"{type(advantage).__name__} gives them different advantages; use GroupRelative or LeaveOneOut, or a "
                "loss per token such as ppo_clip_loss or gspo_loss"
            )
        if aggregation != "seq-mean-token-mean":
            raise ValueError(
                f"{loss} repeats the loss of an episode on each of its tokens, so that {_KEY}.aggregation: "
                f"{aggregation} would count long episodes once per token; use seq-mean-token-mean"
            )
        if correction is not None and correction.mode != "none" and correction.level == "token":
            raise ValueError(
                f"{loss} has one loss per episode, which {_KEY}.correction.level: token would weigh by each of its "
                "tokens alone; use sequence or geometric"
            )
    if num_inner_epochs > 1 and not policy_loss.takes("old_logprobs"):
        warnings.warn(
            f"{loss} knows no ratio, but {_KEY}.num_inner_epochs is {num_inner_epochs}: from the second pass on the "
            "episodes are those of an older policy, and nothing corrects for it; ppo_clip_loss would",
            stacklevel=3,
        )
