//! Settings of queues and jobs that the rules of a service do not use: they are told, because they look as if they mattered.

use wharf_core::cycle::{Action, CycleConfig, PluginKind};

use crate::job_file::{JobFile, Name, QueueFile};
use crate::line_error::LineError;

const USAGE: &str = "name plugin `usage` in `tiers`";

/// Returns what queues and jobs say that does not matter under these rules, each with the line of the queue or the job.
pub(crate) fn unused<'q>(
    queues: impl IntoIterator<Item = &'q QueueFile>,
    jobs: impl IntoIterator<Item = &'q JobFile>,
    rules: &CycleConfig,
) -> Vec<LineError> {
    let of_queues = queues.into_iter().flat_map(|queue| told("queue", &queue.name, of_queue(queue, rules)));
    let of_jobs = jobs.into_iter().flat_map(|job| told("job", &job.name, of_job(job, rules)));
    of_queues.chain(of_jobs).collect()
}

/// A field, whether it is given and used, and what would use it.
type Field = (&'static str, bool, bool, &'static str);

/// Says which fields of a queue or a job are given and not used.
fn told(kind: &str, name: &Name, fields: Vec<Field>) -> Vec<LineError> {
    let unused = fields.into_iter().filter(|&(_, is_given, is_used, _)| is_given && !is_used);
    let fault = |(field, _, _, remedy): Field| {
        let message = format!(
            "`{field}` of {kind} `{}` is not used by the rules of this service: {remedy}, or leave it out",
            name.value
        );
        LineError::at(name.referenced, message)
    };
    unused.map(fault).collect()
}

fn of_job(job: &JobFile, rules: &CycleConfig) -> Vec<Field> {
    let has = |kind: PluginKind| rules.plugin(kind).is_some();
    vec![
        ("wait", job.wait.is_some(), has(PluginKind::Sla), "name plugin `sla` in `tiers`"),
        ("user", job.user.is_some(), has(PluginKind::Usage), USAGE),
    ]
}

fn of_queue(queue: &QueueFile, rules: &CycleConfig) -> Vec<Field> {
    let has = |kind: PluginKind| rules.plugin(kind).is_some();
    let starves = rules.actions.contains(&Action::Starve);
    let fair_share = "name plugin `fair-share` in `tiers`";
    let starve = "name action `starve` in `actions`, with plugin `fair-share`";
    vec![
        ("ordering", queue.ordering.is_some(), has(PluginKind::FairShare), fair_share),
        (
            "deserved",
            queue.deserved.is_some(),
            has(PluginKind::Capacity),
            "name plugin `capacity` in `tiers`, in place of `proportion`",
        ),
        ("starves_below", queue.starves_below.is_some(), starves, starve),
        ("fair_share_patience", queue.fair_share_patience.is_some(), starves, starve),
        ("guarantee_patience", queue.guarantee_patience.is_some(), starves, starve),
        ("usage_half_life", queue.usage_half_life.is_some(), has(PluginKind::Usage), USAGE),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cycle_file::{ConfigFile, cycle_config};
    use crate::job_file::JobsFile;
    use crate::line_error::documents;

    #[test]
    fn what_rules_do_not_use_is_told_with_its_line() {
        let queues = "
queues:
- {name: a, ordering: fifo, deserved: {cpu: 2}, weight: 3}
- {name: b, starves_below: 0.5, fair_share_patience: 1m, guarantee_patience: 1m}
- {name: c, usage_half_life: 1h}
- {name: d, guarantee: {cpu: 1}, capability: {cpu: 2}}
jobs:
- {name: j, queue: d, wait: 1h, user: u, tasks: [{name: t}]}
";
        let files: Vec<JobsFile> = documents(queues).unwrap();
        let told = |rules: &str| {
            let config: Vec<ConfigFile> = documents(rules).unwrap();
            let faults = unused(&files[0].queues, &files[0].jobs, &cycle_config(&config[0]).unwrap());
            let field = |fault: &LineError| fault.message.split('`').nth(1).unwrap().to_owned();
            faults.iter().map(|fault| (fault.line, field(fault))).collect::<Vec<_>>()
        };
        let named =
            |all: &[(u64, &str)]| all.iter().map(|&(line, of)| (line, of.to_owned())).collect::<Vec<_>>();
        let patience = [(4, "starves_below"), (4, "fair_share_patience"), (4, "guarantee_patience")];
        let of_job = [(8, "wait"), (8, "user")];
        let by_default =
            [&[(3, "ordering"), (3, "deserved")], &patience[..], &[(5, "usage_half_life")], &of_job].concat();
        assert_eq!(told("{actions: [enqueue, allocate]}"), named(&by_default));
        let with_usage = told("{tiers: [[fair-share, capacity, usage]]}");
        assert_eq!(with_usage, named(&[&patience[..], &of_job[..1]].concat()));
        let starve = told("{actions: [allocate, starve], tiers: [[fair-share, sla]]}");
        assert_eq!(starve, named(&[(3, "deserved"), (5, "usage_half_life"), (8, "user")]));
    }
}
