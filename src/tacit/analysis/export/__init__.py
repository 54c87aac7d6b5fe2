"""A trained model as a file for other programs: a run folder comes in, and the bytes go out.

An ONNX file and a program of PyTorch have the schema's encoding and decoding in them; each says
what it is.
"""

from tacit.analysis.export.programs import ENDINGS, exported

__all__ = ["ENDINGS", "exported"]
