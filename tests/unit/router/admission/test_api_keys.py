"""The file of API keys: what it may hold, and that a change takes effect without a restart."""

import os
from pathlib import Path

import pytest
import yaml

from router.admission.api_keys import DEFAULT_NAME, FIRST_PRIORITY, ApiKeys, hash_of, new_key, read_keys
from skim_common.errors import SkimError


def write(file: Path, *entries: dict) -> Path:
    file.write_text(yaml.safe_dump({"keys": list(entries)}))
    return file


def entry(name: str, *keys: str, **limits) -> dict:
    return {"name": name, "sha256": [hash_of(key) for key in keys], **limits}


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "keys.yaml", entry("a", "key-a"), entry("b", "key-b", "key-b2", isolate_cache=True))


def name_of(keys: ApiKeys, key: str) -> str | None:
    return found.name if (found := keys.find(key)) else None


def test_a_key_is_found_by_its_hash(file):
    keys = ApiKeys(str(file), ["plain"])
    found = [name_of(keys, key) for key in ("key-a", "key-b", "key-b2", "plain", "key-c", "", hash_of("key-a"))]
    assert found == ["a", "b", "b", DEFAULT_NAME, None, None, None]
    assert keys.find("key-b").isolate_cache


def test_a_key_of_the_file_cannot_share_the_name_of_the_plain_keys(file, caplog):
    """They would share limits, cache and explain view."""
    keys = ApiKeys(str(file), ["plain"])
    write(file, entry(DEFAULT_NAME, "key-a"))
    assert (name_of(keys, "key-a"), name_of(keys, "plain")) == ("a", DEFAULT_NAME)
    assert "the keys stay as they were: router.api_keys_file: the name default is that of" in caplog.text
    with pytest.raises(SkimError, match="rename the key in the file"):
        ApiKeys(str(file), ["plain"])
    assert name_of(ApiKeys(str(file)), "key-a") == DEFAULT_NAME


@pytest.mark.parametrize(("with_file", "least"), [(True, 0), (False, FIRST_PRIORITY)])
def test_keys_overtake_no_other_key(file, with_file, least):
    keys = ApiKeys(str(file) if with_file else None, ["plain"])
    assert keys.find("plain").min_priority == least
    assert not with_file or keys.find("key-a").min_priority == 0


def test_a_change_of_the_file_holds_for_the_next_request(file):
    keys = ApiKeys(str(file))
    write(file, entry("a", "key-a", "key-a2"))
    assert [name_of(keys, key) for key in ("key-a", "key-a2", "key-b")] == ["a", "a", None]
    write(file)
    assert (name_of(keys, "key-a"), keys.wanted) == (None, True)


def test_the_link_of_a_mounted_secret_is_followed(tmp_path):
    """Kubernetes swaps the link `..data` to a new folder."""
    for version, key in ("1", "old"), ("2", "new"):
        (tmp_path / version).mkdir()
        write(tmp_path / version / "keys.yaml", entry("a", key))
        os.utime(tmp_path / version / "keys.yaml", (0, 0))
    link = tmp_path / "data"
    link.symlink_to("1")
    keys = ApiKeys(str(link / "keys.yaml"))
    assert (name_of(keys, "old"), name_of(keys, "new")) == ("a", None)
    (tmp_path / "next").symlink_to("2")
    os.replace(tmp_path / "next", link)
    assert (name_of(keys, "old"), name_of(keys, "new")) == (None, "a")


@pytest.mark.parametrize("text", ["{", "keys: 3", "keys: [{name: a}]", "\x00"])
def test_a_broken_change_leaves_the_keys_as_they_are(file, caplog, text):
    keys = ApiKeys(str(file))
    file.write_text(text)
    assert (name_of(keys, "key-a"), name_of(keys, "key-a")) == ("a", "a")
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said.startswith("the keys stay as they were: router.api_keys_file")
    assert str(file) not in said


def test_a_lost_file_leaves_the_keys_as_they_are(file):
    keys = ApiKeys(str(file))
    text = file.read_text()
    file.unlink()
    assert name_of(keys, "key-a") == "a"
    file.write_text(text.replace("name: a", "name: c"))
    assert name_of(keys, "key-a") == "c"


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([{"name": "a", "sha256": ["sk-a-secret"]}], "keys.0.sha256.0: String should match"),
        ([{"name": "a", "sha256": []}], "at least 1 item"),
        ([{"name": "a b", "sha256": ["0" * 64]}], "keys.0.name: String should match"),
        ([entry("a", "x"), entry("a", "y")], "two keys have the same name"),
        ([entry("a", "x"), entry("b", "x")], "two keys have the same sha256"),
        ([entry("a", "x", limit=3)], "keys.0.limit: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_file_is_refused_at_the_start_without_its_content(tmp_path, entries, fault):
    with pytest.raises(SkimError) as raised:
        ApiKeys(str(write(tmp_path / "keys.yaml", *entries)))
    assert fault in str(raised.value)
    assert "sk-a-secret" not in str(raised.value)


def test_a_missing_file_is_refused_at_the_start(tmp_path):
    with pytest.raises(SkimError, match=r"router\.api_keys_file: the file cannot be read: No such file"):
        ApiKeys(str(tmp_path / "keys.yaml"))


def test_without_file_and_key_none_is_wanted():
    assert not ApiKeys(None).wanted
    assert ApiKeys(None, ["x"]).wanted


def test_new_keys_differ():
    assert len({new_key() for _ in range(100)}) == 100


def test_the_command_makes_and_retires_keys(skim, tmp_path):
    file = tmp_path / "keys.yaml"
    first, second = (skim("keys", "new", "team", "--file", file).out.strip() for _ in range(2))
    other = skim("keys", "new", "other", "--file", file).out.strip()
    assert first != second
    assert file.stat().st_mode & 0o777 == 0o600
    assert not any(key in file.read_text() for key in (first, second, other))
    keys = ApiKeys(str(file))
    assert [name_of(keys, key) for key in (first, second, other)] == ["team", "team", "other"]
    assert skim("keys", "retire", "team", "--file", file).code == 0
    assert [name_of(keys, key) for key in (first, second, other)] == [None, "team", "other"]
    assert list(tmp_path.iterdir()) == [file]


def test_the_command_keeps_the_limits(skim, tmp_path):
    file = write(tmp_path / "keys.yaml", entry("a", "x", max_ongoing_requests=3, isolate_cache=True))
    skim("keys", "new", "a", "--file", file)
    [key] = read_keys(file)
    assert (key.max_ongoing_requests, key.isolate_cache, len(key.sha256)) == (3, True, 2)


@pytest.mark.parametrize(("words", "fault"), [(("new", "a b"), "String should match"), (("retire", "x"), "no key")])
def test_the_command_refuses(skim, tmp_path, words, fault):
    ran = skim("keys", *words, "--file", tmp_path / "keys.yaml")
    assert (ran.code, fault in ran.error) == (2, True)
    assert list(tmp_path.iterdir()) == []
