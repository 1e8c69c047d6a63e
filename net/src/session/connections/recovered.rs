//! Requests that an earlier start of the service has done, or done in part.
//!
//! A crash may come between an effect and the reply to its request. The journal then has what the request did, without the
//! whole reply. If the client sends the request again, its reply is built from that. Parts that were not done are
//! executed.

use wharf_core::group::{NoGroup, PlanJob, StatementReport};
use wharf_core::ids::{GroupId, NodeId};
use wharf_core::link::Decision;
use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::registrar::Catalog;
use wharf_core::shard::ReservationChange;
use wharf_core::state::Deed;
use wharf_core::statement::Applied;

use super::ConnectionService;
use super::input::{Asked, read_body};
use super::operation::Parts;
use super::questions::Asker;
use crate::convert::{group_reply, placed_reply, removed_group, reserve_reply, statement_reply};
use crate::protocol::{
    Fault, GROUP_NOT_SHOWN, GroupBody, GroupReply, Kind, PlaceReply, ReleaseReply, StatementRequest,
};
use crate::session::Parts as SessionParts;
use crate::session::registrar::RegistrarRequest as Request;

impl ConnectionService {
    /// Answers a request of which an earlier start did `done`. Executes the parts that were not done.
    pub(super) fn handle_recovered(
        &mut self,
        asker: Asker,
        asked: &Asked<'_>,
        mut done: SessionParts,
    ) -> Result<(), Fault> {
        let now = asker.started;
        match asker.kind {
            Kind::PlaceBatch => self.handle_place_batch(asker, read_body(asked)?, done),
            Kind::ReleaseBatch => self.handle_release_batch(asker, &read_body(asked)?, done),
            Kind::AddNodes => self.ask_registrar(asker, Request::Add(read_body(asked)?), done),
            Kind::UpdateNodes => self.ask_registrar(asker, Request::Update(read_body(asked)?), done),
            Kind::DrainNodes => self.ask_registrar(asker, Request::Drain(read_body(asked)?), done),
            Kind::RemoveNodes => self.ask_registrar(asker, Request::Remove(read_body(asked)?), done),
            Kind::SetResources => self.ask_registrar(asker, Request::SetResources(read_body(asked)?), done),
            kind => match done.remove(0).1 {
                deed @ Deed::Placed(..) => {
                    let reply = deed_reply(deed, self.port.catalog());
                    self.answer(asker, &reply, now);
                }
                deed @ Deed::Released(_) => self.answer(asker, &release_deed(&deed), now),
                Deed::GroupChanged(_) if is_planted(PlantedBug::GroupCreatedAgain) => {
                    return self.handle_planning(asker, asked);
                }
                Deed::GroupChanged(group) => self.show_group(asker, group),
                Deed::GroupRemoved(..) if matches!(kind, Kind::CreateGroup | Kind::GrowGroup) => {
                    let removed = group_reply(&Err(NoGroup::Removed), self.port.catalog());
                    self.answer(asker, &removed, now);
                }
                Deed::GroupRemoved(group, bundles) => {
                    self.answer(asker, &removed_group(&Ok((group, bundles))), now);
                }
                Deed::Jobs(done) => self.answer_jobs(asker, &done.into(), now),
                Deed::ReservationEnded(node) => {
                    let ended = Ok(ReservationChange::Ended(node));
                    let reply = reserve_reply(ended, &self.port.catalog().resources);
                    self.answer(asker, &reply, now);
                }
                Deed::Statement(statement, mut granted, mut names) => {
                    // Each shard has recorded its own operations.
                    for (_, deed) in done {
                        if let Deed::Statement(_, more, more_names) = deed {
                            granted.extend(more);
                            names.extend(more_names);
                        }
                    }
                    let request: StatementRequest = read_body(asked)?;
                    let applied = Applied {
                        statement,
                        decision: Decision::Committed,
                        granted,
                        conflicts: Vec::new(),
                        visible_from: 0,
                    };
                    let report = StatementReport {
                        statement,
                        applied: vec![applied],
                        conflicts: Vec::new(),
                        expired: false,
                    };
                    let count = request.operations.len();
                    let mut reply = statement_reply(&Ok(Box::new(report)), count, self.port.catalog());
                    for placed in
                        reply.operations.iter_mut().filter_map(|operation| operation.placed.as_mut())
                    {
                        if let Some(name) = names.get(&NodeId(placed.node)) {
                            placed.node_name = name.to_string();
                        }
                    }
                    self.answer(asker, &reply, now);
                }
                deed => unreachable!("a request of {kind:?} has not done {deed:?}"),
            },
        }
        Ok(())
    }

    /// Shows a group as it is now. Nobody was told of it before.
    fn show_group(&mut self, asker: Asker, group: GroupId) {
        if self.port.planner_count() == 0 || self.check_kept(group).is_err() {
            let body = GroupBody { id: group.into(), state: GROUP_NOT_SHOWN, ..GroupBody::default() };
            let reply = GroupReply { group: Some(body), ..GroupReply::default() };
            return self.answer(asker, &reply, asker.started);
        }
        self.submit_plan(asker, Parts::Plan(0), PlanJob::GroupStatus(group));
    }
}

/// Returns the reply to a placement that an earlier start did.
pub(super) fn deed_reply(deed: Deed, catalog: &Catalog) -> PlaceReply {
    let Deed::Placed(placement, name) = deed else { unreachable!("a placement has not done {deed:?}") };
    let mut reply = placed_reply(&placement, catalog);
    if let (Some(name), Some(placed)) = (name, &mut reply.placed) {
        // The node was removed since.
        placed.node_name = name.to_string();
    }
    reply
}

/// Returns the reply to a release that an earlier start did.
pub(super) fn release_deed(deed: &Deed) -> ReleaseReply {
    let &Deed::Released(inside_ended) = deed else { unreachable!("a release has not done {deed:?}") };
    ReleaseReply { inside_ended, ..ReleaseReply::default() }
}
