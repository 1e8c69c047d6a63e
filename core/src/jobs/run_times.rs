//! How long tasks have run: measured run times, for tasks that state none.
//!
//! A task is expected to run as long as the last two of its kind that have succeeded, on average. Their kind is the queue,
//! the user in it, and the name of their role. The mean of the last two of a user predicts better than most of what
//! users state (Tsafrir, Etsion and Feitelson, "Backfilling Using System-Generated Predictions Rather than User Runtime
//! Estimates", IEEE TPDS 18(6), 2007).
//!
//! Only plans of nodes use these predictions. A cycle ends what exceeds its run time, so it goes by what is stated.
//!
//! The record of a task that has succeeded says when it was bound and when it ended. So a start measures again what has
//! succeeded in the jobs that are kept, and nothing else is recorded.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use super::{JobSpec, Jobs, Task, TaskId, TaskState};
use crate::limits::RUN_TIMES_MAX;
use crate::time::Time;

/// Tasks of one kind: those of a queue, a user in it and a role, by their names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunTimeKey {
    queue: Arc<str>,
    user: Option<Arc<str>>,
    role: Arc<str>,
}

/// The run times of the last two tasks of a kind, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    newest: u64,
    before: Option<u64>,
    /// The number of the measurement, which is its place in the order of their age.
    number: u64,
}

/// The run times of at most [`RUN_TIMES_MAX`] kinds of tasks: those that were measured last.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunTimes {
    by_key: BTreeMap<RunTimeKey, Measured>,
    by_age: BTreeMap<u64, RunTimeKey>,
}

impl RunTimes {
    /// Notes that a task has run for so many ns and has succeeded.
    fn note(&mut self, key: RunTimeKey, nanos: u64) {
        let before = self.by_key.get(&key).map(|of| of.newest);
        self.insert(key, nanos, before);
    }

    fn insert(&mut self, key: RunTimeKey, newest: u64, before: Option<u64>) {
        let number = self.by_age.last_key_value().map_or(0, |(last, _)| last + 1);
        if let Some(replaced) = self.by_key.insert(key.clone(), Measured { newest, before, number }) {
            self.by_age.remove(&replaced.number);
        }
        self.by_age.insert(number, key);
        if self.by_key.len() > RUN_TIMES_MAX {
            let (_, oldest) = self.by_age.pop_first().expect("each kind has an age");
            self.by_key.remove(&oldest);
        }
    }

    /// Returns how long a task of a kind is expected to run, in ns, at least 1. `None`: none has succeeded yet.
    fn expected(&self, key: &RunTimeKey) -> Option<u64> {
        let &Measured { newest, before, .. } = self.by_key.get(key)?;
        Some(before.map_or(newest, |before| before.midpoint(newest)).max(1))
    }

    /// Returns when a task that was bound at `bound` is expected to end, after `now`. `None`: it states a run time, nothing is
    /// known, or it is a direct placement, which ends when it is released.
    ///
    /// What runs for longer than expected is expected to run twice as long as that, and so on.
    pub(crate) fn expected_end(&self, jobs: &Jobs, id: TaskId, bound: Time, now: Time) -> Option<Time> {
        let job = jobs.job(id.job);
        if jobs.task(id).run_time_ns.is_some() || job.spec().is_direct {
            return None;
        }
        let mut nanos = self.expected(&jobs.run_time_key(job.spec(), jobs.task(id)))?;
        while bound.plus_nanos(nanos) <= now {
            nanos = nanos.checked_mul(2)?;
        }
        Some(bound.plus_nanos(nanos))
    }

    /// Takes over the run times of up to `most` kinds that come after one in order. Returns the last of them, and their number.
    pub(super) fn copy_page(
        &mut self,
        from: &Self,
        after: Option<&RunTimeKey>,
        most: u64,
    ) -> (Option<RunTimeKey>, u64) {
        let range = from.by_key.range((after.map_or(Unbounded, Excluded), Unbounded));
        let page = range.take(usize::try_from(most).unwrap_or(usize::MAX));
        let mut copied = (None, 0);
        for (key, of) in page {
            self.insert(key.clone(), of.newest, of.before);
            copied = (Some(key.clone()), copied.1 + 1);
        }
        copied
    }
}

impl Jobs {
    fn run_time_key(&self, spec: &JobSpec, task: &Task) -> RunTimeKey {
        RunTimeKey {
            queue: Arc::clone(&self.queue(spec.queue).spec().name),
            user: spec.user.clone(),
            role: Arc::clone(&spec.roles[task.role as usize].name),
        }
    }

    /// Follows a task that was `before` and has another state now: measures how long it has run, if it has succeeded.
    pub(super) fn follow_run_time(&mut self, id: TaskId, before: &Task, state: TaskState, now: Time) {
        // One that is being evicted ends early.
        let is_over = state == TaskState::Succeeded && before.state.is_bound();
        let Some(bound) = before.bound.filter(|_| is_over) else { return };
        let spec = self.job(id.job).spec();
        if spec.is_direct {
            return;
        }
        let key = self.run_time_key(spec, before);
        self.run_times.note(key, now.nanos_since(bound));
    }

