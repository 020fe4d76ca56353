"""Shared by both service levels: releases, encoding, engines, deferred work and published scores."""

import sys

# Before openvino and nncf are imported, which then send no reports: their telemetry takes the absence of a file in ~
# for consent, writes that file, and sends to Google Analytics. `NNCF_CI` alone does not keep it from writing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
