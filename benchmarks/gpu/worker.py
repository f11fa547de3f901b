"""Makes and times programs on request, in the interpreter of a back end or a peer: lines of JSON in, lines of JSON out.

Arguments: the module with the programs, and the device. Requests: {"load": name, "size": size} makes the program of a row, runs it, and
gives for each way to do it its label and its result, or what it raised; {"run": k, "launches": n} the seconds of a launch of the k-th way,
``n`` in a row and a wait; {"about": true} a version.
"""

import importlib
import json
import sys
import time
import traceback


class Worker:
    def __init__(self, module, device):
        self.module, self.device, self.programs = module, device, []
        self.package = importlib.import_module(module)

    def load(self, name, size):
        self.programs = []
        self.package.start(self.device)
        make = getattr(self.package, name, None)
        if make is None:
            return None
        self.programs = make(tuple(size) if isinstance(size, list) else size)
        return [self.tried(program) for program in self.programs]

    def tried(self, program):
        """The result of a first run, or what it raised."""
        try:
            found = program.result()
            self.package.wait()
        except Exception as error:
            traceback.print_exc()
            return {"label": program.label, "error": summary(error)}
        return {"label": program.label, "result": found.tolist()}

    def run(self, k, launches):
        run, wait = self.programs[k].run, self.package.wait
        run()
        wait()
        start = time.perf_counter()
        for _ in range(launches):
            run()
        wait()
        return (time.perf_counter() - start) / launches

    def answer(self, request):
        if "load" in request:
            return self.load(request["load"], request["size"])
        if "run" in request:
            return self.run(request["run"], request["launches"])
        self.package.start(self.device)
        return self.package.version()


def summary(error):
    """The beginning of an error in one line; the log has all of it."""
    return f"{type(error).__name__}: {' '.join(str(error).split()) or '(no message)'}"[:300]


def main():
    worker = None
    for line in sys.stdin:
        try:
            worker = worker or Worker(*sys.argv[1:3])
            answer = {"result": worker.answer(json.loads(line))}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": summary(error)}
        sys.stdout.write("\n" + json.dumps(answer) + "\n")  # on a line of its own, whatever the package has printed
        sys.stdout.flush()


if __name__ == "__main__":
    main()
