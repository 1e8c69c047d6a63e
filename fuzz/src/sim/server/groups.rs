//! The groups that clients made over their sessions, as the service told of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_core::group::GroupSpec;
use wharf_core::ids::{GroupId, SessionId};
use wharf_core::registrar::Catalog;
use wharf_core::request::Policy;
use wharf_core::state::GroupRecord;
use wharf_net::codec::{FLAG_ERROR, FrameRef, decode_body};
use wharf_net::convert::{PlacementDefaults, group_spec};
use wharf_net::protocol::{GroupReply, Kind, RemoveGroupReply, RemoveGroupRequest};

use crate::sim::checkers::Verdict;
use crate::sim::checkers::crash::UndecidedGroups;
use crate::sim::checkers::sessions::groups_have_one_request;

/// A request: its session and its sequence.
type Request = (SessionId, u64);

/// A request whose effect nobody was told of.
#[derive(Debug)]
enum Open {
    Create(Arc<GroupSpec>),
    Remove(GroupId),
}

/// A group that its client was told of.
#[derive(Debug)]
struct Told {
    by: Request,
    /// The indices of its bundles.
    bundles: BTreeSet<u32>,
}

/// The groups of all sessions.
#[derive(Debug, Default)]
pub(in crate::sim) struct SessionGroups {
    told: BTreeMap<GroupId, Told>,
    open: BTreeMap<Request, Open>,
}

/// Returns whether a group was made by a client. The callers of planners within the process use other policies.
pub(in crate::sim) fn is_of_session(group: &GroupRecord) -> bool {
    let of_process = [Policy::BestFit, Policy::LeastFit, Policy::FirstFit, Policy::Random];
    group.bundles.first().is_some_and(|bundle| !of_process.contains(&bundle.request.policy))
}

impl SessionGroups {
    /// Notes a request that is about to arrive.
    pub(super) fn expect(
        &mut self,
        request: Request,
        frame: &FrameRef<'_>,
        catalog: &Catalog,
        defaults: PlacementDefaults,
    ) {
        let open = match Kind::from_number(frame.header.kind) {
            Some(Kind::CreateGroup) => {
                let wire = decode_body(frame.payload).expect("our own body").0;
                group_spec(wire, catalog, defaults).ok().map(|spec| Open::Create(Arc::new(spec)))
            }
            Some(Kind::RemoveGroup) => {
                let (wire, _) = decode_body::<RemoveGroupRequest>(frame.payload).expect("our own body");
                Some(Open::Remove(wire.group.into()))
            }
            _ => None,
        };
        if let Some(open) = open {
            self.open.entry(request).or_insert(open);
        }
    }

    /// Handles the first outcome of a request.
    ///
    /// # Errors
    /// Returns both requests that made a group.
    pub(super) fn handle_outcome(&mut self, request: Request, frame: &FrameRef<'_>) -> Verdict {
        let open = self.open.remove(&request);
        if frame.header.flags & FLAG_ERROR != 0 {
            return Ok(());
        }
        match Kind::from_number(frame.header.kind) {
            Some(kind @ (Kind::CreateGroup | Kind::GrowGroup)) => {
                let (reply, _) = decode_body::<GroupReply>(frame.payload).expect("our own body");
                let Some(group) = reply.group else { return Ok(()) };
                let id = group.id.into();
                let indices = group.bundles.iter().map(|bundle| bundle.index);
                if kind == Kind::GrowGroup {
                    // It may have been asked to be removed meanwhile.
                    self.told.entry(id).and_modify(|told| told.bundles.extend(indices));
                    return Ok(());
                }
                let told = self.told.entry(id);
                let told = told.or_insert_with(|| Told { by: request, bundles: indices.collect() });
                groups_have_one_request(id, told.by, request)
            }
            Some(Kind::RemoveGroup) => {
                let (reply, _) = decode_body::<RemoveGroupReply>(frame.payload).expect("our own body");
                if let Some(Open::Remove(group)) = open.filter(|_| reply.reason.is_done()) {
                    self.told.remove(&group);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Forgets the requests of a session that is gone. Nothing of them was done.
    pub(in crate::sim) fn lose(&mut self, session: SessionId) {
        self.open.retain(|(of, _), _| *of != session);
    }

    /// Returns whether a client was told of this group.
    pub(in crate::sim) fn has(&self, group: GroupId) -> bool {
        self.told.contains_key(&group)
    }

    /// Returns the bundles of each group that a client was told of.
    pub(in crate::sim) fn bundles(&self) -> impl Iterator<Item = (GroupId, BTreeSet<u32>)> {
        self.told.iter().map(|(id, told)| (*id, told.bundles.clone()))
    }

    /// Adds the requests whose effect nobody was told of.
    pub(in crate::sim) fn add_undecided(&self, undecided: &mut UndecidedGroups) {
        for open in self.open.values() {
            match open {
                Open::Create(spec) => undecided.created.push(Arc::clone(spec)),
                Open::Remove(group) => drop(undecided.removed.insert(*group)),
            }
        }
    }

    /// Returns the groups that planners may keep, of those that they do: all that clients were told of, without those
    /// whose removal nobody was told of, and those whose creation nobody was told of.
    pub(in crate::sim) fn expected(&self, kept: &[GroupRecord]) -> BTreeSet<GroupId> {
        let mut undecided = UndecidedGroups::default();
        self.add_undecided(&mut undecided);
        let is_kept = |id: &GroupId| kept.iter().any(|group| group.id == *id);
        let told = self.told.keys().copied();
        let mut expected: BTreeSet<GroupId> =
            told.filter(|id| is_kept(id) || !undecided.removed.contains(id)).collect();
        let asked = |group: &&GroupRecord| is_of_session(group) && undecided.has_asked_for(&group.spec);
        expected.extend(kept.iter().filter(asked).map(|group| group.id));
        expected
    }
}
