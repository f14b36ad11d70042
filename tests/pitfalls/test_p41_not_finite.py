"""P41: a NaN or infinite reward, loss, gradient or weight stops or skips, its cause named, the last checkpoint kept."""

import math

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from rl_support import EndingPolicy, equal, rollout_of, trainer, trajectory, turn, weights

from callbacks import RunCheckpoint
from datamodules import RolloutDataModule
from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.algorithms import GRPO, RLOO, OptimizerConfig
from lit_agentrl.algorithms.terms import KLTerm
from lit_agentrl.rollouts.hooks import RolloutHooks
from lit_agentrl.rollouts.segments import batch_from_groups

SIZES = {"num_groups": 4, "group_size": 4, "max_new_tokens": 6, "max_concurrent_episodes": 16, "num_workers": 1}


class Keep(RolloutHooks, Callback):
    """Keeps the rollouts."""

    def __init__(self):
        self.rollouts = []

    def on_rollout_end(self, trainer, pl_module, rollout):
        self.rollouts.append(rollout)


def fit(module, *, what=None, callbacks=(), max_epochs=1, rewards=None, **options):
    name = "rl_envs.Parity" if what is None else "unsound.Unsound"
    init_args = {} if what is None else {"what": what}
    env = {"class_path": name, "init_args": init_args}
    data = RolloutDataModule(env, ToolAgent(max_turns=4), rewards=rewards, seed=0, **SIZES)
    run = trainer(max_epochs=max_epochs, callbacks=list(callbacks), **options)
    run.fit(module, datamodule=data)
    return run


def grpo(**options):
    module = GRPO(EndingPolicy(), optimizer=OptimizerConfig(lr=1e-3), seed=0, **options)
    module.configure_model()
    return module


# Rewards: the episode fails, is told apart and not learnt from -----------------------------------------------------


@pytest.mark.parametrize(
    ("what", "rewards", "cause"),
    [
        ("nan", None, r"expected StepResult.reward to be a finite number, got nan from unsound.Unsound"),
        ("inf", None, r"expected StepResult.reward to be a finite number, got inf from unsound.Unsound"),
        ("-inf", None, r"expected StepResult.reward to be a finite number, got -inf from unsound.Unsound"),
        ("part", None, r"expected StepResult.reward_parts['even'] to be a finite number, got nan from unsound.Unsound"),
        ("sum", None, r"episode {id} of unsound.Unsound: its reward is "),
        ("huge", None, r"episode {id} of unsound.Unsound: its reward is 1e+39; it must be finite in float32"),
        (None, {"unsound.undefined": 1.0}, r"reward undefined is nan in episode {id}"),
        (None, {"unsound.large": 100.0}, r"reward large (1e+308, weight 100.0) makes the reward of episode {id} inf"),
    ],
)
def test_a_reward_that_is_no_number_fails_its_episode_by_name(what, rewards, cause):
    keep, module = Keep(), grpo()
    before = weights(module)
    fit(module, what=what, rewards=rewards, callbacks=[keep])
    (rollout,) = keep.rollouts
    failed = [t for t in rollout.trajectories if t.status == "failed"]
    assert failed
    for one in failed:
        assert cause.format(id=one.id) in one.cause
        assert (one.reward, one.reward_parts) == (0.0, {})
    assert rollout.metrics["rollout/failed"] == len(failed) / 16
    assert all(math.isfinite(t.reward) for t in rollout.trajectories)
    # Only zeros are left to compare, so that nothing is learnt.
    assert equal(before, weights(module))


# Credit ------------------------------------------------------------------------------------------------------------


def credit(module, *rewards):
    rollout = rollout_of([trajectory(0, s, turn([1], [2, 3]), reward=r) for s, r in enumerate(rewards)], index=7)
    module.credit(rollout, batch_from_groups(rollout.groups))


@pytest.mark.parametrize(("value", "shown"), [(math.nan, "nan"), (-math.inf, "-inf"), (1e39, "inf")])
def test_rewards_of_other_sources_are_checked_too(value, shown):
    """Replayed or hand-made trajectories never passed a worker."""
    message = (
        rf"rollout 7: episode 0/1/0 of task 't': its reward \(environment, data\.init_args\.rewards.*\) is {shown};"
    )
    with pytest.raises(FloatingPointError, match=message):
        credit(grpo(), 0.0, value, 1.0)


def test_a_failed_episode_may_carry_anything():
    members = [trajectory(0, s, turn([1], [2]), reward=float(s)) for s in range(2)]
    members.append(trajectory(0, 2, turn([1], [2]), reward=math.nan, status="failed"))
    rollout = rollout_of(members)
    batch = batch_from_groups(rollout.groups)
    grpo().credit(rollout, batch)
    assert bool(torch.isfinite(batch.advantages).all())


