"""Reads the worker's sources, which are for Python 3.10 and newer, under Python 3.9.

Three things differ: `X | Y` between types, `dataclass(slots=True)`, and `zip(strict=True)`.
"""

import ast
import importlib.machinery
from typing import Any

LEFT_OUT = {"dataclass": "slots", "zip": "strict"}


class TranslatingLoader(importlib.machinery.SourceFileLoader):
    """Compiles a translated source. The bytecode is cached as usual, under this Python's name."""

    def source_to_code(self, data: Any, path: Any, **keywords: Any) -> Any:  # type: ignore[override]
        return compile(translated(data), path, "exec", dont_inherit=True)


def translated(source: Any) -> ast.Module:
    tree = _Translation().visit(ast.parse(source))
    _import_unions(tree)
    return ast.fix_missing_locations(tree)


class _Translation(ast.NodeTransformer):
    """Turns `X | Y` into a union of types in annotations, if one side is `None`, and between
    classes.
    """

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in LEFT_OUT:
            node.keywords = [k for k in node.keywords if k.arg != LEFT_OUT[name]]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = _union(node.annotation)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = _union(node.annotation)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = _union(node.returns)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        sides = (node.left, node.right)
        classes = all(map(_is_class, sides))
        return _union(node) if classes or any(map(_is_none, sides)) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Handles `Callable[[Any], X | Y]` and the like, even outside of annotations."""
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and _is_type(node.value):
            node.slice = _union(node.slice)
        return node


class _Unions(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.BitOr):
            return node
        both = ast.Tuple([node.left, node.right], ast.Load())
        return ast.copy_location(ast.Subscript(_NAME, both, ast.Load()), node)


_NAME = ast.Name("_gpujob_union", ast.Load())


def _union(node: Any) -> Any:
    return _Unions().visit(node) if node is not None else None


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_class(node: ast.AST) -> bool:
    """Returns whether the node is a class by its name, or a union that was translated already."""
    name = getattr(node, "id", "")
    return (name[:1].isupper() and not name.isupper()) or getattr(node, "value", None) is _NAME


def _is_type(node: ast.AST) -> bool:
    name = getattr(node, "id", getattr(node, "attr", ""))
    return name[:1].isupper() or name in ("dict", "list", "tuple", "set", "frozenset", "type")


def _import_unions(tree: ast.Module) -> None:
    """Inserts the import after the docstring and `from __future__`, which have to come first."""
    first = [at for at, statement in enumerate(tree.body) if not _comes_first(statement)]
    alias = ast.alias(name="Union", asname=_NAME.id)
    at = first[0] if first else len(tree.body)
    tree.body.insert(at, ast.ImportFrom(module="typing", names=[alias], level=0))


def _comes_first(statement: ast.stmt) -> bool:
    docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return docstring or getattr(statement, "module", None) == "__future__"
