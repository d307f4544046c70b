"""Local users of Kerberos principals, by Hadoop's rules."""

from __future__ import annotations

import pytest

from replicator.captures.gateways.local_names import LocalNames, NoLocalUser, parse_rules
from replicator.errors import ConfigError

RULES = r"""
RULE:[2:$1@$0](rm@HERE)s/.*/yarn/
RULE:[1:$1@$0](root@HERE)s/.*/nobody/
RULE:[1:$1@$0](.*@THERE)s/@.*/_there/ RULE:[2:$1-$2](dn-.*)s/[.]/_/g/L
RULE:[1:$1](admin\..*)
DEFAULT
"""


def names(rules: str = "", *realms: str) -> LocalNames:
    return LocalNames("HERE", realms or ("HERE",), parse_rules(rules) if rules else ())


@pytest.mark.parametrize(
    ("principal", "user"),
    [
        ("rm/host@HERE", "yarn"),
        ("root@HERE", "nobody"),
        ("alice@THERE", "alice_there"),
        ("dn/A.B.C@HERE", "dn-a_b_c"),
        ("admin.x@HERE", "admin.x"),
        ("alice@HERE", "alice"),
        ("hive/host@HERE", "hive"),
    ],
)
def test_the_first_rule_that_fits_names_the_user(principal: str, user: str) -> None:
    assert names(RULES, "HERE", "THERE").user(principal) == user


@pytest.mark.parametrize(
    ("rules", "principal", "why"),
    [
        ("", "alice@ELSEWHERE", "is not one of"),
        ("RULE:[1:$1]", "alice@ELSEWHERE", "is not one of"),
        (RULES, "rm/host@THERE", "no rule"),
        ("RULE:[1:$1@$0]", "alice@HERE", "not a valid user name"),
        ("RULE:[1:$1@$0](bob@.*)s/@.*//", "alice@HERE", "no rule"),
        ("", "alice/one/two@HERE", "not the principal of a user"),
        ("", r"al\/ice@HERE", "not the principal of a user"),
        ("", "WELLKNOWN/ANONYMOUS@HERE", "not the principal of a user"),
        ("", "alice\n@HERE", "not a valid user name"),
        ("", "älice@HERE", "not a valid user name"),
    ],
)
def test_who_has_no_local_user_is_nobody(rules: str, principal: str, why: str) -> None:
    realms = ("HERE", "THERE") if rules == RULES else ("HERE",)
    with pytest.raises(NoLocalUser, match=why):
        names(rules, *realms).user(principal)


@pytest.mark.parametrize(
    "rules",
    [
        "RULE:[3:$1]",
        "RULE:[1:$2]",
        "RULE:[1:$1](a(b)",
        "RULE:[1:$1](.*)s/(.*)/$1/",
        "RULE:[1:$1]([a-z&&[^b]]*)",
        "RULE:[1:$1](*)",
        "DEFAULT or so",
        " ",
        "RULE:[1:$1]DEFAULT",
    ],
)
def test_a_rule_that_is_not_understood_ends_the_start(rules: str) -> None:
    with pytest.raises(ConfigError, match="auth_to_local"):
        parse_rules(rules)
