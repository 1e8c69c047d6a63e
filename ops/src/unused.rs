//! Settings of queues and jobs that the rules of a service do not use: they are told, because they look as if they mattered.

use wharf_core::cycle::{Action, CycleConfig, PluginKind};

use crate::job_file::{JobFile, QueueFile};
use crate::line_error::LineError;

/// Returns what queues and jobs say that does not matter under these rules, each with the line of the queue or the job.
pub(crate) fn unused<'q>(
    queues: impl IntoIterator<Item = &'q QueueFile>,
    jobs: impl IntoIterator<Item = &'q JobFile>,
    rules: &CycleConfig,
) -> Vec<LineError> {
    let mut all = Vec::new();
    for queue in queues {
        for (field, remedy) in of_queue(queue, rules) {
            let name = &queue.name.value;
            let message = format!(
                "`{field}` of queue `{name}` is not used by the rules of this service: {remedy}, or leave it out"
            );
            all.push(LineError::at(queue.name.referenced, message));
        }
    }
    for job in jobs {
        let has = |kind: PluginKind| rules.plugin(kind).is_some();
        let fields = [
            ("wait", job.wait.is_some(), has(PluginKind::Sla), "sla"),
            ("user", job.user.is_some(), has(PluginKind::Usage), "usage"),
        ];
        for (field, _, _, plugin) in
            fields.into_iter().filter(|&(_, is_given, is_used, _)| is_given && !is_used)
        {
            let name = &job.name.value;
            let message = format!(
                "`{field}` of job `{name}` is not used by the rules of this service: name plugin `{plugin}` in `tiers`, or leave it out"
            );
            all.push(LineError::at(job.name.referenced, message));
        }
    }
    all
}

/// Returns the fields of a queue that are given and not used, each with what would use it.
fn of_queue(queue: &QueueFile, rules: &CycleConfig) -> Vec<(&'static str, &'static str)> {
    let has = |kind: PluginKind| rules.plugin(kind).is_some();
    let starves = rules.actions.contains(&Action::Starve);
    let fair_share = "name plugin `fair-share` in `tiers`";
    let starve = "name action `starve` in `actions`, with plugin `fair-share`";
    let fields = [
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
        (
            "usage_half_life",
            queue.usage_half_life.is_some(),
            has(PluginKind::Usage),
            "name plugin `usage` in `tiers`",
        ),
    ];
    let unused = fields.into_iter().filter(|&(_, is_given, is_used, _)| is_given && !is_used);
    unused.map(|(field, _, _, remedy)| (field, remedy)).collect()
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
