//! What a start must know of the requests of clients: an outcome that leads to each reply that may have left.
//!
//! A reply may leave once the position of the journal that it waits for is durable, whether its thread has sent it by then
//! or not. From then on, each start has an outcome of its request that leads to the same reply, until the client has
//! acknowledged it. The scheme is RIFL (Lee et al., "Implementing linearizability at large scale and low latency", SOSP
//! 2015).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_core::ids::SessionId;
use wharf_core::jobs::JobsDone;
use wharf_core::request::Placement;
use wharf_core::state::{Deed, KeptOutcome, SessionRecord};
use wharf_net::codec::{FLAG_ERROR, decode_body, decode_frame};
use wharf_net::protocol::{
    FRAME_BYTES_MAX, GroupReply, JobReply, Kind, PlaceReply, PriorityClassReply, QueueReply, Reason,
    ReleaseReply, RemoveGroupReply, ReportTasksReply,
};

use super::{Verdict, ensure};

/// A request: its session and its sequence.
type Request = (SessionId, u64);

/// A reply to a request.
#[derive(Clone, Debug)]
struct Due {
    /// It may leave once this many units of the journal are durable.
    position: u64,
    frame: Arc<[u8]>,
}

/// What a client has acknowledged in its session.
#[derive(Clone, Debug, Default)]
pub struct Acknowledged {
    /// All sequences below this one, perhaps without waits.
    pub mark: u64,
    /// Waits.
    pub waits: BTreeSet<u64>,
}

impl Acknowledged {
    fn has(&self, sequence: u64) -> bool {
        sequence < self.mark || self.waits.contains(&sequence)
    }
}

/// The replies of a start that may leave at some position of its journal, and those that earlier starts have sent.
#[derive(Clone, Debug, Default)]
pub struct Replies {
    due: BTreeMap<Request, Due>,
    acknowledged: BTreeMap<SessionId, Acknowledged>,
    /// The sessions that their clients have ended, and how many things had been done to the disk then.
    ended: BTreeMap<SessionId, usize>,
}

/// The moment at which a start ends.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The number of units that are durable.
    pub durable: u64,
    /// The number of things that were done to the disk.
    pub events: usize,
}

impl Replies {
    /// Notes the frame of a reply that may leave once `position` units are durable. The lowest position counts.
    pub fn add(&mut self, request: Request, position: u64, frame: &[u8]) {
        let due = self.due.entry(request).or_insert_with(|| Due { position, frame: frame.into() });
        due.position = due.position.min(position);
    }

    /// Notes that a client has ended its session, when this many things had been done to the disk.
    pub fn end(&mut self, session: SessionId, events: usize) {
        self.ended.insert(session, events);
    }

    /// Notes what clients have acknowledged in their sessions.
    pub fn set_acknowledged(&mut self, acknowledged: impl Iterator<Item = (SessionId, Acknowledged)>) {
        self.acknowledged.extend(acknowledged);
    }

    /// Goes on with the next start. What could not leave is forgotten, and so is what clients have acknowledged.
    pub fn go_on(&mut self, durable: u64, acknowledged: impl Iterator<Item = (SessionId, Acknowledged)>) {
        self.acknowledged = acknowledged.collect();
        let Self { due, acknowledged, ended } = self;
        ended.clear();
        due.retain(|(session, sequence), due| {
            let is_open = acknowledged.get(session).is_some_and(|known| !known.has(*sequence));
            due.position <= durable && is_open
        });
        due.values_mut().for_each(|due| due.position = 0);
    }

    /// Returns the number of replies that may have left at a moment.
    #[must_use]
    pub fn count(&self, moment: Moment) -> usize {
        self.left_by(moment).count()
    }

    fn left_by(&self, moment: Moment) -> impl Iterator<Item = (&Request, &Due)> {
        self.due.iter().filter(move |((session, _), due)| {
            let is_ended = self.ended.get(session).is_some_and(|&events| events <= moment.events);
            due.position <= moment.durable && !is_ended
        })
    }

    /// Checks the sessions of a start after a crash at this moment.
    ///
    /// # Errors
    /// Returns a reply that they do not lead to, or a client that has acknowledged less than they say.
    pub fn a_start_keeps_the_outcomes(&self, sessions: &[SessionRecord], moment: Moment) -> Verdict {
        let by_id: BTreeMap<SessionId, &SessionRecord> =
            sessions.iter().map(|session| (session.id, session)).collect();
        for (id, session) in &by_id {
            if let Some(&Acknowledged { mark, .. }) = self.acknowledged.get(id) {
                ensure(session.mark <= mark, || {
                    format!("session {id} is acknowledged up to {}, and its client says {mark}", session.mark)
                })?;
            }
        }
        for (&(id, sequence), Due { frame, .. }) in self.left_by(moment) {
            let session = by_id.get(&id);
            let session = session.ok_or_else(|| {
                format!("session {id} is gone, and its request {sequence} was answered with {frame:?}")
            })?;
            let kept = session.outcomes.get(&sequence).map(|record| &record.outcome);
            let waits = self.acknowledged.get(&id).map(|known| &known.waits);
            let is_wait_acknowledged = waits.is_some_and(|waits| waits.contains(&sequence));
            if kept.is_none() && (sequence < session.mark || is_wait_acknowledged) {
                continue;
            }
            ensure(kept.is_some_and(|kept| leads_to(kept, frame)), || {
                format!(
                    "request {sequence} of session {id} was answered with {frame:?}, and its outcome is {kept:?}"
                )
            })?;
        }
        Ok(())
    }
}

