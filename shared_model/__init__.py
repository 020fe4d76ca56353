"""Shared by both service levels: releases, encoding, engines, deferred work and published scores."""

import sys

# Whoever imports OpenVINO or NNCF gets their own stub of telemetry. The package would tell Google Analytics of each
# conversion of a model, by 36 forks of the process, which cost as much as the conversion.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
