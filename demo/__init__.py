"""Three demos on a CPU: llm (verl), vision (timm) and control (FastTD3). `runner` is what they share."""
