//! The placeholders of groups that wait in queues.
//!
//! While a group waits, a job of its queue holds its place: one pending task for each bundle that is to be placed. So orders,
//! shares and demands count it as they count jobs. A cycle decides when it is placed. Then it has [charges](super::charge)
//! instead. A placeholder is never recorded: either its group is, or the request for it.

use super::{JobId, JobSpec, Jobs, NotCharged, TaskId, TaskState};
use crate::time::Time;

impl Jobs {
    /// Adds the placeholder of a group that waits.
    ///
    /// # Errors
    /// Sums would be too large, or there are too many users. Nothing has changed.
    pub(crate) fn add_placeholder(&mut self, spec: JobSpec) -> Result<JobId, NotCharged> {
        let admitted = self.check_amounts(&spec).and_then(|()| self.admit_user(&spec));
        admitted.map_err(|error| NotCharged::of_job(&error, &self.queue(spec.queue).spec.name))?;
        let id = JobId(self.next_ids.placeholder);
        self.insert(id, spec);
        Ok(id)
    }

    /// Removes the placeholder of a group.
    ///
    /// # Panics
    /// If a cycle has planned something for it that was not taken back.
    pub(crate) fn end_placeholder(&mut self, id: JobId, now: Time) {
        assert!(id.is_placeholder(), "job {id} is no placeholder of a group");
        let pending: Vec<u32> = self.job(id).pending().collect();
        for index in pending {
            self.set(TaskId { job: id, index }, TaskState::Failed, None, now);
        }
        self.remove_job(id);
    }
}
