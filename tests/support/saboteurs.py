"""Parts of a run that end its process at a chosen place, once: a marker file says that it has been done."""

import os
import signal
from pathlib import Path

from lightning.pytorch.callbacks import Callback

from lit_agentrl.policies.tiny import TinyPolicy
from lit_agentrl.rollouts.hooks import RolloutHooks


def strike(marker, signal_number=signal.SIGKILL):
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal_number)


class Bomb:
    """Ends the process while it is being pickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        strike(self.marker)
        return (str, ())


class Saboteur(RolloutHooks, Callback):
    """Ends the process at the n-th event of a kind in training."""

    def __init__(self, marker: str, event: str, count: int, sig: int = int(signal.SIGKILL)) -> None:
        self.marker = marker
        self.event = event
        self.left = count
        self.sig = sig

    def _happened(self, event):
        if event == self.event:
            self.left -= 1
            if self.left == 0:
                strike(self.marker, self.sig)

    def on_episode_end(self, trainer, pl_module, trajectory):
        self._happened("episode" if trainer.training else "validation episode")

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self._happened("optimizer step")

    def on_train_epoch_end(self, trainer, pl_module):
        self._happened("epoch")

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        if self.event == "checkpoint" and trainer.current_epoch == self.left and not Path(self.marker).exists():
            checkpoint["state_dict"]["bomb"] = Bomb(self.marker)


class KilledPolicy(TinyPolicy):
    """Ends the process at the n-th log-prob computation, which may be in the warm start."""

    def __init__(self, marker: str, count: int, hidden_size: int = 32, max_context: int = 64) -> None:
        super().__init__(hidden_size, 1, 2, max_context=max_context)
        self.marker = marker
        self.left = count

    def token_scores(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0:
            strike(self.marker)
        return super().token_scores(*args, **kwargs)
