"""The front end's modules in node, without a browser."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from companion.explorer import pack
from companion.explorer.assets import FRONT

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None, reason="node is not installed: the front end's arithmetic is not tested"
)


def in_node(source: str, tree: Any = None) -> Any:
    """What ``out`` is after a script that knows modules (draw, heads, maths, network, page, play),
    and ``tree`` as packed.
    """
    names = ("draw", "heads", "maths", "network", "page")
    files = dict(zip(names, names, strict=True)) | dict(play="playground")
    imports = "".join(
        f"import * as {n} from {json.dumps((FRONT / f'{f}.js').as_uri())};"
        for n, f in files.items()
    )
    script = f"""
        {imports}
        import {{ readFileSync }} from "node:fs";
        const tree = heads.unpack(new Uint8Array(readFileSync(0)).buffer);
        {source}
        const plain = (key, value) => (ArrayBuffer.isView(value) ? [...value] : value);
        console.log(JSON.stringify(out, plain));"""
    given = gzip.decompress(pack(tree))
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", script], input=given, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def run_tests(name: str) -> None:
    """Run a file of node's own tests."""
    done = subprocess.run(
        [NODE, "--test", Path(__file__).with_name(name)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
