# shellcheck shell=bash
# What ci/linux, ci/macos, ci/windows, ci/gpu and ci/drivers share. Sourced, not run.

fail() {
  echo "ci/$(basename "$0"): $*" >&2
  exit 1
}

# need_program NAME HOW-TO-GET-IT
need_program() {
  command -v "$1" >/dev/null 2>&1 || fail "there is no program \`$1\` on the path: $2"
}

# Sets `python`: that of the environment variable PYTHON, else python3 or python; 3.10 or newer.
find_python() {
  python=${PYTHON:-$(command -v python3 || command -v python || true)}
  [ -n "$python" ] || fail "there is no Python; name one: PYTHON=/path/to/python"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "$python cannot be run, or is older than 3.10; name another: PYTHON=/path/to/python"
  "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python cannot make environments; on Debian and Ubuntu: apt install python3-venv"
}

# Makes an environment with the test extra, once, and sets `python` to the interpreter in it. For systems without make.
make_environment() {
  find_python
  VENV=${VENV:-out/ci/venv-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
  [ -d "$VENV" ] || "$python" -m venv "$VENV"
  python=$VENV/bin/python
  [ -x "$python" ] || python=$VENV/Scripts/python.exe
  "$python" -m pip install --quiet --upgrade pip
  "$python" -m pip install --quiet --editable ".[test]"
}

# Sets `wgpu`: "wgpu," where it can be required of the tests. Python 3.10 has no version of the package that is new enough.
find_wgpu() {
  wgpu=$("$python" -c 'import sys; print("wgpu," if sys.version_info >= (3, 11) else "")')
  [ -n "$wgpu" ] || echo "ci/$(basename "$0"): no tests of wgpu, which needs Python 3.11 or newer"
}

processors() {
  "$python" -c 'import os; print(os.cpu_count() or 2)'
}
