raise ImportError("torch.py from a user's PYTHONPATH")
