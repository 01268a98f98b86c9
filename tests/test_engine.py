"""Device, precision and processes: unsupported settings are refused, never replaced."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType, DynamoBackend

from vit import engine
from vit.engine import check_one_process, choose_precision, gather_uneven, has_fast_bf16, make_accelerator
from vit.processor import MULTIPLIES_BFLOAT16


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU", "ACCELERATE_USE_FSDP", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


def test_the_accelerator_follows_the_settings() -> None:
    for precision, name in (("fp32", "no"), ("bf16", "bf16"), ("fp32", "no")):
        accelerator = make_accelerator("cpu", precision)
        assert accelerator.device.type == "cpu"
        assert accelerator.mixed_precision == name
        assert accelerator.num_processes == 1


def test_what_one_process_does_is_refused_to_several() -> None:
    accelerator: Any = SimpleNamespace(num_processes=1)
    check_one_process(accelerator, "compare", "models are compared")
    accelerator.num_processes = 2
    with pytest.raises(ValueError, match=r"^compare: models are compared by one process; leave out accelerate launch$"):
        check_one_process(accelerator, "compare", "models are compared")


def test_auto_is_bf16_where_it_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for fast, expected in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(engine, "has_fast_bf16", lambda _, fast=fast: fast)
        assert choose_precision("cpu", "auto") == expected


@pytest.mark.parametrize("multiplies", [True, False])
def test_on_a_cpu_bf16_is_fast_where_the_processor_multiplies_it(
    multiplies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MULTIPLIES_BFLOAT16", multiplies)
    assert has_fast_bf16("cpu") == multiplies
    assert not has_fast_bf16("mps")


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="only Linux lists the processor's instructions")
def test_bfloat16_support_agrees_with_the_system() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    if "avx512f" not in flags:
        pytest.skip("the system lists no AVX-512, so it may keep others to itself")
    has_avx512 = "avx512_bf16" in flags and "AuthenticAMD" in flags
    assert ("amx_tile" in flags or has_avx512) == MULTIPLIES_BFLOAT16


def test_half_precision_on_a_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train.precision: 'fp16' is not computed on a CPU"):
        make_accelerator("cpu", "fp16")
    with pytest.raises(ValueError, match=r"train\.precision: 'fp8' is not valid: choose from auto, bf16"):
        choose_precision("cuda", "fp8")  # which Accelerate takes where torchao is installed


def test_the_launchers_precision_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert choose_precision("cpu", "auto") == "bf16"
    assert choose_precision("cpu", "bf16") == "bf16"
    with pytest.raises(ValueError, match=r"train.precision: 'fp32' contradicts the launcher's --mixed_precision bf16"):
        choose_precision("cpu", "fp32")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(ValueError, match="fp16"):
        choose_precision("cpu", "auto")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert choose_precision("cpu", "bf16") == "bf16"


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_missing_device_is_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"device: '{device}' is not available on this machine; choose from auto, cpu"):
        make_accelerator(device)


def test_auto_never_chooses_a_device_on_which_nothing_was_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert make_accelerator("auto", "fp32").device.type == "cpu"


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match="device: 'tpu' is not valid: choose from auto, cpu, cuda, mps"):
        make_accelerator("tpu")


def test_a_device_that_the_launcher_forbids_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="device: 'cuda' contradicts the launcher's --cpu"):
        make_accelerator("cuda")


def test_sharding_that_would_become_plain_data_parallel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnCpu:
        device = torch.device("cpu")
        distributed_type = DistributedType.MULTI_CPU

    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="FSDP was asked for, but cpu would run it as plain data parallel"):
        engine._check_distribution(OnCpu())


@pytest.mark.parametrize(
    ("version", "recomputes", "message"),
    [(1, False, "--fsdp_version 2"), (2, True, "set train.gradient_checkpointing true"), (2, False, None)],
)
def test_sharding_that_renames_parameters_is_refused(version: int, recomputes: bool, message: str | None) -> None:
    plugin = SimpleNamespace(fsdp_version=version, activation_checkpointing=recomputes)
    accelerator: Any = SimpleNamespace(
        distributed_type=DistributedType.FSDP, state=SimpleNamespace(fsdp_plugin=plugin), device=torch.device("cuda")
    )
    if message is None:
        engine._check_distribution(accelerator)
    else:
        with pytest.raises(ValueError, match=message):
            engine._check_distribution(accelerator)


def test_the_launchers_compilation_is_refused() -> None:
    """It would be written into every checkpoint: names of parameters would begin with `_orig_mod.`."""
    for backend, refused in ((DynamoBackend.NO, False), (DynamoBackend.INDUCTOR, True)):
        state = SimpleNamespace(dynamo_plugin=SimpleNamespace(backend=backend))
        accelerator: Any = SimpleNamespace(distributed_type=DistributedType.NO, state=state, device=torch.device("cpu"))
        if not refused:
            engine._check_distribution(accelerator)
            continue
        with pytest.raises(ValueError, match=r"^accelerate: .* --dynamo_backend no and set train\.compile true"):
            engine._check_distribution(accelerator)


def test_gathering_in_one_process_is_the_identity() -> None:
    values = torch.arange(3)
    assert gather_uneven(make_accelerator("cpu", "fp32"), values) is values
