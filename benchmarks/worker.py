"""Runs programs on request: lines of JSON in, lines of JSON out.

Needs only the package under test and NumPy, so it runs in a peer's interpreter. Arguments: module, arch, folder for the programs. Requests:
{"load": name, "source": text} gives the names of the cases, {"run": case} seconds per call, {"memory": true} the peak in bytes.
"""

import importlib
import importlib.util
import json
import sys
import time

CASES = {}


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
    for run, _ in CASES.values():
        run()
    sg.sync()
    return list(CASES)


def measure(sg, case):
    run, calls = CASES[case]
    sg.sync()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    sg.sync()
    return (time.perf_counter() - start) / calls


def peak_memory():
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main():
    module, arch, folder = sys.argv[1:4]
    sg = importlib.import_module(module)
    sg.init(arch=getattr(sg, arch), offline_cache=False)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "load" in request:
                result = load(sg, module, folder, request["load"], request["source"])
            elif "run" in request:
                result = measure(sg, request["run"])
            else:
                result = peak_memory()
            answer = {"result": result}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(answer), flush=True)


main()
