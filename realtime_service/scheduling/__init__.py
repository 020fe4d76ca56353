"""One scheduler per device. `scheduler` and `profile` are pure: no clock, no engine, no gRPC; `device` drives them."""
