"""Shared by both service levels: releases, encoding, engines, deferred work and published scores."""

import sys

# OpenVINO and NNCF then use their own stubs of telemetry. The package takes the absence of a file in ~ for consent,
# writes that file, and sends 36 messages to Google Analytics for each conversion of a model, each from a fork of the
# process; the forks cost more than the conversion. `NNCF_CI` alone does not keep it from writing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

#: OpenVINO's converter, which takes 15 MB and 0.1 s of each process that imports OpenVINO, and may be missing there.
#: `building/convert.py` alone needs it.
CONVERTER = "openvino.tools.ovc"
sys.modules.setdefault(CONVERTER, None)  # type: ignore[arg-type]
