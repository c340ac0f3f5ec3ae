"""A compiler of the user's program leaves our code alone."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import json
import sys
import torch
from ncclwatch.rank.patches import compilers, training
from ncclwatch.rank.patches.forwards import make_forward
from ncclwatch.rank.patches.patching import Patches

patches = Patches()
compilers.install(patches)

from torch._dynamo import convert_frame, trace_rules

compiled = []
convert_frame.register_bytecode_hook(lambda code, _: compiled.append(code.co_filename))
# Into _getframe a compiler cannot look: it would begin anew in what calls it.
backward = training._make_backward(lambda x: x + 1, lambda: sys._getframe() and None)
forward = make_forward(lambda x: x * 2, backward)

@torch.compile(backend="eager", fullgraph=True)
def model(x):
    return forward(x)

@torch.compile(backend="eager")
def step(x):
    torch._dynamo.graph_break()
    return backward(x)

model(torch.ones(2))
step(torch.ones(2))
patches.restore()
print(json.dumps([compiled, [each for each in trace_rules.SKIP_DIRS if "ncclwatch" in each]]))
"""


def test_what_a_compiled_function_calls_of_ours_is_not_compiled_and_a_forward_is_seen_through():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    compiled, left = json.loads(done.stdout)
    assert set(compiled) == {"<string>"}
    assert left == []
