"""Jobs of the last day that come again."""

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.simulation.later_jobs import ARRIVALS_MAX, DAY_SECONDS, later_jobs
from tests.harness.builders import after, make_job

NOW = after(DAY_SECONDS)


def jobs_at(*hours: float) -> list[GPUJob]:
    return [make_job(f"job-{n}", created=hour * 3600) for n, hour in enumerate(hours)]


def hours_of(found: tuple[GPUJob, ...]) -> list[float]:
    times = [job.metadata.creation_timestamp for job in found]
    return [(at - NOW).total_seconds() / 3600 for at in times if at is not None]


def test_a_job_comes_again_once_a_day_on_average() -> None:
    past = jobs_at(0.5, *[6.0] * 200)
    found = later_jobs(past, NOW, DAY_SECONDS, draw=0)
    assert 150 < len(found) < 250


def test_it_comes_at_its_time_of_the_day() -> None:
    found = hours_of(later_jobs(jobs_at(0.0, *[6.0] * 50), NOW, DAY_SECONDS, draw=0))
    assert len(found) > 20
    assert all(5.5 <= hour <= 6.5 for hour in found)


def test_it_is_a_new_job_in_order_of_creation() -> None:
    found = later_jobs(jobs_at(0.6, *[6.0] * 20), NOW, 2 * DAY_SECONDS, draw=0)
    assert hours_of(found) == sorted(hours_of(found))
    assert len({job.metadata.uid for job in found}) == len(found)
    assert len({job.metadata.name for job in found}) == len(found)
    assert all(job.status.placement is None and not job.status.conditions for job in found)
    assert any(hour > 24 for hour in hours_of(found))


def test_draws_differ_and_repeat() -> None:
    past = jobs_at(0.6, *[6.0] * 20)
    first = later_jobs(past, NOW, DAY_SECONDS, draw=0)
    assert first == later_jobs(past, NOW, DAY_SECONDS, draw=0)
    assert first != later_jobs(past, NOW, DAY_SECONDS, draw=1)


def test_a_short_past_is_repeated_in_its_own_period() -> None:
    past = [make_job(f"job-{n}", created=DAY_SECONDS - 7200 + n * 70) for n in range(100)]
    found = later_jobs(past, NOW, 7200, draw=0)
    assert 70 < len(found) < 130


def test_less_than_an_hour_of_the_past_gives_no_later_jobs() -> None:
    past = [make_job("job", created=DAY_SECONDS - 3000)]
    assert later_jobs(past, NOW, DAY_SECONDS, draw=0) == ()
    assert later_jobs([], NOW, DAY_SECONDS, draw=0) == ()


def test_their_number_is_bounded() -> None:
    past = jobs_at(*[n / 100 for n in range(2000)])
    assert len(later_jobs(past, NOW, 30 * DAY_SECONDS, draw=0)) == ARRIVALS_MAX


def test_a_suspended_job_comes_again_as_a_running_one() -> None:
    past = [make_job(f"s{n}", created=3600, suspend=True) for n in range(20)]
    assert not any(job.spec.suspend for job in later_jobs(past, NOW, DAY_SECONDS, draw=0))
