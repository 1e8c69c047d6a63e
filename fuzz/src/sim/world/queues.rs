//! Queues and the direct placements in them: what is asked at rest, and what is charged after a start.

use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_net::protocol::{DemandBody, PlaceRequest, Reason, ReasonCode};

use super::World;
use crate::sim::checkers::queues::{
    Charges, RefusedAtRest, a_start_keeps_the_charges, charges_are_in_the_books, kept, leaves,
    placements_are_charged, refusals_of_queues_are_true,
};
use crate::sim::checkers::{Verdict, named};
use crate::sim::client::Role;
use crate::sim::facts::Facts;
use crate::sim::network::Towards;

/// What is asked for in each queue at rest: half cores, MiB, and GPUs.
const PROBES: [(u32, u32, u8); 3] = [(1, 0, 0), (4, 1, 0), (0, 0, 1)];

/// One unit, in 1/10,000 of a unit.
const UNIT: i64 = 10_000;

impl World<'_> {
    /// Returns what is charged to each queue.
    pub(super) fn charges(&self) -> Charges {
        self.jobs().map(kept).unwrap_or_default()
    }

    /// Checks that queues are charged what they were before a start.
    pub(super) fn check_kept_charges(&self, before: &Charges) -> Verdict {
        named("a_start_keeps_the_charges", a_start_keeps_the_charges(before, &self.charges()))
    }

    /// Checks that queues are charged for what is in the books. Nothing is in progress.
    pub(super) fn check_charges(&self) -> Verdict {
        let (Some(watch), Some(jobs)) = (&self.jobs_watch, self.jobs()) else { return Ok(()) };
        // A task that waits for a cap is charged, and has no claim yet.
        if !jobs.waiting_for_cap().is_empty() {
            return Ok(());
        }
        let charged = charges_are_in_the_books(jobs, &self.facts, |job| watch.queue_of(job));
        named("charges_are_in_the_books", charged)
    }

    /// Checks that the placements in queues that clients were told of are charged to these.
    pub(super) fn check_charged(&self) -> Verdict {
        let Some(watch) = &self.jobs_watch else { return Ok(()) };
        let charged = self.clients.iter().flat_map(|client| &client.charged);
        let charged = placements_are_charged(charged, &self.facts, |job| watch.queue_of(job));
        named("placements_are_charged", charged)
    }

    /// Asks for placements in each queue, one after the other with `answer_all`, and judges each refusal. The world is at
    /// rest.
    pub(in crate::sim) fn probe_queues(
        &mut self,
        mut answer_all: impl FnMut(&mut Self) -> Verdict,
    ) -> Verdict {
        let user = self.clients.iter().position(|client| client.role == Role::User);
        let (Some(at), true) = (user, self.jobs_watch.is_some()) else { return Ok(()) };
        for queue in leaves() {
            for (half_cores, memory, gpus) in PROBES {
                let before = self.facts.clone();
                let body = DemandBody {
                    cpu: i64::from(half_cores) * UNIT / 2,
                    memory: i64::from(memory) * UNIT,
                    gpu: i64::from(gpus) * UNIT,
                    ..DemandBody::default()
                };
                let request = PlaceRequest { policy: 1, ..PlaceRequest::default() };
                let client = &mut self.clients[at];
                client.last_in_queue = None;
                let frame = client.ask_in_queue(queue.name, body, request);
                if let Some(connection) = client.connection {
                    self.network.send(connection, Towards::Server, frame);
                }
                answer_all(self)?;
                let reason = self.clients[at].last_in_queue.and_then(ReasonCode::known);
                let reason = reason.ok_or("a placement in a queue has no reply")?;
                let is_there = self.jobs().is_some_and(|jobs| jobs.queue_named(queue.name).is_some());
                // A task that waits for a cap is charged, and has no claim yet.
                let waits = self.jobs().is_some_and(|jobs| !jobs.waiting_for_cap().is_empty());
                // Something else may have happened meanwhile.
                if waits || reason == Reason::Done || !is_there || self.facts != before {
                    continue;
                }
                let gpu = if gpus == 0 { GpuRequest::None } else { GpuRequest::Whole(gpus) };
                let cpu = Amount::from_milli(half_cores * 500);
                let demand = Demand { cpu, memory: Amount::whole(memory), gpu, ..Demand::default() };
                let request = PlacementRequest::new(demand.clone(), Policy::BestFit);
                let offers = |facts: &Facts| {
                    let mut nodes = facts.nodes().map(|node| node.registration.id);
                    nodes.any(|node| facts.offers(node, &request))
                };
                let is_offered = self.facts.iter().any(offers);
                let watch = self.jobs_watch.as_ref().expect("just seen");
                let refused = RefusedAtRest { queue: queue.name, demand: &demand, reason, is_offered };
                let is_true = refusals_of_queues_are_true(refused, &self.facts, |job| watch.queue_of(job));
                named("refusals_of_queues_are_true", is_true)?;
            }
        }
        Ok(())
    }
}
