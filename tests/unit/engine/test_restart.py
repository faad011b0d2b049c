"""When a dead role is started again: delays, what resets them, and when the engine gives up."""

from dataloader_svc.engine.restart import RestartHistory, RestartPolicy

POLICY = RestartPolicy(first_delay_s=1.0, factor=2.0, max_delay_s=10.0, settled_s=30.0, max_unready_deaths=5)


def test_delays_double_to_a_limit():
    history = RestartHistory(POLICY)
    delays = [history.died(was_ready=True, lived_s=1.0) for _ in range(7)]
    assert delays == [1, 2, 4, 8, 10, 10, 10]


def test_a_settled_life_starts_the_delays_anew():
    history = RestartHistory(POLICY)
    for _ in range(5):
        history.died(was_ready=True, lived_s=29.9)
    assert history.died(was_ready=True, lived_s=30.0) == 1
    assert history.died(was_ready=True, lived_s=0.0) == 2


def test_five_unready_deaths_in_a_row_are_a_crash_loop_however_long_they_took():
    for lived_s in (0.0, 100.0):
        history = RestartHistory(POLICY)
        assert [history.died(was_ready=False, lived_s=lived_s) for _ in range(5)] == [1, 2, 4, 8, None]


def test_having_been_ready_once_begins_the_count_again():
    history = RestartHistory(POLICY)
    for _ in range(20):
        assert all(history.died(was_ready=False, lived_s=0.1) is not None for _ in range(4))
        assert history.died(was_ready=True, lived_s=0.1) is not None


def test_a_long_life_that_never_was_ready_is_no_settled_one():
    history = RestartHistory(POLICY)
    assert history.died(was_ready=False, lived_s=0.0) == 1
    assert history.died(was_ready=False, lived_s=1000.0) == 2


def test_the_defaults_give_up_on_a_crash_loop_within_seconds_of_delay():
    history = RestartHistory(RestartPolicy())
    delays = [history.died(was_ready=False, lived_s=0.5) for _ in range(5)]
    assert delays[-1] is None
    assert sum(delays[:-1]) < 2
