"""The workflows call scripts of `ci/` and nothing else, and the scripts can be parsed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[2] / "ci"
WORKFLOWS = sorted((CI / "workflows").glob("*.yml"))
SCRIPTS = [path for path in (CI.with_name(".ci") / "run", *sorted(CI.iterdir())) if path.is_file() and path.suffix in ("", ".sh")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows(path: Path) -> None:
    text = path.read_text()
    assert len(WORKFLOWS) == 3
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used and all(re.fullmatch(r"actions/(checkout|setup-python)@[0-9a-f]{40}", name) for name, _ in used), used
    assert all(re.fullmatch(r" # v\d+\.\d+\.\d+", version) for _, version in used), "the version that a commit stands for"
    runs = re.findall(r"run: (.+)", text)
    assert len(runs) == text.count("runs-on:"), "one call in each job"
    for command in runs:
        script = CI.parent / command.split()[0]
        assert script.parent == CI and os.access(script, os.X_OK), command
    listed = (CI / "workflows" / "README.md").read_text()
    jobs = re.findall(r"^  (\w+):\n    runs-on", text, re.MULTILINE)
    assert jobs and all(f"| {path.stem} / {job} |" in listed for job in jobs), "README.md has a row for each job"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts(path: Path) -> None:
    assert {"linux", "macos", "windows", "gpu"} < {script.name for script in SCRIPTS}
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    done = subprocess.run([bash, "-n", path.name], cwd=path.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\r" not in path.read_bytes()
    if path.suffix == "":
        assert os.access(path, os.X_OK) and path.read_text().startswith("#!/usr/bin/env bash\n# ")


# A Python that answers questions (`-c`) and records what else it is told, with the environment that counts.
STUB = """#!/bin/sh
if [ "$1" = -c ]; then exec REAL "$@"; fi
if [ "$1 $2" = "-m venv" ]; then
  if [ "$(uname -s)" = Darwin ]; then place=$3/bin/python; else place=$3/Scripts/python.exe; fi
  mkdir -p "$(dirname "$place")" && cp "$0" "$place"
  exit
fi
echo "$* | require=$SG_TEST_REQUIRE wgpu=$SG_WGPU_BACKEND driver=$VK_DRIVER_FILES libraries=$DYLD_LIBRARY_PATH utf8=$PYTHONUTF8" >> LOG
"""
# A `make` that fails where FAILS is its target, and else makes an environment with that Python if it is asked for one.
MAKE = """#!/bin/sh
echo "make $*" >> LOG
[ "$1" != "$FAILS" ] || exit 1
[ "$1" != environment ] || { mkdir -p "$VENV/bin" && cp PROGRAMS/python "$VENV/bin"; }
"""
_LINUX = ("environment", "test", "docs")  # what `ci/linux --install` makes
_NEWER = sys.version_info >= (3, 11)


def dry_run(script: str, system: str, tmp_path: Path, **environment: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a script of `ci/` on a copy, as if on ``system``, with programs that only record their calls; the process and the calls."""
    root, programs, log = tmp_path / "root", tmp_path / "programs", tmp_path / "log"
    shutil.copytree(CI, root / "ci")
    programs.mkdir()
    prefix = tmp_path / "homebrew"
    if system == "Darwin":
        for path in ("lib/libvulkan.dylib", "share/vulkan/icd.d/MoltenVK_icd.json"):
            (prefix / path).parent.mkdir(parents=True)
            (prefix / path).touch()
    for name, text in {
        "uname": f"#!/bin/sh\necho {system}\n",
        "brew": f'#!/bin/sh\n[ "$1" = --prefix ] && echo {prefix} && exit\necho "brew $*" >> {log}\n',
        "apt-get": f'#!/bin/sh\necho "apt-get $*" >> {log}\n',
        "sudo": '#!/bin/sh\nexec "$@"\n',
        "make": MAKE.replace("LOG", str(log)).replace("PROGRAMS", str(programs)),
        **dict.fromkeys(("spirv-val", "spirv-cross", "glslangValidator", "g++", "chromium"), "#!/bin/sh\n"),
        "python": STUB.replace("REAL", sys.executable).replace("LOG", str(log)),
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHON": str(programs / "python"), "HOME": str(tmp_path), **environment}
    command = ["bash", str(root / "ci" / script.split()[0]), *script.split()[1:]]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False, timeout=60)
    return done, log.read_text().splitlines() if log.exists() else []


