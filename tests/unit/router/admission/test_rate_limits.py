"""The limits of a key: requests at a time, and prompt tokens per minute, in virtual time."""

import pytest

from router.admission.api_keys import ApiKey, KeyUse, KeyUses, LimitReachedError


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def key(**limits):
    return ApiKey(name="a", sha256=("0" * 64,), **limits)


def test_requests_at_a_time():
    use = KeyUse(key(max_ongoing_requests=2), Clock())
    started = use.start()
    use.start()
    with pytest.raises(LimitReachedError, match="2 requests at a time"):
        use.start()
    use.end(started)
    use.start()


def retry_after(use):
    with pytest.raises(LimitReachedError) as caught:
        use.start()
    return caught.value.retry_after_s


@pytest.mark.parametrize(
    ("limit", "durations", "seconds"),
    [
        (1, [], 1),
        (1, [20.0], 10),
        (4, [40.0], 5),
        (1, [20.0] * 5 + [0.001] * 5, 10),  # short requests are not those that it waits for
        (4, [0.5], 1),
        (1, [10_000.0], 60),
    ],
)
def test_a_key_with_too_many_requests_is_told_when_one_will_probably_end(limit, durations, seconds):
    clock = Clock()
    use = KeyUse(key(max_ongoing_requests=limit), clock)
    for duration in durations:
        started = use.start()
        clock.now += duration
        use.end(started)
    for _ in range(limit):
        use.start()
    assert retry_after(use) == seconds


def test_tokens_that_were_given_back_do_not_count():
    clock = Clock()
    use = KeyUse(key(prompt_tokens_per_minute=600), clock)
    use.spend(6000, first=True)
    use.give_back(6000)
    use.start()
    use.spend(600, first=True)
    assert retry_after(use) == 1
    use.give_back(10**9)
    use.spend(600, first=True)
    assert retry_after(use) == 1, "no more than a minute's worth"


def test_tokens_per_minute():
    clock = Clock()
    use = KeyUse(key(prompt_tokens_per_minute=600), clock)
    use.start()
    use.spend(590, first=True)
    use.start()
    use.spend(130, first=True)  # 120 tokens too many: 12 seconds' worth
    with pytest.raises(LimitReachedError) as raised:
        use.start()
    assert raised.value.retry_after_s == 13
    clock.now = 12.0
    with pytest.raises(LimitReachedError):
        use.start()
    clock.now = 13.0
    use.start()


def test_a_prompt_above_the_limit_is_taken_and_the_next_one_waits():
    clock = Clock()
    use = KeyUse(key(prompt_tokens_per_minute=600), clock)
    use.spend(6000, first=True)
    clock.now = 539.0
    with pytest.raises(LimitReachedError):
        use.start()
    clock.now = 541.0
    use.start()


def test_requests_that_came_together_are_refused_when_they_are_counted():
    use = KeyUse(key(prompt_tokens_per_minute=10), Clock())
    for _ in range(3):
        use.start()
    use.spend(10, first=True)
    with pytest.raises(LimitReachedError):
        use.spend(10, first=True)
    use.spend(10, first=False)


def test_a_long_pause_saves_one_minute_only():
    clock = Clock()
    use = KeyUse(key(prompt_tokens_per_minute=60), clock)
    clock.now = 1e6
    use.start()
    use.spend(61, first=True)
    with pytest.raises(LimitReachedError):
        use.start()


def test_without_limits_nothing_is_refused():
    use = KeyUse(key(), Clock())
    for _ in range(100):
        use.start()
        use.spend(10**6, first=True)


def test_a_changed_file_changes_the_limits():
    uses = KeyUses()
    uses.of(key(max_ongoing_requests=1)).start()
    with pytest.raises(LimitReachedError):
        uses.of(key(max_ongoing_requests=1)).start()
    uses.of(key(max_ongoing_requests=2)).start()
    uses.of(key(max_ongoing_requests=2, prompt_tokens_per_minute=5)).spend(500, first=True)
    with pytest.raises(LimitReachedError):
        uses.of(key(prompt_tokens_per_minute=5)).start()


def test_uses_of_idle_keys_are_dropped():
    uses = KeyUses()
    busy = uses.of(ApiKey(name="busy", sha256=("0" * 64,)))
    busy.start()
    for i in range(2 * KeyUses.MOST_IDLE):
        uses.of(ApiKey(name=f"k{i}", sha256=("0" * 64,)))
    assert len(uses._uses) <= KeyUses.MOST_IDLE
    assert uses.of(ApiKey(name="busy", sha256=("0" * 64,))) is busy


@pytest.mark.parametrize("limit", [None, 1000])
def test_the_uses_of_idle_keys_are_dropped(limit):
    """Names change when keys are rotated, so they would grow without a bound. A use below its level is not idle."""
    uses = KeyUses()
    for number in range(3 * KeyUses.MOST_IDLE):
        use = uses.of(ApiKey(name=str(number), sha256=("0" * 64,), prompt_tokens_per_minute=limit))
        started = use.start()
        use.spend(10, first=True)
        if limit is not None:
            use.give_back(10)
        use.end(started)
    assert len(uses._uses) <= KeyUses.MOST_IDLE
