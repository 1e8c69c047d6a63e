//! `wharf events`: prints what happened, and continues after a lost connection without a gap.

use std::time::Duration;

use clap::Args;
use wharf_net::client::EventFollower;
use wharf_net::protocol::EventsReply;

use super::Ended;
use super::connect::ConnectArgs;
use super::events_view::Printer;
use super::place::Interruption;
use super::watch::{FAREWELL, connect_again, is_lost};
use crate::agent::Backoff;

#[derive(Debug, Args)]
#[command(
    after_help = "Each event has a position. A later call with --from POSITION+1 goes on after it, also over restarts of \
                  the service. With --json, one object per line; `event` names what happened, and `whole` says that \
                  the events so far amount to a state of the books. Text leaves out events of which only the version \
                  of a node is new.\n\
                  On a lost connection it connects again and goes on where it was. After more than 30 seconds it says \
                  so on standard error.\n\
                  Exit status: 0 all is printed, or told to end (ctrl-c); 1 the service refused, or the events from \
                  the position on are no longer kept; 2 wrong usage; 3 no connection at the beginning."
)]
pub(super) struct EventsArgs {
    /// Begin with the event at this position, with the `oldest` that is kept, or `now`. The default is `now` with --follow
    /// and `oldest` without it.
    #[arg(long, value_parser = begin)]
    from: Option<Begin>,
    /// Wait for further events, until told to end.
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Where the events begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    Oldest,
    Now,
    At(u64),
}

/// A begin that is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("give a position from 1 on, `oldest` or `now`")]
struct NoBegin;

fn begin(text: &str) -> Result<Begin, NoBegin> {
    match text {
        "oldest" => Ok(Begin::Oldest),
        "now" => Ok(Begin::Now),
        number => match number.parse() {
            Ok(position) if position > 0 => Ok(Begin::At(position)),
            _ => Err(NoBegin),
        },
    }
}

pub(super) async fn run(args: EventsArgs) -> anyhow::Result<Ended> {
    // First, so that a signal during startup is not lost.
    let mut interruption = Interruption::new()?;
    let client = args.connect.connect().await?;
    let mut follower = EventFollower::new(client, 0);
    let ended = {
        let events = Events { args: &args, printer: Printer::new(args.connect.json) };
        tokio::select! {
            ended = events.run(&mut follower) => ended,
            () = interruption.told() => Ok(Ended::Done),
        }
    };
    if ended.is_ok() {
        // The service answers a waiting request when another one arrives.
        let farewell = async {
            let _ = follower.poll(Duration::ZERO).await;
            follower.into_client().close().await;
        };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }
    ended
}

struct Events<'a> {
    args: &'a EventsArgs,
    printer: Printer,
}

impl Events<'_> {
    async fn run(&self, follower: &mut EventFollower) -> anyhow::Result<Ended> {
        let there = follower.poll(Duration::ZERO).await?;
        let otherwise = if self.args.follow { Begin::Now } else { Begin::Oldest };
        match self.args.from.unwrap_or(otherwise) {
            Begin::Oldest => follower.go_on_at(there.first),
            Begin::Now => {}
            Begin::At(position) => follower.go_on_at(position),
        }
        let mut backoff = Backoff::default();
        loop {
            let page =
                if self.args.follow { follower.next().await } else { follower.poll(Duration::ZERO).await };
            match page {
                Ok(page) if !page.reason.is_done() => {
                    explain(&page);
                    return Ok(Ended::Refused);
                }
                Ok(page) => {
                    backoff.reset();
                    page.events.iter().for_each(|event| self.printer.event(event));
                    if !self.args.follow && page.next >= there.end {
                        return Ok(Ended::Done);
                    }
                }
                Err(error) if self.args.follow && is_lost(&error) => {
                    eprintln!("wharf: lost: {error}");
                    follower.go_on_with(connect_again(&self.args.connect, &mut backoff).await?);
                    eprintln!("wharf: connected again");
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Says why there are no events at a position.
fn explain(page: &EventsReply) {
    let EventsReply { reason, first, end, next, .. } = page;
    eprintln!(
        "wharf: there is no event {next} ({reason}): those from {first} to before {end} are there; read the books \
         again, and go on from there"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_begin_is_a_position_or_a_word() {
        assert_eq!(begin("oldest"), Ok(Begin::Oldest));
        assert_eq!(begin("now"), Ok(Begin::Now));
        assert_eq!(begin("17"), Ok(Begin::At(17)));
        for wrong in ["0", "-1", "", "newest", "18446744073709551616"] {
            assert_eq!(begin(wrong), Err(NoBegin), "{wrong}");
        }
    }
}
