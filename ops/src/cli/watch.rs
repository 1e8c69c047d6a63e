//! `wharf watch`: prints changes, and continues after a lost connection.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use wharf_net::client::{Client, ClientError, Followed, Follower};
use wharf_net::protocol::{FOLLOW_ALL, FOLLOW_ALLOCATIONS, FOLLOW_HOLDS, FOLLOW_NODES, Reason, ShardVersion};

use super::Ended;
use super::connect::{ConnectArgs, Usage};
use super::place::Interruption;
use super::watch_view::Printer;
use crate::agent::Backoff;

/// The time limit of closing the connection when the command is told to end.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(
    after_help = "Prints first what there is (a resync, which says so), then each change. With --json, one object \
                  per line: `event` is `resync`, `node`, `node_gone`, `allocation`, `allocation_ended`, `hold`, \
                  `hold_ended`, `at` (everything until here is a state of the shard; `versions` goes on from it), \
                  `lost` or `connected`.\n\
                  On a lost connection it connects again and goes on where it was; what a restarted service, or \
                  one that has published too much since, cannot go on from begins with a resync.\n\
                  Exit status: 0 told to end (ctrl-c), or --once is done; 1 the service refused; 2 wrong usage; \
                  3 no connection at the beginning."
)]
pub(super) struct WatchArgs {
    /// Print nodes: free capacity, state and version.
    #[arg(long)]
    nodes: bool,
    /// Print allocations that begin or end.
    #[arg(long)]
    allocations: bool,
    /// Print holds of undecided statements.
    #[arg(long)]
    holds: bool,
    /// Continue from these versions, in the notation of `versions` in the JSON output:
    /// SHARD:INCARNATION:SEQUENCE, separated by commas.
    #[arg(long, value_parser = versions)]
    since: Option<Versions>,
    /// Continue from the last versions in a file that `wharf watch --json` wrote.
    #[arg(long, value_name = "FILE", conflicts_with = "since")]
    from: Option<PathBuf>,
    /// Print the current state (or the changes since --since or --from), and exit.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// A version per shard.
#[derive(Clone, Debug)]
struct Versions(Vec<ShardVersion>);

fn versions(text: &str) -> Result<Versions, String> {
    let one = |part: &str| {
        let mut numbers = part.split(':');
        let version = ShardVersion {
            shard: numbers.next()?.parse().ok()?,
            incarnation: numbers.next()?.parse().ok()?,
            sequence: numbers.next()?.parse().ok()?,
        };
        numbers.next().is_none().then_some(version)
    };
    let parts = text.split(',').filter(|part| !part.is_empty());
    let wrong =
        |part: &str| format!("`{part}` is no version: give SHARD:INCARNATION:SEQUENCE, such as 0:1:57");
    parts.map(|part| one(part).ok_or_else(|| wrong(part))).collect::<Result<_, _>>().map(Versions)
}

/// Returns the last versions in a file of JSON lines.
fn last_versions(path: &Path) -> Result<Vec<ShardVersion>, Usage> {
    let usage = |message: String| Usage(format!("--from {}: {message}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
    let of_line = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(value.get("versions")?.as_str()?.to_owned())
    };
    let none = || usage("no line has `versions`: give a file that `wharf watch --json` wrote".to_owned());
    let last = text.lines().rev().find_map(of_line).ok_or_else(none)?;
    versions(&last).map(|versions| versions.0).map_err(usage)
}

/// Formats versions as in `versions` of the JSON output.
fn written(versions: &[ShardVersion]) -> String {
    let one = |v: &ShardVersion| format!("{}:{}:{}", v.shard, v.incarnation, v.sequence);
    versions.iter().map(one).collect::<Vec<_>>().join(",")
}

impl WatchArgs {
    fn kinds(&self) -> u8 {
        let chosen =
            [(self.nodes, FOLLOW_NODES), (self.allocations, FOLLOW_ALLOCATIONS), (self.holds, FOLLOW_HOLDS)];
        let sum = chosen.into_iter().filter(|&(is, _)| is).map(|(_, kind)| kind).sum();
        if sum == 0 { FOLLOW_ALL } else { sum }
    }
}

/// Returns whether a new connection may help.
pub(super) fn is_lost(error: &ClientError) -> bool {
    match error {
        ClientError::Fault(fault) => matches!(
            fault.reason.known(),
            Some(
                Reason::ShuttingDown | Reason::Unavailable | Reason::UnknownSession | Reason::SessionResumed
            )
        ),
        ClientError::Setup { .. } | ClientError::TooLong(_) => false,
        ClientError::Connect { .. }
        | ClientError::ConnectionLost(_)
        | ClientError::SessionGone(_)
        | ClientError::Frame(_)
        | ClientError::Body(_) => true,
    }
}

pub(super) async fn run(args: WatchArgs) -> anyhow::Result<Ended> {
    // First, so that a signal during startup is not lost.
    let mut interruption = Interruption::new()?;
    let from = match (&args.since, &args.from) {
        (Some(versions), _) => versions.0.clone(),
        (None, Some(path)) => last_versions(path)?,
        (None, None) => Vec::new(),
    };
    let client = args.connect.connect().await?;
    let mut follower = Follower::new(client, args.kinds(), &from);
    let watched = {
        let watch = Watch { args: &args, printer: Printer::new(args.connect.json) };
        tokio::select! {
            watched = watch.run(&mut follower) => watched,
            () = interruption.told() => Ok(()),
        }
    };
    if watched.is_ok() {
        // The service answers a waiting request when another one arrives.
        let farewell = async {
            let _ = follower.poll(Duration::ZERO).await;
            follower.into_client().close().await;
        };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }
    watched.map(|()| Ended::Done)
}

struct Watch<'a> {
    args: &'a WatchArgs,
    printer: Printer,
}

impl Watch<'_> {
    async fn run(&self, follower: &mut Follower) -> anyhow::Result<()> {
        let mut backoff = Backoff::default();
        let mut seen = BTreeSet::new();
        loop {
            let followed = if self.args.once {
                follower.poll(Duration::ZERO).await
            } else {
                follower.next().await.map(Some)
            };
            match followed {
                Ok(Some(followed)) => {
                    backoff.reset();
                    self.show(follower, &followed);
                    if followed.page.next.is_none() {
                        seen.insert(followed.page.to.shard);
                    }
                    if self.args.once && seen.len() >= usize::from(followed.shards) {
                        return Ok(());
                    }
                }
                // No more changes; happens only with `--once`.
                Ok(None) => return Ok(()),
                Err(error) if is_lost(&error) => {
                    self.printer.lost(&error.to_string());
                    follower.go_on_with(connect_again(&self.args.connect, &mut backoff).await?);
                    self.printer.connected();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn show(&self, follower: &Follower, followed: &Followed) {
        let at = followed.page.next.is_none().then(|| written(&follower.versions()));
        self.printer.page(&followed.page, at);
    }
}

/// Reconnects, retrying without a limit.
pub(super) async fn connect_again(connect: &ConnectArgs, backoff: &mut Backoff) -> anyhow::Result<Client> {
    loop {
        tokio::time::sleep(backoff.draw()).await;
        match connect.connect().await {
            Ok(client) => return Ok(client),
            Err(error) if error.downcast_ref().is_some_and(is_lost) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_they_are_written() {
        let text = "0:1:57,3:1:2";
        let read = versions(text).unwrap().0;
        assert_eq!(read[1], ShardVersion { shard: 3, incarnation: 1, sequence: 2 });
        assert_eq!(written(&read), text);
        assert!(versions("").unwrap().0.is_empty());
        for wrong in ["0", "0:1", "0:1:2:3", "a:1:2", "0:1:2,x"] {
            assert!(versions(wrong).unwrap_err().contains("no version"), "{wrong}");
        }
    }

    #[test]
    fn the_last_versions_of_a_file_count() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("watched");
        let lines = "{\"event\":\"at\",\"versions\":\"0:1:5\"}\n{\"event\":\"node\"}\n\
                     {\"event\":\"at\",\"versions\":\"0:1:9\"}\n{\"event\":\"lost\"}\nhalf a li";
        std::fs::write(&path, lines).unwrap();
        assert_eq!(last_versions(&path).unwrap()[0].sequence, 9);
        std::fs::write(&path, "{\"event\":\"node\"}\n").unwrap();
        assert!(last_versions(&path).unwrap_err().to_string().contains("no line has `versions`"));
        assert!(last_versions(Path::new("no/such")).unwrap_err().to_string().contains("--from no/such"));
    }
}
