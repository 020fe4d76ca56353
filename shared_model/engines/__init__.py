"""Code that runs a variant. Frameworks (openvino, torch) are imported only in the modules of this folder."""
