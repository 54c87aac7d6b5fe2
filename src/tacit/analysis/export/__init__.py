"""A trained model as a file of other programs, with what its schema encodes and decodes in it.

A predictor comes in; an ONNX file, a program of PyTorch or weights, which say what they are, go out.
"""
