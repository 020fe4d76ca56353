"""The HTTP interface: JSON in and out, answered by the handlers of the gRPC methods, so that both have one path.

`routes` lists what is offered; `application` answers; `json_messages` and `open_inference` convert; `listener` owns the
port.
"""
