"""Demos on a CPU: llm (verl), trl, vision (timm) and control (FastTD3). `runner` is what they share."""
