"""The exported file outside Python: the page of docs/deploying.md in a browser, and its Gradio app."""

from __future__ import annotations

import base64
import functools
import http.server
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.deployment.test_export import opened, small_vit
from tests.docs.blocks import ROOT, Block, read_blocks
from vit.deployment import export_classifier

PACKAGE = "onnxruntime-web@1.30.0"
RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
DROP = """([data, name]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)), transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, cancelable: true }));
}"""


def block(language: str, word: str = "") -> Block:
    found = [each for each in read_blocks(ROOT / "docs" / "deploying.md") if each.language == language]
    (only,) = (each for each in found if word in each.text)
    return only


@pytest.fixture
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """onnxruntime's files for browsers, from its npm package."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    folder = tmp_path_factory.mktemp("npm")
    packed = subprocess.run(["npm", "pack", PACKAGE], cwd=folder, capture_output=True, text=True, timeout=120)
    if packed.returncode:
        pytest.skip(f"npm does not reach its registry: {packed.stderr[-200:]}")
    shutil.unpack_archive(folder / packed.stdout.strip().splitlines()[-1], folder)
    return folder / "package" / "dist"


@pytest.fixture
def site(tmp_path: Path, runtime: Path) -> Iterator[str]:
    """The page with a model, served; its address."""
    torch.manual_seed(0)
    export_classifier(opened(small_vit()), "onnx", tmp_path / "classifier.onnx")
    (tmp_path / "classifier.html").write_text(block("html").text)
    for name in RUNTIME:
        shutil.copyfile(runtime / name, tmp_path / name)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/classifier.html"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:::torch|onnxscript|copyreg", "ignore::DeprecationWarning")
def test_a_picture_dropped_on_the_page_gets_the_models_probabilities(browser: Any, site: str, tmp_path: Path) -> None:
    import onnxruntime

    pixels = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "dropped.png")
    page, errors = browser.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(site)
    page.wait_for_function("document.querySelector('pre').textContent == 'ready'")
    data = base64.b64encode((tmp_path / "dropped.png").read_bytes()).decode()
    page.evaluate(DROP, [data, "dropped.png"])
    page.wait_for_function("document.querySelector('pre').textContent != 'ready'")
    shown = page.inner_text("pre")
    if place := os.environ.get("SCREENSHOT"):
        page.screenshot(path=place)
    session = onnxruntime.InferenceSession(tmp_path / "classifier.onnx")
    (probabilities,) = session.run(None, {"pixels": pixels[None]})
    names = json.loads((tmp_path / "classifier.onnx.json").read_text())["class_names"]
    ranked = sorted(zip(probabilities[0].tolist(), names, strict=True), reverse=True)
    assert [line.split() for line in shown.splitlines()] == [[f"{100 * p:.1f}", "%", name] for p, name in ranked]
    assert not errors


GRADIO = """
from PIL import Image
import gradio
gradio.Interface.launch = lambda app: print(app.fn(Image.new("RGB", (3, 3))))
def classify(image):
    return {"a": image.width / 10, "b": 1 - image.width / 10}
"""


def test_the_gradio_app_is_made_of_the_function_above_it() -> None:
    if importlib.util.find_spec("gradio") is None:
        pytest.skip("gradio is not installed")
    # in a process of its own: gradio leaves event loops open
    words = [sys.executable, "-c", GRADIO + block("python", "gradio").text]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "{'a': 0.3, 'b': 0.7}", done.stderr
