"""The engines' cache salts of clients: two of them are equal only for one owner, one sent salt and one adapter."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from router.admission.api_keys import ApiKey
from router.dispatch.request import Request
from router.options.request import PrefillOptions, SpeculationOptions
from tests.unit.router.asgi_calls import caller

parts = st.one_of(st.none(), st.text(alphabet=":=,ab\"\\'", max_size=5))
names = st.sampled_from([None, "a", "ab", "b:c", "c", "window"])
clients = st.tuples(names, st.booleans(), parts, parts)


def named(name, isolate_cache):
    """Who has a key of this name, also of one that a file of keys would refuse."""
    who = caller("a", isolate_cache=isolate_cache)
    return replace(who, key=ApiKey.model_construct(**{**dict(who.key), "name": name}))


def salt_of(client):
    name, isolated, sent, adapter = client
    who = None if name is None else named(name, isolated)
    return Request(PrefillOptions(), SpeculationOptions().decode, caller=who).salt(sent, adapter)


def apart(client):
    """What must have a cache of its own."""
    name, isolated, sent, adapter = client
    owner = name if isolated else None
    return (owner, sent or "", adapter or "")


@given(clients, clients)
def test_no_separator_makes_two_clients_one(one, other):
    if apart(one) != apart(other):
        assert salt_of(one) != salt_of(other)
    elif one == other:
        assert salt_of(one) == salt_of(other)


def test_separators_in_names_and_salts():
    pairs = [
        (("c", True, "a:b", None), ("b:c", True, "a", None)),
        (("window", True, None, None), (None, False, "window:", None)),
        (("a", True, "b", None), ("ab", True, None, None)),
        ((None, False, "s", "sql"), (None, False, "adapter=sql:s", None)),
        (("a", True, None, "sql"), ("c", False, None, "sql:a:")),
    ]
    for one, other in pairs:
        assert salt_of(one) != salt_of(other)


def test_who_shares_prefixes_has_no_salt():
    assert salt_of(("a", False, None, None)) is salt_of((None, False, None, None)) is None