/// Returns whether an outcome leads to the reply that this frame is.
fn leads_to(outcome: &KeptOutcome, frame: &[u8]) -> bool {
    let parts = match outcome {
        KeptOutcome::Reply(kept) => return **kept == *frame,
        KeptOutcome::Parts(parts) => parts,
    };
    let decoded = decode_frame(frame, FRAME_BYTES_MAX).ok().flatten().expect("a frame that was sent");
    let kind = Kind::from_number(decoded.header.kind).expect("a request of a known kind");
    if decoded.header.flags & FLAG_ERROR != 0 {
        return false;
    }
    match (kind, &parts[..]) {
        (Kind::Place, [(0, Deed::Placed(placement, name))]) => {
            let (reply, _) = decode_body::<PlaceReply>(decoded.payload).expect("a body that was sent");
            is_reply_to(&reply, placement, name.as_deref())
        }
        (Kind::Release, [(0, Deed::Released(inside))]) => {
            let (reply, _) = decode_body::<ReleaseReply>(decoded.payload).expect("a body that was sent");
            reply.reason.is_done() && reply.inside_ended == *inside
        }
        (Kind::CreateGroup | Kind::GrowGroup, [(0, Deed::GroupChanged(id))]) => {
            let (reply, _) = decode_body::<GroupReply>(decoded.payload).expect("a body that was sent");
            reply.group.is_some_and(|group| group.id == (*id).into())
        }
        (Kind::CreateGroup | Kind::GrowGroup, [(0, Deed::GroupRemoved(..))]) => {
            let (reply, _) = decode_body::<GroupReply>(decoded.payload).expect("a body that was sent");
            reply.reason == Reason::Cancelled.into()
        }
        (Kind::RemoveGroup, [(0, Deed::GroupRemoved(_, ended))]) => {
            let (reply, _) = decode_body::<RemoveGroupReply>(decoded.payload).expect("a body that was sent");
            reply.reason.is_done() && reply.bundles_ended == *ended
        }
        (kind, [(0, Deed::Jobs(done))]) => tells_of(kind, done, decoded.payload),
        // The reply to each other request is recorded whole.
        _ => false,
    }
}

/// Returns whether the body of a reply tells of this change of queues, jobs or tasks.
fn tells_of(kind: Kind, done: &JobsDone, payload: &[u8]) -> bool {
    match (kind, done) {
        (Kind::SetQueue, JobsDone::QueueSet) | (Kind::RemoveQueue, JobsDone::QueueRemoved) => {
            let (reply, _) = decode_body::<QueueReply>(payload).expect("a body that was sent");
            reply.reason.is_done()
        }
        (Kind::SetPriorityClass, JobsDone::ClassSet)
        | (Kind::RemovePriorityClass, JobsDone::ClassRemoved) => {
            let (reply, _) = decode_body::<PriorityClassReply>(payload).expect("a body that was sent");
            reply.reason.is_done()
        }
        (Kind::SubmitJob, JobsDone::Submitted(id)) | (Kind::CancelJob, JobsDone::Cancelled(id)) => {
            let (reply, _) = decode_body::<JobReply>(payload).expect("a body that was sent");
            reply.reason.is_done() && reply.job == id.0
        }
        (Kind::ReportTasks, JobsDone::Reported(outdated)) => {
            let (reply, _) = decode_body::<ReportTasksReply>(payload).expect("a body that was sent");
            reply.reason.is_done() && reply.outdated == *outdated
        }
        _ => false,
    }
}

