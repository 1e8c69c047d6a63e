//! Priority classes, queues and jobs of files, as the service takes them.

use std::path::{Path, PathBuf};

use serde_saphyr::Location;
use wharf_core::request::Policy;
use wharf_net::convert::{job_topology_body, policy_bodies, policy_number};
use wharf_net::protocol::{
    AmountsBody, DemandBody, JobBody, NamedAmount, ORDERING_DRF, ORDERING_FAIR, ORDERING_FIFO,
    POLICY_DEFAULT, PlaceRequest, PriorityClassBody, QueueBody, RoleBody, TaskGroupBody,
};

use super::read_text;
use crate::class_file::{ClassFile, ClassesFile, asked, check_classes, class_of_job};
use crate::file_error::FileError;
use crate::job_file::{
    AmountsFile, JobFile, JobsFile, OrderingFile, QueueFile, TaskFile, bounded, part, policies, topology,
};
use crate::line_error::{LineError, documents};
use crate::terms::TolerationFile;

/// What a file describes, with its place.
#[derive(Debug)]
pub(super) struct Described<T> {
    pub(super) file: PathBuf,
    pub(super) line: u64,
    pub(super) body: T,
}

/// Reads the priority classes of files. The default comes last, so that the one before it has given way.
pub(super) fn classes(files: &[PathBuf]) -> Result<Vec<Described<PriorityClassBody>>, FileError> {
    let read = |file: &JobsFile| {
        let classes = file.priority_classes.iter();
        Ok(classes.map(|(name, class)| (class.referenced, class_body(name, &class.value))).collect())
    };
    let mut all = described(files, "priority_classes", read)?;
    all.sort_by_key(|class| class.body.is_default);
    Ok(all)
}

fn class_body(name: &str, class: &ClassFile) -> PriorityClassBody {
    let &ClassFile { value, preempts, is_default, .. } = class;
    let description = class.description.clone();
    PriorityClassBody { name: name.to_owned(), value, preempts, is_default, description }
}

/// Reads the queues of files, in order.
pub(super) fn queues(files: &[PathBuf]) -> Result<Vec<Described<QueueBody>>, FileError> {
    let read = |file: &JobsFile| {
        file.queues.iter().map(|queue| Ok((queue.name.referenced, queue_body(queue)?))).collect()
    };
    described(files, "queues", read)
}

/// Reads the jobs of files, in order.
pub(super) fn jobs(files: &[PathBuf]) -> Result<Vec<Described<JobBody>>, FileError> {
    let read = |file: &JobsFile| {
        let body = |job| job_body(job, &file.priority_classes);
        file.jobs.iter().map(|job| Ok((job.name.referenced, body(job)?))).collect()
    };
    described(files, "jobs", read)
}

/// Reads what the documents of files describe. `what` is the name of the list.
fn described<T>(
    files: &[PathBuf],
    what: &str,
    read: impl Fn(&JobsFile) -> Result<Vec<(Location, T)>, LineError>,
) -> Result<Vec<Described<T>>, FileError> {
    let mut all = Vec::new();
    for file in files {
        let text = read_text(file)?;
        let found = in_text(&text, &read).map_err(|error| FileError::new(file, error))?;
        if found.is_empty() {
            return Err(FileError::new(file, format!("it has no {what}: give the list `{what}`")));
        }
        let place = |(location, body): (Location, T)| described_at(file, location, body);
        all.extend(found.into_iter().map(place));
    }
    Ok(all)
}

fn described_at<T>(file: &Path, location: Location, body: T) -> Described<T> {
    Described { file: file.to_owned(), line: location.line(), body }
}

fn in_text<T>(
    text: &str,
    read: impl Fn(&JobsFile) -> Result<Vec<(Location, T)>, LineError>,
) -> Result<Vec<(Location, T)>, LineError> {
    let documents: Vec<JobsFile> = documents(text)?;
    let mut all = Vec::new();
    for document in &documents {
        check_classes(&document.priority_classes)?;
        all.extend(read(document)?);
    }
    Ok(all)
}

/// Checks that a text describes priority classes, queues and jobs that may be sent.
pub(super) fn check(text: &str) -> Result<(), LineError> {
    let read = |file: &JobsFile| {
        let queues = file.queues.iter().map(|queue| queue_body(queue).map(drop));
        let jobs = file.jobs.iter().map(|job| job_body(job, &file.priority_classes).map(drop));
        queues.chain(jobs).map(|checked| Ok((Location::UNKNOWN, checked?))).collect()
    };
    in_text(text, read).map(drop)
}

