"""How a request shows in traces, logs and metrics. Only a sampled one has spans."""
