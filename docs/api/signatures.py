"""Signatures of equinox modules and other dataclasses, for the pages of the API.

Their fields are their arguments, which is known at run time only. This reads them from the source.
It also finds functions in modules of their name, and refuses a public name without a docstring.
"""

from typing import Any

import griffe


def value_of(field: griffe.Attribute) -> Any:
    """What a field is by default, also if `field(...)` says so. A private name says nothing."""
    value = field.value
    if isinstance(value, griffe.ExprCall) and str(value.function).split(".")[-1] == "field":
        given = {word.name: word.value for word in value.arguments if hasattr(word, "name")}
        value = given.get("default", given.get("default_factory"))
    return "..." if str(value).startswith("_") else value


def is_field(name: str, member: griffe.Object | griffe.Alias) -> bool:
    if not member.is_attribute or name.startswith("_") or "property" in member.labels:
        return False
    return bool(member.annotation) and "ClassVar" not in str(member.annotation)


def fields(cls: griffe.Class) -> dict[str, griffe.Parameter]:
    found = {}
    for base in cls.resolved_bases:
        found |= fields(base) if base.is_class else {}
    for name, member in cls.members.items():
        if is_field(name, member):
            kind = griffe.ParameterKind.positional_or_keyword
            found[name] = griffe.Parameter(name, kind=kind, default=value_of(member))
    return found


def takes_fields(cls: griffe.Class) -> bool:
    """Whether no `__init__` is written, for a class with fields or for those that it extends."""
    written = cls.all_members.get("__init__")
    return bool(fields(cls)) and (written is None or "made of fields" in written.labels)


def is_foreign(member: griffe.Object | griffe.Alias) -> bool:
    return member.is_alias and not str(member.target_path).startswith("jpc.")


def uncovered(member: griffe.Object | griffe.Alias) -> griffe.Object | griffe.Alias:
    """The function, if a name is taken for the module of the same name that it is in."""
    found = member.final_target if member.is_alias else member
    if not (member.is_alias and found.is_module and member.name in found.members):
        return member
    return griffe.Alias(member.name, f"{found.path}.{member.name}", parent=member.parent)


def check_public(module: griffe.Module) -> None:
    """Every public name has a text: a page shows nothing of a name without one."""
    for name, member in list(module.members.items()):
        if not (name.startswith("_") or is_foreign(member)):
            found = uncovered(member)
            module.members[name] = found
            if not found.is_module and not found.docstring:
                raise ValueError(f"{found.path} has no docstring, so its page would be empty.")


class Signatures(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        self.visit(pkg)
        for module in (pkg, pkg["data"], pkg["bench"], pkg["experiments"]):
            check_public(module)

    def visit(self, parent: griffe.Module | griffe.Class) -> None:
        for member in list(parent.members.values()):
            if member.is_alias:
                continue
            if member.is_class and takes_fields(member):
                init = griffe.Function(
                    "__init__", parameters=griffe.Parameters(*fields(member).values())
                )
                init.labels.add("made of fields")
                member.set_member("__init__", init)
            if member.is_module or member.is_class:
                self.visit(member)
