//! Compares dated reservations with those that were expected.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::build::World;
use super::expect::Found;
use super::file::ExpectFile;
use crate::line_error::LineError;

/// Compares the dates of all reservations, and the nodes of those that are named.
pub(super) fn check(world: &World, expected: &ExpectFile, found: &mut Found) -> Result<(), LineError> {
    let jobs = world.cluster.scheduler().jobs();
    let name = |job| &*jobs.job(job).spec().name;
    let reservations: BTreeMap<&str, _> =
        world.cluster.scheduler().reservations().map(|of| (name(of.job), of)).collect();
    if let Some(wanted) = &expected.reserved {
        for job in wanted.keys() {
            world.job_named(job)?;
        }
        let actual: BTreeMap<&str, u64> = reservations.iter().map(|(&job, of)| (job, of.date.0)).collect();
        let wanted: BTreeMap<&str, u64> = wanted.iter().map(|(job, date)| (job.as_str(), date.0)).collect();
        let is_expected = actual == wanted;
        found.check(is_expected, || format!("reserved: {}; expected: {}", shown(&actual), shown(&wanted)));
    }
    for (job, wanted) in &expected.reserved_nodes {
        world.job_named(job)?;
        let nodes = reservations.get(job.as_str()).into_iter().flat_map(|of| of.nodes());
        let actual: BTreeSet<String> = nodes.map(|(node, _)| world.node_name(node).to_owned()).collect();
        found.check(actual == *wanted, || {
            let listed = |nodes: &BTreeSet<String>| nodes.iter().cloned().collect::<Vec<_>>().join(", ");
            format!("nodes reserved for {job}: {}; expected: {}", listed(&actual), listed(wanted))
        });
    }
    Ok(())
}

fn shown(dates: &BTreeMap<&str, u64>) -> String {
    if dates.is_empty() {
        return "none".to_owned();
    }
    let one = |(job, date): (&&str, &u64)| format!("{job} at {:?}", Duration::from_nanos(*date));
    dates.iter().map(one).collect::<Vec<_>>().join(", ")
}