@pytest.mark.skipif(shutil.which("bash") is None or sys.platform == "win32", reason="a dry run needs a shell of Unix")
def test_macos_in_a_dry_run(tmp_path: Path) -> None:
    done, calls = dry_run("macos metal", "Darwin", tmp_path / "metal", WORKERS="3", PYTEST_ARGS="-k sums -x")
    assert done.returncode == 0, done.stderr
    assert ("no tests of wgpu" in done.stdout) != _NEWER
    assert [call.split(" | ")[0] for call in calls] == [
        "-m pip install --quiet --upgrade pip",
        "-m pip install --quiet --editable .[test]",
        "-m spirograd doctor",
        "-m pytest -n 3 -k sums -x",
    ]
    wgpu = "wgpu," if _NEWER else ""
    assert f"require={wgpu}interpreter,cpu,spirv-val," in calls[-1] and "wgpu=metal driver= libraries= " in calls[-1]
    done, calls = dry_run("macos moltenvk --install", "Darwin", tmp_path / "moltenvk")
    assert done.returncode == 0, done.stderr
    prefix = tmp_path / "moltenvk" / "homebrew"
    assert calls[0] == "brew install --quiet spirv-tools molten-vk vulkan-loader"
    assert re.match(r"-m pytest -n \d+ -k vulkan \| require=vulkan,interpreter,cpu,", calls[-1])
    assert f"driver={prefix}/share/vulkan/icd.d/MoltenVK_icd.json libraries={prefix}/lib " in calls[-1]


@pytest.mark.skipif(shutil.which("bash") is None or sys.platform == "win32", reason="a dry run needs a shell of Unix")
def test_windows_in_a_dry_run(tmp_path: Path) -> None:
    done, calls = dry_run("windows", "MINGW64_NT-10.0-26100", tmp_path, WORKERS="2", PYTEST_ARGS="-k wgpu")
    assert done.returncode == 0, done.stderr
    assert [call.split(" | ")[0] for call in calls][-2:] == ["-m spirograd doctor", "-m pytest -n 2 -k wgpu"]
    wgpu = "wgpu," if _NEWER else ""
    assert f"require={wgpu}interpreter,cpu,rich,matplotlib wgpu=d3d12 " in calls[-1] and calls[-1].endswith("utf8=1")


@pytest.mark.skipif(not [*Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json")], reason="ci/linux asks for lavapipe")
@pytest.mark.parametrize("fails", ["", *_LINUX])
def test_linux_in_a_dry_run(fails: str, tmp_path: Path) -> None:
    """Two installations at a time: what the tests need beside system packages, torch beside the site."""
    done, calls = dry_run("linux --install --torch", "Linux", tmp_path, FAILS=fails)
    assert (done.returncode == 0) == (not fails)
    made = [call.partition(" BIN=")[0] for call in calls if call.startswith("make")]
    assert made == ["make environment", "make test", "make docs", "make -j2 types tests"][: _LINUX.index(fails) + 1 if fails else 4]
    assert [call.split()[1] for call in calls if call.startswith("apt-get")] == ["update", "install", "install"]
    pip = [call.split(" | ")[0] for call in calls if call.startswith("-m pip")]
    if not fails:
        assert len(pip) == 1 and re.search(r"torch==\S+ mpi4py==\S+ spirograd\[jax,sweep\]$", pip[0])
        assert calls[-1].startswith(made[-1])


@pytest.mark.skipif(shutil.which("bash") is None or sys.platform == "win32", reason="a dry run needs a shell of Unix")
@pytest.mark.parametrize(
    "script,system,said",
    [
        ("macos", "Darwin", "say which one"),
        ("macos metal", "Linux", "this is not macOS"),
        ("macos metal --instal", "Darwin", "unknown argument --instal"),
        ("windows", "Linux", "this is not Windows"),
        ("windows metal", "MSYS_NT", "unknown argument metal"),
        ("linux --instal", "Linux", "unknown argument --instal"),
    ],
)
def test_scripts_refuse_by_name(script: str, system: str, said: str, tmp_path: Path) -> None:
    done, calls = dry_run(script, system, tmp_path)
    assert done.returncode == 1 and said in done.stderr and not calls
