"""How a request shows in traces and logs. Only a sampled one has spans."""