fn amounts(file: &AmountsFile) -> AmountsBody {
    let named = |name: &str, amount: i64| NamedAmount { name: name.to_owned(), amount };
    let mut amounts = Vec::new();
    amounts.extend(file.cpu.map(|amount| named("cpu", amount.0.units())));
    amounts.extend(file.memory.map(|amount| named("memory", amount.0.units())));
    amounts.extend(file.gpu.map(|amount| named("gpu", amount.0.units())));
    amounts.extend(file.resources.iter().map(|(name, amount)| named(name, amount.0.units())));
    AmountsBody { amounts }
}

/// Returns amounts as a request names them.
pub(super) fn demand(file: &AmountsFile) -> DemandBody {
    let custom = file.resources.iter();
    DemandBody {
        cpu: file.cpu.map_or(0, |amount| amount.0.units()),
        memory: file.memory.map_or(0, |amount| amount.0.units()),
        gpu: file.gpu.map_or(0, |amount| amount.0.units()),
        custom: custom
            .map(|(name, amount)| NamedAmount { name: name.clone(), amount: amount.0.units() })
            .collect(),
    }
}

fn queue_body(file: &QueueFile) -> Result<QueueBody, LineError> {
    let place = file.name.referenced;
    Ok(QueueBody {
        name: file.name.value.clone(),
        parent: file.parent.as_ref().map(|parent| parent.value.clone()).unwrap_or_default(),
        tenant: file.tenant,
        weight: file.weight,
        guarantee: amounts(&file.guarantee),
        deserved: file.deserved.as_ref().map(amounts),
        capability: amounts(&file.capability),
        priority: file.priority,
        reclaimable: file.reclaimable,
        open: file.open,
        ordering: match file.ordering.unwrap_or_default() {
            OrderingFile::Drf => ORDERING_DRF,
            OrderingFile::Fifo => ORDERING_FIFO,
            OrderingFile::Fair => ORDERING_FAIR,
        },
        starves_below: part(file.starves_below, "starves_below", place)?,
        fair_share_patience: bounded(file.fair_share_patience, "fair_share_patience", place)?,
        guarantee_patience: bounded(file.guarantee_patience, "guarantee_patience", place)?,
        min_run_time: bounded(file.min_run_time, "min_run_time", place)?,
        usage_half_life: bounded(file.usage_half_life, "usage_half_life", place)?,
        allocations_max: file.allocations_max,
    })
}

fn job_body(file: &JobFile, classes: &ClassesFile) -> Result<JobBody, LineError> {
    let place = file.name.referenced;
    if file.phase.is_some() {
        let message = "`phase` is for scenarios: leave it out, since the queue of the job admits it";
        return Err(LineError::at(place, message));
    }
    if file.tasks.is_empty() {
        return Err(LineError::at(place, "it has no tasks: give `tasks` with at least one"));
    }
    let (roles, numbers) = file.roles();
    let class = class_of_job(file.priority.as_ref(), classes);
    let (priority, priority_class) = asked(file.priority.as_ref(), classes, place)?;
    let group = |(task, role): (&TaskFile, u32)| task_group(file, task, role, classes);
    Ok(JobBody {
        name: file.name.value.clone(),
        queue: file.queue.as_ref().map(|queue| queue.value.clone()).unwrap_or_default(),
        min_member: file.min_member,
        min_resources: file.min_resources.as_ref().map(amounts),
        roles: roles.into_iter().map(|(name, min_member)| RoleBody { name, min_member }).collect(),
        tasks: file.tasks.iter().zip(numbers).map(group).collect::<Result<_, _>>()?,
        priority: priority.or_else(|| class.map(|class| class.value)),
        priority_class,
        preempts: file.preempts && class.is_none_or(|class| class.preempts),
        policies: policy_bodies(&policies(&file.policies)?),
        max_retry: file.max_retry,
        min_success: file.min_success,
        wait: bounded(file.wait, "wait", place)?,
        user: file.user()?.unwrap_or_default().to_owned(),
        topology: job_topology_body(topology(file.topology.as_ref())?.as_ref()),
    })
}

