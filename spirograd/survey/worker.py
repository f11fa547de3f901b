"""A process that compiles modules by the Vulkan driver that its environment selects; `vulkan` is the other end.

Messages are lines of JSON. The first one tells about the device: its ``name``, ``driver`` and ``capabilities``, or the ``error``. Then each
request with a ``module`` and a ``name`` has an answer: ``seconds``, ``statistics`` and ``code`` of the pipeline, or the ``error``. If
``listings`` is true in the request, the answer has all listings, too; ``subgroup_size`` in it is as of `Pipelines.create`.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import TextIO

from spirograd.base.errors import SpirogradError
from spirograd.base.records import fields
from spirograd.runtime.devices.vulkan.features import Features, query
from spirograd.runtime.devices.vulkan.inspection import Inspector, machine_code
from spirograd.runtime.devices.vulkan.instance import choose, take_instance


def main() -> None:
    """Answer requests until there are no more."""
    # Drivers write warnings to the standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        instance = take_instance(validation=False)
        features = query(choose(instance), instance)
        inspector = Inspector(features)
    except SpirogradError as error:
        _send(answers, {"error": str(error)})
        return
    _send(answers, _device(features))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            inspection = inspector.inspect(base64.b64decode(request["module"]), request["name"], request.get("subgroup_size", 0))
        except SpirogradError as error:
            _send(answers, {"error": str(error)})
            continue
        code = machine_code(inspection.listings)
        text = "" if code is None else inspection.listings[code]
        listings = {"listings": inspection.listings} if request.get("listings") else {}
        _send(answers, {"seconds": inspection.seconds, "statistics": inspection.statistics, "code": text, **listings})
    # The driver is not asked to tidy up: a null device may fail at it.
    answers.close()
    os._exit(0)


def _device(features: Features) -> dict[str, object]:
    capabilities = {f.name: getattr(features.caps, f.name) for f in fields(features.caps)}
    return {"name": features.info.name, "driver": features.info.driver, "capabilities": capabilities}


def _send(stream: TextIO, message: dict[str, object]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
