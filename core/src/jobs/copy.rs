//! A copy of all queues and jobs, made in steps of bounded work while they change.
//!
//! Each step first takes over what has changed since the one before, and then copies some more. So the copy shows
//! the moment of its last step, also of what was copied by earlier ones. It may take over changes for longer than there is
//! something to copy.

use std::sync::Arc;

use super::changes::Noted;
use super::run_times::RunTimeKey;
use super::{JobId, Jobs, JobsChange, JobsRecord, JobsTable, RunTimes, TaskId};

/// A copy of all queues and jobs that is being made. One is made at a time.
pub(crate) struct JobsCopy {
    table: JobsTable,
    /// Those that are measured after they were copied are left out.
    run_times: RunTimes,
    next: Next,
    /// The jobs and the charges from these on were submitted since the copy began. They are copied as changes.
    until: [JobId; 2],
}

/// What is copied next.
enum Next {
    /// The first queue after the one of this name.
    Queue(Option<Arc<str>>),
    /// The tasks of a job from this one on, or the first job after it.
    Tasks(TaskId),
    /// The run times after those of this kind of tasks.
    RunTimes(Option<RunTimeKey>),
    Nothing,
}

impl JobsCopy {
    /// Returns whether all is copied.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.next, Next::Nothing)
    }

    /// Returns the records, and the measured run times. This costs what all of them cost.
    pub(crate) fn into_parts(self) -> (JobsRecord, RunTimes) {
        assert!(self.is_complete(), "a copy of jobs is used before all of them are copied");
        (self.table.into_record(), self.run_times)
    }
}

impl Jobs {
    /// Begins to copy all queues and jobs, and gives up an earlier copy that is not complete.
    pub(crate) fn begin_copy(&mut self) -> JobsCopy {
        self.noted_for_copy = Some(Noted::default());
        let until = [JobId(self.next_ids.job), JobId(self.next_ids.charge)];
        JobsCopy {
            // They are few.
            table: JobsTable::new(JobsRecord { classes: self.class_records(), ..JobsRecord::default() }),
            run_times: RunTimes::default(),
            next: Next::Queue(None),
            until,
        }
    }

    /// Copies about as many queues, users, jobs, task groups, tasks and run times as `units` says, and what has changed since
    /// the last step. Returns how many it was, without the changes: at most one queue or one job more.
    pub(crate) fn copy_step(&mut self, copy: &mut JobsCopy, units: u64) -> u64 {
        let noted = self.noted_for_copy.as_mut().expect("a copy is made that nobody began");
        let noted = std::mem::take(noted);
        self.changes_of(noted).iter().for_each(|change| copy.table.apply(change));
        let mut spent = 0;
        while spent < units && !copy.is_complete() {
            spent += match &copy.next {
                Next::Queue(after) => {
                    let after = after.clone();
                    self.copy_queue(copy, after.as_deref())
                }
                &Next::Tasks(from) => self.copy_tasks(copy, from, units - spent),
                Next::RunTimes(after) => {
                    let most = units - spent;
                    let (last, copied) = copy.run_times.copy_page(&self.run_times, after.as_ref(), most);
                    copy.next = last.map_or(Next::Nothing, |last| Next::RunTimes(Some(last)));
                    1 + copied
                }
                Next::Nothing => unreachable!("the copy is not complete"),
            };
        }
        spent
    }

    /// Takes over what has changed since the last step of a copy that is complete, and ends it.
    pub(crate) fn end_copy(&mut self, copy: &mut JobsCopy) {
        assert!(copy.is_complete(), "a copy of jobs is ended before all of them are copied");
        self.copy_step(copy, 0);
        copy.table.skip_ids(self.next_job());
        self.noted_for_copy = None;
    }

    /// Copies the first queue after one, with what it and its users have held.
    fn copy_queue(&self, copy: &mut JobsCopy, after: Option<&str>) -> u64 {
        let Some(id) = self.queues_after(after).next() else {
            copy.next = Next::Tasks(TaskId { job: JobId(0), index: 0 });
            return 1;
        };
        copy.table.apply(&JobsChange::Queue(Box::new(self.queue_record(id))));
        let keys = self.past_keys(id);
        let pasts = keys.iter().filter_map(|key| self.past_record(key));
        pasts.for_each(|past| copy.table.apply(&JobsChange::Past(Box::new(past))));
        copy.next = Next::Queue(Some(Arc::clone(&self.queue(id).spec().name)));
        1 + keys.len() as u64
    }

