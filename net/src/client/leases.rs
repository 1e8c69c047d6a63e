//! Keeping the leases of a session.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Client, ClientError};
use crate::protocol::{RenewRequest, SessionRenewed};

/// Renews the leases of a client's session until it is dropped.
///
/// It is a handle to the client: drop it before the client is [closed](Client::close).
pub struct LeaseKeeper {
    renewals: watch::Receiver<Option<Result<SessionRenewed, ClientError>>>,
    task: JoinHandle<()>,
}

impl LeaseKeeper {
    /// Waits for the next renewal and returns its outcome.
    ///
    /// # Errors
    /// Same as [`Client::call`]. The keeper has then ended, and the leases will run out.
    pub async fn renewed(&mut self) -> Result<SessionRenewed, ClientError> {
        // An ended keeper has said why, which stays its last word.
        let _ = self.renewals.changed().await;
        let latest = self.renewals.borrow_and_update().clone();
        latest.expect("a keeper ends only after an outcome")
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    /// Renews the leases of this session at once, and then each time when a third of `lasts` has passed. So two
    /// renewals may be late before a lease runs out.
    #[must_use]
    pub fn keep_leases(&self, lasts: Duration) -> LeaseKeeper {
        self.keep_leases_every(lasts, lasts / 3)
    }

    /// Like [`keep_leases`](Self::keep_leases), with a pause of the caller's choice between two renewals.
    #[must_use]
    pub fn keep_leases_every(&self, lasts: Duration, pause: Duration) -> LeaseKeeper {
        let request = RenewRequest {
            lease: u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX),
            allocations: Vec::new(),
            session: Some(self.hello().session),
        };
        let (sender, renewals) = watch::channel(None);
        let client = self.clone();
        let task = tokio::spawn(async move {
            loop {
                let renewed = client.renew(&request).await;
                let renewed = renewed.map(|reply| reply.session.unwrap_or_default());
                let has_failed = renewed.is_err();
                sender.send_replace(Some(renewed));
                if has_failed {
                    return;
                }
                tokio::time::sleep(pause).await;
            }
        });
        LeaseKeeper { renewals, task }
    }
}
