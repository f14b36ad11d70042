"""What an ablation file says, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lit_agentrl.reporting.compare import DEFAULT_METRIC

BASE = "base"
_KEYS = ("base", "include_base", "metric", "overrides", "variants")
# The runner's own: a variant that set them would break the pairing or the folders.
_RESERVED = ("--config", "--seed_everything", "--run_dir", "--ckpt_path")


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationPlan:
    """One experiment and its variants."""

    base: Path
    """The experiment file."""
    variants: Mapping[str, tuple[str, ...]]
    """Command-line arguments of each variant, the common ones first; the plain experiment is called `base`."""
    metric: str = DEFAULT_METRIC


def read_plan(path: Path | str) -> AblationPlan:
    """Read an ablation file.

    ```yaml
    base: ../experiment/quickstart.yaml   # relative to this file
    overrides: [--trainer.max_epochs=20]  # for all, optional
    metric: val/success                   # optional
    include_base: true                    # optional
    variants:
      no_memory: {agent.init_args.memory: null}
      big_groups: [--data.init_args.group_size=16]
    ```

    Raises:
        ValueError: If the file is missing or not YAML, or a key is wrong; names the key and what is accepted.
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"cannot read the ablation file {path}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a mapping with the keys {', '.join(_KEYS)}")
    if unknown := sorted(set(map(str, content)) - set(_KEYS)):
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; accepted: {', '.join(_KEYS)}")
    base, include_base, metric = content.get("base"), content.get("include_base", True), content.get("metric")
    if not isinstance(base, str) or not (experiment := path.parent / base).is_file():
        raise ValueError(f"{path}: base must be the path of an experiment file, relative to this file, not {base!r}")
    if not isinstance(include_base, bool):
        raise ValueError(f"{path}: include_base must be true or false, not {include_base!r}")
    if metric is not None and not isinstance(metric, str):
        raise ValueError(f"{path}: metric must be a column of metrics.csv such as val/success, not {metric!r}")
    common = _arguments(content.get("overrides") or [], f"{path}: overrides")
    named = content.get("variants") or {}
    if not isinstance(named, dict):
        raise ValueError(f"{path}: variants must be a mapping of names to overrides, not {named!r}")
    variants = {BASE: common} if include_base else {}
    for name, overrides in named.items():
        if not isinstance(name, str) or name in ("", BASE) or name.startswith(".") or "/" in name:
            raise ValueError(
                f"{path}: variants: {name!r} is no name; names are folders, and {BASE!r} is the experiment"
            )
        variants[name] = common + _arguments(overrides or [], f"{path}: variants.{name}")
    if not variants:
        raise ValueError(f"{path}: variants is empty and include_base is false: there is nothing to run")
    return AblationPlan(base=experiment, variants=variants, metric=metric or DEFAULT_METRIC)


def _arguments(overrides: Any, key: str) -> tuple[str, ...]:
    """Turn a list of arguments, or a mapping of configuration keys, into command-line arguments."""
    if isinstance(overrides, dict):
        arguments = tuple(f"--{name}={_text(value)}" for name, value in overrides.items())
    elif isinstance(overrides, list) and all(isinstance(item, str) for item in overrides):
        arguments = tuple(overrides)
    else:
        raise ValueError(f"{key} must be a list of command-line arguments or a mapping of keys, not {overrides!r}")
    for argument in arguments:
        if argument.split("=", 1)[0] in _RESERVED:
            raise ValueError(f"{key}: {argument} is set by the ablation itself")
    return arguments


def _text(value: Any) -> str:
    """Write a YAML value so that the command line reads it back."""
    return value if isinstance(value, str) else json.dumps(value)
