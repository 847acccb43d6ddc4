"""Signatures of equinox modules and other dataclasses, for the pages of the API.

Their fields are their arguments, which is known at run time only. This reads them from the source.
"""

from typing import Any

import griffe


def value_of(field: griffe.Attribute) -> Any:
    """What a field is by default, also if `field(...)` says so."""
    value = field.value
    if not isinstance(value, griffe.ExprCall):
        return value
    given = {word.name: word.value for word in value.arguments if hasattr(word, "name")}
    known = str(value.function).split(".")[-1] == "field"
    return given.get("default", given.get("default_factory")) if known else value


def fields(cls: griffe.Class) -> dict[str, griffe.Parameter]:
    found = {}
    for base in cls.resolved_bases:
        found |= fields(base) if base.is_class else {}
    for name, member in cls.members.items():
        if member.is_attribute and member.annotation and "ClassVar" not in str(member.annotation):
            kind = griffe.ParameterKind.positional_or_keyword
            found[name] = griffe.Parameter(name, kind=kind, default=value_of(member))
    return found


class Signatures(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        self.visit(pkg)

    def visit(self, parent: griffe.Module | griffe.Class) -> None:
        for member in list(parent.members.values()):
            if member.is_alias:
                continue
            if member.is_class and "__init__" not in member.all_members and fields(member):
                arguments = griffe.Parameters(*fields(member).values())
                member.set_member("__init__", griffe.Function("__init__", parameters=arguments))
            if member.is_module or member.is_class:
                self.visit(member)
