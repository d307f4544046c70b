"""Google Cloud Storage and Azure that do not answer, or refuse: errors that say what to do."""

from __future__ import annotations

import uuid

import pytest
from object_servers import ACCOUNT, KEY, environment
from s3_proxy import counting

from cmroot.errors import NotWritable, StorageUnreachable
from cmroot.store.place import Place
from cmroot.store.spelling import naming

NOBODY = "http://127.0.0.1:1"


@pytest.mark.azure
def test_azure_refuses_a_wrong_key(azure: str) -> None:
    bucket = f"of-nobody-{uuid.uuid4().hex[:8]}"
    wrong = f"AccountName={ACCOUNT};AccountKey={KEY[:-4]}AA==;BlobEndpoint={azure};DefaultEndpointsProtocol=http;"
    with environment({"AZURE_STORAGE_CONNECTION_STRING": wrong}), pytest.raises(NotWritable) as refused:
        Place(f"abfss://{bucket}/t/f").read_bytes()
    assert bucket in refused.value.message and refused.value.hint


@pytest.mark.azure
def test_azure_that_does_not_answer_is_away(azure: str) -> None:
    """By its client without its retries, which take a minute and a half."""
    from azure.storage.blob import BlobServiceClient

    client = BlobServiceClient(f"{NOBODY}/{ACCOUNT}", credential=KEY, retry_total=0)
    with pytest.raises(StorageUnreachable) as away, naming("abfss://c/f"):
        client.get_blob_client("c", "f").get_blob_properties()
    assert away.value.message.startswith("abfss://c/f: ") and away.value.hint


@pytest.mark.gcs
def test_gcs_that_does_not_answer_is_away_and_what_it_forbids_is_said(
    gcs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its client without its retries, which take half a minute."""
    monkeypatch.setattr("gcsfs.retry.is_retriable", lambda error: False)
    with counting(gcs) as proxy, environment({"STORAGE_EMULATOR_HOST": proxy.url}):
        place = Place(f"gs://of-nobody-{uuid.uuid4().hex[:8]}/t/f")
        proxy.forbids = lambda path: True
        with pytest.raises(NotWritable, match="Forbidden"):
            place.read_bytes()
    with environment({"STORAGE_EMULATOR_HOST": NOBODY}), pytest.raises(StorageUnreachable) as away:
        place.read_bytes()
    assert away.value.message.startswith(str(place)) and away.value.hint
