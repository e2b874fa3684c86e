"""`python -m edgedec.testing.new FAMILY NAME`: the skeleton of a plug-in and a test that fails until it does something."""
