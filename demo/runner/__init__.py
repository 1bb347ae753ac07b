"""What the three demos and the smoke runs share."""
