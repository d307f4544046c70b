"""Database names in the SQL of views: which of them are replaced, and that nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.core.model import Table
from replicator.errors import FormatError
from replicator.replay.server_rules import rename_databases, why_no_view

NAMES = {"sales": "west", "crm": "crm"}
# `§` stands before each name that is to be replaced
TEXTS = [
    "SELECT * FROM §sales.t",
    "SELECT `t`.`a` FROM `§sales`.`t` WHERE `t`.`d` > '2020-01-01' DISTRIBUTE BY a SORT BY b",
    "select a\r\n\tfrom §SALES . t , §Sales.`ü 🦆` x",
    "SELECT /* sales.t */ 'sales.t', \"sales.t\", 'it''s sales.t', 'a\\'sales.t' FROM §sales.t -- from sales.t\n",
    "SELECT '🦆', a FROM §sales.t",
    "FROM §sales.t SELECT a",
    # a common table expression, an alias or a subquery of the name
    "WITH sales AS (SELECT a FROM §sales.t) SELECT sales.a FROM sales JOIN §sales.u x ON x.a = sales.a",
    "WITH a AS (SELECT 1), b (x) AS (FROM §sales.t SELECT y) SELECT * FROM b",
    "SELECT sales.a, sales.b FROM crm.p sales",
    "SELECT sales.a FROM (SELECT a FROM §sales.t) sales WHERE sales.a IN (SELECT a FROM §sales.u)",
    "SELECT sales.address.city FROM crm.p sales",
    "SELECT a.sales.b, a.b.sales FROM §sales.t a",
    "SELECT * FROM VALUES (1) AS sales(a)",
    # FROM that is not the one of a query
    "SELECT EXTRACT(YEAR FROM sales.ts) FROM §sales.sales",
    "SELECT TRIM(BOTH 'x' FROM sales.a), SUBSTRING(sales.a FROM 2) FROM crm.p sales",
    "SELECT 1 FROM §sales.sales WHERE sales.a IS DISTINCT FROM sales.b",
    # columns by the whole name of their table
    "SELECT §sales.t.a, §sales.t.* FROM §sales.t WHERE EXISTS (SELECT 1 FROM §sales.u WHERE u.a = §sales.t.a)",
    "SELECT spark_catalog.§sales.t.b FROM spark_catalog.§sales.t",
    "SELECT `§sales`.`t`.`s`.`x` FROM `§sales` . `t`",
    # functions, and LATERAL VIEW
    "SELECT §sales.f(sales.a), spark_catalog.§sales.g(1).h, transform(b, x -> §sales.f(x)) FROM crm.p sales",
    "SELECT CASE a WHEN 1 THEN §sales.f(1) ELSE §sales.g() END FROM §sales.t",
    "SELECT x FROM crm.p sales LATERAL VIEW explode(sales.items) e AS x",
    "SELECT x FROM §sales.t t LATERAL VIEW OUTER §sales.f(t.a) sales AS x LATERAL VIEW posexplode(sales.x) p AS i, y",
    "SELECT * FROM §sales.f(1), LATERAL explode(array(1)) AS x(y)",
    # other shapes of queries
    "SELECT a FROM §sales.t UNION ALL (SELECT a FROM §sales.u MINUS SELECT a FROM §sales.v)",
    "SELECT 1 FROM §sales.t x LEFT SEMI JOIN §sales.u y ON (x.a = y.a) CROSS JOIN (§sales.v JOIN §sales.w USING (a))",
    "SELECT TRANSFORM (a) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' USING 'sales.x' AS (c string) FROM §sales.t",
    "SELECT * FROM §sales.t TABLESAMPLE(BUCKET 1 OUT OF 4 ON rand()) s, §sales.u VERSION AS OF 3",
    "SELECT /*+ BROADCAST(sales.t) */ sum(a) OVER w FROM §sales.t WINDOW w AS (PARTITION BY b)",
    "SELECT * FROM §sales.t PIVOT (sum(a) FOR b IN (1, 2)) WHERE m['sales.k'] RLIKE 'x' AND c <=> d",
    "SELECT * FROM §sales.t.snapshots",
    "SELECT a FROM other.sales.t, sales",
    "SELECT '${hiveconf:sales}', a AS `sales.b` FROM §sales.t",
]


@pytest.mark.parametrize("text", TEXTS)
def test_exactly_the_names_of_databases_are_replaced(text: str) -> None:
    before, after = text.replace("§", ""), text
    for name in ("sales", "SALES", "Sales"):
        after = after.replace(f"§{name}", "west")
    assert rename_databases(before, NAMES) == after
    assert rename_databases(after, {"west": "sales"}) == after.replace("west", "sales")


def test_two_names_may_be_exchanged() -> None:
    assert rename_databases("SELECT * FROM a.t, b.t", {"a": "b", "b": "a"}) == "SELECT * FROM b.t, a.t"


UNREADABLE = ["SELECT a:sales.b FROM sales.t", "SELECT FROM WHERE sales.", "SHOW TABLES IN sales", "'sales"]


@pytest.mark.parametrize("text", UNREADABLE)
def test_sql_that_is_not_understood_is_refused_where_it_may_name_a_renamed_database(text: str) -> None:
    with pytest.raises(FormatError, match="sales"):
        rename_databases(text, NAMES)
    assert "not understood" in why_no_view(Table(db="d", name="v", view_original="SELECT 1", view_expanded=text), NAMES)
    assert rename_databases(text, {"sales": "sales"}) == text
    assert rename_databases(text, {"sale": "west"}) == text
    assert why_no_view(Table(db="d", name="v", view_expanded="SELECT 1"), NAMES) == ""


@given(st.text(st.sampled_from("sales.t `'\"/*-+(),\\\n§FROMJOINSELECT1ü")))
def test_no_text_is_changed_elsewhere(text: str) -> None:
    try:
        found = rename_databases(f"SELECT * FROM sales.t x {text}", NAMES)
    except FormatError:
        return
    assert found is not None
    assert found.replace("west", "sales") == f"SELECT * FROM sales.t x {text}"
