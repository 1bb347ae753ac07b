"""`make demo-control`: FastTD3's own train.py on a CPU, as FastTD3 and as FastSAC-ERA, on a Gymnasium task."""
