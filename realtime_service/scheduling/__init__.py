"""One scheduler per device. All of it is pure: no clock, no engine, no gRPC; `execution.device` drives it."""