def test_a_penalty_is_named_as_such():
    module = RLOO(EndingPolicy(), kl=KLTerm(estimator="k1", place="reward"), seed=0)
    module._read_reference = lambda batch: torch.full((batch.num_tokens,), torch.nan)
    with pytest.raises(FloatingPointError, match=r"episode 0/0/0 .*KL penalty of one of its tokens .*init_args\.kl\)"):
        credit(module, 0.0, 1.0)


def test_an_advantage_is_named_with_its_estimator():
    # Squares of 3e38 are infinite in float32.
    with pytest.raises(FloatingPointError, match=r"the advantage that LeaveOneOut gives it .*init_args\.advantage\)"):
        credit(RLOO(EndingPolicy(), seed=0), 3e38, -3e38, 3e38)


# Loss, gradient, weights: the last good checkpoint stays -----------------------------------------------------------


class Strike(Callback):
    """Spoils something at one optimizer step, and keeps the weights from before it."""

    def __init__(self, step, spoil):
        self.step, self.spoil = step, spoil
        self.before = None

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == self.step:
            self.before = weights(module)
            self.moments = [s["exp_avg"].clone() for s in trainer.optimizers[0].state.values()]
            self.spoil(module)


def spoil_loss(module):
    original = module.loss

    def loss(batch):
        value, terms = original(batch)
        return value * torch.nan, terms | {"entropy": torch.tensor(torch.inf)}

    module.loss = loss


def spoil_gradient(module):
    next(iter(module.parameters())).register_hook(lambda gradient: gradient * torch.inf)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_loss, r"the loss of optimizer step 3 is nan \(not finite either: entropy\); lower .*resume from the la"),
        (
            spoil_gradient,
            r"the gradient norm of optimizer step 3 is (nan|inf); lower .*resume from the last checkpoint",
        ),
    ],
)
def test_a_step_that_is_not_finite_is_not_taken(tmp_path, spoil, message):
    """Two steps a rollout; the fourth is spoilt, half way through the second rollout."""
    module, strike = grpo(num_minibatches=2), Strike(3, spoil)
    options = {"default_root_dir": tmp_path, "enable_checkpointing": True, "max_epochs": 3}
    after_first = {}

    class Watch(Callback):
        def on_train_epoch_end(self, trainer, module):
            after_first.update(weights(module))

    with pytest.raises(FloatingPointError, match=message):
        fit(module, callbacks=[strike, Watch(), RunCheckpoint()], **options)
    assert strike.before is not None
    assert equal(strike.before, weights(module))
    saved = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    assert saved["epoch"] == 0
    assert all(torch.equal(saved["state_dict"][name], weight) for name, weight in after_first.items())
    assert not equal(after_first, strike.before)


def test_weights_that_are_not_finite_take_no_checkpoints_place(tmp_path):
    class Poison(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.current_epoch == 1:
                with torch.no_grad():
                    next(iter(module.parameters()))[0, 0] = torch.nan

    message = r"after optimizer step \d weights are not finite \(policy\.model\.\S+\); the checkpoints are of an"
    with pytest.raises(FloatingPointError, match=message):
        fit(
            grpo(),
            callbacks=[Poison(), RunCheckpoint()],
            default_root_dir=tmp_path,
            enable_checkpointing=True,
            max_epochs=3,
        )
    saved = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    assert saved["epoch"] == 0
    assert all(bool(torch.isfinite(weight).all()) for weight in saved["state_dict"].values())


LOSS = '''
from pathlib import Path

MARKER = Path(__file__).with_name("struck")
calls = 0


def fragile_loss(logprobs, advantages, mask):
    """REINFORCE that breaks at its third call, once."""
    global calls
    calls += 1
    loss = -advantages * logprobs * mask
    if calls == 3 and not MARKER.exists():
        MARKER.touch()
        loss = loss / 0.0 * 0.0
    return loss
'''
MODEL = """
class_path: lit_agentrl.algorithms.policy_gradient.PolicyGradient
init_args:
  advantage: {class_path: lit_agentrl.algorithms.credit.LeaveOneOut}
  policy_loss: {function: fragile.fragile_loss}
"""


def test_on_the_command_line_one_line_says_so_and_the_run_goes_on_from_its_checkpoint(
    lit_agentrl, game_config, tmp_path
):
    (tmp_path / "fragile.py").write_text(LOSS)
    (tmp_path / "own.yaml").write_text(MODEL)
    run = tmp_path / "run"
    command = ["fit", "--config", game_config, "--model", tmp_path / "own.yaml", "--run_dir", run]
    command += ["--milestones", "false", "--trainer.max_epochs", 2]
    broken = lit_agentrl(*command, env={"PYTHONPATH": str(tmp_path)})
    assert broken.code == 2, broken.output
    (line,) = [line for line in broken.output.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: the loss of optimizer step 2 is nan; lower model.init_args.optimizer.lr")
    assert "Traceback" not in broken.output
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["epoch"] == 0
    resumed = lit_agentrl(*command, "--resume", "true", env={"PYTHONPATH": str(tmp_path)})
    assert resumed.code == 0, resumed.output
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["epoch"] == 1
