"""Shared by both service levels: releases, encoding, engines, deferred work and published scores."""

import sys

# OpenVINO and NNCF then use their own stubs of telemetry. The package would send 36 messages to Google Analytics for
# each conversion of a model, each from a fork of the process; the forks cost more than the conversion.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