/// Returns whether a reply tells of this placement.
fn is_reply_to(reply: &PlaceReply, placement: &Placement, name: Option<&str>) -> bool {
    let Some(placed) = reply.placed.as_ref().filter(|_| reply.reason.is_done()) else { return false };
    placed.allocation == placement.allocation.into()
        && placed.node == placement.node.0
        && Some(&*placed.node_name) == name
        && placed.gpus.iter().copied().eq(placement.gpus.instances())
        && placed.gpu_part == placement.gpus.part
        && placed.units.is_empty() == placement.units.is_none()
        && reply.alternative == placement.alternative
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use wharf_core::ids::{AllocationId, Incarnation, NodeId, PartitionId, TenantId};
    use wharf_core::resource::GpuAssignment;
    use wharf_core::state::OutcomeRecord;
    use wharf_net::codec::{FLAG_REPLY, Header};
    use wharf_net::protocol::{BODY_VERSION, PlacedBody};

    use crate::sim::server::framed;

    const SESSION: SessionId = SessionId { incarnation: Incarnation(1), number: 1 };

    fn frame<T: serde::Serialize>(kind: Kind, sequence: u64, body: &T) -> Vec<u8> {
        let kind = kind.number();
        framed(Header { kind, flags: FLAG_REPLY, version: BODY_VERSION, sequence, ..Header::default() }, body)
    }

    fn up_to(mark: u64) -> Acknowledged {
        Acknowledged { mark, ..Acknowledged::default() }
    }

    fn placement() -> Placement {
        let allocation = AllocationId {
            incarnation: Incarnation(1),
            partition: PartitionId(2),
            sequence: 3,
            tenant: TenantId::OPERATOR,
        };
        Placement { node: NodeId(4), allocation, gpus: GpuAssignment::default(), alternative: 0, units: None }
    }

    fn placed() -> PlaceReply {
        let Placement { node, allocation, .. } = placement();
        let node_name = "n".to_owned();
        let placed =
            PlacedBody { node: node.0, node_name, allocation: allocation.into(), ..PlacedBody::default() };
        PlaceReply { placed: Some(placed), ..PlaceReply::default() }
    }

    fn session(mark: u64, outcomes: Vec<(u64, KeptOutcome)>) -> Vec<SessionRecord> {
        let record = |outcome| OutcomeRecord { fingerprint: 0, is_wait: false, wait: None, outcome };
        let outcomes = outcomes.into_iter().map(|(sequence, outcome)| (sequence, record(outcome)));
        vec![SessionRecord { id: SESSION, token: [0; 16], mark, outcomes: outcomes.collect() }]
    }

    fn done(deed: Deed) -> KeptOutcome {
        KeptOutcome::Parts(vec![(0, deed)])
    }

    #[test]
    pub fn an_outcome_that_a_start_lost() {
        let grant = frame(Kind::Place, 1, &placed());
        let release = frame(Kind::Release, 2, &ReleaseReply::default());
        let refusal = frame(Kind::Place, 3, &PlaceReply::default());
        let mut replies = Replies::default();
        replies.add((SESSION, 1), 5, &grant);
        replies.add((SESSION, 2), 6, &release);
        replies.add((SESSION, 3), 7, &refusal);
        replies.set_acknowledged([(SESSION, up_to(2))].into_iter());
        let at = |durable| Moment { durable, events: 10 };
        let check = |sessions: &[SessionRecord], durable| {
            replies.a_start_keeps_the_outcomes(sessions, at(durable)).is_ok()
        };
        let granted = done(Deed::Placed(placement().into(), Some("n".into())));
        let released = done(Deed::Released(None));
        let whole = KeptOutcome::Reply(refusal.clone().into());
        let first = session(1, vec![(1, granted.clone())]);
        let two = session(1, vec![(1, granted.clone()), (2, released.clone())]);
        let all = session(1, vec![(1, granted.clone()), (2, released.clone()), (3, whole)]);
        assert!(check(&[], 4) && check(&first, 5) && check(&two, 6) && check(&all, 7));
        assert_eq!(replies.count(at(6)), 2);
        assert!(!check(&[], 5), "the session is gone");
        assert!(!check(&session(1, Vec::new()), 5), "an outcome is gone");
        assert!(!check(&first, 6), "a later one is gone");
        assert!(!check(&two, 7), "a reply that no effect tells is gone");
        assert!(check(&session(2, vec![(2, released.clone())]), 6), "the client has acknowledged it");
        assert!(!check(&session(3, Vec::new()), 6), "the client has not acknowledged that much");

        let on_another = Placement { node: NodeId(5), ..placement() };
        for other in [
            done(Deed::Placed(on_another.into(), Some("n".into()))),
            done(Deed::Placed(placement().into(), None)),
            done(Deed::Released(None)),
            KeptOutcome::Parts(Vec::new()),
            KeptOutcome::Reply(refusal.into()),
        ] {
            assert!(!check(&session(1, vec![(1, other.clone())]), 5), "{other:?}");
        }
        let inside = done(Deed::Released(Some(1)));
        assert!(!check(&session(1, vec![(1, granted), (2, inside)]), 6), "another number inside");

        let mut ended = replies.clone();
        ended.end(SESSION, 10);
        assert_eq!(ended.a_start_keeps_the_outcomes(&[], at(7)), Ok(()), "its client has ended it");
        assert!(ended.a_start_keeps_the_outcomes(&[], Moment { durable: 7, events: 9 }).is_err());

        let mut waited = replies.clone();
        waited.set_acknowledged([(SESSION, Acknowledged { mark: 2, waits: [2].into() })].into_iter());
        assert_eq!(waited.a_start_keeps_the_outcomes(&first, at(6)), Ok(()), "a wait that is acknowledged");

        replies.go_on(6, [(SESSION, up_to(2))].into_iter());
        assert_eq!(replies.count(at(0)), 1, "what left and is not acknowledged");
        assert!(replies.a_start_keeps_the_outcomes(&session(2, Vec::new()), at(0)).is_err());
        assert_eq!(replies.a_start_keeps_the_outcomes(&session(2, vec![(2, released)]), at(0)), Ok(()));
    }
}
