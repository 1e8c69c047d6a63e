//! `wharf status`.

use clap::Args;
use wharf_net::protocol::StatusRequest;

use super::connect::ConnectArgs;
use super::{Ended, print};

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Also check every invariant of the books and print their canonical hash.
    #[arg(long)]
    audit: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) async fn run(args: StatusArgs) -> anyhow::Result<Ended> {
    let client = args.connect.connect().await?;
    let status = client.status_details(&StatusRequest { audit: args.audit }).await?;
    client.close().await;
    if args.connect.json {
        print::json(&print::StatusView::from(&status))?;
    } else {
        print::status(&status);
    }
    Ok(Ended::Done)
}
