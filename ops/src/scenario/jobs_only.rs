//! Checks files of priority classes, queues and jobs, which `wharf queue set` and `wharf job submit` read, with the rules of a
//! service.

use std::collections::BTreeSet;

use wharf_core::cycle::CycleConfig;
use wharf_core::fairness::Amounts;
use wharf_core::jobs::QueueSpec;

use super::build::World;
use crate::class_file::ClassesFile;
use crate::job_file::{JobsFile, Name, PriorityFile, topology};
use crate::line_error::{LineError, documents};
use crate::unused::unused;

/// Where jobs are checked that leave their queue to their tenant.
const OF_TENANT: &str = "the queue of the tenant";

/// The numbers of priority classes, queues and jobs that are right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Priority classes.
    pub classes: usize,
    /// Queues.
    pub queues: usize,
    /// Jobs.
    pub jobs: usize,
}

/// Returns what the queues and jobs of a file say that these rules do not use, each with its line.
///
/// # Errors
/// The first fault in the text, with its line.
pub(crate) fn unused_by(text: &str, rules: &CycleConfig) -> Result<Vec<LineError>, LineError> {
    let files: Vec<JobsFile> = documents(text)?;
    let queues = files.iter().flat_map(|file| &file.queues);
    Ok(unused(queues, files.iter().flat_map(|file| &file.jobs), rules))
}

/// Checks the priority classes, queues and jobs of a file. Queues and classes that it names and does not have count as ones
/// that the service has, and so do tiers of the topology.
///
/// # Errors
/// The first fault, with its line.
pub fn check_jobs(text: &str) -> Result<Checked, LineError> {
    let mut files: Vec<JobsFile> = documents(text)?;
    let mut world = World::empty();
    let own: BTreeSet<String> =
        files.iter().flat_map(|file| &file.queues).map(|queue| queue.name.value.clone()).collect();
    // Whether the settings give a queue to jobs that name none, the service knows.
    for job in files.iter_mut().flat_map(|file| &mut file.jobs) {
        let place = job.name.referenced;
        job.queue.get_or_insert_with(|| Name::new(OF_TENANT.to_owned(), place, place));
    }
    let named = |file: &JobsFile| -> Vec<Name> {
        let parents = file.queues.iter().filter_map(|queue| queue.parent.clone());
        parents.chain(file.jobs.iter().filter_map(|job| job.queue.clone())).collect()
    };
    let mut foreign: BTreeSet<String> = files.iter().flat_map(named).map(|name| name.value).collect();
    foreign.retain(|name| !own.contains(name));
    for name in &foreign {
        let queues = files.iter().flat_map(|file| &file.queues);
        let children = queues.filter(|queue| queue.parent.as_ref().is_some_and(|of| of.value == *name));
        // What it is guaranteed, the service knows: here, it is as much as those below it need.
        let mut guarantee = Amounts::zero();
        for child in children {
            let own = world.amounts(&child.guarantee, child.name.referenced)?;
            guarantee.add(&own.into_iter().collect());
        }
        let spec = QueueSpec { guarantee, ..QueueSpec::new(name) };
        let added = world.cluster.scheduler_mut().jobs_mut().add_queue(spec);
        // Only the root has a name that is taken. A job or queue says what is wrong with it.
        drop(added);
    }
    let mut checked = Checked::default();
    for (number, file) in files.iter_mut().enumerate() {
        file.queues.iter_mut().for_each(|queue| queue.tenant = None);
        for (at, job) in file.jobs.iter_mut().enumerate() {
            // The service knows which tiers there are, and its classes.
            topology(job.topology.take().as_ref())?;
            job.priority.take_if(|of| is_foreign(of, &file.priority_classes));
            for (index, task) in job.tasks.iter_mut().enumerate() {
                topology(task.topology.take().as_ref())?;
                task.priority.take_if(|of| is_foreign(of, &file.priority_classes));
                // Tasks of different jobs may have the same name here.
                task.name.value = format!("{number}.{at}.{index}");
            }
        }
        world.set_classes(&file.priority_classes)?;
        world.add(&[], &file.queues, &file.jobs)?;
        checked.classes += file.priority_classes.len();
        checked.queues += file.queues.len();
        checked.jobs += file.jobs.len();
    }
    Ok(checked)
}

/// Returns whether it is a class that the file has not.
fn is_foreign(priority: &PriorityFile, own: &ClassesFile) -> bool {
    matches!(priority, PriorityFile::Class(name) if !own.contains_key(name))
}
