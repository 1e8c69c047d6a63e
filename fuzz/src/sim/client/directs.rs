//! Direct placements in queues: the requests of a client, and the replies to them.

use wharf_core::ids::{AllocationId, NodeId};
use wharf_core::time::Time;
use wharf_net::codec::{FrameRef, decode_body};
use wharf_net::protocol::{
    DemandBody, Kind, MODE_WAIT_UNTIL, Name, OPERATOR_IN, PlaceReply, PlaceRequest, Reason, SelectorTerm,
};

use super::{Asked, Client};
use crate::sim::checkers::Verdict;
use crate::sim::checkers::promises::Promise;
use crate::sim::checkers::queues::{Charged, Sum, leaves};
use crate::sim::choices::Choices;
use crate::sim::script;

/// One unit, in 1/10,000 of a unit.
const UNIT: i64 = 10_000;

impl Client {
    /// Places in a queue, lets a placement wait there, or releases one.
    pub(in crate::sim) fn ask_about_placements(&mut self, choices: &mut Choices<'_>, now: Time) -> Vec<u8> {
        let promised = self.charged.keys().filter(|id| self.promised.contains_key(id));
        let live: Vec<AllocationId> = promised.copied().collect();
        if !live.is_empty() && choices.one_in(3) {
            return script::ask_release(self, *choices.pick(&live));
        }
        let leaves: Vec<&'static str> = leaves().map(|queue| queue.name).collect();
        let queue = *choices.pick(&leaves);
        let demand = DemandBody {
            cpu: choices.below(5) as i64 * UNIT / 2,
            memory: choices.below(4) as i64 * UNIT,
            gpu: [UNIT, 4_000, 7_000, 0, 0, 0][choices.place(6)],
            ..DemandBody::default()
        };
        let mut request = PlaceRequest { policy: choices.below(9) as u8, ..PlaceRequest::default() };
        if choices.one_in(6) {
            let values = vec![Name((*choices.pick(&["a", "b"])).to_owned())];
            request.selectors = vec![SelectorTerm { key: "zone".to_owned(), operator: OPERATOR_IN, values }];
        }
        if choices.one_in(3) {
            let until = if choices.one_in(3) { 0 } else { now.0 + 1 + choices.below(30_000) };
            (request.mode, request.deadline) = (MODE_WAIT_UNTIL, until);
            request.priority = choices.below(3) as i32;
        }
        self.ask_in_queue(queue, demand, request)
    }

    /// Asks for a placement in a queue.
    pub(in crate::sim) fn ask_in_queue(
        &mut self,
        queue: &'static str,
        demand: DemandBody,
        request: PlaceRequest,
    ) -> Vec<u8> {
        let DemandBody { cpu, memory, gpu, .. } = demand;
        let asked = Sum { cpu, memory, gpu, allocations: 1 };
        let waits = request.mode == MODE_WAIT_UNTIL;
        let request = PlaceRequest { demand, queue: queue.to_owned(), ..request };
        self.ask(Kind::Place, &request, Asked::PlaceIn { charged: Charged { queue, asked }, waits })
    }

    pub(super) fn handle_placed_in_queue(
        &mut self,
        frame: &FrameRef<'_>,
        charged: Charged,
        waits: bool,
    ) -> Verdict {
        let (reply, _) = decode_body::<PlaceReply>(frame.payload).map_err(|error| error.to_string())?;
        self.last_in_queue = Some(reply.reason);
        // A crash may have taken a queue back that nobody was told of.
        let refusals =
            [Reason::NoFitNow, Reason::Infeasible, Reason::OverCap, Reason::Conflicted, Reason::UnknownQueue];
        let of_waits = [Reason::Cancelled, Reason::ShuttingDown];
        let is_known = reply.reason.is_done()
            || refusals.iter().any(|&no| reply.reason == no.into())
            || waits && of_waits.iter().any(|&no| reply.reason == no.into());
        if !is_known || reply.placed.is_some() != reply.reason.is_done() {
            return Err(format!("a placement in a queue was answered with {reply:?}"));
        }
        let Some(placed) = &reply.placed else { return Ok(()) };
        let id: AllocationId = placed.allocation.into();
        if id.tenant != self.tenant {
            return Err(format!("a client of tenant {} was granted {id}", self.tenant.0));
        }
        let gpus = placed.gpus.iter().fold(0, |mask, gpu| mask | 1 << gpu);
        let before = self.promised.insert(id, Promise { node: NodeId(placed.node), gpus });
        if before.is_some() || self.ended.contains(&id) || self.charged.insert(id, charged).is_some() {
            return Err(format!("allocation {id} was granted twice"));
        }
        Ok(())
    }
}
