"""The Open Inference Protocol, version 2, on the same port: what tritonclient, KServe and their like speak.

`tensors` turns bytes into texts and numbers into bytes, `requests` and `replies` the messages around them, `catalogue`
says what there is to ask, `servicer` answers.
"""