fn task_group(
    job: &JobFile,
    file: &TaskFile,
    role: u32,
    classes: &ClassesFile,
) -> Result<TaskGroupBody, LineError> {
    let place = file.name.referenced;
    let of_scenario = [("state", file.state.is_some()), ("node", file.node.is_some())];
    if let Some((field, _)) = of_scenario.into_iter().find(|&(_, given)| given) {
        let message = format!("`{field}` is for scenarios: leave it out, since the service places the tasks");
        return Err(LineError::at(place, message));
    }
    let policy = match &file.policy {
        None => POLICY_DEFAULT,
        Some(name) => {
            let policy: Result<Policy, _> = name.parse();
            policy_number(policy.map_err(|error| LineError::at(place, format!("{error}")))?)
        }
    };
    let (priority, priority_class) = asked(file.priority.as_ref(), classes, place)?;
    Ok(TaskGroupBody {
        request: PlaceRequest {
            demand: demand(&file.amounts()),
            policy,
            selectors: file.selector.terms(),
            tolerations: file.tolerations.iter().map(TolerationFile::toleration).collect(),
            ..PlaceRequest::default()
        },
        count: file.count,
        role,
        priority,
        priority_class,
        preemptable: file.preemptable.unwrap_or(job.preemptable),
        master: file.master,
        run_time: bounded(file.run_time.or(job.run_time), "run_time", place)?,
        policies: policy_bodies(&policies(&file.policies)?),
        topology: job_topology_body(topology(file.topology.as_ref())?.as_ref()),
    })
}

#[cfg(test)]
mod tests {
    use wharf_net::protocol::{
        ACTION_ABORT_JOB, ACTION_COMPLETE_JOB, ACTION_RESTART_JOB, EFFECT_ANY, EFFECT_NO_SCHEDULE,
        JOB_TOPOLOGY_HARD, JOB_TOPOLOGY_SOFT, JobPolicyBody, JobTopologyBody, OPERATOR_EXISTS,
        OPERATOR_NOT_IN, TASK_EVENT_ANY, TASK_EVENT_COMPLETED, TASK_EVENT_EVICTED, TASK_EVENT_FAILED,
    };

    use super::*;

    fn read_jobs(text: &str) -> Result<Vec<JobBody>, LineError> {
        let read = |file: &JobsFile| {
            let body = |job| job_body(job, &file.priority_classes);
            file.jobs.iter().map(|job| Ok((job.name.referenced, body(job)?))).collect()
        };
        Ok(in_text(text, read)?.into_iter().map(|(_, body)| body).collect())
    }

    fn read_queues(text: &str) -> Result<Vec<(u64, QueueBody)>, LineError> {
        let read = |file: &JobsFile| {
            file.queues.iter().map(|queue| Ok((queue.name.referenced, queue_body(queue)?))).collect()
        };
        Ok(in_text(text, read)?.into_iter().map(|(place, body)| (place.line(), body)).collect())
    }

    #[test]
    fn a_job_is_what_is_written() {
        let text = "
priority_classes: {high: 100}
queues: [{name: q}]
jobs:
- name: train
  queue: q
  user: ann
  min_member: 3
  min_resources: {cpu: 2, memory: 1GiB}
  roles: {ps: 1}
  priority: high
  tasks:
  - {name: ps, role: ps, cpu: 1, master: true, priority: 7}
  - {name: run, count: 4, gpu: 0.5, resources: {npu: 2}, selector: {zone: a}, preemptable: false, policy: spread}
";
        let jobs = read_jobs(text).unwrap();
        let [job] = &jobs[..] else { panic!("{jobs:?}") };
        assert_eq!((&*job.name, &*job.queue, job.min_member, job.priority), ("train", "q", 3, Some(100)));
        assert_eq!(job.user, "ann");
        assert_eq!(job.min_resources.as_ref().unwrap().amounts[1].amount, 10_240_000);
        let roles: Vec<_> = job.roles.iter().map(|role| (&*role.name, role.min_member)).collect();
        assert_eq!(roles, [("ps", 1), ("task", 0)]);
        let [ps, run] = &job.tasks[..] else { panic!("{job:?}") };
        assert_eq!((ps.role, ps.priority, ps.master, ps.preemptable), (0, Some(7), true, true));
        assert_eq!((run.role, run.priority, run.count, run.preemptable), (1, None, 4, false));
        assert_eq!((run.request.demand.gpu, run.request.demand.custom[0].amount), (5000, 20_000));
        assert_eq!(run.request.selectors[0].values[0].0, "a");
        assert_eq!(run.request.policy, policy_number(Policy::Spread));
    }

