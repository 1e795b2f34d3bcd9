"""Counts what a reader of the code meets: files, chains of imports, names, comments. A test's tool, not a test.

    python -m tests.repo.structure

docs/reference/architecture.md has a table of what it printed.
"""

import ast
from collections import Counter
from functools import cache
from statistics import median

from tests.support.checkout import ROOT, listed

FOLDERS = ("aggregator", "client", "common", "lab", "server", "shuffler")

Graph = dict[str, set[str]]


@cache
def sources() -> dict[str, str]:
    """Return the text of each module of the package, by its name without `distrust.`.

    Revisions of a schema are left out: Alembic chooses their names, and they never change.
    """
    names = (name for name in listed(*FOLDERS) if name.endswith(".py") and "/migrations/" not in name)
    paths = [name for name in names if (ROOT / name).is_file()]
    return {module(path): (ROOT / path).read_text("utf-8") for path in paths}


def module(path: str) -> str:
    """Return the dotted name of a file."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module."""
    return {name: ast.parse(text) for name, text in sources().items()}


def imports() -> Graph:
    """Return for each module the modules that it imports, also inside functions."""
    known, graph = trees(), {}
    for name, tree in known.items():
        result = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                result |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                result |= {f"{node.module}.{alias.name}" for alias in node.names}
        ours = (dotted.removeprefix("distrust.") for dotted in result if dotted.startswith("distrust."))
        graph[name] = {target for dotted in ours if (target := nearest(dotted, known)) and target != name}
    return graph


def nearest(dotted: str, known: dict[str, ast.Module]) -> str:
    """Return the module that a dotted name lies in; empty for none."""
    while dotted and dotted not in known:
        dotted = dotted.rpartition(".")[0]
    return dotted


def on_cycles(graph: Graph) -> set[str]:
    """Return the modules that import themselves in the end."""
    left = {name: set(others) for name, others in graph.items()}
    while leaves := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in leaves}
    return left.keys() & {one for others in left.values() for one in others}


def longest_chain(graph: Graph, inside: str = "") -> list[str]:
    """Return the longest chain of imports among the modules whose names begin so. Needs a graph without cycles."""

    @cache
    def chain(name: str) -> tuple[str, ...]:
        below = [chain(other) for other in sorted(graph[name]) if other.startswith(inside)]
        return (name, *max(below, key=len, default=()))

    return list(max((chain(name) for name in graph if name.startswith(inside)), key=len))


def mutual_folders(graph: Graph) -> list[tuple[str, str]]:
    """Return the pairs of folders that import each other."""
    edges = {(folder(a), folder(b)) for a, others in graph.items() for b in others if folder(a) != folder(b)}
    return sorted((a, b) for a, b in edges if a < b and (b, a) in edges)


def folder(name: str) -> str:
    """Return the folder that a module lies in."""
    return name if (ROOT / name.replace(".", "/")).is_dir() else name.rpartition(".")[0]


@cache
def figures() -> dict[str, object]:
    """Return each figure by what it counts."""
    graph = imports()
    importers = Counter(other for others in graph.values() for other in others)
    lines = [len(text.splitlines()) for text in sources().values()]
    public = Counter(
        node.name
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    )
    every = [line.strip() for text in sources().values() for line in text.splitlines()]
    return {
        "source files": len(lines),
        "median lines": median(lines),
        "files under 60 lines": sum(1 < count < 60 for count in lines),  # one line is what a package says of itself
        "files over 400 lines": sum(count > 400 for count in lines),
        "modules with exactly one importer": sum(importers[name] == 1 for name in graph),
        "modules on cycles": len(on_cycles(graph)),
        "longest chain of imports": len(longest_chain(graph)),
        "longest chain inside common/dp/mechanisms": len(longest_chain(graph, "common.dp.mechanisms")),
        "pairs of folders that import each other": len(mutual_folders(graph)),
        "public names defined in two or more modules": sum(count > 1 for count in public.values()),
        "constants that two or more modules define": len(repeated_constants()),
        "suppressed unused arguments": sum("noqa" in line and "ARG" in line for line in every),
        "comment lines": sum(line.startswith("#") for line in every),
        "median lines of a function's body": median(bodies()),
        "ninth decile of them": sorted(bodies())[9 * len(bodies()) // 10],
    }


def repeated_constants() -> set[str]:
    """Return the constants and type aliases of one name in two modules that a reader can confuse.

    Either two modules give the name one value, and could share it; or a third module imports one of them. Names that
    only their own modules use, with values of their own, stand beside their use. Type variables belong there.
    """
    defined: dict[str, dict[str, str]] = {}
    for name, tree in trees().items():
        for constant, value in constants(tree):
            defined.setdefault(constant, {})[name] = value
    imported = {name for tree in trees().values() for name in imported_names(tree)}
    return {
        constant
        for constant, values in defined.items()
        if len(values) > 1
        and (len(set(values.values())) < len(values) or any(f"{name}.{constant}" in imported for name in values))
    }


def constants(tree: ast.Module) -> list[tuple[str, str]]:
    """Return the name and the expression of each public constant and type alias of a module."""
    result = []
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = ast.unparse(node.value)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
            result += [(name, value) for name in names if not name.startswith("_") and not value.startswith("TypeVar(")]
    return result


def bound_twice(tree: ast.Module) -> set[str]:
    """Return the names that a module binds twice at its top level, where the later value hides an earlier one.

    A value that is built on the earlier one, such as a longer query, hides nothing.
    """
    seen, twice = set[str](), set[str]()
    for node in tree.body:
        names, used = bindings(node), set[str]()
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            used = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
        twice |= (names & seen) - used
        seen |= names
    return twice


def bindings(node: ast.stmt) -> set[str]:
    """Return the names that a definition, an assignment with a value or an import binds."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        stored = (one for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
        return {row.id for row in stored if isinstance(row.ctx, ast.Store)}
    return set()


def imported_names(tree: ast.Module) -> set[str]:
    """Return what a module imports by name or by a module's attribute, dotted, without `distrust.`."""
    modules, names = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("distrust"):
            for alias in node.names:
                dotted = f"{node.module}.{alias.name}".removeprefix("distrust.")
                modules[alias.asname or alias.name] = dotted
                names.add(dotted)
    return names | {
        f"{modules[node.value.id]}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
    }


@cache
def bodies() -> list[int]:
    """Return the lines of every function's body, without its docstring."""
    result = []
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own = node.body[1:] if ast.get_docstring(node) is not None else node.body
                result.append(own[-1].end_lineno - own[0].lineno + 1 if own else 0)  # type: ignore[operator]
    return result


if __name__ == "__main__":
    for what, value in figures().items():
        print(f"{what:46}{value:>6}")
    print(*longest_chain(imports()), sep=" > ")
    print(mutual_folders(imports()))
