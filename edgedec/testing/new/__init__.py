"""`python -m edgedec.testing.new FAMILY NAME`: a plug-in's skeleton and a test that fails until it does something."""
