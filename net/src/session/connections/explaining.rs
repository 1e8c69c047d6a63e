//! Explanations of placements and groups that wait. Planners make them.

use wharf_core::group::{ExplainWait, PlanJob, WaitSubject};
use wharf_core::ids::{SessionId, TenantId};
use wharf_core::jobs::DirectWait;
use wharf_core::limits::PLANNERS_MAX;

use super::ConnectionService;
use super::input::{Asked, body_fault};
use super::operation::Parts;
use super::placing::end_of_wait;
use super::questions::Asker;
use crate::codec::decode_body;
use crate::convert::{PlacementDefaults, placement_request};
use crate::protocol::{ExplainWaitReply, ExplainWaitRequest, Fault, Kind, PlaceRequest, Reason};
use crate::session::waits_by_id::KnownWait;

impl ConnectionService {
    /// Explains why a placement or a group waits.
    ///
    /// # Errors
    /// Returns a fault if the request cannot be read, names what belongs to others, or nobody explains.
    pub(super) fn handle_explain_wait(&mut self, asker: Asker, asked: &Asked<'_>) -> Result<(), Fault> {
        let request: ExplainWaitRequest = self.read_scoped(asker, asked)?;
        if self.port.planner_count() == 0 {
            let message = format!(
                "this service has no planners (setting `planners` is 0), and so nobody explains what waits: set it to 1 to \
                 {PLANNERS_MAX}, and start the service again"
            );
            return Err(Fault::new(Reason::NotServed, message));
        }
        let tenant = self.tenant_of(asker);
        match self.explanation_of(asker, &request, tenant) {
            Ok(job) => self.submit_plan(asked.timed(asker), Parts::Plan(0), job),
            Err(fault) => self.answer(asker, &ExplainWaitReply::from(fault), asker.started),
        }
        Ok(())
    }

    /// Returns the job that explains what a request names.
    fn explanation_of(
        &mut self,
        asker: Asker,
        request: &ExplainWaitRequest,
        tenant: Option<TenantId>,
    ) -> Result<PlanJob, Fault> {
        let &ExplainWaitRequest { session, sequence, group, bundle } = request;
        match (session, group) {
            (None, Some(id)) if sequence == 0 => {
                self.check_kept(id.into())?;
                let of = WaitSubject::Group { id: id.into(), bundle };
                Ok(PlanJob::Explain(Box::new(ExplainWait { tenant, of })))
            }
            (Some(session), None) if bundle.is_none() => {
                self.waiting_placement(asker, (session.into(), sequence), tenant)
            }
            _ => {
                let message = "name either a session with a sequence, or a group, which may have a bundle";
                Err(Fault::of_field(Reason::InvalidField, "session", message))
            }
        }
    }

    /// Returns the job that explains a placement that waits, at any connection of the service. A tenant has its own only.
    fn waiting_placement(
        &mut self,
        asker: Asker,
        (session, sequence): (SessionId, u64),
        asks: Option<TenantId>,
    ) -> Result<PlanJob, Fault> {
        let is_seen = |wait: &KnownWait| asks.is_none_or(|tenant| tenant == wait.tenant);
        let Some(KnownWait { tenant, record }) = self.shared.waits.get(session, sequence).filter(is_seen)
        else {
            let message = format!(
                "nothing waits at sequence {sequence} of session {session}: it has ended, or it never waited"
            );
            return Err(Fault::of_field(Reason::UnknownWait, "sequence", message));
        };
        if record.kind != Kind::Place.number() {
            let message = format!(
                "a group waits at sequence {sequence} of session {session}: name the group, as the list of groups does"
            );
            return Err(Fault::of_field(Reason::InvalidField, "sequence", message));
        }
        let (request, _) = decode_body::<PlaceRequest>(&record.request).map_err(body_fault)?;
        let priority = request.priority;
        let until = end_of_wait(&request);
        if !request.queue.is_empty() {
            let wait = DirectWait { id: (session, sequence), priority, until };
            return Ok(PlanJob::ExplainInQueue(wait, record.since));
        }
        let defaults = PlacementDefaults { tenant, ..self.placement_defaults(asker.connection) };
        match placement_request(request, self.port.catalog(), defaults) {
            Ok(request) => {
                let request = Box::new(request);
                let of = WaitSubject::Placement { request, priority, since: record.since, until };
                Ok(PlanJob::Explain(Box::new(ExplainWait { tenant: asks, of })))
            }
            // It was checked when it began to wait.
            Err(reply) => Err(reply.fault.unwrap_or_else(|| Fault::new(Reason::Unavailable, "ask again"))),
        }
    }
}
