"""Compiled files answer as the model does without this package, and nothing is left behind where one cannot be made."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.deployment.test_export import opened, pixels_of, probabilities, small_vit, trial_of
from vit.deployment import compiled
from vit.deployment.compiled import load_compiled
from vit.deployment.errors import TOLERANCES
from vit.deployment.export import check_export, export_classifier
from vit.layers.quantized import quantizes_here

pytestmark = pytest.mark.filterwarnings("ignore:::torch|copyreg", "ignore::DeprecationWarning")
needs_eight_bits = pytest.mark.skipif(not quantizes_here(), reason="no x86 processor, or a torch without oneDNN")

ALONE = """
import json, sys, numpy, torch
program = torch._inductor.aoti_load_package(sys.argv[1])
print(json.loads(program.get_metadata()["description.json"])["class_names"])
assert not any(name.partition(".")[0] == "vit" for name in sys.modules)
given = torch.from_numpy(numpy.load(sys.argv[2]))
numpy.save(sys.argv[3], torch.cat([program(given), program(given[:1])]).numpy())
for wrong in (given.float(), given[0], given[..., :2], given.transpose(1, 2).contiguous().transpose(1, 2)):
    try:
        program(wrong)
    except RuntimeError as error:
        assert "input_handles[0]" in str(error), error
    else:
        raise AssertionError(wrong.shape)
"""


@pytest.mark.slow
def test_a_compiled_file_answers_alone_for_images_of_any_size_and_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, faster = dict[str, Callable[[Tensor], Tensor]](), compiled._faster

    def both(files: list[Path], program: torch.export.ExportedProgram) -> Path:
        tried.update({file.name: load_compiled(file) for file in files})
        return faster(files, program)

    monkeypatch.setattr(compiled, "_faster", both)
    given, path = opened(small_vit().train()), tmp_path / "new" / "model.pt2"
    found = export_classifier(given, "compiled", path, trial=trial_of(tmp_path / "photos"))
    assert set(found.differences) == {1, 3}
    assert max(found.differences.values()) < 1e-2, "one level of 255 in some pixels"
    assert found.proof is not None
    assert found.proof.agreement == 1
    assert found.seconds > 1
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.pt2", "model.pt2.json"]
    said = json.loads((tmp_path / "new" / "model.pt2.json").read_text())
    assert said["computes_with"] == "fp32"
    assert said["compiled_for"]
    assert set(tried) == {"False.pt2", "True.pt2"}
    for size in ((16, 24), (40, 31), (9, 90)):
        photo = pixels_of(size)
        expected = probabilities(given, photo)
        for program in tried.values():
            answered = program(torch.from_numpy(np.stack([photo, photo])))
            torch.testing.assert_close(answered, expected.expand(2, -1), atol=1e-2, rtol=0)
    turned = torch.from_numpy(np.ascontiguousarray(photo.transpose(1, 0, 2))).transpose(0, 1)[None]
    assert not turned.is_contiguous()
    torch.testing.assert_close(load_compiled(path)(turned), expected, atol=1e-2, rtol=0)
    np.save(tmp_path / "given.npy", np.stack([photo] * 5))
    words = [sys.executable, "-c", ALONE, str(path), str(tmp_path / "given.npy"), str(tmp_path / "answers.npy")]
    checked = os.environ | {"AOTI_RUNTIME_CHECK_INPUTS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False, env=checked)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['a', 'b', 'c']"
    answers = torch.from_numpy(np.load(tmp_path / "answers.npy"))
    torch.testing.assert_close(answers, expected.expand(6, -1), atol=1e-2, rtol=0)


@pytest.mark.slow
@needs_eight_bits
def test_a_compiled_file_of_eight_bits(tmp_path: Path) -> None:
    given = replace(opened(small_vit()), dtype="int8")
    trial = trial_of(tmp_path / "photos", tolerance=TOLERANCES["int8"])
    found = export_classifier(given, "compiled", tmp_path / "m.pt2", trial=trial)
    assert found.proof is not None
    assert 1e-4 < found.proof.largest_difference < 0.1
    said = json.loads((tmp_path / "m.pt2.json").read_text())
    assert said["computes_with"] == "int8"
    assert said["weights"].endswith("-int8")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_compiled_file_of_bfloat16_takes_and_gives_float32(tmp_path: Path) -> None:
    model = small_vit().eval()
    found = export_classifier(opened(model), "compiled", tmp_path / "m.pt2", logits=True, precision="bf16")
    assert 1e-4 < max(found.differences.values()) < 0.05 * found.largest
    images = torch.rand(2, 3, 16, 24)
    answered = load_compiled(tmp_path / "m.pt2")(images)
    assert answered.dtype == torch.float32
    torch.testing.assert_close(answered, model(images), atol=0.05 * found.largest, rtol=0)


def test_the_faster_of_both_ways_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth call of the faster one is disturbed: its fastest turns count."""
    calls = dict.fromkeys(("a.pt2", "b.pt2"), 0)

    def load(path: Path) -> Callable[[Tensor], Tensor]:
        def run(images: Tensor) -> Tensor:
            assert images.shape == (1, 3, 8, 8), "one image"
            calls[path.name] += 1
            disturbed = path.name == "b.pt2" and calls["b.pt2"] % 4 == 0
            time.sleep(0.06 if path.name == "a.pt2" or disturbed else 0.04)
            return images

        return run

    monkeypatch.setattr(compiled, "load_compiled", load)
    program = torch.export.export(torch.nn.Flatten(), (torch.rand(2, 3, 8, 8),))
    files = [tmp_path / name for name in calls]
    assert compiled._faster(files, program) == files[1]
    assert compiled._faster(files[:1], program) == files[0], "nothing is measured where there is no choice"


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_taken_apart_exactly(approximate: str) -> None:
    images = torch.linspace(-6, 6, 97, dtype=torch.float64)
    program = torch.export.export(torch.nn.GELU(approximate), (images,))
    apart = program.run_decompositions({torch.ops.aten.gelu.default: compiled._gelu_apart})
    kept = any("gelu" in str(node.target) for node in apart.graph.nodes)
    assert kept == (approximate == "tanh")
    torch.testing.assert_close(apart.module()(images), torch.nn.GELU(approximate)(images), rtol=1e-14, atol=1e-15)


