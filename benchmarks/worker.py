"""Runs programs on request: lines of JSON in, lines of JSON out.

Needs only the package under test and NumPy, so it runs in a peer's interpreter. Arguments: module, arch, folder for the programs. Requests:
{"load": name, "source": text} gives the names of the cases, with what went wrong (null: nothing), of the ratios of two of them, and of
measured gradients; {"run": case} seconds of a call, by the clock and of the processor (all threads), {"tapes": name} bytes that a gradient
keeps while it runs, {"memory": true} the peak in bytes, {"about": true} the version of the package.
"""

import importlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import time

CASES = {}
TAPES = {}
_HEAP = re.compile(r"adstack_heap\].*?(?:task='(\S+)')?.*?kind=(\w).*?required_bytes=(\d+)")


def load(sg, module, folder, name, source):
    """Run a program with its import line changed, from a file of its own: kernels are compiled from source files."""
    path = f"{folder}/{name}_{module}.py"
    with open(path, "w") as out:
        out.write(source.replace("import spirograd as sg", f"import {module} as sg"))
    spec = importlib.util.spec_from_file_location(f"{name}_{module}", path)
    program = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = program
    spec.loader.exec_module(program)
    CASES.clear()
    CASES.update(program.CASES)
    TAPES.clear()
    TAPES.update(getattr(program, "TAPES", {}))
    return {"cases": {case: tried(sg, case) for case in CASES}, "ratios": getattr(program, "RATIOS", {}), "tapes": list(TAPES)}


def tried(sg, case):
    """What a first run of a case raises, None if nothing."""
    try:
        CASES[case][0]()
        wait(sg)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:400]
    return None


def wait(sg):
    """Wait for launches; numba has none that run on."""
    if hasattr(sg, "sync"):
        sg.sync()


def measure(sg, case):
    run, calls = CASES[case]
    wait(sg)
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        run()
    wait(sg)
    return (time.perf_counter() - start) / calls, (time.process_time() - cpu) / calls


def tape_bytes(sg, name):
    """Bytes of the tapes of one gradient: from its launch plan, or from what the peer prints under QD_DEBUG_ADSTACK."""
    kernel, run = TAPES[name]
    if sg.__name__ == "spirograd":
        run()
        return kernel.grad.adstack_bytes
    os.environ["QD_DEBUG_ADSTACK"] = "1"
    with tempfile.TemporaryFile() as log:
        kept = os.dup(1), os.dup(2)
        try:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
            run()
            sg.sync()
        finally:
            for stream, old in zip((1, 2), kept):
                os.dup2(old, stream)
                os.close(old)
            del os.environ["QD_DEBUG_ADSTACK"]
        log.seek(0)
        heaps = {found[:2]: int(found[2]) for found in _HEAP.findall(log.read().decode())}
    return sum(heaps.values())


def peak_memory():
    """Return the peak memory of this program. The value of getrusage begins with the peak of the parent process."""
    if os.path.exists("/proc/self/status"):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def version(sg):
    return sg.__version__ if isinstance(sg.__version__, str) else ".".join(map(str, sg.__version__))


def main():
    module, arch, folder = sys.argv[1:4]
    sg = importlib.import_module(module)
    if module != "numba":
        options = {} if module == "taichi" else {"ad_stack_experimental_enabled": True}  # gradients of loops with bounds in memory
        sg.init(arch=getattr(sg, arch), offline_cache=False, **options)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "load" in request:
                result = load(sg, module, folder, request["load"], request["source"])
            elif "run" in request:
                result = measure(sg, request["run"])
            elif "tapes" in request:
                result = tape_bytes(sg, request["tapes"])
            elif "about" in request:
                result = version(sg)
            else:
                result = peak_memory()
            answer = {"result": result}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(answer), flush=True)


main()
