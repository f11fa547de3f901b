"""A worker whose driver crashes, hangs, refuses or compiles, as the name of the module says."""

import json
import os
import signal
import sys
import time

CAPABILITIES = json.loads(os.environ["CAPABILITIES"])
print(json.dumps({"name": "a device", "driver": "a driver 1.0", "capabilities": CAPABILITIES}), flush=True)
for line in sys.stdin:
    name = json.loads(line)["name"]
    if "crash" in name:
        print("nir_validate: assertion failed", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if "hang" in name:
        time.sleep(60)
    if "refuse" in name:
        print(json.dumps({"error": "Vulkan: cannot compile"}), flush=True)
        continue
    statistics = {"VGPRs": 7, "Spilled VGPRs": 1, "Spilled SGPRs": 0, "Instructions": 3}
    print(json.dumps({"seconds": 0.25, "statistics": statistics, "code": "s_endpgm"}), flush=True)
