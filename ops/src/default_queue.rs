//! The default queue, for what names none: whether it takes anything, by queues that are known without a running service.

use wharf_core::jobs::{BindingError, DefaultFault, JobsRecord};

use crate::job_file::JobsFile;

/// What matters of a queue.
#[derive(Clone, Copy, Debug)]
struct Known<'q> {
    name: &'q str,
    parent: Option<&'q str>,
    open: bool,
}

/// Returns why a default queue of this name takes nothing, if these are all queues.
fn fault(default: &str, queues: &[Known<'_>]) -> Option<BindingError> {
    let fault = match queues.iter().find(|queue| queue.name == default) {
        None => DefaultFault::Unknown,
        Some(_) if queues.iter().any(|queue| queue.parent == Some(default)) => DefaultFault::Inner,
        Some(queue) if !queue.open => DefaultFault::Closed,
        Some(_) => return None,
    };
    Some(BindingError::Default { queue: default.into(), fault })
}

/// Returns why a default queue of this name takes nothing, by the queues of a store.
pub(crate) fn fault_in_store(default: &str, jobs: &JobsRecord) -> Option<BindingError> {
    let queues = jobs.queues.iter().map(|queue| Known {
        name: &queue.spec.name,
        parent: queue.parent.as_deref(),
        open: queue.spec.open,
    });
    fault(default, &queues.collect::<Vec<_>>())
}

/// Returns why a default queue of this name would take nothing, if a service had the queues of these files. If they have none,
/// nothing is known.
pub(crate) fn fault_in_files(default: &str, files: &[JobsFile]) -> Option<BindingError> {
    let queues = files.iter().flat_map(|file| &file.queues).map(|queue| Known {
        name: &queue.name.value,
        parent: queue.parent.as_ref().map(|parent| parent.value.as_str()),
        open: queue.open,
    });
    let queues: Vec<Known<'_>> = queues.collect();
    if queues.is_empty() { None } else { fault(default, &queues) }
}

#[cfg(test)]
mod tests {
    use wharf_core::jobs::{Jobs, QueueSpec};

    use super::*;
    use crate::line_error::documents;

    #[test]
    fn a_default_queue_is_known_by_files_and_by_a_store() {
        let text = "queues: [{name: outer}, {name: inner, parent: outer}, {name: closed, open: false}]";
        let files: Vec<JobsFile> = documents(text).unwrap();
        let mut jobs = Jobs::new();
        let outer = jobs.add_queue(QueueSpec::new("outer")).unwrap();
        jobs.add_queue(QueueSpec { parent: outer, ..QueueSpec::new("inner") }).unwrap();
        jobs.add_queue(QueueSpec { open: false, ..QueueSpec::new("closed") }).unwrap();
        let store = jobs.record();
        for (queue, expected) in [
            ("inner", None),
            ("outer", Some(DefaultFault::Inner)),
            ("closed", Some(DefaultFault::Closed)),
            ("nobody", Some(DefaultFault::Unknown)),
        ] {
            let expected = expected.map(|fault| BindingError::Default { queue: queue.into(), fault });
            assert_eq!(fault_in_files(queue, &files), expected);
            assert_eq!(fault_in_store(queue, &store), expected);
        }
        assert_eq!(fault_in_files("nobody", &[]), None, "the files have no queues");
    }
}
