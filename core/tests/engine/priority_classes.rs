//! Priority classes in a whole engine: requests, jobs that name them, crashes and restarts.

use wharf_core::cycle::CycleConfig;
use wharf_core::engine::Engine;
use wharf_core::group::PlanJob;
use wharf_core::jobs::{
    AskedPriorities, AskedPriority, ClassError, JobError, JobId, JobsDone, JobsRejection, JobsReply,
    JobsRequest, PriorityClass,
};
use wharf_core::journal::Unit;
use wharf_core::router::PortRequest;
use wharf_core::state::{Deed, Origin};

use crate::by_hand::settle;
use crate::group_bed::with_nodes;
use crate::jobs_bed::{
    Journaled, ORIGIN, after_a_crash, ask_jobs, bag, check_jobs, export_all, job_status, jobs_config,
    jobs_engine, jobs_of, open_with,
};

fn set(engine: &mut Engine, class: PriorityClass) -> Result<(), JobsRejection> {
    let reply = ask_jobs(engine, JobsRequest::SetPriorityClass(Box::new(class)))?;
    assert!(matches!(reply, JobsReply::Done(JobsDone::ClassSet)), "{reply:?}");
    Ok(())
}

fn remove(engine: &mut Engine, name: &str) -> Result<(), JobsRejection> {
    let reply = ask_jobs(engine, JobsRequest::RemovePriorityClass(name.into()))?;
    assert!(matches!(reply, JobsReply::Done(JobsDone::ClassRemoved)), "{reply:?}");
    Ok(())
}

fn submit(engine: &mut Engine, name: &str, job: AskedPriority) -> Result<JobId, JobsRejection> {
    let priorities = Some(Box::new(AskedPriorities { job, tasks: Vec::new() }));
    let spec = Box::new(bag(name, 1));
    match ask_jobs(engine, JobsRequest::Submit { spec, queue: "all".into(), bound: None, priorities })? {
        JobsReply::Done(JobsDone::Submitted(id)) => Ok(id),
        other => panic!("a job: {other:?}"),
    }
}

fn of_class(name: &str) -> AskedPriority {
    AskedPriority { number: None, class: Some(name.into()) }
}

/// Returns the priority and the class of a job.
fn priority(engine: &mut Engine, job: JobId) -> (i32, Option<String>) {
    let job = job_status(engine, job).job;
    (job.priority, job.priority_class.map(|name| name.to_string()))
}

fn list(engine: &mut Engine, after: Option<&str>, limit: u16) -> Vec<PriorityClass> {
    let after = after.map(Into::into);
    match ask_jobs(engine, JobsRequest::ListPriorityClasses { after, limit }) {
        Ok(JobsReply::Classes(classes)) => classes,
        other => panic!("classes: {other:?}"),
    }
}

#[test]
fn jobs_keep_the_priority_that_their_class_had_when_they_were_submitted() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 16, 0);
    set(&mut engine, PriorityClass::new("high", 100)).unwrap();
    let first = submit(&mut engine, "first", of_class("high")).unwrap();
    set(&mut engine, PriorityClass::new("high", 7)).unwrap();
    let second = submit(&mut engine, "second", of_class("high")).unwrap();
    remove(&mut engine, "high").unwrap();
    let high = || Some("high".to_owned());
    assert_eq!(priority(&mut engine, first), (100, high()));
    assert_eq!(priority(&mut engine, second), (7, high()));
    assert_eq!(jobs_of(&engine).job(second).tasks()[0].priority, 7);
    let unknown = submit(&mut engine, "third", of_class("high"));
    let error = JobError::UnknownClass { job: "third".into(), group: None, class: "high".into() };
    assert_eq!(unknown, Err(error.into()));
    assert_eq!(remove(&mut engine, "high"), Err(ClassError::Unknown("high".into()).into()));
    check_jobs(&mut engine);
}

#[test]
fn classes_are_listed_in_pages_by_name() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    let classes = ["b", "c", "a"].map(|name| PriorityClass::new(name, 1));
    classes.iter().for_each(|class| set(&mut engine, class.clone()).unwrap());
    let [b, c, a] = classes;
    assert_eq!(list(&mut engine, None, 2), [a, b.clone()]);
    assert_eq!(list(&mut engine, Some("a"), 2), [b, c]);
    assert_eq!(list(&mut engine, Some("c"), 2), []);
}

/// Returns what requests with this sequence have done, as the units tell.
fn deeds(units: &[Unit], sequence: u64) -> Vec<&Deed> {
    let done = units.iter().flat_map(|unit| &unit.done);
    done.filter(|done| done.origin.sequence == sequence).map(|done| &done.deed).collect()
}

/// A crash after any unit, and a clean stop: the classes are there as far as their outcomes are.
#[test]
fn a_class_and_the_outcome_of_its_request_are_recorded_together() {
    let mut work = Journaled::new(2, CycleConfig::default());
    with_nodes(&mut work.engine, 1, 16, 0);
    let usual = PriorityClass {
        preempts: false,
        is_default: true,
        description: "for most".into(),
        ..PriorityClass::new("usual", -5)
    };
    let requests = [
        JobsRequest::SetPriorityClass(Box::new(PriorityClass::new("high", 100))),
        JobsRequest::SetPriorityClass(Box::new(usual.clone())),
        JobsRequest::RemovePriorityClass("high".into()),
    ];
    for (sequence, request) in (1..).zip(requests) {
        let request = PortRequest::Plan(PlanJob::Jobs(Box::new(request)));
        let origin = Origin { sequence, ..ORIGIN };
        work.engine.ports[0].submit_for(Some(origin), 3, request, work.engine.now).expect("room");
        settle(&mut work.engine);
    }
    let job = submit(&mut work.engine, "of the default", AskedPriority::default()).unwrap();
    let expected = export_all(&mut work.engine);
    assert_eq!(expected.jobs.classes, [usual]);

    let mut seen = Vec::new();
    for crash in 0..=work.collect() {
        let units = &work.units[..crash];
        let engine = open_with(after_a_crash(units), &jobs_config(1, CycleConfig::default()));
        let there: Vec<String> =
            jobs_of(&engine).classes_after(None).map(|class| class.name.to_string()).collect();
        let told = [1, 2, 3].map(|sequence| deeds(units, sequence).len());
        match told {
            [0, 0, 0] => assert!(there.is_empty(), "{there:?}"),
            [1, 0, 0] => assert_eq!(there, ["high"]),
            [1, 1, 0] => assert_eq!(there, ["high", "usual"]),
            [1, 1, 1] => assert_eq!(there, ["usual"]),
            other => panic!("each request has one outcome: {other:?}"),
        }
        seen.push(told);
    }
    seen.dedup();
    assert_eq!(seen.len(), 4, "a crash after each request");
    assert_eq!(deeds(&work.units, 3), [&Deed::Jobs(JobsDone::ClassRemoved)]);

    for state in [expected.clone(), after_a_crash(&work.units)] {
        assert_eq!(state.jobs.classes, expected.jobs.classes);
        let mut engine = open_with(state, &jobs_config(2, CycleConfig::default()));
        assert_eq!(priority(&mut engine, job), (-5, Some("usual".to_owned())));
        assert!(!jobs_of(&engine).job(job).spec().preempts);
        let next = submit(&mut engine, "next", AskedPriority::default()).unwrap();
        assert_eq!(priority(&mut engine, next), (-5, Some("usual".to_owned())));
    }
}
