//! Pages of the node list. The registrar knows the nodes of a page and the shard of each. It asks each shard
//! only for its nodes of the page, so shards look at no other nodes.

use std::collections::BTreeMap;

use wharf_core::ids::{Ordinal, ShardId};
use wharf_core::limits::NODES_PER_MESSAGE_MAX;
use wharf_core::router::PortRequest;
use wharf_core::shard::{Command, NodeView};

use super::{Job, JobKind, RegistrarReply, RegistrarService};
use crate::codec::encode_body;
use crate::convert::node_status;
use crate::limits::LIST_BYTES_MAX;
use crate::protocol::{LISTS_UNDER_WAY_MAX, ListReply};
use crate::session::tags::tag;

/// A page in progress: the shards are asked for its nodes.
pub(super) struct Listing {
    /// The last node of the page.
    last: Ordinal,
    /// Maximum number of nodes of the page.
    limit: u16,
    /// True if there are nodes after the page.
    more: bool,
    views: Vec<NodeView>,
}

impl Listing {
    /// Adds the nodes of one shard.
    pub(super) fn add(&mut self, views: Vec<NodeView>) {
        // A shard returns later nodes in place of nodes that it has removed meanwhile.
        self.views.extend(views.into_iter().filter(|view| view.registration.ordinal <= self.last));
    }
}

impl<T> RegistrarService<T> {
    /// Begins pages that are wanted while there is room. A page takes memory at every shard, here and at its connection,
    /// so few are in the making.
    pub(super) fn begin_lists(&mut self) {
        while self.lists_under_way < LISTS_UNDER_WAY_MAX
            && self.has_room()
            && let Some((request, due, reply)) = self.lists_wanted.pop_front()
        {
            if due.is_missed(self.now) {
                self.answer_late(reply);
                continue;
            }
            self.lists_under_way += 1;
            let limit = request.limit.clamp(1, NODES_PER_MESSAGE_MAX as u16);
            self.start_list(Ordinal(request.after), limit, reply);
        }
    }

    /// Asks each shard for its nodes of the page only.
    fn start_list(&mut self, after: Ordinal, limit: u16, reply: T) {
        let mut counts: BTreeMap<ShardId, u16> = BTreeMap::new();
        let mut later = self.registrar.nodes_after(after);
        let mut last = after;
        for (ordinal, partition) in later.by_ref().take(usize::from(limit)) {
            last = ordinal;
            let shard = self.port.shard_of(partition).expect("a registered node has a shard");
            *counts.entry(shard).or_default() += 1;
        }
        let more = later.next().is_some();
        drop(later);
        let listing = Listing { last, limit, more, views: Vec::new() };
        if counts.is_empty() {
            return self.complete_list(listing, Some(reply));
        }
        let kind = JobKind::List(listing);
        let key = self.jobs.insert(Job { reply: Some(reply), left: counts.len(), kind });
        for (part, (shard, limit)) in counts.into_iter().enumerate() {
            self.send(tag(key, part), PortRequest::Shard(shard, Command::ListNodes { after, limit }));
        }
        self.port.flush();
    }

    pub(super) fn complete_list(&mut self, mut listing: Listing, reply: Option<T>) {
        let Some(reply) = reply else { return };
        if listing.views.is_empty() && listing.more {
            // All nodes of the page were removed meanwhile. An empty page would end the list.
            return self.start_list(listing.last, listing.limit, reply);
        }
        listing.views.sort_unstable_by_key(|view| view.registration.ordinal);
        let resources = self.registrar.resources_mut();
        let mut nodes = Vec::new();
        // Encoded only to learn the length: the page ends where its frame would be full.
        let mut page = Vec::new();
        for view in &listing.views {
            let node = node_status(view, resources);
            encode_body(&node, &mut page);
            if page.len() > LIST_BYTES_MAX {
                break;
            }
            nodes.push(node);
        }
        let more = listing.more || nodes.len() < listing.views.len();
        self.lists_under_way -= 1;
        self.answer(reply, RegistrarReply::List(ListReply { more, nodes }));
    }
}
