"""Shared by both service levels: releases, encoding, engines, deferred work and published scores."""

import sys

# OpenVINO and NNCF then use their own stubs of telemetry. The package takes the absence of a file in ~ for consent,
# writes that file, and sends 36 messages to Google Analytics for each conversion of a model, each from a fork of the
# process; the forks cost more than the conversion. `NNCF_CI` alone does not keep it from writing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