def test_without_a_compiler_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def missing() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    rule = r"--format: 'compiled' is not valid: it needs a C\+\+ compiler, and none was found; install g\+\+"
    with pytest.raises(ValueError, match=rule):
        check_export("compiled", Path("m.pt2"))
    check_export("torch", Path("m.pt2"))


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["CXX", pytest.param("TMPDIR", marks=pytest.mark.exhaustive)])
def test_a_compiler_that_fails_is_one_line_and_leaves_nothing(variable: str, tmp_path: Path) -> None:
    """A compiler that says its version and then fails; torch's own does not take a folder with a space in its name."""
    program = tmp_path / "c++"
    program.write_text("""#!/bin/sh
case "$*" in *--version*|*-dumpversion*) exec g++ "$@";; esac
echo "x.cpp:3: fatal error: omp.h: No such file" >&2; exit 1
""")
    program.chmod(0o755)
    (tmp_path / "a space").mkdir()
    (tmp_path / "out").mkdir()
    values = {"CXX": str(program), "TMPDIR": str(tmp_path / "a space")}
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), variable: values[variable]}
    if variable == "TMPDIR":
        del environment["TORCHINDUCTOR_CACHE_DIR"]
    words = ["export", "vit_tiny_patch16_224", "--random_weights", "--logits", "--format", "compiled"]
    options = ["--mean", ".5", ".5", ".5", "--std", ".5", ".5", ".5", "--output", str(tmp_path / "out" / "m.pt2")]
    command = [sys.executable, "-m", "vit.cli", *words, *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert re.match(r"vit: --format: the C\+\+ compiler \S+ failed: .*error: ", last), last
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_torchs_remarks_are_silenced_while_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.exc import InductorError

    levels, loggers = list[int](), [logging.getLogger(name) for name in compiled._LOGGERS]

    def fails(*_: Any, **__: Any) -> None:
        levels.extend(logger.level for logger in loggers)
        raise InductorError(IndexError("list index\nout of range"), None)

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fails)
    before = [logger.level for logger in loggers]
    with pytest.raises(ValueError, match=r"^--format: torch's compiler failed: IndexError: list index$"):
        export_classifier(opened(small_vit()), "compiled", tmp_path / "m.pt2")
    assert levels == [logging.ERROR] * 2
    assert [logger.level for logger in loggers] == before
    assert not list(tmp_path.iterdir())


def test_precision_belongs_to_compiled_files(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="--precision: 'bf16' is not valid: bfloat16 is written with --format compiled"
    ):
        export_classifier(opened(small_vit()), "torch", tmp_path / "m.pt2", precision="bf16")
    given = replace(opened(small_vit()), dtype="int8")
    with pytest.raises(ValueError, match="--precision: 'bf16' is not valid: with --dtype int8 the rest computes in"):
        export_classifier(given, "compiled", tmp_path / "m.pt2", precision="bf16")
    assert not list(tmp_path.iterdir())