    #[test]
    fn classes_of_the_file_come_before_those_of_the_service() {
        let text = "
priority_classes: {usual: {value: 3, default: true, preempts: false}, high: 100}
jobs:
- {name: a, queue: q, tasks: [{name: t}]}
- {name: b, queue: q, priority: high, tasks: [{name: t, priority: urgent}, {name: u, priority: usual}]}
- {name: c, queue: q, priority: urgent, tasks: [{name: t, priority: 4}]}
---
jobs:
- {name: d, queue: q, tasks: [{name: t}]}
";
        let jobs = read_jobs(text).unwrap();
        let of_jobs: Vec<_> =
            jobs.iter().map(|job| (job.priority, &*job.priority_class, job.preempts)).collect();
        let expected =
            [(Some(3), "", false), (Some(100), "", true), (None, "urgent", true), (None, "", true)];
        assert_eq!(of_jobs, expected);
        let groups = jobs.iter().flat_map(|job| &job.tasks);
        let of_tasks: Vec<_> = groups.map(|group| (group.priority, &*group.priority_class)).collect();
        let expected = [(None, ""), (None, "urgent"), (Some(3), ""), (Some(4), ""), (None, "")];
        assert_eq!(of_tasks, expected);
    }

    #[test]
    fn terms_and_tolerations_of_tasks_are_read() {
        let text = "
jobs:
- name: j
  queue: q
  tasks:
  - {name: t, selector: ['zone!=a', ssd], tolerations: ['gpu=yes:NoSchedule', spot]}
";
        let jobs = read_jobs(text).unwrap();
        let request = &jobs[0].tasks[0].request;
        let terms: Vec<_> = request.selectors.iter().map(|term| (&*term.key, term.operator)).collect();
        assert_eq!(terms, [("zone", OPERATOR_NOT_IN), ("ssd", OPERATOR_EXISTS)]);
        let tolerated: Vec<_> =
            request.tolerations.iter().map(|of| (&*of.key, &*of.value, of.effect)).collect();
        assert_eq!(tolerated, [("gpu", "yes", EFFECT_NO_SCHEDULE), ("spot", "", EFFECT_ANY)]);
    }

    #[test]
    fn policies_of_jobs_and_tasks_are_read() {
        let text = r#"
jobs:
- name: j
  queue: q
  max_retry: 5
  policies:
  - {event: "*", action: restart_job}
  - {event: task_failed, events: [task_evicted], exit_code: 3, action: abort_job}
  tasks:
  - {name: t, policies: [{event: task_completed, action: complete_job}]}
- {name: plain, queue: q, wait: 2h, tasks: [{name: u}]}
"#;
        let jobs = read_jobs(text).unwrap();
        assert_eq!((jobs[0].wait, jobs[1].wait), (None, Some(7_200_000_000_000)));
        let policy = |events: &[u8], action, exit_code| JobPolicyBody {
            events: events.to_vec(),
            action,
            exit_code,
            timeout: None,
        };
        let failed_or_evicted = [TASK_EVENT_FAILED, TASK_EVENT_EVICTED];
        let of_job = [
            policy(&[TASK_EVENT_ANY], ACTION_RESTART_JOB, None),
            policy(&failed_or_evicted, ACTION_ABORT_JOB, Some(3)),
        ];
        assert_eq!((&jobs[0].policies[..], jobs[0].max_retry), (&of_job[..], 5));
        assert_eq!(jobs[0].tasks[0].policies, [policy(&[TASK_EVENT_COMPLETED], ACTION_COMPLETE_JOB, None)]);
        assert!(jobs[1].policies.is_empty() && jobs[1].max_retry == 3);
    }

    #[test]
    fn topologies_of_jobs_and_tasks_are_read() {
        let text = "
jobs:
- name: j
  queue: q
  topology: {mode: soft}
  tasks:
  - {name: t, topology: {mode: hard, tier: rack}}
  - {name: u}
";
        let jobs = read_jobs(text).unwrap();
        let body = |mode, tier: &str| Some(JobTopologyBody { mode, tier: tier.to_owned() });
        assert_eq!(jobs[0].topology, body(JOB_TOPOLOGY_SOFT, ""));
        let of_tasks: Vec<_> = jobs[0].tasks.iter().map(|group| group.topology.clone()).collect();
        assert_eq!(of_tasks, [body(JOB_TOPOLOGY_HARD, "rack"), None]);
    }

