//! What is too late is not done.

use std::collections::BTreeMap;

use wharf_core::ids::AllocationId;
use wharf_core::shard::Command;
use wharf_core::time::Time;

use super::{Verdict, ensure};

/// The latest deadline of the releases of each allocation that clients have sent.
#[derive(Clone, Debug, Default)]
pub struct ReleaseDeadlines(BTreeMap<AllocationId, Time>);

impl ReleaseDeadlines {
    /// Notes that a release must be done by `due`, or may be done at any time.
    pub fn expect(&mut self, allocation: AllocationId, due: Time) {
        let latest = self.0.entry(allocation).or_insert(due);
        *latest = due.max(*latest);
    }

    /// Checks commands of a shard, each with the time at which it was sent to the shard.
    ///
    /// # Errors
    /// Returns a release that was sent after its deadline.
    pub fn check<'a>(&self, sent: impl IntoIterator<Item = (&'a Command, Time)>) -> Verdict {
        for (command, enqueued) in sent {
            if let Command::Release(id) = command
                && let Some(&due) = self.0.get(id)
            {
                ensure(enqueued < due, || {
                    format!(
                        "the release of {id} was due by {due:?}, and was sent to its shard at {enqueued:?}"
                    )
                })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
    use wharf_core::ids::{Incarnation, PartitionId, TenantId};

    use super::*;

    #[test]
    pub fn a_release_after_its_deadline() {
        let id = |sequence| AllocationId {
            incarnation: Incarnation(1),
            partition: PartitionId(0),
            sequence,
            tenant: TenantId::OPERATOR,
        };
        let mut deadlines = ReleaseDeadlines::default();
        deadlines.expect(id(1), Time(10));
        let release = Command::Release(id(1));
        assert_eq!(deadlines.check([(&release, Time(9)), (&Command::Release(id(2)), Time(99))]), Ok(()));
        assert!(deadlines.check([(&release, Time(10))]).is_err());
        // It was sent again.
        deadlines.expect(id(1), Time(12));
        deadlines.expect(id(1), Time(11));
        assert_eq!(deadlines.check([(&release, Time(11))]), Ok(()));
    }
}
