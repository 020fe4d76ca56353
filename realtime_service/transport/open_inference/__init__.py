"""The Open Inference Protocol, version 2, of tritonclient, KServe and others, on the same port.

`tensors` converts tensors, `requests` and `responses` the messages that contain them; `models` describes the served
models, `servicer` answers.
"""
