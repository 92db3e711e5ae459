"""What importing costs, and what it says when a library is missing."""

import json
import subprocess
import sys

import pytest

LIBRARIES = ["torchvision", "timm", "lightning", "transformers", "accelerate"]
INSTALL = {
    "torchvision": "pip install 'mixsage[torchvision]'",
    "timm": "pip install 'mixsage[timm]'",
    "lightning": "pip install 'mixsage[lightning]'",
    "transformers": "pip install 'mixsage[transformers]'",
    "accelerate": "pip install 'mixsage[transformers]'",
}


def python(program):
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


MEASURE = """
import json, sys, time, torch
before = set(sys.modules)
start = time.process_time()
import mixsage
seconds = time.process_time() - start
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(json.dumps([seconds, sorted(new)]))
"""


def test_importing_is_quick_and_imports_nothing_else():
    """CPU time, and the best of three, as this machine has other work to do; it takes a tenth of the bound where that is idle."""
    runs = [python(MEASURE) for _ in range(3)]
    assert runs[0][1] == ["mixsage"]
    assert min(seconds for seconds, _ in runs) < 0.3


BLOCKED = f"""
import importlib, json, sys
for name in {LIBRARIES!r}:
    sys.modules[name] = None
said = {{}}
for name in {LIBRARIES!r}:
    try:
        importlib.import_module(f"mixsage.integrations.{{name}}")
    except ModuleNotFoundError as error:
        said[name] = str(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def messages():
    """What each module says where its library is missing."""
    return python(BLOCKED)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_gives_the_install_line(name, messages):
    # Transformers' Trainer needs Accelerate too, which is met first where both are missing; one line installs both.
    needed = "accelerate" if name == "transformers" else name
    assert f"needs {needed}, which is not installed: {INSTALL[name]}" in messages[name]


def test_fabrics_host_needs_no_library():
    program = "import json, sys; sys.modules['lightning'] = None; import mixsage.integrations.fabric; print(json.dumps('here'))"
    assert python(program) == "here"
