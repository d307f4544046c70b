"""The diagnosis of a configuration, right or wrong: each value with its source, no secret."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from leaks import search

import replicator
from replicator.cli.main import cli, run
from replicator.core.config import read_config
from replicator.core.logging import LogConfig
from replicator.errors import Refused
from replicator.service.diagnosis_sources import OVERRIDDEN, Mask, environment, is_secret_name, secrets, settings

SECRETS = {
    "password": "hunter2/of+prod",
    "url": "p%40ss-of-the-url",
    "spark": "s3a-secret-of-spark",
    "webhook": "T00000000-webhook-path",
    "argument": "argument-of-a-command",
    "key": "line-of-the-key-file",
    "environment": "session-token-of-aws",
}

TEXT = """
[metastores.prod]
uri = "thrift://a:9083"
auth = "plain"
user = "me"
password = "file:{here}/password"

[metastores]
standby = {{ uri = "thrift://b:9083" }}

[defaults]
jobs = 3

[spark]
executor.memory = "4g"
hadoop.fs.s3a.secret.key = "{spark}"
executor.extraJavaOptions = "-Dmy.password={spark} -Xmx1g"

[service]
store = "postgresql://replicator:{url}@db/replicator"

[dumps]
key_file = "{here}/keys"

[alerts.webhooks.chat]
url = "https://chat.example.com/services/{webhook}"

[alerts.commands.pager]
command = ["/usr/bin/pager", "--key", "{argument}"]

[ingestion.notify]
failures = ["webhooks.chat", "commands.pager"]

[ingestion.notify.webhooks.chat]
url = "https://chat.example.com/hooks/{webhook}-2"
secret = "file:{here}/password"

[ingestion.notify.commands.pager]
command = ["/usr/bin/pager", "--key", "{argument}"]

[policies.west]
source = "prod"
target = "standby"
databases = "sales"
cmroot = "{here}/a/.cmroot"
target_cmroot = "{here}/b/.cmroot"
dumps = "{here}/dumps"
rename_db = {{ sales = "copy" }}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "password").write_text(SECRETS["password"])
    (tmp_path / "keys").write_text(SECRETS["key"] + "\n")
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRETS["environment"])
    file = tmp_path / "replicator.toml"
    file.write_text(TEXT.format(here=tmp_path, **SECRETS))
    return file


def test_each_value_has_its_source_and_no_secret_is_shown(file: Path) -> None:
    config = read_config(file)
    mask = Mask(secrets(config, {"MY_TOKEN": "variable-of-mine"}))
    found = {each.key: each for each in settings(config, file, mask)}
    lines = file.read_text().splitlines()
    for key, line in {
        "defaults.jobs": "jobs = 3",
        "spark.executor.memory": 'executor.memory = "4g"',
        "metastores.standby.uri": 'standby = { uri = "thrift://b:9083" }',
        "policies.west.rename_db.sales": 'rename_db = { sales = "copy" }',
    }.items():
        assert found[key].source == f"{file}:{lines.index(line) + 1}", key
    assert found["policies.west.publish"].value == "mirror" and found["policies.west.publish"].source == "default"
    assert found["guard.min_depth"].source == "default"
    assert found["metastores.prod.password"].value == f"file:{file.parent}/password"
    assert found["service.store"].value == "postgresql://***@db/replicator"
    assert found["alerts.webhooks.chat.url"].value == "https://chat.example.com/***"
    assert found["alerts.commands.pager.command"].value == ["/usr/bin/pager", "***", "***"]
    assert found["ingestion.notify.webhooks.chat.url"].value == "https://chat.example.com/***"
    assert found["ingestion.notify.commands.pager.command"].value == ["/usr/bin/pager", "***", "***"]
    assert "ingestion.replicating" not in found and found["ingestion.slots"].value == 4
    assert SECRETS["webhook"] not in mask.text(f"POST /hooks/{SECRETS['webhook']}-2 failed")
    assert is_secret_name("spark.hadoop.fs.azure.account.key.myuser") and not is_secret_name("ssl.key.password.file")
    assert found["spark.executor.extraJavaOptions"].value == "-Dmy.password=*** -Xmx1g"
    shown = repr(found)
    assert not [name for name, secret in SECRETS.items() if name != "environment" and secret in shown]
    for name, secret in {
        "password": SECRETS["password"],
        "key": SECRETS["key"],
        "variable": "variable-of-mine",
    }.items():
        assert secret not in mask.text(f"a log says {secret}!"), name
    given = {each.key: each for each in settings(config, file, mask, {"REPLICATOR_LOG_LEVEL": "debug"})}
    assert (given["log.level"].value, given["log.level"].source) == ("debug", "env:REPLICATOR_LOG_LEVEL")
    assert (found["log.level"].value, found["log.level"].source) == (None, "default")
    assert {key for key in found if found[key] != given[key]} == {"log.level"}
    assert environment(mask, {"AWS_PROFILE": "x", "REPLICATOR_X_TOKEN": "t0ken", "JAVA_HOME": "/j", "HOME": "/h"}) == {
        "AWS_PROFILE": "(set)",
        "REPLICATOR_X_TOKEN": "***",
        "JAVA_HOME": "/j",
    }


