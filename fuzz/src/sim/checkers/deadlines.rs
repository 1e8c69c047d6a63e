//! What is too late is not done.
//!
//! A deadline counts from when the service reads the request, not from when it arrives: a connection that is not read
//! further keeps frames for a while. So the checker is told when each one is read, and compares with the time at which
//! the connection sent a command to a shard.

use std::collections::BTreeMap;

use wharf_core::ids::{AllocationId, SessionId};
use wharf_core::shard::Command;
use wharf_core::time::Time;

use super::{Verdict, ensure};

/// A request: its session and its sequence.
type Request = (SessionId, u64);

/// When releases must be done.
#[derive(Clone, Debug, Default)]
pub struct ReleaseDeadlines {
    /// What is released, and within how many ns, by requests with a deadline that arrived.
    asked: BTreeMap<Request, (AllocationId, u64)>,
    /// The deadlines of those that were read: the first one, if a request was refused and read again.
    due: BTreeMap<Request, Time>,
    /// The latest deadline of the releases of each allocation that were read.
    latest: BTreeMap<AllocationId, Time>,
}

impl ReleaseDeadlines {
    /// Notes that a release arrives, and within how many ns after it is read it must be done. `None`: at any time.
    pub fn arrives(&mut self, request: Request, allocation: AllocationId, within_ns: Option<u64>) {
        match within_ns {
            Some(within_ns) => {
                self.asked.insert(request, (allocation, within_ns));
            }
            None => {
                self.latest.insert(allocation, Time(u64::MAX));
            }
        }
    }

    /// Notes that the service reads a request with a deadline at `now`.
    pub fn is_read(&mut self, request: Request, now: Time) {
        let Some(&(allocation, within_ns)) = self.asked.get(&request) else { return };
        let due = now.plus_nanos(within_ns);
        self.due.entry(request).or_insert(due);
        let latest = self.latest.entry(allocation).or_insert(due);
        *latest = due.max(*latest);
    }

    /// Checks commands of a shard, each with the time at which its connection sent it.
    ///
    /// # Errors
    /// Returns a release that was sent after its deadline.
    pub fn check<'a>(&self, sent: impl IntoIterator<Item = (&'a Command, Time)>) -> Verdict {
        for (command, at) in sent {
            if let Command::Release(id) = command
                && let Some(&due) = self.latest.get(id)
            {
                ensure(at < due, || {
                    format!("the release of {id} was due by {due:?}, and was sent to its shard at {at:?}")
                })?;
            }
        }
        Ok(())
    }

    /// Checks that a release that was refused at `now` because it was late was late.
    ///
    /// # Errors
    /// Returns its deadline, if it had one.
    pub fn check_late(&self, request: Request, now: Time) -> Verdict {
        let due = self.due.get(&request).copied();
        ensure(due.is_some_and(|due| due <= now), || {
            format!("{request:?} was refused as late at {now:?}, and is due by {due:?}")
        })
    }
}

#[cfg(test)]
pub mod tests {
    use wharf_core::ids::{Incarnation, PartitionId, TenantId};

    use super::*;

    fn id(sequence: u64) -> AllocationId {
        let incarnation = Incarnation(1);
        AllocationId { incarnation, partition: PartitionId(0), sequence, tenant: TenantId::OPERATOR }
    }

    fn request(sequence: u64) -> Request {
        (SessionId { incarnation: Incarnation(1), number: 1 }, sequence)
    }

    #[test]
    pub fn a_release_after_its_deadline() {
        let mut deadlines = ReleaseDeadlines::default();
        deadlines.arrives(request(1), id(1), Some(10));
        let release = Command::Release(id(1));
        // It arrived long before it is read.
        deadlines.is_read(request(1), Time(100));
        assert_eq!(deadlines.check([(&release, Time(109)), (&Command::Release(id(2)), Time(999))]), Ok(()));
        assert!(deadlines.check([(&release, Time(110))]).is_err());
        // It was sent again, with more time, and then without a deadline.
        deadlines.arrives(request(2), id(1), Some(12));
        deadlines.is_read(request(2), Time(100));
        assert_eq!(deadlines.check([(&release, Time(111))]), Ok(()));
        assert!(deadlines.check([(&release, Time(112))]).is_err());
        deadlines.arrives(request(3), id(1), None);
        assert_eq!(deadlines.check([(&release, Time(999))]), Ok(()));
    }

    #[test]
    pub fn a_release_refused_before_its_deadline() {
        let mut deadlines = ReleaseDeadlines::default();
        deadlines.arrives(request(1), id(1), Some(10));
        assert!(deadlines.check_late(request(1), Time(5)).is_err(), "it was not read");
        deadlines.is_read(request(1), Time(100));
        assert!(deadlines.check_late(request(1), Time(109)).is_err());
        assert_eq!(deadlines.check_late(request(1), Time(110)), Ok(()));
        deadlines.arrives(request(2), id(1), None);
        assert!(deadlines.check_late(request(2), Time(999)).is_err(), "it has no deadline");
    }
}
