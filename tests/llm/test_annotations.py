# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What mypy and pyright see of era/, which says by py.typed that it has types."""

import ast

import pytest


def bound_dynamically(tree):
    """Classes that a module takes from an attribute (X = module.X), without an import or a class statement of X."""
    taken, seen = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            seen |= {name.asname or name.name for name in node.names}
        elif isinstance(node, ast.ClassDef):
            seen.add(node.name)
        elif isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Attribute) for one in getattr(node.value, "elts", [node.value])
        ):
            taken |= {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return taken - seen


def annotations(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from filter(
                None, [node.returns, *(one.annotation for one in ast.walk(node.args) if isinstance(one, ast.arg))]
            )


@pytest.mark.parametrize(
    "name", ["log_probs_fused", "log_probs", "language", "discrete", "discrete_activation", "continuous", "trl"]
)
def test_a_type_checker_finds_each_class_in_an_annotation(name, project_root):
    tree = ast.parse((project_root / f"era/{name}.py").read_text())
    named = {one.id for found in annotations(tree) for one in ast.walk(found) if isinstance(one, ast.Name)}
    assert "torch" in named and not named & bound_dynamically(tree)