    /// Measures again what has succeeded before this start, in the jobs that are kept.
    pub(super) fn measure_again(&mut self) {
        // The last two of each kind: when they ended, and how long they had run.
        let mut last: BTreeMap<RunTimeKey, Vec<(Time, TaskId, u64)>> = BTreeMap::new();
        for (id, job) in self.jobs().filter(|(_, job)| !job.spec().is_direct) {
            let succeeded = (0..).zip(job.tasks()).filter(|(_, task)| task.state == TaskState::Succeeded);
            for (index, task) in succeeded {
                let Some(bound) = task.bound else { continue };
                let of_kind = last.entry(self.run_time_key(job.spec(), task)).or_default();
                of_kind.push((task.since, TaskId { job: id, index }, task.since.nanos_since(bound)));
                if of_kind.len() > 2 {
                    of_kind.sort_unstable();
                    of_kind.remove(0);
                }
            }
        }
        let with_kind =
            |(key, of_kind): (RunTimeKey, Vec<_>)| of_kind.into_iter().map(move |one| (one, key.clone()));
        let mut all: Vec<((Time, TaskId, u64), RunTimeKey)> = last.into_iter().flat_map(with_kind).collect();
        all.sort_unstable();
        all.into_iter().for_each(|((.., nanos), key)| self.run_times.note(key, nanos));
    }

    /// Returns the measured run times.
    pub(crate) fn run_times(&self) -> &RunTimes {
        &self.run_times
    }

