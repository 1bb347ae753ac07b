raise ImportError("argparse.py from a user's PYTHONPATH")