    #[test]
    fn queues_are_read_with_their_lines() {
        let text = "
queues:
- name: a
  weight: 3
  guarantee: {cpu: 2}
  capability: {memory: 1GiB, resources: {npu: 4}}
  ordering: fifo
  starves_below: 0.5
- {name: b, parent: a, tenant: 7, min_run_time: 30s, usage_half_life: 2h, reclaimable: false}
---
queues: [{name: c}]
";
        let queues = read_queues(text).unwrap();
        let lines: Vec<_> = queues.iter().map(|(line, queue)| (*line, &*queue.name)).collect();
        assert_eq!(lines, [(3, "a"), (9, "b"), (11, "c")]);
        let a = &queues[0].1;
        let b = &queues[1].1;
        assert_eq!((a.weight, a.ordering, a.starves_below), (3, ORDERING_FIFO, Some(5000)));
        assert_eq!(
            a.guarantee,
            AmountsBody { amounts: vec![NamedAmount { name: "cpu".to_owned(), amount: 20_000 }] }
        );
        assert_eq!(a.capability.amounts[1], NamedAmount { name: "npu".to_owned(), amount: 40_000 });
        assert_eq!((&*b.parent, b.tenant, b.min_run_time), ("a", Some(7), Some(30_000_000_000)));
        assert_eq!(b.usage_half_life, Some(7_200_000_000_000));
        assert_eq!(queues[2].1, QueueBody { name: "c".to_owned(), ..QueueBody::default() });
    }

    #[test]
    fn a_wrong_number_is_told_with_its_field_its_line_and_its_range() {
        let of_queue = |field: &str| read_queues(&format!("queues:\n- name: q\n  {field}\n")).unwrap_err();
        let of_job = |fields: &str| {
            let text = format!("jobs:\n- name: j\n  queue: q\n  {fields}, tasks: [{{name: t}}]}}\n");
            read_jobs(&text.replace("- name: j\n  queue: q\n  ", "- {name: j, queue: q,\n  ")).unwrap_err()
        };
        for (number, least, most) in [
            ("allocations_max: -1", 0, u32::MAX),
            ("weight: 1.5", 1, u32::MAX),
            ("weight: -1", 1, u32::MAX),
            ("tenant: 70000", 0, 65_535),
        ] {
            let error = of_queue(number);
            let (field, value) = number.split_once(": ").expect("both");
            let told = format!("`{field}` is {value}: give a whole number from {least} to {most}");
            assert!(error.line == 3 && error.message.contains(&told), "{error}");
        }
        let error = of_queue("allocations_max: many");
        assert!(error.message.contains("`allocations_max` is many"), "{error}");
        for number in ["min_member: -3", "min_success: 5000000000", "max_retry: x"] {
            let error = of_job(number);
            assert!(error.line == 3 && error.message.contains("give a whole number from 0 to"), "{error}");
        }
        let read = read_queues("queues: [{name: q, allocations_max: 0}, {name: r, allocations_max: null}]\n");
        let most: Vec<_> = read.unwrap().into_iter().map(|(_, body)| body.allocations_max).collect();
        assert_eq!(most, [Some(0), None]);
    }

    #[test]
    fn a_fault_in_a_file_names_its_line_and_a_remedy() {
        let job = |rest: &str| format!("jobs:\n- name: j\n  queue: q\n  {rest}\n");
        let tasks = |task: &str| job(&format!("tasks:\n  - {{name: t, {task}}}"));
        let cases = [
            (job("phase: inqueue\n  tasks: [{name: t}]"), 2, "`phase` is for scenarios: leave it out"),
            (tasks("policies: [{event: pod_failed, action: abort_job}]"), 5, "give task_failed"),
            (tasks("policies: [{event: any, action: kill}]"), 5, "give restart_task"),
            (tasks("policies: [{event: any}]"), 5, "action"),
            (tasks("state: running"), 5, "`state` is for scenarios: leave it out"),
            (tasks("node: n"), 5, "`node` is for scenarios: leave it out"),
            (job("user: \"\"\n  tasks: [{name: t}]"), 4, "`user` has 0 bytes: give 1 to 64"),
            (tasks(&format!("priority: {}", "p".repeat(65))), 5, "has 65 bytes: give 1 to 64"),
            (tasks("policy: best"), 5, "best"),
            (tasks("cpus: 3"), 5, "cpus"),
            (tasks("tolerations: ['a:Never']"), 5, "`a:Never` is no toleration"),
            (tasks("selector: ['zone=']"), 5, "`zone=` is no term of a selector"),
            (tasks("topology: {mode: firm}"), 5, "give hard or soft"),
            (tasks("topology: {mode: hard}"), 5, "a hard topology needs a `tier`"),
            (tasks("topology: {mode: soft, tier: \"\"}"), 5, "`tier` is empty"),
            (job("tasks: []"), 2, "it has no tasks"),
            (job("steps: []\n  tasks: []"), 4, "steps"),
            ("name: x\n".to_owned(), 1, "name"),
        ];
        for (text, line, part) in cases {
            let error = read_jobs(&text).expect_err(&text);
            assert!(error.line == line && error.message.contains(part), "{error} for\n{text}");
        }
    }
}
