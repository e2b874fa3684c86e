"""What every runtime shares: rows, calls, outputs, capabilities, the registry."""
