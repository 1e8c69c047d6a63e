//! `wharf place --into` and `--group`: placements into a bundle of a group.

use clap::Args;
use wharf_core::ids::{AllocationId, GroupId};
use wharf_net::protocol::PlaceIntoRequest;

use super::connect::{ConnectArgs, DeadlineArgs};
use super::demand::DemandArgs;
use super::{Ended, print};

/// The arguments of [`SearchArgs`](super::place::SearchArgs), which a placement into a bundle does not take,
/// because the bundle determines the node. A conflict with all of them as a group would not name the given one.
const OF_OTHERS: [&str; 16] = [
    "policy",
    "attribute_order",
    "selectors",
    "candidates",
    "fallbacks",
    "preferred",
    "preferred_nodes",
    "node",
    "tolerations",
    "avoid_gpu",
    "wait",
    "priority",
    "owner",
    "lease",
    "queue",
    "explain_all",
];

#[derive(Debug, Args)]
pub(super) struct IntoArgs {
    /// Place into the bundle with this allocation id, as shown by `wharf group status`.
    #[arg(long, value_name = "ALLOCATION", conflicts_with_all = OF_OTHERS)]
    into: Option<AllocationId>,
    /// Place into a bundle of this group: the first with room, unless --bundle is given.
    #[arg(long, conflicts_with_all = OF_OTHERS, conflicts_with = "into")]
    group: Option<GroupId>,
    /// The index of the bundle in the group.
    #[arg(long, requires = "group")]
    bundle: Option<u32>,
}

impl IntoArgs {
    /// Returns whether the placement goes into a bundle.
    pub(super) fn is_given(&self) -> bool {
        self.into.is_some() || self.group.is_some()
    }
}

pub(super) async fn place(
    into: &IntoArgs,
    demand: &DemandArgs,
    deadline: DeadlineArgs,
    connect: &ConnectArgs,
) -> anyhow::Result<Ended> {
    let request = PlaceIntoRequest {
        allocation: into.into.map(Into::into),
        group: into.group.map(Into::into),
        bundle: into.bundle,
        demand: demand.body(),
    };
    let reply = connect.ask(async |client| deadline.of(client).place_into(&request).await).await?;
    let is_done = reply.reason.is_done();
    connect.show(is_done, || print::place_view(&reply), || print::place("placed", &reply))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::place::SearchArgs;

    #[test]
    fn a_placement_into_a_bundle_takes_no_argument_of_the_search() {
        let search = SearchArgs::augment_args(clap::Command::new("place"));
        let names: Vec<&str> = search.get_arguments().map(|argument| argument.get_id().as_str()).collect();
        assert_eq!(names, OF_OTHERS);
    }
}
