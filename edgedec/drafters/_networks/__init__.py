"""Dense networks of draft heads: ONNX graphs, opened once and shared by all sessions."""
