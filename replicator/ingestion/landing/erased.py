"""Erased people: their rows do not land, whatever the source still has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from replicator.core.model import Column
from replicator.core.text import quoted_name, scalar_type
from replicator.ingestion.ingestion_request import Asset
from replicator.ingestion.landing.landing_log import Work
from replicator.ingestion.landing.landing_schema import RowsRefused
from replicator.lifecycle.purge.ids import split_ids, value_of
from replicator.lifecycle.purge.matching import form_of, form_of_ids, is_matched


@dataclass(frozen=True)
class Erased:
    """Statistics of the list. ids: on it. strange: those of them that no value of the column can equal."""

    ids: int
    strange: int


def without_erased(session: Any, rows: Any, asset: Asset, columns: Sequence[Column]) -> tuple[Any, Erased]:
    """Returns the rows without erased data subjects, and statistics of the list. Raises RowsRefused if the list or the
    column is not available, or its type cannot be compared by the asset's rules: then nothing may be published."""
    assert asset.erasure_ids and asset.erasure_column
    table, column = split_ids(asset.erasure_ids)
    db, _, name = table.partition(".")
    column_name = asset.erasure_column.lower()
    found = {each.name: each.type for each in columns}.get(column_name)
    if found is None:
        raise RowsRefused(
            f"column {asset.erasure_column}, which identifies the asset's erased data subjects, does not exist",
            hint="land a table that has it, or move the table to an asset without personal data",
        )
    if not session.catalog.tableExists(quoted_name(db, name)):
        raise RowsRefused(f"table {table} of erased data subjects does not exist", hint="check the asset's erasure_ids")
    people = session.table(quoted_name(db, name))
    fields = [field for field in people.schema.fields if field.name.lower() == column.lower()]
    if not fields:
        raise RowsRefused(
            f"{table} has no column {column} of erased data subjects", hint="check the asset's erasure_ids"
        )
    given = value_of(fields[0])
    type_, wanted, own = fields[0].dataType.simpleString(), scalar_type(found), quoted_name(column_name)
    pairs = [comparable_ids(given, type_, wanted, own)]
    if rules := tuple(rule for rule in asset.erasure_match or () if rule != "exact"):
        pairs.append(_by_rules(given, type_, wanted, own, rules, asset))
    forms = [f"form{number}" for number in range(len(pairs))]
    made = [f"{id} AS {form}" for (id, _), form in zip(pairs, forms, strict=True)]
    ids = _selected(people, [f"{given} AS given", *made], asset).where("given IS NOT NULL").distinct()
    strange_ones = " AND ".join(f"{form} IS NULL" for form in forms)
    count, strange = ids.selectExpr("count(*)", f"count_if({strange_ones})").first()
    kept = rows
    for (_, value), form in zip(pairs, forms, strict=True):  # rules add matches to those without rules
        known = ids.where(f"{form} IS NOT NULL").selectExpr(f"{form} AS `erased id`").distinct()
        kept = kept.selectExpr("*", f"{value} AS `erased id`").join(known, ["erased id"], "left_anti")
        kept = kept.select(*map(quoted_name, rows.columns))
    return kept, Erased(int(count), int(strange))


def _by_rules(given: str, type_: str, wanted: str, own: str, rules: tuple[str, ...], asset: Asset) -> tuple[str, str]:
    """Returns SQL as `comparable_ids`, by the asset's rules. Raises RowsRefused for types that rules cannot compare."""
    for each in (type_, wanted):
        if not is_matched(each):
            told = f"erasure_match compares texts and numbers, and ids or {asset.erasure_column} are of type {each}"
            raise RowsRefused(told, hint="change the asset: rules are for texts and numbers")
    if bool(_NUMBER.fullmatch(type_)) != bool(_NUMBER.fullmatch(wanted)):
        rules = (*rules, "numeric")
    return form_of_ids(type_, wanted, rules, given), form_of(own, wanted, rules)


def _selected(people: Any, columns: Sequence[str], asset: Asset) -> Any:
    """Selects the forms of the ids. Raises RowsRefused if this Spark has no functions for the asset's rules."""
    try:
        return people.selectExpr(*columns)
    except Exception as error:
        if not asset.erasure_match or "UNRESOLVED_ROUTINE" not in str(error):
            raise
        told = f"erasure_match {', '.join(asset.erasure_match)} needs Spark 4 or newer"
        raise RowsRefused(told, hint="use a newer Spark, or the rule exact") from error


def refuse_empty_list(work: Work, known: Erased) -> None:
    if not known.ids and work.remembered.get("erasure_ids"):
        raise RowsRefused(
            f"{work.asset.erasure_ids} had {work.remembered['erasure_ids']} erased data subjects, and has none now",
            hint="an empty list is usually a failed export; erased data subjects would be restored",
        )


_NUMBER = re.compile(r"tinyint|smallint|int|bigint|float|double|decimal.*")


def comparable_ids(given: str, type_: str, wanted: str, own: str) -> tuple[str, str]:
    """Returns SQL for an id of the list (NULL: no value of the column equals it), and for the column's values, that are
    equal where the ids are: a number also if either is a text, such as 7.00 and '7'."""
    if _NUMBER.fullmatch(type_) and wanted == "string":
        return _number_text(given, type_), _number_text(own, wanted)
    if _NUMBER.fullmatch(wanted) and type_ == "string":
        return f"try_cast({_number_text(given, type_)} AS {wanted})", own
    made = f"try_cast({given} AS {wanted})"
    numbers = _NUMBER.fullmatch(type_) and _NUMBER.fullmatch(wanted)
    return (f"CASE WHEN {made} = {given} THEN {made} END" if numbers else made), own


def _number_text(value: str, type_: str) -> str:
    """Returns SQL for a value as text; numbers without needless zeros, blanks and signs."""
    text = f"CAST({value} AS string)"
    if type_ in ("float", "double"):  # 1.0E7 is 10000000
        whole = f"try_cast({value} AS bigint)"
        text = f"CASE WHEN {value} = {whole} THEN CAST({whole} AS string) ELSE {text} END"
    plain = f"trim({text})"
    for pattern, by in ((r"[+](?=[0-9])", ""), (r"(-?)0+(?=[0-9])", "$1")):
        plain = f"regexp_replace({plain}, '^{pattern}', '{by}')"
    for pattern in ("[.]0*$", "(?<=[.][0-9]{0,40}[1-9])0+$"):
        plain = f"regexp_replace({plain}, '{pattern}', '')"
    return f"CASE WHEN trim({text}) RLIKE '^[+-]?[0-9]+([.][0-9]*)?$' THEN {plain} ELSE {text} END"
