"""A model as graphs of ONNX, and onnxruntime as an engine that checks them."""