@pytest.mark.parametrize(
    "text, masked",
    [
        ("see https://me:pw123@host/x?sig=abc&y=1", "see https://***@host/x?sig=***&y=1"),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: *** ***"),
        ('{"password": "x y", "a": 1}', '{"password": "***", "a": 1}'),
        ("fs.azure.account.key.store=abc==", "fs.azure.account.key.store=***"),
        ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----", "***"),
        ("password: cannot be read from env:NONE", "password: *** be read from env:NONE"),
        ("no secret here, 12 keys", "no secret here, 12 keys"),
        ("run --api-token abc --json", "run --api-token *** --json"),
        ("hive2://me:pa/ss@host/db", "hive2://***@host/db"),
        ("thrift://a:9083, s3://bucket/a@b", "thrift://a:9083, s3://bucket/a@b"),
        ("jdbc:oracle:thin:scott/tiger@//h:1521/s", "jdbc:oracle:thin:***@//h:1521/s"),
        ("sent rpl_0123456789abcdefghij-_ to it", "sent *** to it"),
        ("a eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl b", "a *** b"),
        ("AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "***:***"),
        ("key AKIAIOSFODNN7EXAMPLE secret wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY end", "key *** secret *** end"),
        ("<name>a.Password</name>\n  <value>pw1</value>", "<name>a.Password</name>\n  <value>***</value>"),
        ("<value>pw2</value><name>a.secret.key</name>", "<value>***</value><name>a.secret.key</name>"),
        ('<property name="db.password" value="pw3"/>', '<property name="db.password" value="***"/>'),
        ("mysql -h db -u me -pS3cret shop", "mysql -h db -u me -p*** shop"),
        ("sshpass -p S3cret ssh h", "sshpass -p *** ssh h"),
    ],
)
def test_secrets_are_masked_where_tools_write_them(text: str, masked: str) -> None:
    assert Mask().text(text) == masked


def test_variables_that_give_a_key_of_the_log_are_those_of_the_command_line() -> None:
    names = {(each.name or "").replace("log_", ""): f"REPLICATOR_{(each.name or '').upper()}" for each in cli.params}
    assert {key.removeprefix("log."): name for key, name in OVERRIDDEN.items()}.items() <= names.items()
    assert {key.removeprefix("log.") for key in OVERRIDDEN} == set(LogConfig.__struct_fields__)


def test_a_wrong_configuration_is_diagnosed(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file.write_text(file.read_text().replace("password =", "pasword = 'typed-here'\npassword ="))
    out, code = tmp_path / "case.tar.gz", run(["--config", str(file), "diagnose", "--out", f"{tmp_path}/case.tar.gz"])
    said = capsys.readouterr().out
    assert code == 3 and "configuration: ConfigError" in said and "pasword" in said
    with tarfile.open(out) as archive:
        archive.extractall(tmp_path / "case", filter="data")
    parts = tmp_path / "case" / "case"
    missing = json.loads((parts / "missing.json").read_text())
    assert "pasword" in missing[0]["error"] and missing[0]["part"] == "configuration"
    rows = {each["key"]: each["value"] for each in json.loads((parts / "configuration.json").read_text())}
    assert rows["metastores.prod.pasword"] == "***" and rows["defaults.jobs"] == 3
    assert "pyspark" in json.loads((parts / "versions.json").read_text())["packages"]
    unread = {"password", "key"}  # nothing has read the files that a wrong configuration names
    known = {name: each.encode() for name, each in SECRETS.items() if name not in unread} | {"typed": b"typed-here"}
    search(parts, known)
    assert out.stat().st_mode & 0o77 == 0
    before = out.read_bytes()
    with pytest.raises(Refused, match="already exists"):
        replicator.diagnose(out=str(out), config=file)
    assert out.read_bytes() == before and not list(tmp_path.glob(".case*"))
    replicator.diagnose(out=str(out), config=file, overwrite=True)
    assert out.read_bytes() != before
