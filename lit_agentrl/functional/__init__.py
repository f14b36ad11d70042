"""Pure tensor mathematics: advantages, policy losses, KL, preference, value and off-policy terms.

Conventions, everywhere: losses are minimised; functions are pure; bfloat16 and float16 are computed and returned in
float32; entries outside a mask change neither value nor gradient, whatever they hold.
"""

from lit_agentrl.functional.advantages import (
    AdvantageScale,
    center_rows,
    group_advantages,
    groups_with_spread,
    reinforce_pp_advantages,
    rloo_advantages,
)
from lit_agentrl.functional.aggregation import (
    AggregationCounts,
    AggregationMode,
    aggregate,
    aggregation_counts,
    token_weights,
)
from lit_agentrl.functional.gigpo import (
    gigpo_advantages,
)
from lit_agentrl.functional.kl import (
    KLEstimator,
    adaptive_kl_coefficient,
    exact_kl_divergence,
    importance_corrected_kl,
    kl_divergence,
)
from lit_agentrl.functional.logits import (
    adaptive_entropy_coefficient,
    entropy,
    token_logprobs,
)
from lit_agentrl.functional.objectives import ObjectiveMode, combine_rewards
from lit_agentrl.functional.off_policy import (
    CorrectionMode,
    RatioLevel,
    effective_sample_size,
    importance_ratio,
    importance_weights,
    off_policy_sequence_mask,
)
from lit_agentrl.functional.policy_losses import (
    CispoCap,
    ClippedTokens,
    cispo_loss,
    clipped_tokens,
    gmpo_loss,
    gspo_loss,
    nll_loss,
    ppo_clip_loss,
    reinforce_loss,
    sapo_loss,
    sequence_clip_loss,
)
from lit_agentrl.functional.preference import (
    PreferenceVariant,
    dpo_loss,
    implicit_rewards,
    kto_loss,
    orpo_loss,
    simpo_loss,
)
from lit_agentrl.functional.q_learning import (
    ArcherTargets,
    DigirlStep,
    archer_advantages,
    archer_targets,
    cql_penalty,
    digirl_weights,
    mixed_q,
    polyak_average,
    td_targets,
)
from lit_agentrl.functional.returns import (
    cross_episode_returns,
    discounted_returns,
    gae,
    rewards_at_last_token,
    spread_turns,
    turn_gae,
    vapo_lambda,
)
from lit_agentrl.functional.shaping import (
    kl_penalized_rewards,
    overlong_penalty,
)
from lit_agentrl.functional.statistics import (
    Moments,
    moments,
    whiten,
)
from lit_agentrl.functional.trajectory_preference import (
    best_worst_pair,
    dmpo_loss,
    dmpo_weights,
    eto_loss,
    preference_pairs,
)
from lit_agentrl.functional.value import (
    clipped_values,
    expectile_loss,
    value_loss,
    value_token_loss,
)

__all__ = [
    "AdvantageScale",
    "AggregationCounts",
    "AggregationMode",
    "ArcherTargets",
    "CispoCap",
    "ClippedTokens",
    "CorrectionMode",
    "DigirlStep",
    "KLEstimator",
    "Moments",
    "ObjectiveMode",
    "PreferenceVariant",
    "RatioLevel",
    "adaptive_entropy_coefficient",
    "adaptive_kl_coefficient",
    "aggregate",
    "aggregation_counts",
    "archer_advantages",
    "archer_targets",
    "best_worst_pair",
    "center_rows",
    "cispo_loss",
    "clipped_tokens",
    "clipped_values",
    "combine_rewards",
    "cql_penalty",
    "cross_episode_returns",
    "digirl_weights",
    "discounted_returns",
    "dmpo_loss",
    "dmpo_weights",
    "dpo_loss",
    "effective_sample_size",
    "entropy",
    "eto_loss",
    "exact_kl_divergence",
    "expectile_loss",
    "gae",
    "gigpo_advantages",
    "gmpo_loss",
    "group_advantages",
    "groups_with_spread",
    "gspo_loss",
    "implicit_rewards",
    "importance_corrected_kl",
    "importance_ratio",
    "importance_weights",
    "kl_divergence",
    "kl_penalized_rewards",
    "kto_loss",
    "mixed_q",
    "moments",
    "nll_loss",
    "off_policy_sequence_mask",
    "orpo_loss",
    "overlong_penalty",
    "polyak_average",
    "ppo_clip_loss",
    "preference_pairs",
    "reinforce_loss",
    "reinforce_pp_advantages",
    "rewards_at_last_token",
    "rloo_advantages",
    "sapo_loss",
    "sequence_clip_loss",
    "simpo_loss",
    "spread_turns",
    "td_targets",
    "token_logprobs",
    "token_weights",
    "turn_gae",
    "value_loss",
    "value_token_loss",
    "vapo_lambda",
    "whiten",
]