    /// Takes over run times that others have measured.
    pub(crate) fn set_run_times(&mut self, run_times: RunTimes) {
        self.run_times = run_times;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;
    use crate::jobs::{JobPhase, QueueId, QueueSpec, Role, TaskGroup};
    use crate::request::{PlacementRequest, Policy};
    use crate::resource::Demand;

    fn key(role: usize) -> RunTimeKey {
        RunTimeKey { queue: "q".into(), user: None, role: role.to_string().into() }
    }

    #[test]
    fn the_mean_of_the_last_two_is_expected() {
        let mut times = RunTimes::default();
        assert_eq!(times.expected(&key(0)), None);
        times.note(key(0), 0);
        assert_eq!(times.expected(&key(0)), Some(1), "a task ends after it begins");
        times.note(key(0), 100);
        times.note(key(0), 40);
        assert_eq!(times.expected(&key(0)), Some(70));
        assert_eq!(times.expected(&key(1)), None);
    }

    #[test]
    fn the_kind_that_was_measured_least_recently_is_forgotten() {
        let mut times = RunTimes::default();
        (0..RUN_TIMES_MAX).for_each(|at| times.note(key(at), 5));
        times.note(key(0), 5);
        times.note(key(RUN_TIMES_MAX), 5);
        assert_eq!(times.by_key.len(), RUN_TIMES_MAX);
        assert_eq!(times.by_age.len(), RUN_TIMES_MAX);
        assert_eq!(times.expected(&key(1)), None);
        let kept = [0, 2, RUN_TIMES_MAX].map(|at| times.expected(&key(at)));
        assert_eq!(kept, [Some(5); 3]);
    }

    #[test]
    fn a_copy_in_pages_has_all_run_times() {
        let mut times = RunTimes::default();
        (0..10).for_each(|at| times.note(key(at), 5));
        times.note(key(3), 7);
        let mut copy = RunTimes::default();
        let mut after = None;
        let mut pages = 0;
        loop {
            let (last, count) = copy.copy_page(&times, after.as_ref(), 4);
            if last.is_none() {
                assert_eq!(count, 0);
                break;
            }
            after = last;
            pages += 1;
        }
        assert_eq!(pages, 3);
        (0..10).for_each(|at| assert_eq!(copy.expected(&key(at)), times.expected(&key(at)), "{at}"));
    }

    /// Submits a job of a user with one task.
    fn submit(
        jobs: &mut Jobs,
        queue: QueueId,
        (user, role): (&str, &str),
        run_time_ns: Option<u64>,
    ) -> TaskId {
        let request = PlacementRequest::new(Demand::default(), Policy::BestFit);
        let group = TaskGroup { run_time_ns, ..TaskGroup::new(request, 1) };
        let roles = vec![Role { name: role.into(), min_member: 0 }];
        let name = format!("j{}", jobs.next_job());
        let user = Some(user.into());
        let spec =
            JobSpec { queue, user, roles, phase: JobPhase::Inqueue, ..JobSpec::new(&name, vec![group]) };
        TaskId { job: jobs.submit(spec).unwrap(), index: 0 }
    }

    /// Runs a task on node 1 until `until`, and ends it.
    fn run(jobs: &mut Jobs, id: TaskId, (from, until): (u64, u64), end: TaskState) {
        for state in [TaskState::Allocated, TaskState::Binding, TaskState::Bound] {
            jobs.set(id, state, Some(NodeId(1)), Time(from));
        }
        // Its run time counts from when it was bound.
        jobs.set(id, TaskState::Running, Some(NodeId(1)), Time(from + 1));
        jobs.set(id, end, end.has_node().then_some(NodeId(1)), Time(until));
    }

    #[test]
    fn a_direct_placement_ends_when_it_is_released() {
        let mut jobs = Jobs::new();
        let queue = jobs.add_queue(QueueSpec::new("q")).unwrap();
        let request = PlacementRequest::new(Demand::default(), Policy::BestFit);
        let group = || vec![TaskGroup::new(request.clone(), 1)];
        let submit = |jobs: &mut Jobs, spec| TaskId { job: jobs.submit(spec).unwrap(), index: 0 };
        let job = |name| JobSpec { queue, phase: JobPhase::Inqueue, ..JobSpec::new(name, group()) };
        let first = submit(&mut jobs, job("first"));
        run(&mut jobs, first, (0, 100), TaskState::Succeeded);
        let direct = submit(&mut jobs, JobSpec::direct(request.clone(), queue, 0, Time(0)));
        let next = submit(&mut jobs, job("next"));
        let end = |id| jobs.run_times().expected_end(&jobs, id, Time(0), Time(0));
        assert_eq!([next, direct].map(end), [Some(Time(100)), None]);
        run(&mut jobs, direct, (0, 7), TaskState::Succeeded);
        assert_eq!(jobs.run_times().expected_end(&jobs, next, Time(0), Time(0)), Some(Time(100)));
    }

    /// Starts again with what is recorded.
    fn again(jobs: &Jobs) -> Jobs {
        let mut again = Jobs::new();
        again.adopt(jobs.record(), Time(2_000)).unwrap();
        again.check().unwrap();
        assert_eq!(again.record(), jobs.record());
        again
    }

    #[test]
    fn a_start_measures_what_has_succeeded_before() {
        let mut jobs = Jobs::new();
        let queue = jobs.add_queue(QueueSpec::new("q")).unwrap();
        let waits = submit(&mut jobs, queue, ("u", "w"), None);
        let other = submit(&mut jobs, queue, ("v", "w"), None);
        // Those that ended last were submitted first.
        let ran: Vec<TaskId> = (0..5).map(|_| submit(&mut jobs, queue, ("u", "w"), None)).collect();
        for (&id, (bound, end)) in ran.iter().zip([(10, 500), (300, 400), (10, 110), (0, 90)]) {
            run(&mut jobs, id, (bound, end), TaskState::Succeeded);
        }
        run(&mut jobs, ran[4], (10, 600), TaskState::Releasing);
        jobs.set(ran[4], TaskState::Succeeded, None, Time(601));
        let restarted = submit(&mut jobs, queue, ("v", "w"), None);
        run(&mut jobs, restarted, (10, 600), TaskState::Succeeded);
        jobs.set(restarted, TaskState::Pending, None, Time(610));
        let again = again(&jobs);
        let end = |id| again.run_times().expected_end(&again, id, Time(0), Time(0));
        assert_eq!(end(waits), Some(Time((490 + 100) / 2)));
        assert_eq!(end(other), None, "what runs again has not ended");
    }

    #[test]
    fn tasks_that_succeed_are_measured_by_queue_user_and_role() {
        let mut jobs = Jobs::new();
        let queue = jobs.add_queue(QueueSpec::new("q")).unwrap();
        let other_queue = jobs.add_queue(QueueSpec::new("r")).unwrap();
        let first = submit(&mut jobs, queue, ("u", "w"), None);
        run(&mut jobs, first, (10, 110), TaskState::Succeeded);
        let failed = submit(&mut jobs, queue, ("u", "w"), None);
        run(&mut jobs, failed, (10, 11), TaskState::Failed);
        let evicted = submit(&mut jobs, queue, ("u", "w"), None);
        run(&mut jobs, evicted, (10, 12), TaskState::Releasing);
        jobs.set(evicted, TaskState::Succeeded, None, Time(13));
        let same = submit(&mut jobs, queue, ("u", "w"), None);
        let others = [
            submit(&mut jobs, other_queue, ("u", "w"), None),
            submit(&mut jobs, queue, ("v", "w"), None),
            submit(&mut jobs, queue, ("u", "x"), None),
            submit(&mut jobs, queue, ("u", "w"), Some(5)),
        ];
        let end = |id, now| jobs.run_times().expected_end(&jobs, id, Time(1_000), Time(now));
        assert_eq!(end(same, 1_000), Some(Time(1_100)));
        assert_eq!(others.map(|id| end(id, 1_000)), [None; 4]);
        let again = again(&jobs);
        assert_eq!(again.run_times().by_key, jobs.run_times().by_key);
        // It has run for longer than expected.
        assert_eq!(end(same, 1_099), Some(Time(1_100)));
        assert_eq!([1_100, 1_199].map(|now| end(same, now)), [Some(Time(1_200)); 2]);
        assert_eq!(end(same, 1_200), Some(Time(1_400)));
    }
}
