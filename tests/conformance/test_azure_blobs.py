"""What adlfs gets wrong, on a server of Azure's blobs."""

from __future__ import annotations

import uuid

import pytest
from object_servers import ACCOUNT

from cmroot.errors import UnknownPlace
from cmroot.store.listing import list_tree
from cmroot.store.place import Place, remote_store

pytestmark = pytest.mark.azure


@pytest.fixture
def top(azure_container: str) -> Place:
    return Place(azure_container) / uuid.uuid4().hex


@pytest.mark.parametrize("name", ["p=1#", "p=1?", "p=\t1", "p=1?versionid=1#"])
def test_a_directory_whose_name_no_url_could_have_is_removed_alone(top: Place, name: str) -> None:
    for each in ("p=1", name):
        (top / each / "f").write_bytes(each.encode())
    assert (top / name / "f").read_bytes() == name.encode()
    (top / name).remove_tree()
    assert top.find() == ["p=1/f"]


def test_a_blob_with_others_below_its_name_hides_none(top: Place) -> None:
    (top / "t").write_bytes(b"1")
    (top / "t/p=1/f").write_bytes(b"12")
    (top / "t2").write_bytes(b"")
    assert top.find() == ["t", "t/p=1/f", "t2"]
    assert sorted(remote_store(str(top)).tree(str(top / "t"))) == [
        remote_store(str(top)).key(str(top / name)) for name in ("t", "t/p=1/f")
    ]
    assert [(file.path_relative, file.size) for file in list_tree(str(top / "t")).files] == [("p=1/f", 2)]


@pytest.mark.parametrize(
    "spelled",
    [
        f"abfs://cmroot-test@{ACCOUNT}.dfs.core.windows.net",
        f"abfss://cmroot-test@{ACCOUNT}.blob.core.windows.net",
        "abfss://cmroot-test",
        "az://cmroot-test",
    ],
)
def test_each_spelling_names_the_same_blobs(top: Place, spelled: str) -> None:
    (top / "a/b").write_bytes(b"1")
    other = Place(spelled) / top.name
    assert (other.find(), (other / "a/b").read_bytes()) == (["a/b"], b"1")


def test_a_place_in_another_account_than_the_environment_names_is_refused(azure_container: str) -> None:
    """adlfs would read and write the environment's account: source and target might be one."""
    with pytest.raises(UnknownPlace, match=f"is for account {ACCOUNT}") as refused:
        Place("abfss://cmroot-test@elsewhere.dfs.core.windows.net/t").exists()
    assert "AZURE_STORAGE_ACCOUNT_KEY" in refused.value.hint
