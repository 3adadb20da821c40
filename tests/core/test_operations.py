"""What every operation of the package has."""

from __future__ import annotations

import pytest
from support.operations import AnyOperation, held, operations

from mpsfunc.core.operation import operation

OPERATIONS = operations()


def test_operations_are_found_in_modules_tables_and_records() -> None:
    assert {
        *("mpsfunc.pooling.average_rules.pool", "mpsfunc.losses.rules.value", "mpsfunc.image.rules.gather"),
        *("mpsfunc.elementwise.dropout_rules.masks", "mpsfunc.graph.dependency.after"),
    } <= set(OPERATIONS)
    one = operation("one")(lambda x, spec: x)
    assert dict(held("table", {"a": one, "b": [(1, one)]})) == {"table['a']": one, "table['b'][0][1]": one}


@pytest.mark.parametrize("function", OPERATIONS.values(), ids=OPERATIONS)
def test_an_operation_has_its_rules_and_says_what_it_computes(function: AnyOperation) -> None:
    assert function.rules == ("jvp", "vjp", "vmap")
    assert function.__doc__ and function.__doc__.strip()
