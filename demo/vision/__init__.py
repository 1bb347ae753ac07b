"""`make demo-vision`: timm's own train.py on a CPU, as a baseline and with ERA, on small images."""
