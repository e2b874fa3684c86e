"""Draft trees: grown, merged by common prefix, calibrated."""
