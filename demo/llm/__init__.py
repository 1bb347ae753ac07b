"""`make demo`: verl's own trainer on a CPU, once as GRPO and once with ERA, from the same seed."""