    /// Returns the first job from one on, by id, also of direct placements, and then the first charge.
    fn id_to_copy(&self, from: JobId, [jobs, charges]: [JobId; 2]) -> Option<JobId> {
        let first = |from: JobId, until: JobId| {
            let ids = [&self.ids, &self.direct].map(|ids| ids.range(from..until.max(from)).next().copied());
            ids.into_iter().flatten().min()
        };
        first(from, jobs).or_else(|| first(from.max(JobId::FIRST_CHARGE), charges))
    }

    /// Copies at most as many tasks as `units` says of the first job from one on.
    fn copy_tasks(&self, copy: &mut JobsCopy, from: TaskId, units: u64) -> u64 {
        let Some(id) = self.id_to_copy(from.job, copy.until) else {
            copy.next = Next::RunTimes(None);
            return 1;
        };
        // The job of which some tasks were copied may be gone.
        let first = if id == from.job { from.index } else { 0 };
        let mut spent = 1;
        if first == 0 {
            let record = self.job_record_without_tasks(id);
            spent += record.spec.tasks.len() as u64;
            copy.table.apply(&JobsChange::Job(Box::new(record)));
        }
        let tasks = u32::try_from(self.job(id).tasks().len()).expect("at most JOB_TASKS_MAX");
        // At least one, so that each step comes further.
        let most = u32::try_from(units.saturating_sub(spent).max(1)).unwrap_or(u32::MAX);
        let last = tasks.min(first.saturating_add(most));
        for (index, task) in self.task_records(id, first, last - first) {
            copy.table.apply(&JobsChange::Task(TaskId { job: id, index }, task));
        }
        copy.next = Next::Tasks(if last < tasks {
            TaskId { job: id, index: last }
        } else {
            TaskId { job: JobId(id.0 + 1), index: 0 }
        });
        spent + u64::from(last - first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;
    use crate::jobs::{JobPhase, JobSpec, PriorityClass, QueueId, QueueSpec, TaskGroup, TaskState};
    use crate::request::{PlacementRequest, Policy};
    use crate::resource::{Amount, Demand};
    use crate::rng::Rng;
    use crate::time::Time;

    fn cores(cpu: u32) -> PlacementRequest {
        PlacementRequest::new(Demand { cpu: Amount::whole(cpu), ..Demand::default() }, Policy::BestFit)
    }

    fn job(number: u64, queue: QueueId, user: u64, groups: &[u32]) -> JobSpec {
        let groups = groups.iter().map(|&count| TaskGroup::new(cores(1), count)).collect();
        let user = (user > 0).then(|| format!("u{user}").into());
        JobSpec { queue, user, phase: JobPhase::Inqueue, ..JobSpec::new(&format!("j{number}"), groups) }
    }

    fn counted() -> Jobs {
        let mut jobs = Jobs::new();
        jobs.count_past(1_000, true);
        jobs
    }

    /// Returns the records as an engine has them that starts with these.
    fn again(record: JobsRecord) -> JobsRecord {
        let mut jobs = counted();
        jobs.adopt(record, Time(9)).unwrap();
        jobs.check().unwrap();
        jobs.record()
    }

    /// Changes something at random.
    fn change(jobs: &mut Jobs, rng: &mut Rng, now: Time) {
        let queues: Vec<QueueId> =
            jobs.named_queues().map(|(id, _)| id).filter(|&id| jobs.queue(id).is_leaf()).collect();
        let all: Vec<JobId> = jobs.ids_after(None).collect();
        let number = jobs.next_job();
        let queue = queues[rng.below(queues.len() as u64) as usize];
        let any = |rng: &mut Rng| all[rng.below(all.len() as u64) as usize];
        match rng.below(14) {
            0 => drop(jobs.add_queue(QueueSpec::new(&format!("q{}", rng.below(90))))),
            1 if queues.len() > 1 => drop(jobs.remove_queue(queue)),
            2 => {
                let weight = 1 + rng.below(9) as u32;
                let spec = QueueSpec { weight, ..jobs.queue(queue).spec().clone() };
                jobs.update_queue(queue, spec, now).unwrap();
            }
            3 => {
                let groups: Vec<u32> = (0..=rng.below(3)).map(|_| 1 + rng.below(9) as u32).collect();
                let spec = JobSpec { created: now, ..job(number, queue, rng.below(3), &groups) };
                jobs.submit(spec).unwrap();
            }
            4 if !all.is_empty() => {
                // It ends, and is forgotten.
                let id = any(rng);
                for index in 0..jobs.job(id).tasks().len() as u32 {
                    jobs.set(TaskId { job: id, index }, TaskState::Succeeded, None, now);
                }
                jobs.remove_job(id);
            }
            5 if !all.is_empty() => {
                let id = any(rng);
                jobs.set_phase(id, JobPhase::Running);
            }
            6 => {
                let spec = JobSpec { created: now, is_direct: true, ..job(number, queue, 0, &[1]) };
                jobs.submit(spec).unwrap();
            }
            7 => {
                let first = jobs.queue(queue).direct().next();
                if let Some(id) = first {
                    jobs.set(TaskId { job: id, index: 0 }, TaskState::Succeeded, None, now);
                    jobs.remove_job(id);
                }
            }
            8 => {
                let class = PriorityClass::new(&format!("c{}", rng.below(5)), rng.below(9) as i32);
                jobs.set_priority_class(class).unwrap();
            }
            9 => drop(jobs.remove_priority_class(&format!("c{}", rng.below(5)).into())),
            _ if !all.is_empty() => {
                let id = any(rng);
                let index = rng.below(jobs.job(id).tasks().len() as u64) as u32;
                let states =
                    [TaskState::Pending, TaskState::Running, TaskState::Succeeded, TaskState::Failed];
                let state = states[rng.below(4) as usize];
                let node = state.has_node().then_some(NodeId(rng.below(3)));
                jobs.set(TaskId { job: id, index }, state, node, now);
            }
            _ => {}
        }
    }

    #[test]
    fn a_copy_shows_the_moment_of_its_last_step_whatever_changed_before() {
        let mut rng = Rng::new(11);
        let mut steps_of_all = 0;
        for round in 0..300 {
            let mut jobs = counted();
            jobs.add_queue(QueueSpec::new("first")).unwrap();
            for step in 0..rng.below(150) {
                change(&mut jobs, &mut rng, Time(step));
            }
            let units = 1 + rng.below(12);
            let mut copy = jobs.begin_copy();
            for step in 0.. {
                for _ in 0..rng.below(6) {
                    change(&mut jobs, &mut rng, Time(200 + step));
                }
                // A queue has at most 3 users here, and a job 3 task groups.
                let spent = jobs.copy_step(&mut copy, units);
                assert!(spent <= units + 5, "{spent} of {units}");
                assert!(spent >= 1 || copy.is_complete(), "nothing is copied, and some is left");
                steps_of_all += 1;
                // Sometimes others are waited for.
                if copy.is_complete() && rng.below(3) > 0 {
                    break;
                }
            }
            for _ in 0..rng.below(3) {
                change(&mut jobs, &mut rng, Time(900));
            }
            jobs.end_copy(&mut copy);
            assert_eq!(again(copy.into_parts().0), again(jobs.record()), "round {round}");
        }
        assert!(steps_of_all > 1_000, "{steps_of_all} steps are too few to meet anything");
    }

    #[test]
    fn a_large_job_is_copied_in_steps_and_changes_cost_no_second_copy() {
        let mut jobs = counted();
        let queue = jobs.add_queue(QueueSpec::new("q")).unwrap();
        let large = jobs.submit(job(1, queue, 0, &[50_000])).unwrap();
        for index in 0..50_000 {
            jobs.set(TaskId { job: large, index }, TaskState::Running, Some(NodeId(1)), Time(1));
        }
        let mut copy = jobs.begin_copy();
        let mut all = 0;
        let mut steps = 0;
        while !copy.is_complete() {
            // The job is submitted while the copy is made, so it is a change.
            jobs.submit(job(2 + steps, queue, 0, &[3])).unwrap();
            jobs.set(TaskId { job: large, index: 7 }, TaskState::Failed, None, Time(2 + steps));
            let spent = jobs.copy_step(&mut copy, 1_000);
            assert!(spent <= 1_002, "{spent} in a step");
            all += spent;
            steps += 1;
        }
        assert_eq!(steps, 51);
        assert!(all <= 50_110, "{all} were copied");
        jobs.end_copy(&mut copy);
        let record = copy.into_parts().0;
        assert_eq!((record.jobs.len(), record.next_job), (52, 53));
        assert_eq!(record.jobs[0].tasks[&7].since, Time(52));
        assert_eq!(again(record), again(jobs.record()));
        assert!(jobs.noted_for_copy.is_none(), "nothing is noted any more");
    }
}
